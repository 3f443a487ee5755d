// What a link carries: one State or Report of one job. Shared and immutable, so that a coordinator gives the same one
// to all of its members; its size is counted once.
#ifndef CKPTD_DAEMON_TRANSPORT_LINK_MESSAGE_H_
#define CKPTD_DAEMON_TRANSPORT_LINK_MESSAGE_H_

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "proto/ckptd/v1/job.pb.h"

namespace ckptd::transport {

inline constexpr size_t kMaxLinkMessage = size_t{16} << 20;  // serialised; peer.proto says so
inline constexpr size_t kMaxLinkRanks = 1 << 16;             // of a job, in anything that a peer says
inline constexpr size_t kMaxAgentBytes = 300;

using StatePtr = std::shared_ptr<const v1::State>;
using ReportPtr = std::shared_ptr<const v1::Report>;

enum class MessageKind { kState, kReport };

// Any thread: nothing in it changes.
class LinkMessage {
 public:
  // Not null.
  explicit LinkMessage(StatePtr state) : state_(std::move(state)), bytes_(state_->ByteSizeLong()) {}
  explicit LinkMessage(ReportPtr report) : report_(std::move(report)), bytes_(report_->ByteSizeLong()) {}

  [[nodiscard]] MessageKind kind() const { return state_ ? MessageKind::kState : MessageKind::kReport; }
  [[nodiscard]] const std::string& job() const { return state_ ? state_->job() : report_->job(); }
  [[nodiscard]] const StatePtr& state() const { return state_; }     // null where it is a Report
  [[nodiscard]] const ReportPtr& report() const { return report_; }  // null where it is a State
  [[nodiscard]] size_t bytes() const { return bytes_; }

 private:
  StatePtr state_;
  ReportPtr report_;
  size_t bytes_;
};

[[nodiscard]] const char* NameOf(MessageKind kind);

// Of a message that the peer sent whose Hello said `agent`: a job's name, its own id as the coordinator or the
// reporter, no more ranks than kMaxLinkRanks, and ranks below them. PROTOCOL with the job and what is wrong. What the
// numbers mean is room job's to judge.
[[nodiscard]] absl::Status CheckReceived(const LinkMessage& message, const std::string& agent);

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_LINK_MESSAGE_H_
