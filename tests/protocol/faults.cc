// What can go wrong, several times a run.
#include <algorithm>

#include "tests/protocol/world.h"

namespace ckptd::sim {

void World::Kill(Process& process) {
  process.life = Life::kDead;
  process.stopped = false;
  process.copies.clear();
  process.inbox.clear();
}

// torchrun: every process dies and comes back.
void World::RestartAll(const v1::Want& want) {
  want_ = want;
  for (auto& process : processes_) {
    if (process->life != Life::kDead) Kill(*process);
  }
  for (Rank rank = 0; rank < options_.ranks; ++rank) Spawn(rank, placement_[rank]);
}

// A process that died alone comes back alone.
void World::Reincarnate() {
  for (Rank rank = 0; rank < options_.ranks; ++rank) {
    const Process* holder = Holder(rank);
    if (holder->life != Life::kDead || !random_.Chance(30)) continue;
    Spawn(rank, holder->node);
  }
}

void World::LoseNode(int node) {
  lossy_ = true;
  StopAgent(node);
  for (auto& process : processes_) {
    if (process->node == node && process->life != Life::kDead) Kill(*process);
    if (process->node == node) process->noticed = true;
  }
  NoteLoss(node);
  nodes_[node].region = Region();
  nodes_[node].region.id = ++last_id_;
  regions_dirty_ = true;
}

// What room region says of it at the start: the slot holds nothing, and no absence proves anything from now on.
void World::CutSlots(Region& region) {
  for (auto& [rank, slots] : region.ranks) {
    for (RegionSlot& slot : slots) {
      if (slot.state != SlotStateCode::kSealed || !random_.Chance(100)) continue;
      slot.state = SlotStateCode::kFree;
      slot.persisted = false;
      region.lost = region.seen;
      lossy_ = regions_dirty_ = true;
    }
  }
}

// A step that a user could ask for.
v1::Want World::SomeStep() {
  v1::Want want;
  std::vector<StepId> steps;
  for (const auto& [id, step] : store_.steps) {
    if (step.committed) steps.push_back(id.step);
  }
  if (steps.empty() || random_.Chance(200)) {
    for (const auto& [attempt, id] : declared_) steps.push_back(id.step);
  }
  if (steps.empty()) return want;
  want.set_kind(v1::Want::STEP);
  want.set_step(steps[random_.Below(steps.size())]);
  return want;
}

// The user wants an older step; all ranks call restore() with it.
void World::Rollback() {
  const v1::Want want = SomeStep();
  want_ = want;
  for (Rank rank = 0; rank < options_.ranks; ++rank) {
    Process& holder = *Holder(rank);
    if (holder.life == Life::kDead || holder.stopped || random_.Chance(300)) {
      if (holder.life != Life::kDead) Kill(holder);
      Spawn(rank, holder.node);
    } else {
      CallRestore(holder, want);  // the same process, with whatever its threads still do
    }
  }
}

// ckptctl rm of any step there is.
bool World::Remove(int node) {
  Agent* agent = nodes_[node].agent.get();
  if (agent == nullptr || agent->removal || store_.steps.empty()) return false;
  const auto step = std::next(store_.steps.begin(), static_cast<ptrdiff_t>(random_.Below(store_.steps.size())));
  job::Config config;
  config.job = "sim";
  config.agent = AgentName(node);
  config.rules = options_.rules.job;
  agent->removal.emplace(config, job::Removal::Wanted{{step->first}, nodes_[node].region.seen, random_.Chance(700)});
  job::Effects requests;
  agent->removal->Begin(requests);
  AskForRemoval(node, requests);
  return true;
}

// Each agent has its own view of the membership, and it may be wrong.
std::vector<std::string> World::SomeMembers(int node) {
  std::vector<std::string> members;
  const bool all = healing_ || options_.faults.membership == 0 || random_.Chance(300);
  for (int other = 0; other < options_.nodes; ++other) {
    if (all || other == node || random_.Chance(500)) members.push_back(AgentName(other));
  }
  return members;
}

void World::ChangeMembers(int node) {
  if (nodes_[node].agent != nullptr) Feed(node, job::MembersChanged{SomeMembers(node)});
}

// Both sides, or only the second one, hear nothing of the other for a while.
void World::Partition() {
  cut_.clear();
  const bool one_way = random_.Chance(400);
  std::vector<bool> side;
  side.reserve(static_cast<size_t>(options_.nodes));
  for (int node = 0; node < options_.nodes; ++node) side.push_back(random_.Chance(500));
  for (int from = 0; from < options_.nodes; ++from) {
    for (int to = 0; to < options_.nodes; ++to) {
      if (side[from] != side[to] && (side[to] || !one_way)) cut_.insert({from, to});
    }
  }
  cut_until_ = steps_ + 50 + random_.Below(600);
  counts_.partitions += cut_.empty() ? 0 : 1;
}

bool World::LoseCoordinator() {
  for (int node = 0; node < options_.nodes; ++node) {
    const Agent* agent = nodes_[node].agent.get();
    const job::Phase phase = agent == nullptr ? job::Phase::kIdle : agent->job.view().phase;
    if (phase < job::Phase::kGather || phase > job::Phase::kRun || random_.Chance(300)) continue;
    options_.faults.lose_node != 0 && random_.Chance(300) ? LoseNode(node) : StopAgent(node);
    ++counts_.coordinators;
    return true;
  }
  return false;
}

bool World::PinSomething() {
  const int node = static_cast<int>(random_.Below(nodes_.size()));
  Agent* agent = nodes_[node].agent.get();
  if (agent == nullptr) return false;
  if (!agent->pins.empty() && random_.Chance(600)) {
    const auto [rank, pin] = agent->pins.back();
    const Image& image = files_[agent->pin_files.back()];
    for (const Tag tag : image) {
      if (IdOf(tag) != pin.snapshot) Fail("I2", "a pinned snapshot changed under its reader");
    }
    agent->pins.pop_back();
    agent->pin_files.pop_back();
    Feed(node, rank, snapshot::ReadUnpinned{pin.slot, pin.snapshot});
    return true;
  }
  for (auto& [rank, slots] : nodes_[node].region.ranks) {
    for (const RegionSlot& slot : slots) {
      if (slot.state != SlotStateCode::kSealed || !random_.Chance(200) || agent->ranks.count(rank) == 0) continue;
      agent->pins.push_back({rank, {slot.id, slot.record}});
      agent->pin_files.push_back(slot.file);
      Feed(node, rank, snapshot::ReadPinned{slot.id, slot.record});
      return true;
    }
  }
  return false;
}

bool World::Fault() {
  const Faults& f = options_.faults;
  size_t dice = random_.Below(10000);
  const auto hit = [&dice](int weight) {
    if (dice < static_cast<size_t>(weight)) return true;
    dice -= static_cast<size_t>(weight);
    return false;
  };
  Process& process = *processes_[random_.Below(processes_.size())];
  const int node = static_cast<int>(random_.Below(nodes_.size()));
  if (hit(f.kill_trainer)) {
    if (process.life != Life::kDead) Kill(process);
  } else if (hit(f.stop_trainer)) {
    process.stopped = !process.stopped && process.life != Life::kDead;
  } else if (hit(f.stop_trainer)) {
    process.stopped = false;
  } else if (hit(f.kill_agent)) {
    StopAgent(node);
  } else if (hit(f.lose_node)) {
    copying() ? LoseNodes(node) : LoseNode(node);
  } else if (hit(f.move_rank_zero)) {
    if (options_.nodes < 2 || Holder(0)->life != Life::kRunning) return false;
    lossy_ = true;
    Place(0, node);
    Spawn(0, node);  // the old one may live on
  } else if (hit(f.rollback)) {
    Rollback();
  } else if (hit(f.change_layout)) {
    const Rank rank = static_cast<Rank>(random_.Below(options_.ranks));
    if (layout_[rank] < 200) ++layout_[rank];
  } else if (hit(f.hang_storage)) {
    store_.hung = !store_.hung;
  } else if (hit(f.restart_all)) {
    v1::Want want;
    if (refusals_in_a_row_ > 2) want.set_kind(v1::Want::FRESH);
    RestartAll(want);
  } else if (options_.nodes > 1 && hit(f.take_over)) {
    lossy_ = true;
    Place(0, node);
    RestartAll(random_.Chance(500) ? SomeStep() : v1::Want());
  } else if (options_.nodes > 1 && hit(f.scatter)) {
    lossy_ = true;
    for (Rank rank = 0; rank < options_.ranks; ++rank) Place(rank, static_cast<int>(random_.Below(nodes_.size())));
    RestartAll({});
  } else if (options_.nodes > 1 && hit(f.membership)) {
    ChangeMembers(node);
  } else if (hit(f.partition)) {
    Partition();
  } else if (hit(f.lose_coordinator)) {
    if (!LoseCoordinator()) return false;
  } else if (hit(f.rot)) {
    if (!Rot()) return false;
  } else if (f.remove > 0 && hit(f.remove)) {
    if (!Remove(node)) return false;
  } else {
    return false;
  }
  ++counts_.faults;
  return true;
}

}  // namespace ckptd::sim
