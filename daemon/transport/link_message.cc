#include "daemon/transport/link_message.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/ids.h"
#include "daemon/base/status_macros.h"
#include "daemon/transport/shown.h"
#include "proto/ckptd/v1/link.pb.h"

namespace ckptd::transport {
namespace {

absl::Status Wrong(const std::string& job, absl::string_view what) {
  return Error(ErrorCode::PROTOCOL, absl::StrCat("job ", job, ": ", what));
}

absl::Status CheckSpeaker(const std::string& job, const std::string& said, const std::string& agent) {
  if (said == agent) return absl::OkStatus();
  return Wrong(job, absl::StrCat("agent ", Shown(agent), " speaks as ", Shown(said)));
}

template <typename Ranks>
absl::Status CheckRanks(const std::string& job, const Ranks& ranks) {
  if (static_cast<size_t>(ranks.size()) > kMaxLinkRanks)
    return Wrong(job, absl::StrCat(ranks.size(), " ranks; at most ", kMaxLinkRanks));
  for (const auto& rank : ranks) {
    if (rank.rank() >= kMaxLinkRanks) return Wrong(job, absl::StrCat("rank ", rank.rank(), " is too high"));
  }
  return absl::OkStatus();
}

absl::Status CheckState(const v1::State& state, const std::string& agent) {
  CKPTD_RETURN_IF_ERROR(CheckSpeaker(state.job(), state.coordinator(), agent));
  CKPTD_RETURN_IF_ERROR(CheckRanks(state.job(), state.tickets()));
  CKPTD_RETURN_IF_ERROR(CheckRanks(state.job(), state.decision().ranks()));
  if (state.world_size() > kMaxLinkRanks)
    return Wrong(state.job(), absl::StrCat("world size ", state.world_size(), "; at most ", kMaxLinkRanks));
  return absl::OkStatus();
}

absl::Status CheckReport(const v1::Report& report, const std::string& agent) {
  CKPTD_RETURN_IF_ERROR(CheckSpeaker(report.job(), report.agent(), agent));
  return CheckRanks(report.job(), report.ranks());
}

constexpr size_t kRecentStates = 2;

// A LinkRequest whose body is `body`, without a copy of it: 10,000 ranks are 20,000 objects.
template <typename Body>
std::string Serialise(int field, const Body& body) {
  constexpr uint32_t kLengthDelimited = 2;
  std::string bytes;
  google::protobuf::io::StringOutputStream out(&bytes);
  google::protobuf::io::CodedOutputStream coded(&out);
  coded.WriteTag(static_cast<uint32_t>(field) << 3 | kLengthDelimited);
  coded.WriteVarint32(static_cast<uint32_t>(body.ByteSizeLong()));
  body.SerializeWithCachedSizes(&coded);
  coded.Trim();
  return bytes;
}

}  // namespace

std::shared_ptr<const std::string> LinkMessage::wire() const {
  MutexLock lock(wire_->mutex);
  if (wire_->bytes == nullptr) {
    wire_->bytes =
        std::make_shared<const std::string>(state_ ? Serialise(v1::LinkRequest::kStateFieldNumber, *state_)
                                                   : Serialise(v1::LinkRequest::kReportFieldNumber, *report_));
  }
  return wire_->bytes;
}

const LinkMessage& RecentStates::Of(const StatePtr& state) {
  const auto known =
      std::find_if(recent_.begin(), recent_.end(), [&](const auto& each) { return each.state() == state; });
  if (known != recent_.end()) return *known;
  recent_.emplace_front(state);
  if (recent_.size() > kRecentStates) recent_.pop_back();
  return recent_.front();
}

const char* NameOf(MessageKind kind) { return kind == MessageKind::kState ? "state" : "report"; }

absl::Status CheckReceived(const LinkMessage& message, const std::string& agent) {
  if (!CheckJobName(message.job()).ok())
    return Error(ErrorCode::PROTOCOL, absl::StrCat("\"", Shown(message.job()), "\" is no name of a job"));
  return message.state() ? CheckState(*message.state(), agent) : CheckReport(*message.report(), agent);
}

}  // namespace ckptd::transport
