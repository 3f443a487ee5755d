#include "daemon/app/held_copies.h"

#include "absl/strings/str_cat.h"
#include "daemon/base/units.h"

namespace ckptd {
namespace {

constexpr char kWhat[] = "held for other nodes";

std::string StoredText(const SnapshotId& stored) {
  return stored.none() ? "storage has no step of it" : absl::StrCat("the newest on storage is step ", stored.step);
}

// Empty: the job has ended, as far as this node can know.
std::string WhyMayRun(const CopiesFacts& facts, bool force) {
  if (facts.in_use) return "the job is in use on this node";
  if (facts.restoring) return "a restart of the job reads what there is; ask again when it trains";
  if (facts.held.busy) return "somebody reads or writes it; ask again in a minute";
  if (force || facts.held.silent >= kEndedAfter) return "";
  return absl::StrCat("the job was heard of ", FormatDuration(facts.held.silent), " ago and may run; ask again in ",
                      FormatDuration(kEndedAfter - facts.held.silent), ", or, if it has ended, ckptctl gc ",
                      facts.held.job, " --force");
}

}  // namespace

CopiesVerdict JudgeCopies(const CopiesFacts& facts, bool named, bool force) {
  const region::PeerJob& held = facts.held;
  if (const std::string why = WhyMayRun(facts, force); !why.empty()) return {false, absl::StrCat(kWhat, "; ", why)};
  const bool only_here = held.newest > facts.stored;
  if (only_here && !force)
    return {false, absl::StrCat(kWhat, "; step ", held.newest.step, " may be nowhere else: ", StoredText(facts.stored),
                                ". Restart the job, which reads it, or give it up: ckptctl gc ", held.job, " --force")};
  if (only_here)
    return {true, absl::StrCat(kWhat, "; given up with it: step ", held.newest.step, "; ", StoredText(facts.stored))};
  const std::string over = absl::StrCat(kWhat, "; the job has ended, and ", StoredText(facts.stored));
  return {named, named ? over : absl::StrCat(over, ": ckptctl gc ", held.job, " gives it back")};
}

std::string NextStepFor(const region::PeerJob& held) {
  if (held.newest <= held.durable) return absl::StrCat("ckptctl gc ", held.job, " gives it back");
  return absl::StrCat("restart the job, which reads it, or give it up: ckptctl gc ", held.job, " --force");
}

}  // namespace ckptd
