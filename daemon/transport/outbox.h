// What waits to be sent to one peer: of each job and kind the newest message only. A newer one takes the place of the
// one that waits, so a peer that takes nothing costs the memory of one round, and hears the newest first of all.
//
// Fair: places are taken in the order in which they were asked for, and each job has one of each kind at most, so no
// job is sent twice while another waits.
#ifndef CKPTD_DAEMON_TRANSPORT_OUTBOX_H_
#define CKPTD_DAEMON_TRANSPORT_OUTBOX_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "daemon/transport/link_message.h"

namespace ckptd::transport {

struct OutboxLimits {
  size_t messages = 8192;
  size_t bytes = 4 * kMaxLinkMessage;
};

// Pure; one thread.
class Outbox {
 public:
  explicit Outbox(OutboxLimits limits = {}) : limits_(limits) {}

  // REFUSED when it is above kMaxLinkMessage, or there is no room for it; what waited before it then stays.
  [[nodiscard]] absl::Status Put(LinkMessage message);
  // Whose turn it is.
  [[nodiscard]] std::optional<LinkMessage> Take();

  [[nodiscard]] bool empty() const { return turns_.empty(); }
  [[nodiscard]] size_t size() const { return turns_.size(); }
  [[nodiscard]] size_t bytes() const { return bytes_; }
  [[nodiscard]] uint64_t replaced() const { return replaced_; }  // were never sent, as a newer one came

 private:
  using Key = std::pair<std::string, MessageKind>;

  [[nodiscard]] absl::Status CheckRoom(const LinkMessage& message, size_t freed) const;

  const OutboxLimits limits_;
  std::map<Key, LinkMessage> waiting_;
  std::deque<Key> turns_;  // each key of waiting_ once
  size_t bytes_ = 0;
  uint64_t replaced_ = 0;
};

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_OUTBOX_H_
