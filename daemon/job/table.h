// The transition table of a coordinator's attempt, as data. The coordinator changes its phase only through NextPhase(),
// so the table is what runs; TRANSITIONS.md is printed from it.
#ifndef CKPTD_DAEMON_JOB_TABLE_H_
#define CKPTD_DAEMON_JOB_TABLE_H_

#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "daemon/job/machine.h"

namespace ckptd::job {

enum class Trigger : uint8_t {
  kOpen,           // JOIN of rank 0 with a new ticket, or this agent started
  kNewestForeign,  // the newest record is not this restore() call's: create the next
  kNewestMine,     // same ticket, coordinator = me: resume
  kNothingToDo,    // started, and the newest record names another agent
  kCreated,
  kCreateLost,  // somebody was faster
  kListedLate,  // steps on the lineage have all sidecars and no manifest
  kListedClean,
  kListedDecided,  // resumed, and the decision exists
  kLateCommitted,
  kChosen,
  kDecided,
  kStillNewest,
  kAllLoaded,
  kLoadFailed,  // or a rank joined anew while rank 0 is in restore()
  kStoreFailed,
  kHigherAttempt,
};

struct Row {
  Phase from;
  Trigger trigger;
  Phase to;
  const char* then;
};

[[nodiscard]] absl::Span<const Row> Table();

// kOpen, kHigherAttempt and kStoreFailed lead to the same phase from everywhere.
// A pair that is not in the table is a bug and ends the process.
[[nodiscard]] Phase NextPhase(Phase from, Trigger trigger);

[[nodiscard]] const char* Name(Phase phase);
[[nodiscard]] const char* Name(Trigger trigger);
[[nodiscard]] std::string TableMarkdown();

}  // namespace ckptd::job

#endif  // CKPTD_DAEMON_JOB_TABLE_H_
