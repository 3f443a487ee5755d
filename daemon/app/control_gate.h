// How a worker asks the control thread: it hands over a call and waits for it.
#ifndef CKPTD_DAEMON_APP_CONTROL_GATE_H_
#define CKPTD_DAEMON_APP_CONTROL_GATE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/clock.h"
#include "daemon/base/mutex.h"
#include "daemon/os/loop.h"

namespace ckptd {

class ControlGate {
 public:
  explicit ControlGate(Loop& loop) : loop_(loop), shared_(std::make_shared<Shared>()) {}

  // From a worker. Runs `call` on the control thread and returns when it has run. CANCELLED when the gate was closed
  // before: `call` has not run then and never will, so it may use what stands on the caller's stack.
  [[nodiscard]] absl::Status Run(std::function<void()> call);
  template <typename T>
  [[nodiscard]] absl::StatusOr<T> Call(std::function<T()> call) {
    std::optional<T> result;
    if (absl::Status status = Run([&] { result = call(); }); !status.ok()) return status;
    return *std::move(result);
  }

  // From a worker. Runs `start` on the control thread and waits at most `timeout` until it, or anything that it has
  // set going, called `done` there. TIMEOUT, or CANCELLED when the gate is closed; what was begun then goes on.
  using Done = std::function<void(const absl::Status&)>;
  [[nodiscard]] absl::Status RunAsync(std::function<void(Done done)> start, Nanos timeout);

  // Any thread, waits for nothing. Either `work` runs on the control thread, or, when the gate is closed before,
  // `refused` runs: here or in Close().
  void Post(std::function<void()> work, const std::function<void()>& refused);

  // Control thread. Everybody who waits is let go, and what was posted is refused.
  void Close();

 private:
  struct Shared {
    Mutex mutex;
    CondVar changed;
    bool closed CKPTD_GUARDED_BY(mutex) = false;
    uint64_t last_post CKPTD_GUARDED_BY(mutex) = 0;
    std::map<uint64_t, std::function<void()>> refusals CKPTD_GUARDED_BY(mutex);  // of what was posted and has not run
  };
  static std::function<void()> TakeRefusal(Shared& shared, uint64_t post);
  struct Task {
    std::function<void()> call;  // taken by whoever is first: the control thread, or the waiter that gives up
    bool done = false;
  };
  struct Answer {
    std::optional<absl::Status> status;
  };

  Loop& loop_;
  const std::shared_ptr<Shared> shared_;  // outlives the gate where calls are still posted
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_APP_CONTROL_GATE_H_
