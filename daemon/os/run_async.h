// Work that blocks, done elsewhere, its result brought back to the control thread.
#ifndef CKPTD_DAEMON_OS_RUN_ASYNC_H_
#define CKPTD_DAEMON_OS_RUN_ASYNC_H_

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "daemon/base/errors.h"
#include "daemon/base/executor.h"
#include "daemon/base/log.h"
#include "daemon/os/loop.h"

namespace ckptd {

// Runs `work` on `executor` and gives its result to `done` on the loop's thread. `Result` is absl::Status or
// absl::StatusOr<T>; an executor that takes no more work gives STORAGE_HUNG.
template <typename Result, typename Work, typename Done>
void RunAsync(Loop& loop, Executor& executor, Work work, Done done) {
  struct Call {
    Work work;
    Done done;
    Result result;
  };
  const absl::Status not_yet(absl::StatusCode::kUnknown, "");
  auto call = std::make_shared<Call>(Call{std::move(work), std::move(done), not_yet});
  auto deliver = [&loop, call] {
    bool posted = loop.Post([call] { call->done(std::move(call->result)); });
    if (!posted) Log(kError, "app.post_lost");
  };
  bool taken = executor.Run([call, deliver] {
    call->result = call->work();
    deliver();
  });
  if (taken) return;
  call->result = Error(ErrorCode::STORAGE_HUNG, "too much work waits for the storage");
  deliver();
}

}  // namespace ckptd

#endif  // CKPTD_DAEMON_OS_RUN_ASYNC_H_
