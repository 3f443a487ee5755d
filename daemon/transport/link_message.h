// What a link carries: one State or Report of one job. Shared and immutable, so that a coordinator gives the same one
// to all of its members; its size is counted once, and it is serialised once.
#ifndef CKPTD_DAEMON_TRANSPORT_LINK_MESSAGE_H_
#define CKPTD_DAEMON_TRANSPORT_LINK_MESSAGE_H_

#include <cstddef>
#include <list>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "daemon/base/mutex.h"
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
  explicit LinkMessage(StatePtr state)
      : state_(std::move(state)), bytes_(state_->ByteSizeLong()), wire_(std::make_shared<Wire>()) {}
  explicit LinkMessage(ReportPtr report)
      : report_(std::move(report)), bytes_(report_->ByteSizeLong()), wire_(std::make_shared<Wire>()) {}

  [[nodiscard]] MessageKind kind() const { return state_ ? MessageKind::kState : MessageKind::kReport; }
  [[nodiscard]] const std::string& job() const { return state_ ? state_->job() : report_->job(); }
  [[nodiscard]] const StatePtr& state() const { return state_; }     // null where it is a Report
  [[nodiscard]] const ReportPtr& report() const { return report_; }  // null where it is a State
  [[nodiscard]] size_t bytes() const { return bytes_; }
  // As a LinkRequest. Made by the first who asks, for all copies of this message.
  [[nodiscard]] std::shared_ptr<const std::string> wire() const;

 private:
  struct Wire {
    Mutex mutex;
    std::shared_ptr<const std::string> bytes CKPTD_GUARDED_BY(mutex);
  };

  StatePtr state_;
  ReportPtr report_;
  size_t bytes_;
  std::shared_ptr<Wire> wire_;
};

// Those of the last States that were sent. A coordinator gives the same two to its members by turns, one to who is to
// hear the whole and one to the others.
class RecentStates {
 public:
  [[nodiscard]] const LinkMessage& Of(const StatePtr& state);

 private:
  std::list<LinkMessage> recent_;  // the newest first
};

[[nodiscard]] const char* NameOf(MessageKind kind);

// Of a message that the peer sent whose Hello said `agent`: a job's name, its own id as the coordinator or the
// reporter, no more ranks than kMaxLinkRanks, and ranks below them. PROTOCOL with the job and what is wrong. What the
// numbers mean is room job's to judge.
[[nodiscard]] absl::Status CheckReceived(const LinkMessage& message, const std::string& agent);

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_LINK_MESSAGE_H_
