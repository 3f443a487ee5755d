// Where the members come from: a list, DNS, Slurm's variables, etcd. A source asks in its own way, never on the loop's
// thread where that can wait, and says on the loop's thread what it found: always all members, or why it cannot.
#ifndef CKPTD_DAEMON_MEMBERSHIP_SOURCE_H_
#define CKPTD_DAEMON_MEMBERSHIP_SOURCE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "daemon/base/clock.h"
#include "daemon/membership/member.h"

namespace ckptd::membership {

// How this node stands with the others.
struct Standing {
  std::string name;
  uint64_t generation = 0;  // what it says when it speaks to others; 0 = it has none yet
  // OK: it may speak. FENCED: it was a member and is none now (its lease ran out, another process has its name): it
  // stops writing to peers until this is OK again, with a higher generation. Else why it is no member yet. A source
  // that does not answer changes nothing of it.
  absl::Status status;
  bool operator==(const Standing&) const = default;
};

class SourceSink {
 public:
  virtual ~SourceSink() = default;
  virtual void Said(std::vector<Member> members) = 0;
  virtual void Failed(const absl::Status& why) = 0;
  virtual void StandingChanged() = 0;
};

class Source {
 public:
  virtual ~Source() = default;  // says nothing any more; what it does elsewhere is stopped and joined

  // Once. `sink` outlives the source. An error is one of the settings, which no waiting mends; what may pass (a server
  // that does not answer) is said by Failed. What is known at once is said before it returns.
  [[nodiscard]] virtual absl::Status Start(SourceSink& sink) = 0;
  // Exact at `now` (monotonic), also in a process that was paused and has not run its timers yet.
  [[nodiscard]] virtual Standing StandingAt(Nanos now) const = 0;
};

}  // namespace ckptd::membership

#endif  // CKPTD_DAEMON_MEMBERSHIP_SOURCE_H_
