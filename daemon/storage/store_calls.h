// What is being asked of the storage right now, and since when it has said nothing.
//
// A thread that waits for a hung storage cannot be waited for and cannot be killed: it may sleep in the kernel beyond
// the reach of SIGKILL. So nobody joins it; instead every call through a WatchedStore stands in a table while it runs,
// and whoever has something else to do (the control thread) looks there: which call hears nothing, on which path, for
// how long.
#ifndef CKPTD_DAEMON_STORAGE_STORE_CALLS_H_
#define CKPTD_DAEMON_STORAGE_STORE_CALLS_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/base/clock.h"
#include "daemon/base/mutex.h"
#include "daemon/storage/store.h"

namespace ckptd {

// Any thread.
class StoreCalls {
 public:
  // `root` stands before the names in what is told. `clock` outlives the watch.
  StoreCalls(const Clock& clock, std::string root) : clock_(clock), root_(std::move(root)) {}

  struct Silence {
    std::string operation;  // "create"
    std::string path;
    Nanos since{0};  // the last answer, or the call
    // "create /data/job/attempts/a0003.json for 1m01s"
    [[nodiscard]] std::string ToString() const;
  };
  // The call that has heard nothing for the longest time; of those only that restore() waits for when `awaited`.
  [[nodiscard]] std::optional<Silence> Longest(bool awaited = false) CKPTD_EXCLUDES(mutex_);

  // One call while it runs. `operation` is a literal; `name` outlives it.
  class Call {
   public:
    Call(StoreCalls& calls, bool awaited, const char* operation, const std::string& name);
    Call(StoreCalls& calls, bool awaited, const char* operation, std::string&& name) = delete;
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    void Heard();  // something came: the silence begins anew
   private:
    friend class StoreCalls;
    StoreCalls& table_;
    const bool awaited_;
    const char* const operation_;
    const std::string& name_;
    Nanos heard_;  // under the table's mutex
  };

 private:
  const Clock& clock_;
  const std::string root_;
  Mutex mutex_;
  std::vector<Call*> calls_ CKPTD_GUARDED_BY(mutex_);  // as many as there are threads in the storage
};

// `inner` with every call in `calls`. `awaited`: restore() waits for what is asked through this one. Both outlive it.
[[nodiscard]] std::unique_ptr<Store> MakeWatchedStore(Store& inner, StoreCalls& calls, bool awaited);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_STORAGE_STORE_CALLS_H_
