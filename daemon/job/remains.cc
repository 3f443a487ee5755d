// Parts of a step that is never completed: one rank had written its own when another dropped the step, or could not
// write. They are remains when nobody can write the rest any more, and the facts that say so are stable: what no slot
// holds, and every rank has passed, comes into no slot again; an older attempt fills none.
//
// An agent flushes what is in its slots also when it knows of no later attempt, or when none is decided that it knows,
// and who is not a member any more is told of none. So of an older attempt it is not enough that the members have it in
// no slot. Whoever may have had it there must have said so in this attempt: the agents of the step's own attempt, which
// filled slots with it, and those of attempts that went on from it, which loaded it into theirs. One of those decisions
// may have been pruned: of a step that the history went on from, none may be missing. While one of these agents is
// silent the parts wait for a newer committed step, as other leftovers do.
#include <algorithm>

#include "daemon/format/snapshot_ref.h"
#include "daemon/job/coordinator.h"

namespace ckptd::job {
namespace {

constexpr size_t kMostPartial = 1000;  // others than these are found when the next attempt lists the storage

}  // namespace

// What ranks say is on storage of this attempt was not there when it was listed.
void Coordinator::NotePersisted(const v1::Report& report) {
  for (const v1::RankReport& rank : report.ranks()) {
    for (const v1::SnapshotRef& ref : rank.persisted()) {
      const SnapshotId id = ToId(ref);
      if (id.attempt != attempt_ || gone_.count(id) != 0 || partial_.size() >= kMostPartial) continue;
      partial_.insert(id);
    }
  }
}

// As long as all ranks name it, it is the committer's.
void Coordinator::UpdateRemains() {
  for (const StoredStep& step : steps_) partial_.erase(step.id);
  std::erase_if(partial_, [&](const SnapshotId& id) {
    const auto names = [&](const v1::RankReport* rank) { return rank != nullptr && Names(rank->persisted(), id); };
    if (!IsOver(id) || std::all_of(reports_.Facts().begin(), reports_.Facts().end(), names)) return false;
    StoredStep& step = StepEntry(id);
    step.sidecars = 1;
    return true;
  });
}

// Ranks name it for a while.
void Coordinator::NoteGone(const SnapshotId& gone) {
  std::erase_if(gone_, [&](const SnapshotId& id) {
    return std::none_of(reports_.Facts().begin(), reports_.Facts().end(),
                        [&](const v1::RankReport* rank) { return rank == nullptr || Names(rank->persisted(), id); });
  });
  gone_.insert(gone);
  partial_.erase(gone);
}

DeletionFacts Coordinator::Deletable() const {
  DeletionFacts facts{steps_, decision_, grants_.watermark(), [this](const SnapshotId& id) { return IsSealed(id); },
                      [this](const SnapshotId& id) { return IsOver(id); }};
  facts.agents_prove = true;
  facts.begun = proofs_.step();
  return facts;
}

// In a slot of some rank: a damaged one too, since its flush goes on, and one that may be SEALED only later.
bool Coordinator::IsSealed(const SnapshotId& id) const {
  const bool unsettled = context_.config.rules.unsettled_is_in_a_slot;
  for (const auto& [agent, report] : reports_.by_agent()) {
    for (const v1::RankReport& rank : report->ranks()) {
      if (Names(rank.sealed(), id) || Names(rank.quarantined(), id)) return true;
      if (unsettled && Names(rank.unsettled(), id)) return true;
    }
  }
  return false;
}

// In the memory of another node than its rank's, which may come back from there.
bool Coordinator::IsHeld(const SnapshotId& id) const {
  const auto has = [&](const auto& held) { return Names(held.complete(), id); };
  return std::any_of(reports_.by_agent().begin(), reports_.by_agent().end(), [&](const auto& entry) {
    const v1::Report& report = *entry.second;
    return std::any_of(report.copies().begin(), report.copies().end(), has) ||
           std::any_of(report.parity().begin(), report.parity().end(), has);
  });
}

// Every rank has saved a later step, or has dropped this one.
bool Coordinator::Passed(StepId step) const {
  return step < grants_.floor() &&
         std::all_of(reports_.Facts().begin(), reports_.Facts().end(), [&](const v1::RankReport* rank) {
           return rank != nullptr && rank->fill() != step && (rank->gone() || rank->pos() >= step);
         });
}

// An attempt of the history went on from it.
bool Coordinator::WasParent(const SnapshotId& id) const {
  return std::any_of(decision_.lineage().begin(), decision_.lineage().end(), [&](const v1::LineageEntry& entry) {
    return entry.attempt() == id.attempt && entry.last_step() == id.step;
  });
}

// Every agent has that may have had a step of an older attempt in a slot.
bool Coordinator::OwnersReported(const SnapshotId& id) const {
  if (!context_.config.rules.owners_of_remains_report) return true;
  const auto reported = [&](const v1::RankClaim& claim) { return reports_.Has(claim.agent()); };
  bool own = false;
  AttemptId decided = 0;
  for (const v1::DecisionRecord& decision : decisions_) {
    if (decision.attempt() < id.attempt || decision.attempt() >= attempt_) continue;
    ++decided;
    const bool filled = decision.attempt() == id.attempt;
    own = own || filled;
    if (!filled && ToId(decision.parent()) != id) continue;
    if (!std::all_of(decision.ranks().begin(), decision.ranks().end(), reported)) return false;
  }
  return own && (decided == attempt_ - id.attempt || !WasParent(id));
}

// Nobody will write what the storage lacks of it.
bool Coordinator::IsOver(const SnapshotId& id) const {
  if (!context_.config.rules.remains_are_over) return true;
  if (id.attempt > attempt_ || !reports_.AllFacts()) return false;
  const bool passed = id.attempt == attempt_ ? Passed(id.step) : reports_.AllMembersReported() && OwnersReported(id);
  return passed && !IsSealed(id) && !IsHeld(id);
}

}  // namespace ckptd::job
