#include "daemon/job/table.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "daemon/base/log.h"

namespace ckptd::job {
namespace {

using P = Phase;
using T = Trigger;

// From every phase; their own `from` is not used.
constexpr Row kAnywhere[] = {
    {P::kStopped, T::kOpen, P::kReading, "read the newest attempt record"},
    {P::kStopped, T::kHigherAttempt, P::kStopped, "refuse a waiting rank 0; no grants, GO, durable reports, deletion"},
    {P::kStopped, T::kStoreFailed, P::kIdle, "typed error to every rank that waits"},
};

constexpr Row kTable[] = {
    {P::kReading, T::kNewestForeign, P::kCreating, "create record n + 1 exclusively"},
    {P::kReading, T::kNewestMine, P::kListing, "list storage and decisions"},
    {P::kReading, T::kNothingToDo, P::kIdle, ""},
    {P::kCreating, T::kCreated, P::kListing, "list storage and decisions"},
    {P::kCreating, T::kCreateLost, P::kReading, "read the newest attempt record"},
    {P::kListing, T::kListedLate, P::kCommitting, "create the missing manifests, one after the other"},
    {P::kListing, T::kListedClean, P::kGather, "STATE(GATHER), start decide_timeout"},
    {P::kListing, T::kListedDecided, P::kChecking, "read the newest record's number"},
    {P::kCommitting, T::kLateCommitted, P::kGather, "STATE(GATHER), start decide_timeout"},
    {P::kGather, T::kChosen, P::kDeciding, "create the decision file exclusively"},
    {P::kDeciding, T::kDecided, P::kChecking, "adopt what the file holds; read the newest record's number"},
    {P::kChecking, T::kStillNewest, P::kLoad, "W = parent, G = 1, STATE(LOAD)"},
    {P::kLoad, T::kAllLoaded, P::kRun, "STATE(RUN)"},
    {P::kLoad, T::kLoadFailed, P::kCreating, "create record n + 1 with the same ticket and want"},
    {P::kRun, T::kLoadFailed, P::kCreating, "create record n + 1 with the same ticket and want"},
};

constexpr const char* kPhaseNames[] = {"IDLE",     "READING",  "CREATING", "LISTING", "COMMITTING", "GATHER",
                                       "DECIDING", "CHECKING", "LOAD",     "RUN",     "STOPPED"};
constexpr const char* kTriggerNames[] = {
    "open",        "newest is foreign", "newest is mine", "nothing to do", "created", "create lost",  "late commits",
    "listed",      "listed, decided",   "late committed", "chosen",        "decided", "still newest", "all loaded",
    "load failed", "store failed",      "higher attempt"};

void AppendRow(const Row& row, const char* from, std::string* out) {
  absl::StrAppend(out, "| ", from, " | ", Name(row.trigger), " | ", Name(row.to), " | ", row.then, " |\n");
}

}  // namespace

absl::Span<const Row> Table() { return kTable; }

Phase NextPhase(Phase from, Trigger trigger) {
  for (const Row& row : kAnywhere) {
    if (row.trigger == trigger) return row.to;
  }
  for (const Row& row : kTable) {
    if (row.from == from && row.trigger == trigger) return row.to;
  }
  Log(kError, "job.table").Field("phase", Name(from)).Field("trigger", Name(trigger));
  std::abort();
}

const char* Name(Phase phase) { return kPhaseNames[static_cast<int>(phase)]; }
const char* Name(Trigger trigger) { return kTriggerNames[static_cast<int>(trigger)]; }

std::string TableMarkdown() {
  std::string out =
      "# Transitions of a coordinator's attempt\n\nPrinted from `table.cc` by `job_test`; `UPDATE=1 job_test` rewrites "
      "it.\n\n| phase | trigger | next | then |\n| --- | --- | --- | --- |\n";
  for (const Row& row : kAnywhere) AppendRow(row, "any", &out);
  for (const Row& row : kTable) AppendRow(row, Name(row.from), &out);
  return out;
}

}  // namespace ckptd::job
