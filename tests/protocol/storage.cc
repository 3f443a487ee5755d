// Requests to the storage: each happens at some time after it was asked for, its answer arrives some time later, and
// the agent that asked may be gone by then.
#include <algorithm>

#include "absl/status/status.h"
#include "daemon/base/errors.h"
#include "tests/protocol/world.h"

namespace ckptd::sim {

bool World::StoreStep() {
  const bool answer = !answers_.empty() && (ops_.empty() || store_.hung || random_.Chance(500));
  if (answer) {
    const size_t index = random_.Below(answers_.size());
    const StoreAnswer next = answers_[index];
    answers_.erase(answers_.begin() + static_cast<ptrdiff_t>(index));
    const Agent* agent = nodes_[next.node].agent.get();
    if (agent == nullptr || agent->incarnation != next.incarnation) return true;
    if (const auto* event = std::get_if<job::Event>(&next.event)) {
      next.rank == kRemoval ? FeedRemoval(next.node, *event) : Feed(next.node, *event);
    } else {
      Feed(next.node, next.rank, std::get<snapshot::Event>(next.event));
    }
    return true;
  }
  if (ops_.empty() || store_.hung) return false;
  const size_t index = random_.Below(ops_.size());
  if (ops_[index].ready > steps_) return false;
  const StoreOp op = ops_[index];
  ops_.erase(ops_.begin() + static_cast<ptrdiff_t>(index));
  const Agent* agent = nodes_[op.node].agent.get();
  const bool orphan = agent == nullptr || agent->incarnation != op.incarnation;
  const bool memory = std::holds_alternative<snapshot::Effect>(op.effect);
  if (orphan && (memory || random_.Chance(500))) return true;  // it never left the node that died
  Run(op);
  return true;
}

void World::Ask(StoreOp op) {
  const bool slow = !healing_ && random_.Chance(options_.slow_ops);
  op.ready = slow ? steps_ + random_.Below(500) : 0;
  ops_.push_back(std::move(op));
}

void World::Run(const StoreOp& op) {
  if (const auto* effect = std::get_if<job::Effect>(&op.effect)) return RunJobOp(op, *effect);
  RunRankOp(op, std::get<snapshot::Effect>(op.effect));
}

void World::RunJobOp(const StoreOp& op, const job::Effect& effect) {
  if (const auto* read = std::get_if<job::ReadNewest>(&effect)) Answer(op, store_.Read(*read));
  if (const auto* list = std::get_if<job::List>(&effect)) Answer(op, store_.List(*list));
  if (const auto* check = std::get_if<job::CheckNewest>(&effect)) {
    Answer(op, job::NewestChecked{check->op, absl::OkStatus(), store_.Newest()});
  }
  if (const auto* create = std::get_if<job::CreateAttempt>(&effect)) {
    const bool cut_off = op.rank == kRemoval && !healing_ && random_.Chance(200);
    if (op.rank == kRemoval && RunLives(op.node) && !cut_off) {
      return Answer(op, job::AttemptCreated{create->op, Error(ErrorCode::REFUSED, "a run lives")});
    }
    const job::AttemptCreated created = store_.Create(*create);
    counts_.attempts += created.status.ok() ? 1 : 0;
    if (created.status.ok()) NoteAttempt(create->record.attempt());
    Answer(op, created);
  }
  if (const auto* create = std::get_if<job::CreateDecision>(&effect)) {
    bool created = false;
    const job::DecisionCreated answer = store_.Create(*create, &created);
    if (created) decided_by_[create->decision.attempt()] = op.incarnation;
    if (created) CheckDecision(create->decision);
    if (created) StrikeAtDecision(op.node);
    Answer(op, answer);
  }
  if (const auto* create = std::get_if<job::CreateManifest>(&effect)) {
    const job::ManifestCreated created = store_.Create(*create);
    counts_.commits += created.status.ok() ? 1 : 0;
    Answer(op, created);
  }
  if (const auto* verify = std::get_if<job::VerifyStep>(&effect)) Answer(op, store_.Verify(*verify));
  if (const auto* verify = std::get_if<job::VerifyRank>(&effect)) ReadBack(op, *verify);
  if (const auto* put = std::get_if<job::PutMarker>(&effect)) {
    const job::MarkerPut answer = store_.Put(*put);
    if (put->remains && answer.status.ok() && answer.whole == 0) NoteRemains(*put);
    Answer(op, answer);
  }
  if (const auto* prune = std::get_if<job::PruneRecords>(&effect)) {
    Answer(op, store_.Prune(*prune));
    counts_.pruned += prune->decisions.size();
  }
  if (const auto* gone = std::get_if<job::DeleteStep>(&effect)) {
    CheckDelete(gone->id);
    const auto it = store_.steps.find(gone->id);
    const bool manifest_first = it != store_.steps.end() && it->second.committed;
    if (manifest_first) {
      it->second.committed = false;
      ++counts_.retired;
      ops_.push_back(op);  // the files go in a later step
      return;
    }
    store_.steps.erase(gone->id);
    ++counts_.deletions;
    Answer(op, job::StepDeleted{gone->op, absl::OkStatus()});
  }
}

void World::ReadBack(const StoreOp& op, const job::VerifyRank& request) {
  if (!healing_ && random_.Chance(options_.read_errors)) {
    return Answer(op, job::RankVerified{request.op, Error(ErrorCode::STORAGE_IO, "i/o error")});
  }
  const job::RankVerified answer = store_.Verify(request);
  counts_.proven += answer.status.ok() ? 1 : 0;
  Answer(op, answer);
}

// A disk loses what nobody has read since it was written: what is lost later no proof can know.
bool World::Rot() {
  std::vector<Part*> parts;
  for (auto& [id, step] : store_.steps) {
    for (auto& [rank, part] : step.parts) {
      if (step.committed && !part.read && !part.bad) parts.push_back(&part);
    }
  }
  if (parts.empty()) return false;
  parts[random_.Below(parts.size())]->bad = true;
  ++counts_.rotten;
  return lossy_ = true;
}

void World::RunRankOp(const StoreOp& op, const snapshot::Effect& effect) {
  if (const auto* flush = std::get_if<snapshot::StartFlush>(&effect)) RunFlush(op, *flush);
  if (const auto* fetch = std::get_if<snapshot::Fetch>(&effect)) RunFetch(op, *fetch);
  if (const auto* replace = std::get_if<snapshot::ReplaceFile>(&effect)) {
    FindDamage(op, replace->slot);
    if (!healing_ && random_.Chance(200)) {
      return Answer(op, snapshot::FileReplaced{replace->slot, Error(ErrorCode::REGION_FULL, "no memory")});
    }
    RegionSlot* slot = SlotOf(op.node, op.rank, replace->slot);
    slot->file = static_cast<int>(files_.size());
    files_.emplace_back();
    slot->state = SlotStateCode::kFree;
    regions_dirty_ = true;
    Answer(op, snapshot::FileReplaced{replace->slot, absl::OkStatus()});
  }
  if (const auto* find = std::get_if<snapshot::FindLayout>(&effect)) {
    FindLayout(op, *find);
  }
}

// By who reads the slot while its fresh file is prepared.
void World::FindDamage(const StoreOp& op, const snapshot::SlotId& id) {
  const RegionSlot* slot = SlotOf(op.node, op.rank, id);
  if (!options_.damage || slot->state != SlotStateCode::kSealed || !random_.Chance(500)) return;
  ++counts_.damaged;
  Feed(op.node, op.rank, snapshot::DamageFound{id, slot->record});
}

void World::FindLayout(const StoreOp& op, const snapshot::FindLayout& effect) {
  std::optional<Image> copy = FirstCopy(op.node, effect.sources.agents, op.rank, effect.snapshot);
  if (!copy && effect.sources.parity != nullptr) copy = Gather(op, effect.sources, effect.snapshot).image;
  if (copy) {
    AddLayout(op.node, op.rank, LayoutOf((*copy)[0]));
    return Answer(op, snapshot::LayoutFound{effect.snapshot, LayoutOf((*copy)[0]), absl::OkStatus()});
  }
  const auto step = store_.steps.find(effect.snapshot);
  const bool there = step != store_.steps.end() && step->second.parts.count(op.rank) != 0;
  if (!there) {
    return Answer(op, snapshot::LayoutFound{effect.snapshot, 0, Error(ErrorCode::NOT_FOUND, "no such part")});
  }
  const uint32_t layout = LayoutOf(step->second.parts.at(op.rank).image[0]);
  AddLayout(op.node, op.rank, layout);
  Answer(op, snapshot::LayoutFound{effect.snapshot, layout, absl::OkStatus()});
}

void World::RunFlush(const StoreOp& op, const snapshot::StartFlush& effect) {
  const RegionSlot* slot = SlotOf(op.node, op.rank, effect.slot);
  if (slot->state != SlotStateCode::kSealed || slot->record != effect.snapshot) {
    return Fail("I2", "a flush reads a slot that holds something else");
  }
  if (!options_.rules.job.attempt_in_identity) MergeSameStep(effect.snapshot);
  StepDir& step = store_.steps[effect.snapshot];
  if (step.parts.count(op.rank) == 0) CheckRemains(effect.snapshot);
  if (!healing_ && random_.Chance(options_.faults.flush_errors)) {
    return Answer(op, snapshot::FlushEnded{effect.slot, effect.snapshot, absl::UnavailableError("i/o error")});
  }
  const bool bad = options_.bad_parts && !healing_ && random_.Chance(60);
  lossy_ = lossy_ || bad;
  step.parts.emplace(op.rank, Part{files_[slot->file], bad});  // an existing part is the same part
  Answer(op, snapshot::FlushEnded{effect.slot, effect.snapshot, absl::OkStatus()});
}

// The mutant: directories are named by the step alone, so attempts share them.
void World::MergeSameStep(const SnapshotId& id) {
  for (const auto& [other, step] : store_.steps) {
    if (other.step != id.step || other == id) continue;
    auto node = store_.steps.extract(other);
    node.key() = id;
    store_.steps.insert(std::move(node));
    return;
  }
}

void World::RunFetch(const StoreOp& op, const snapshot::Fetch& effect) {
  if (const auto copy = FirstCopy(op.node, effect.sources.agents, op.rank, effect.snapshot)) {
    files_[SlotOf(op.node, op.rank, effect.slot)->file] = *copy;
    ++counts_.replicas;
    return Answer(op,
                  snapshot::Fetched{effect.slot, effect.snapshot, absl::OkStatus(), snapshot::Source::kReplica, false});
  }
  if (effect.sources.parity != nullptr) return RunRebuild(op, effect);
  FetchFromStorage(op, effect);
}

void World::FetchFromStorage(const StoreOp& op, const snapshot::Fetch& effect) {
  const auto step = store_.steps.find(effect.snapshot);
  const bool there = step != store_.steps.end() && step->second.committed && step->second.parts.count(op.rank) != 0;
  if (!there) return Answer(op, snapshot::Fetched{effect.slot, effect.snapshot, Error(ErrorCode::NOT_FOUND, "gone")});
  const Part& part = step->second.parts.at(op.rank);
  if (part.bad) {
    return Answer(op, snapshot::Fetched{effect.slot, effect.snapshot, Error(ErrorCode::CORRUPT, "bad chunk 1")});
  }
  files_[SlotOf(op.node, op.rank, effect.slot)->file] = part.image;
  Answer(op, snapshot::Fetched{effect.slot, effect.snapshot, absl::OkStatus()});
}

void World::FeedRemoval(int node, const job::Event& event) {
  std::optional<job::Removal>& removal = nodes_[node].agent->removal;
  job::Effects requests;
  removal->Step(event, requests);
  AskForRemoval(node, requests);
  if (!removal->ended()) return;
  for (const auto& [id, status] : removal->results()) counts_.removals += status.ok() ? 1 : 0;
  removal.reset();
}

void World::AskForRemoval(int node, const job::Effects& requests) {
  for (const job::Effect& request : requests) {
    if (options_.trace) Trace(AgentName(node) + " rm > " + job::ToString(request));
    Ask({node, nodes_[node].agent->incarnation, kRemoval, request});
  }
}

// What the agent itself can know of it.
bool World::RunLives(int node) const {
  const job::Phase phase = nodes_[node].agent ? nodes_[node].agent->job.view().phase : job::Phase::kIdle;
  const bool trainer = std::any_of(processes_.begin(), processes_.end(), [&](const auto& process) {
    return process->node == node && process->life != Life::kDead;
  });
  return trainer || (phase != job::Phase::kIdle && phase != job::Phase::kStopped && phase != job::Phase::kGather);
}

void World::Answer(const StoreOp& op, job::Event event) {
  answers_.push_back({op.node, op.incarnation, op.rank, std::move(event)});
}

void World::Answer(const StoreOp& op, snapshot::Event event) {
  answers_.push_back({op.node, op.incarnation, op.rank, std::move(event)});
}

}  // namespace ckptd::sim
