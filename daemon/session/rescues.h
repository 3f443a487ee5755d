// Which processes may be rescued when they die, and which are being rescued now: their copiers have until a deadline,
// and JOINs of their jobs wait for it (RESCUE in proto/local/messages.h). Pure bookkeeping, one thread; time is given.
#ifndef CKPTD_DAEMON_SESSION_RESCUES_H_
#define CKPTD_DAEMON_SESSION_RESCUES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "daemon/base/clock.h"
#include "daemon/base/ids.h"
#include "daemon/os/pidfd.h"

namespace ckptd {

class Rescues {
 public:
  // What a process said last.
  struct Told {
    Nanos hold{0};    // 0: its copiers end with it
    std::string why;  // hold 0: why
  };
  // What a fill is worth that a process has not made by save().
  enum class Standing {
    kLives,    // as far as we know
    kHeld,     // dead, and may be rescued; until it is reaped
    kRefused,  // dead, and may not; until it is reaped
  };
  struct Rescue {
    std::set<std::string> jobs;
    Nanos begun{0};
    Nanos deadline{0};
    SnapshotId newest;  // sealed for it since its death
    bool over = false;  // the deadline has passed
  };

  void Tell(const ProcessId& process, Told told) { told_[process] = std::move(told); }
  // BYE, or its job was forgotten.
  void Forget(const ProcessId& process) { told_.erase(process); }
  // Null: nothing, or it is dead.
  [[nodiscard]] const Told* Find(const ProcessId& process) const;

  // It has ended, and `refused` or not. True: JOINs of `jobs` wait. End() follows in any case.
  [[nodiscard]] bool Begin(const ProcessId& process, const std::set<std::string>& jobs, bool refused, Nanos now);
  void Sealed(const ProcessId& process, const SnapshotId& snapshot);
  // It is reaped. What became of its rescue; nullopt when there was none.
  std::optional<Rescue> End(const ProcessId& process);
  // Whose deadline has passed, each once.
  std::vector<ProcessId> TakeOverdue(Nanos now);

  [[nodiscard]] Standing Of(const ProcessId& process) const;
  [[nodiscard]] const Rescue* FindRescue(const ProcessId& process) const;
  [[nodiscard]] bool Delays(const std::string& job) const;
  [[nodiscard]] std::optional<Nanos> deadline() const;  // the first

 private:
  std::map<ProcessId, Told> told_;
  std::map<ProcessId, Rescue> rescues_;
  std::set<ProcessId> refused_;  // until they are reaped
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_SESSION_RESCUES_H_
