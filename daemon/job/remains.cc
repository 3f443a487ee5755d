// Parts of a step that is never completed: one rank had written its own when another dropped the step, or could not
// write. They are remains when nobody can write the rest any more, and the facts that say so are stable: what no slot
// holds, and every rank has passed, comes into no slot again; an older attempt fills none.
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
  return {steps_, decision_, grants_.watermark(), [this](const SnapshotId& id) { return IsSealed(id); },
          [this](const SnapshotId& id) { return IsOver(id); }};
}

// In a slot of some rank, a damaged one too: its flush goes on.
bool Coordinator::IsSealed(const SnapshotId& id) const {
  for (const auto& [agent, report] : reports_.by_agent()) {
    for (const v1::RankReport& rank : report->ranks()) {
      if (Names(rank.sealed(), id) || Names(rank.quarantined(), id)) return true;
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

// Nobody will write what the storage lacks of it.
bool Coordinator::IsOver(const SnapshotId& id) const {
  if (!context_.config.rules.remains_are_over) return true;
  if (id.attempt > attempt_ || !reports_.AllFacts()) return false;
  const bool passed = id.attempt == attempt_ ? Passed(id.step) : reports_.AllMembersReported();
  return passed && !IsSealed(id) && !IsHeld(id);
}

}  // namespace ckptd::job
