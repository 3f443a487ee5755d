// I1 to I9 of protocol.md, and N1: what NEWS says of a step is true; looked at from outside: regions, storage and what
// trainers were told. Nothing here asks the machines.
//
// Where the protocol promises less, so does the checker: after a lost node, a rank that moved, or a part that was
// written wrong (`lossy_`), memory alone need not hold W.
#include <algorithm>

#include "daemon/format/snapshot_ref.h"
#include "daemon/job/lineage.h"
#include "tests/protocol/world.h"

namespace ckptd::sim {

using job::OnLineage;

void World::Fail(const std::string& invariant, const std::string& what) {
  if (violation_.empty()) violation_ = invariant + ": " + what;
  if (options_.trace) Trace("VIOLATION " + invariant + ": " + what);
}

// I2: whatever is called sealed is one whole image of that snapshot.
void World::CheckRegions() {
  CheckCopies();
  CheckParity();
  for (const Node& node : nodes_) {
    for (const auto& [rank, slots] : node.region.ranks) {
      for (const RegionSlot& slot : slots) {
        if (slot.state != SlotStateCode::kSealed) continue;
        const Tag whole = MakeTag(slot.record, rank, slot.id.layout);
        for (const Tag tag : files_[slot.file]) {
          if (tag != whole) {
            Fail("I2", "rank " + std::to_string(rank) + " slot " + snapshot::ToString(slot.id) + " is sealed as " +
                           ToString(slot.record) + " and holds " + ToString(IdOf(tag)));
          }
        }
      }
    }
  }
}

bool World::Recoverable(const SnapshotId& id) const {
  if (store_.Good(id)) return true;
  for (Rank rank = 0; rank < options_.ranks; ++rank) {
    if (!ImageLeft(rank, id) && !CanBeRebuilt(rank, id)) return false;
  }
  return true;
}

bool World::PartLeft(const SnapshotId& id) const {
  return std::any_of(nodes_.begin(), nodes_.end(), [&](const Node& node) {
    return std::any_of(node.region.ranks.begin(), node.region.ranks.end(), [&](const auto& rank) {
      return std::any_of(rank.second.begin(), rank.second.end(), [&](const RegionSlot& slot) {
        return slot.state == SlotStateCode::kSealed && slot.record == id;
      });
    });
  });
}

// What a decided attempt was promised: its newest W, at first its parent.
SnapshotId World::NewestSafe(const v1::DecisionRecord& decision) const {
  const auto declared = declared_.find(decision.attempt());
  return declared != declared_.end() ? declared->second : ToId(decision.parent());
}

// I3.
void World::CheckWatermark() {
  const v1::DecisionRecord* newest = store_.NewestDecision();
  if (newest == nullptr || lossy_) return;
  const SnapshotId safe = NewestSafe(*newest);
  if (!safe.none() && !Recoverable(safe)) Fail("I3", "captured on all ranks, and now nowhere: " + ToString(safe));
}

void World::NoteState(const v1::State& state) {
  if (!state.groups().empty()) NoteGroups(state);
  counts_.for_others += state.to_prove().others().empty() ? 0 : 1;
  CheckActedUpon(state);
  CheckSurveyed(state);
  CheckTarget(state);
  CheckKept(state);
  NoteProtection(state);
  CheckRefused(state);
  const SnapshotId watermark = ToId(state.watermark());
  SnapshotId& declared = declared_[state.attempt()];
  if (watermark.attempt == state.attempt() && watermark > declared) {
    declared = watermark;
    ever_captured_.insert(watermark);
    if (told_dropped_.count(watermark) != 0) Fail("N1", ToString(watermark) + " was told as dropped, and is captured");
    ++counts_.captures;
    regions_dirty_ = true;
  } else if (declared.none()) {
    declared_.erase(state.attempt());
  }
  if (state.phase() != v1::State::GATHER) CheckDurable(state);
}

// A step that is told as dropped was not captured, and never will be; one that is told as dropped or superseded was not
// called durable before. It may become so afterwards, where all ranks have flushed it nevertheless. With several nodes
// a STATE may be lost, and with it a W.
void World::CheckNews(const snapshot::SendNews& news) {
  if (options_.nodes > 1) return;
  for (const StepOutcome& outcome : news.outcomes) {
    const SnapshotId id{news.attempt, outcome.step};
    const bool dropped = (outcome.flags & kStepDropped) != 0;
    const bool superseded = outcome.code == static_cast<uint32_t>(ErrorCode::SUPERSEDED);
    if (dropped && told_dropped_.insert(id).second) ++counts_.told_dropped;
    if (dropped && ever_captured_.count(id) != 0) Fail("N1", ToString(id) + " was captured, and is told as dropped");
    if ((dropped || superseded) && heard_durable_.count(id) != 0) {
      Fail("N1", ToString(id) + " was durable, and is told as dropped or superseded");
    }
  }
}

// I4, first half: when a step is called durable, no later attempt may have been decided without it.
void World::CheckDurable(const v1::State& state) {
  const SnapshotId durable = ToId(state.durable());
  if (durable.none() || !ever_durable_.insert(durable).second) return;
  durable_[durable] = state.attempt();
  if (durable.attempt != state.attempt()) return;  // it was listed, not reported
  for (const auto& [attempt, decision] : store_.decisions) {
    const bool newest = store_.records.at(attempt).want().kind() == v1::Want::NEWEST;
    if (attempt > state.attempt() && newest && !OnLineage(decision, durable)) {
      Fail("I4", ToString(durable) + " was called durable, and attempt " + std::to_string(attempt) + " has left it");
    }
  }
}

// What is wrong with `decision` if it was made after `before`; empty: nothing.
std::string World::Judge(const v1::DecisionRecord& decision, const v1::DecisionRecord& before) const {
  const SnapshotId parent = ToId(decision.parent());
  const std::string name = "attempt " + std::to_string(decision.attempt());
  if (!parent.none() && !OnLineage(before, parent)) {
    return "I6: " + name + " took " + ToString(parent) + ", which attempt " + std::to_string(before.attempt()) +
           " had left";
  }
  if (store_.records.at(decision.attempt()).want().kind() != v1::Want::NEWEST) return "";
  const SnapshotId safe = NewestSafe(before);
  // Who is not among the members is not asked: with copies the last part may be there.
  const bool overlooks = copying() && options_.faults.membership != 0;
  if (parent.none() && !safe.none() && !overlooks && Recoverable(safe)) {
    return "I8: " + name + " starts afresh, although " + ToString(safe) + " exists";
  }
  if (parent.none() && !safe.none() && !overlooks && PartLeft(safe)) {
    return "I8: " + name + " starts afresh, although a part of " + ToString(safe) + " is left";
  }
  if (!lossy_ && !safe.none() && parent < safe) {
    return "I3: " + name + " took " + ToString(parent) + ", older than " + ToString(safe);
  }
  return "";
}

// A decision file that appears when a higher record exists is not acted upon; whether the next attempt has seen it is
// open, so it may be judged by either history. Below a higher decision its attempt's record may have been pruned, and
// be that of another process now, whose storage had hung as well: what it wants was not what was decided.
void World::CheckDecision(const v1::DecisionRecord& decision) {
  if (store_.Newest() > decision.attempt()) late_decisions_.insert(decision.attempt());
  const bool below = store_.decisions.rbegin()->first > decision.attempt();
  const uint64_t opener = store_.records.at(decision.attempt()).rank0_ticket();
  if (below && decision.ranks(0).ticket() != opener) return;
  std::string verdict;
  if (store_.decisions.begin()->first == decision.attempt() && !ToId(decision.parent()).none()) {
    verdict = "I6: the first decision has a parent";
  }
  for (auto it = std::make_reverse_iterator(store_.decisions.find(decision.attempt())); it != store_.decisions.rend();
       ++it) {
    CheckVoidMarkers(decision, it->second);
    verdict = Judge(decision, it->second);
    if (verdict.empty() || late_decisions_.count(it->first) == 0) break;
  }
  if (!verdict.empty()) Fail(verdict.substr(0, 2), verdict.substr(4));
  CheckPromise(decision);
  CheckRebuildable(decision);
  const v1::Want::Kind want = store_.records.at(decision.attempt()).want().kind();
  std::erase_if(durable_, [&](const auto& entry) {
    const SnapshotId& id = entry.first;
    if (entry.second >= decision.attempt() || OnLineage(decision, id)) return false;
    const auto step = store_.steps.find(id);  // marked = deleted by retention, whatever happened to the files
    const bool kept = step != store_.steps.end() && step->second.marker == 0;
    if (want == v1::Want::NEWEST && kept && store_.Good(id)) {
      Fail("I4", ToString(id) + " was durable, and attempt " + std::to_string(decision.attempt()) + " left it");
    }
    return true;
  });
}

// I7: the newest whole checkpoint on the present history never goes. A step is gone from the moment its marker stands
// and was checked: nothing can choose it any more, whenever the files follow. So what came after the marker is not
// blamed on the deletion (a user who rolls back behind its successor), unless an attempt took the victim after all.
void World::CheckDelete(const SnapshotId& victim) {
  const v1::DecisionRecord* decision = store_.NewestDecision();
  if (decision == nullptr || !store_.Good(victim) || !OnLineage(*decision, victim)) return;
  const auto marked = store_.decisions.find(store_.steps.at(victim).marker);
  const bool taken = std::any_of(store_.decisions.upper_bound(store_.steps.at(victim).marker), store_.decisions.end(),
                                 [&](const auto& later) { return ToId(later.second.parent()) == victim; });
  for (const auto& [id, step] : store_.steps) {
    if (id < victim || id == victim || !store_.Good(id)) continue;
    if (OnLineage(*decision, id)) return;
    if (!taken && marked != store_.decisions.end() && OnLineage(marked->second, id)) return;
  }
  Fail("I7", ToString(victim) + " is deleted, and nothing newer on the history is whole");
}

// Those that history has left are nobody's, whoever still writes them.
void World::NoteRemains(const job::PutMarker& marked) {
  const v1::DecisionRecord* decision = store_.NewestDecision();
  if (decision == nullptr || !OnLineage(*decision, marked.id)) return;
  remains_[marked.id] = marked.attempt;
  ++counts_.remains;
}

// What was marked as remains, so that it may go without a successor, is written by nobody any more, unless a run goes
// back to it.
void World::CheckRemains(const SnapshotId& written) {
  const auto marked = remains_.find(written);
  if (marked == remains_.end()) return;
  const bool taken = std::any_of(store_.decisions.upper_bound(marked->second), store_.decisions.end(),
                                 [&](const auto& later) { return ToId(later.second.parent()) == written; });
  if (!taken) Fail("I7", "a part is written of " + ToString(written) + ", which was marked as remains");
}

// I1: a rank may leave restore() only when every rank of the attempt has loaded the same snapshot.
void World::CheckGo(const Process& process, const snapshot::SendGo& go) {
  const auto decision = store_.decisions.find(go.attempt);
  if (decision == store_.decisions.end()) return Fail("I1", "GO without a decision");
  const SnapshotId parent = ToId(decision->second.parent());
  for (const v1::RankClaim& claim : decision->second.ranks()) {
    const auto loaded = loaded_.find({go.attempt, claim.rank()});
    if (loaded == loaded_.end()) {
      Fail("I1", "rank " + std::to_string(process.rank) + " goes, and rank " + std::to_string(claim.rank()) +
                     " has not loaded");
    } else if (loaded->second != parent) {
      Fail("I1", "ranks of attempt " + std::to_string(go.attempt) + " loaded " + ToString(loaded->second) + " and " +
                     ToString(parent));
    }
    if (claim.rank() == process.rank && claim.ticket() != process.ticket) {
      Fail("I1", "GO for a restore() call that the decision does not name");
    }
  }
}

}  // namespace ckptd::sim
