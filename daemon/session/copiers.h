// Which copiers run for which process, when another may be started, and when a process is *reaped*: it has ended, and
// so has every copier of it. Until then a slot it could write may still be written. Pure bookkeeping, one thread, no
// I/O; time is given.
//
// A copier counts from Started() to Ended(), whatever becomes of it: one that was killed, and sleeps in the kernel, may
// still write.
#ifndef CKPTD_DAEMON_SESSION_COPIERS_H_
#define CKPTD_DAEMON_SESSION_COPIERS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "daemon/base/clock.h"
#include "daemon/os/pidfd.h"
#include "daemon/session/requests.h"

namespace ckptd {

class Copiers {
 public:
  using CopierId = uint64_t;  // the caller's name for one; 0 = none, never reused

  static constexpr size_t kMostOfAProcess = 16;
  static constexpr Nanos kBetweenStarts = std::chrono::seconds(1);  // of one process and GPU
  static constexpr size_t kManyDeaths = 3;
  static constexpr Nanos kDeathsWithin = std::chrono::seconds(60);
  static constexpr Nanos kRefusedAfterDeaths = std::chrono::seconds(60);

  // BUSY with a sentence that says when to ask again.
  [[nodiscard]] absl::Status MayStart(const ProcessId& process, const GpuId& gpu, Nanos now);
  // It takes the place of the one that had this GPU: that one is returned, to be killed; 0 = none.
  CopierId Started(const ProcessId& process, const GpuId& gpu, CopierId copier, Nanos now);
  // One that an earlier agent left: of which process is unknown, so it may be of any older than it.
  void Orphan(const ProcessId& itself, CopierId copier);

  // It could not be run: no death of one that ran.
  void GiveUp(CopierId copier);
  // What its process wants no more: BYE, its job is forgotten, its end. They are returned, to be killed.
  std::vector<CopierId> Release(const ProcessId& process);
  // The same for a process that has ended; it may leave them time to end by themselves. TakeReaped() tells when it is
  // reaped, perhaps at once.
  std::vector<CopierId> ProcessDied(const ProcessId& process);

  // False: it was wanted still, so its process will ask for another one.
  bool Ended(CopierId copier, Nanos now);

  // Processes that are reaped, each once.
  std::vector<ProcessId> TakeReaped();

  // Ended processes that some copier keeps from being reaped, and these.
  [[nodiscard]] std::map<ProcessId, std::vector<CopierId>> waiting() const;
  // Whether it has one that it still wants.
  [[nodiscard]] bool HasAny(const ProcessId& process) const;
  // The one that a process has for a GPU; 0 = none.
  [[nodiscard]] CopierId Find(const ProcessId& process, const GpuId& gpu) const;
  [[nodiscard]] size_t running() const { return running_.size() + orphans_.size(); }

 private:
  struct Running {
    ProcessId process;
    GpuId gpu{};
    bool wanted = true;
  };
  // What is known of one process and GPU. Kept as long as it matters for the next start.
  struct History {
    CopierId wanted = 0;
    Nanos last_start{0};
    Nanos refused_until{0};
    std::deque<Nanos> deaths;  // within kDeathsWithin, oldest first
  };
  using Key = std::pair<ProcessId, GpuId>;

  [[nodiscard]] size_t CountOf(const ProcessId& process, CopierId but) const;
  [[nodiscard]] bool Blocks(CopierId copier, const ProcessId& process) const;
  void ForgetOld(const ProcessId& process, Nanos now);

  std::map<CopierId, Running> running_;
  std::map<CopierId, ProcessId> orphans_;  // who they are themselves
  std::map<Key, History> history_;
  std::set<ProcessId> ended_;  // not reaped yet
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_SESSION_COPIERS_H_
