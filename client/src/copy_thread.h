// The thread that copies lazy tensors into the slot while training goes on, and ends the capture.
#ifndef CKPTD_CLIENT_SRC_COPY_THREAD_H_
#define CKPTD_CLIENT_SRC_COPY_THREAD_H_

#include "client/core/threads/sync.h"
#include "client/src/state.h"

namespace ckptd {

class CopyThread {
 public:
  explicit CopyThread(State& state) : state_(state) {}

  [[nodiscard]] bool Start();
  // After state.stopping is set and `copy_wanted` was notified.
  void Join() { thread_.Join(); }

 private:
  static void Run(void* self);
  static void Broke(void* self, const char* why) noexcept;
  void CopyOne();
  void Finish(const CopyResult& result);

  State& state_;
  Thread thread_;
};

}  // namespace ckptd

#endif  // CKPTD_CLIENT_SRC_COPY_THREAD_H_
