// Where work runs. Rooms that do I/O take an Executor, so that a test can run them on its own thread in a fixed order.
#ifndef CKPTD_DAEMON_BASE_EXECUTOR_H_
#define CKPTD_DAEMON_BASE_EXECUTOR_H_

#include <functional>
#include <utility>

namespace ckptd {

class Executor {
 public:
  virtual ~Executor() = default;
  // Runs `work` once, perhaps on another thread. False when the executor's queue is full or it has stopped: `work`
  // will not run.
  [[nodiscard]] virtual bool Run(std::function<void()> work) = 0;
};

// Runs at once on the caller's thread. For tests and for the crash simulator.
class InlineExecutor final : public Executor {
 public:
  [[nodiscard]] bool Run(std::function<void()> work) override {
    work();
    return true;
  }
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_BASE_EXECUTOR_H_
