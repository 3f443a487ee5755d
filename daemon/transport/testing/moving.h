// A transfer of a test node, from beginning to end, watched by the test's thread.
#ifndef CKPTD_DAEMON_TRANSPORT_TESTING_MOVING_H_
#define CKPTD_DAEMON_TRANSPORT_TESTING_MOVING_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "daemon/base/mutex.h"
#include "daemon/transport/copies.h"
#include "daemon/transport/testing/test_node.h"

namespace ckptd::transport {

class Moving {
 public:
  // Of `rank`'s copy at `peer`, which has a TestHolder. `node` outlives it.
  Moving(TestNode& node, std::string peer, uint32_t rank) : node_(node), peer_(std::move(peer)), rank_(rank) {}
  ~Moving() { Drop(); }

  // `image` and `place` outlive it.
  void Send(const std::string& image, const SenderLimits& limits, bool all_ready = true);
  // With `token`, if there is one, instead of the holder's.
  void Receive(std::string& place, const ReceiverLimits& limits, const std::string& token = "");
  // Its `done`.
  [[nodiscard]] absl::Status Wait(Nanos patience = std::chrono::seconds(60)) CKPTD_EXCLUDES(mutex_);
  [[nodiscard]] bool UntilProgress(uint64_t bytes) CKPTD_EXCLUDES(mutex_);
  // After UntilProgress or Wait.
  [[nodiscard]] CopyMove& move() { return *move_; }
  void Drop() {
    node_.Do([this] { move_.reset(); });
  }

 private:
  [[nodiscard]] MoveOrder OrderOf(uint64_t bytes, const std::string& token, bool receive);
  [[nodiscard]] MoveDone DoneHere() {
    return [this](const absl::Status& status) { Done(status); };
  }
  void Done(const absl::Status& status) CKPTD_EXCLUDES(mutex_);
  void Keep(absl::StatusOr<std::unique_ptr<CopyMove>> move) CKPTD_EXCLUDES(mutex_);

  TestNode& node_;
  const std::string peer_;
  const uint32_t rank_;
  Mutex mutex_;
  CondVar changed_;
  std::optional<absl::Status> done_ CKPTD_GUARDED_BY(mutex_);
  std::unique_ptr<CopyMove> move_;
};

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_TESTING_MOVING_H_
