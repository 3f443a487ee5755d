#include "daemon/snapshot/table.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "daemon/base/log.h"

namespace ckptd::snapshot {
namespace {

using S = SlotStateCode;
using T = Trigger;

constexpr Row kTable[] = {
    {S::kFree, T::kLend, S::kFilling,
     "RUN, the process has GO with the decided ticket, chosen layout, its handle is open, no other fill of this "
     "process, "
     "not draining",
     "new epoch, word OPEN, owner and grant in ctl, GRANT"},
    {S::kFree, T::kFetch, S::kLoading, "the decided parent is in no slot, its layout is known",
     "read it from other agents that have it, or from storage"},
    {S::kFree, T::kRoomNeeded, S::kRetired, "a new layout needs the memory of this slot's layout",
     "drop its file; it gets no fresh one"},
    {S::kLoading, T::kFetched, S::kSealed, "every CRC of the read matched",
     "record with the snapshot's identity; LOAD"},
    {S::kLoading, T::kFetchFailed, S::kFree, "not found, damaged or unreadable", "the rank's load FAILED"},
    {S::kFilling, T::kCompleteLive, S::kSealed,
     "word COMPLETE of this epoch, owner attempt = seen, step >= G, CRC list complete", "record, then state; flush"},
    {S::kFilling, T::kCompleteStale, S::kFree,
     "word COMPLETE of this epoch, and owner attempt < seen, or step < G, or CRC list incomplete", ""},
    {S::kFilling, T::kGiveUp, S::kFilling,
     "word OPEN, and the owner is fenced, or another layout is chosen, or the agent restarted, or the grant is unused "
     "and a new layout needs room",
     "CAS to ABANDONED, read the bell again"},
    {S::kFilling, T::kWriterGone, S::kFree,
     "word ABANDONED and ack = epoch, or not COMPLETE and the owner is reaped, or unused and its handle is closed", ""},
    {S::kFilling, T::kWriterUnknown, S::kRetired,
     "a slot is needed, or this one is of an old layout and the agent before had lent it; ABANDONED without ack, or, "
     "where a slot is needed, of a lower attempt and its bell is not at hand; owner not reaped; if the agent before "
     "had lent it, another process has the rank, or RetryTimer came since",
     "ask for a fresh file"},
    {S::kRetired, T::kFreshFile, S::kFree, "the index has a fresh file", ""},
    {S::kRetired, T::kWriterGone, S::kFree, "ack = epoch or the owner is reaped, no fresh file under way", ""},
    {S::kSealed, T::kDead, S::kFree,
     "decision of seen known, snapshot != W, not (attempt = seen and step >= G), neither flushed nor read, nor P or "
     "what "
     "becomes P unless protection was given up",
     ""},
    {S::kSealed, T::kFreshFile, S::kFree, "dead but for a reader, a slot is needed: the reader keeps the old file", ""},
    {S::kSealed, T::kDamaged, S::kQuarantined, "CRC failed at a load or a check", "not reported as sealed any more"},
    {S::kQuarantined, T::kDead, S::kFree, "as SEALED, or a slot is needed; nobody reads it", ""},
    {S::kQuarantined, T::kFreshFile, S::kFree,
     "a slot is needed, and a reader holds this one, or it was found damaged while its file was replaced", ""},
};

constexpr const char* kStateNames[] = {"FREE", "FILLING", "SEALED", "QUARANTINED", "RETIRED", "LOADING", "PREPARING"};
constexpr const char* kTriggerNames[] = {"lend",           "fetch",   "fetched",     "fetch failed",   "complete",
                                         "complete stale", "give up", "writer gone", "writer unknown", "fresh file",
                                         "dead",           "damaged", "room needed"};

}  // namespace

absl::Span<const Row> Table() { return kTable; }

const Row& Next(SlotStateCode from, Trigger trigger) {
  for (const Row& row : kTable) {
    if (row.from == from && row.trigger == trigger) return row;
  }
  Log(kError, "snapshot.table").Field("state", Name(from)).Field("trigger", Name(trigger));
  std::abort();
}

const char* Name(SlotStateCode state) { return kStateNames[static_cast<int>(state)]; }
const char* Name(Trigger trigger) { return kTriggerNames[static_cast<int>(trigger)]; }

std::string TableMarkdown() {
  std::string out =
      "# Transitions of a slot\n\nPrinted from `table.cc` by `snapshot_test`; `UPDATE=1 snapshot_test` rewrites it.\n\n"
      "| state | trigger | next | when | then |\n| --- | --- | --- | --- | --- |\n";
  for (const Row& row : kTable) {
    absl::StrAppend(&out, "| ", Name(row.from), " | ", Name(row.trigger), " | ", Name(row.to), " | ", row.when, " | ",
                    row.then, " |\n");
  }
  return out;
}

}  // namespace ckptd::snapshot
