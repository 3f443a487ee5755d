#include "daemon/transport/link_message.h"

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/ids.h"
#include "daemon/base/status_macros.h"
#include "daemon/transport/shown.h"

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

}  // namespace

const char* NameOf(MessageKind kind) { return kind == MessageKind::kState ? "state" : "report"; }

absl::Status CheckReceived(const LinkMessage& message, const std::string& agent) {
  if (!CheckJobName(message.job()).ok())
    return Error(ErrorCode::PROTOCOL, absl::StrCat("\"", Shown(message.job()), "\" is no name of a job"));
  return message.state() ? CheckState(*message.state(), agent) : CheckReport(*message.report(), agent);
}

}  // namespace ckptd::transport
