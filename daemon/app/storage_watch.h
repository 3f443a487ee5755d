// Is the storage well? Knows it from what operations said, and from how long they have been silent. Only while
// something is wrong it asks by itself, with a small file every few seconds: a storage that was repaired is seen to be
// well, and a healthy one costs nothing at rest.
//
// Control thread only.
#ifndef CKPTD_DAEMON_APP_STORAGE_WATCH_H_
#define CKPTD_DAEMON_APP_STORAGE_WATCH_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "daemon/base/clock.h"
#include "daemon/base/executor.h"
#include "daemon/os/loop.h"
#include "daemon/persist/flusher.h"
#include "daemon/storage/store.h"
#include "daemon/storage/store_calls.h"
#include "proto/ckptd/v1/status.pb.h"

namespace ckptd {

class StorageWatch {
 public:
  // All outlive it. `timeout` may change live.
  StorageWatch(Loop& loop, const Clock& clock, Store& store, StoreCalls& calls, Executor& chores, const Nanos& timeout)
      : loop_(loop), clock_(clock), store_(store), calls_(calls), chores_(chores), timeout_(timeout) {}

  // Asks now, unless it is asking.
  void Probe();

  // What an operation said. `wrote`: it put something on the storage, so its success shows that this can be done.
  void Answered(const absl::Status& status, bool wrote);
  void Flushed(const FlushOutcome& outcome);

  // OK, or what is wrong, with one of the codes STORAGE_*.
  [[nodiscard]] absl::Status Health() const;
  void Fill(v1::StorageStatus* out) const;

 private:
  struct FailedFlush {
    absl::Status status;
    Nanos when{0};
  };

  void ProbeAgain();
  [[nodiscard]] bool Forgotten(const FailedFlush& flush) const;

  Loop& loop_;
  const Clock& clock_;
  Store& store_;
  StoreCalls& calls_;
  Executor& chores_;
  const Nanos& timeout_;
  std::map<std::pair<std::string, Rank>, FailedFlush> failed_flushes_;  // by whose last flush it was
  bool written_ = false;
  bool probing_ = false;
  bool timer_ = false;
  absl::Status last_;       // of the last operation that says something
  std::string last_error_;  // since the start, for people
  uint64_t free_bytes_ = 0;
  double bytes_per_second_ = 0;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_APP_STORAGE_WATCH_H_
