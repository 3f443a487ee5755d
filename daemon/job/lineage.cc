#include "daemon/job/lineage.h"

#include <map>

#include "daemon/format/snapshot_ref.h"

namespace ckptd::job {

bool OnLineage(const v1::DecisionRecord& decision, const SnapshotId& id) {
  if (id.attempt == decision.attempt()) return true;
  for (const v1::LineageEntry& entry : decision.lineage()) {
    if (entry.attempt() == id.attempt) return id.step <= entry.last_step();
  }
  return false;
}

void SetParent(const v1::DecisionRecord& base, const SnapshotId& parent, v1::DecisionRecord* child) {
  child->clear_parent();
  child->clear_lineage();
  if (parent.none()) return;
  SetRef(parent, child->mutable_parent());
  v1::LineageEntry* first = child->add_lineage();
  first->set_attempt(parent.attempt);
  first->set_last_step(parent.step);
  if (const uint32_t world = WorldIn(base, parent.attempt); world != 0) first->set_world_size(world);
  for (const v1::LineageEntry& entry : base.lineage()) {
    if (entry.attempt() < parent.attempt) *child->add_lineage() = entry;
  }
}

uint32_t WorldIn(const v1::DecisionRecord& decision, AttemptId attempt) {
  if (decision.attempt() == attempt) return static_cast<uint32_t>(decision.ranks_size());
  for (const v1::LineageEntry& entry : decision.lineage()) {
    if (entry.attempt() == attempt) return entry.world_size();
  }
  return 0;
}

void FillWorlds(const std::vector<v1::DecisionRecord>& decisions, v1::DecisionRecord* child) {
  std::map<AttemptId, uint32_t> worlds;
  for (const v1::DecisionRecord& decision : decisions) {
    worlds[decision.attempt()] = static_cast<uint32_t>(decision.ranks_size());
  }
  for (v1::LineageEntry& entry : *child->mutable_lineage()) {
    if (entry.world_size() == 0) entry.set_world_size(worlds[entry.attempt()]);
  }
}

const v1::DecisionRecord* NewestBefore(const std::vector<v1::DecisionRecord>& decisions, AttemptId before) {
  const v1::DecisionRecord* newest = nullptr;
  for (const v1::DecisionRecord& decision : decisions) {
    if (decision.attempt() >= before) continue;
    if (newest == nullptr || decision.attempt() > newest->attempt()) newest = &decision;
  }
  return newest;
}

bool MarkerHolds(const StoredStep& step, const std::vector<v1::DecisionRecord>& decisions, bool voided_by_choice) {
  if (step.marker == 0 || !voided_by_choice) return step.marker != 0;
  for (const v1::DecisionRecord& decision : decisions) {
    if (decision.attempt() > step.marker && ToId(decision.parent()) == step.id) return false;
  }
  return true;
}

}  // namespace ckptd::job
