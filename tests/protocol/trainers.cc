// The trainers: libckpt's side of the protocol, with threads that may stop anywhere and go on later.
#include <algorithm>

#include "tests/protocol/world.h"

namespace ckptd::sim {

Process& World::Spawn(Rank rank, int node) {
  Process& process = *processes_.emplace_back(std::make_unique<Process>());
  process.id = ++last_id_;
  process.rank = rank;
  process.node = node;
  return process;
}

Process* World::Find(snapshot::ProcessId id) {
  for (auto& process : processes_) {
    if (process->id == id) return process.get();
  }
  return nullptr;
}

// The newest process of a rank.
Process* World::Holder(Rank rank) {
  for (auto it = processes_.rbegin(); it != processes_.rend(); ++it) {
    if ((*it)->rank == rank) return it->get();
  }
  return nullptr;
}

SimBellSlot* World::Word(Process& process, const snapshot::SlotId& slot) {
  for (SimBellSlot& word : process.bell) {
    if (word.word.slot == slot) return &word;
  }
  SimBellSlot& word = process.bell.emplace_back();
  word.word.slot = slot;
  return &word;
}

bool World::TrainerStep() {
  Process& process = *processes_[random_.Below(processes_.size())];
  if (process.life == Life::kDead || process.stopped) return false;
  switch (process.life) {
    case Life::kStarting:
      CallRestore(process, want_);
      return true;
    case Life::kRestoring:
      ActRestoring(process);
      return true;
    default:
      ActRunning(process);
      return true;
  }
}

void World::CallRestore(Process& process, const v1::Want& want) {
  process.life = Life::kRestoring;
  process.ticket = ++last_id_;
  process.want = want;
  process.inbox.clear();
  process.grant.reset();
  process.connection = 0;
}

// The layout has lost a slot, and will not get another one.
bool World::GaveRoom(const Process& process, uint32_t layout) {
  const std::vector<RegionSlot>& slots = nodes_[process.node].region.ranks[process.rank];
  return std::any_of(slots.begin(), slots.end(),
                     [&](const RegionSlot& slot) { return slot.id.layout == layout && slot.file == kNoFile; });
}

// JOIN or RESUME with the agent that lives now.
void World::Connect(Process& process) {
  process.connection = nodes_[process.node].agent->incarnation;
  process.inbox.clear();
  if (process.life == Life::kRestoring) {
    Feed(process.node, job::Join{process.rank, process.ticket, process.id, options_.ranks, process.want, Nanos(1)});
    return;
  }
  process.grant.reset();  // read again from ctl: an adopted fill is abandoned anyway
  RankMachine(process.node, process.rank);
  Feed(process.node, job::Resumed{process.rank, process.id, process.attempt});
  Feed(process.node, process.rank, snapshot::Attached{process.id, process.ticket, process.attempt});
  if (GaveRoom(process, process.layout)) process.layout = 0;  // RESUME_REFUSED
  if (process.layout != 0) Feed(process.node, process.rank, snapshot::LayoutChosen{process.id, process.layout});
  FeedBell(process.node, process);
}

void World::ActRestoring(Process& process) {
  const Agent* agent = nodes_[process.node].agent.get();
  if (agent == nullptr) return;
  if (process.connection != agent->incarnation) return Connect(process);
  Take(process);
}

void World::Take(Process& process) {
  if (process.inbox.empty()) return;
  const Delivery delivery = process.inbox.front();
  process.inbox.pop_front();
  if (const auto* load = std::get_if<snapshot::SendLoad>(&delivery.message)) {
    if (process.life == Life::kRestoring) TakeLoad(process, *load, delivery);
  } else if (const auto* go = std::get_if<snapshot::SendGo>(&delivery.message)) {
    if (process.life == Life::kRestoring && go->ticket == process.ticket) TakeGo(process, *go);
  } else if (const auto* news = std::get_if<snapshot::SendNews>(&delivery.message)) {
    process.fenced = process.life == Life::kRunning && news->fenced_by > process.attempt;
  }
}

void World::TakeLoad(Process& process, const snapshot::SendLoad& load, const Delivery& delivery) {
  if (load.ticket != process.ticket) return;
  if (!load.snapshot.none()) {
    const Image& image = files_[delivery.file];
    if (image != delivery.crcs) {
      return Feed(process.node, process.rank,
                  snapshot::LoadFailed{load.attempt, load.ticket, ErrorCode::CORRUPT, "bad chunk"});
    }
    for (const Tag tag : image) {
      if (IdOf(tag) != IdOf(image[0]) || LayoutOf(tag) != LayoutOf(image[0])) Fail("I2", "a torn image was restored");
      if (IdOf(tag) != load.snapshot || RankOf(tag) != process.rank)
        Fail("I1", "LOAD gave the bytes of another snapshot");
    }
  }
  loaded_[{load.attempt, process.rank}] = load.snapshot;
  Feed(process.node, process.rank, snapshot::Loaded{load.attempt, load.ticket});
}

void World::TakeGo(Process& process, const snapshot::SendGo& go) {
  CheckGo(process, go);
  ++counts_.restores;
  refusals_in_a_row_ = 0;
  process.life = Life::kRunning;
  process.attempt = go.attempt;
  process.step = go.start;
  process.pos_attempt = go.attempt;
  process.pos = 0;
  process.layout = 0;
  process.fenced = false;
  process.waiting = false;
  process.wanted = 0;
}

// LAYOUT, and the region's answer: in some worlds only after the layouts before have given up all they can, in the end
// all slots but one. True: not yet.
bool World::WaitsForRoom(Process& process) {
  if (process.room_for != layout_[process.rank]) {
    process.room_for = layout_[process.rank];
    process.short_of = random_.Chance(options_.faults.short_memory);
  }
  if (!process.short_of) return false;
  int held = 0;
  for (const RegionSlot& slot : nodes_[process.node].region.ranks[process.rank]) held += slot.file != kNoFile ? 1 : 0;
  if (held <= 1 || random_.Chance(20)) return process.short_of = false;  // or a reader of another job went
  FeedBell(process.node, process);
  Feed(process.node, process.rank, snapshot::RoomNeeded{true});
  return true;
}

void World::ChooseLayout(Process& process) {
  if (GaveRoom(process, layout_[process.rank])) ++layout_[process.rank];  // made anew
  process.layout = layout_[process.rank];
  process.grant.reset();
  AddLayout(process.node, process.rank, process.layout);
  Feed(process.node, process.rank, snapshot::LayoutChosen{process.id, process.layout});
}

void World::ActRunning(Process& process) {
  const Agent* agent = nodes_[process.node].agent.get();
  if (WorkOnCopy(process)) return;
  if (agent != nullptr && process.connection != agent->incarnation) return Connect(process);
  if (!process.inbox.empty()) return Take(process);
  if (process.fenced && !healing_ && random_.Chance(30)) {  // out of date: its launcher starts it anew
    const Rank rank = process.rank;
    Kill(process);
    Spawn(rank, placement_[rank]);
    return;
  }
  if (process.layout != layout_[process.rank]) {
    if (agent == nullptr) return;
    if (!WaitsForRoom(process)) return ChooseLayout(process);
    if (random_.Chance(500)) return;  // else it goes on with what it has
  }
  if (process.waiting) return Save(process);
  if (!BarrierOpen(process)) return;
  ++process.step;
  if (process.step % 2 == 0 || random_.Chance(200)) Save(process);
}

// True while a capture of this process holds the gate, or a thread of it was the one to act.
bool World::WorkOnCopy(Process& process) {
  for (size_t i = 0; i < process.copies.size(); ++i) {
    Copy& copy = process.copies[i];
    SimBellSlot* slot = Word(process, copy.slot);
    const bool open = slot->word.epoch == copy.epoch && slot->word.state == CaptureState::kOpen;
    if (!open) {
      if (!random_.Chance(400)) continue;  // the thread is stuck in its copy, the loop goes on
      FinishLateCopy(process, i);
      return true;
    }
    if (random_.Chance(15)) {  // the deadline
      slot->word.state = CaptureState::kAbandoned;
      return true;
    }
    files_[copy.file][copy.next] = copy.tag;
    slot->crcs[copy.next] = copy.tag;
    ++slot->done;
    if (++copy.next < kChunks) return true;
    slot->word.state = CaptureState::kComplete;
    process.copies.erase(process.copies.begin() + static_cast<ptrdiff_t>(i));
    return true;
  }
  for (SimBellSlot& slot : process.bell) {  // an abandoned grant that was never used
    const bool copying = std::any_of(process.copies.begin(), process.copies.end(),
                                     [&](const Copy& copy) { return copy.epoch == slot.word.epoch; });
    if (slot.word.state != CaptureState::kAbandoned || copying || !random_.Chance(300)) continue;
    slot.word.ack = slot.word.epoch;
  }
  return false;
}

// A thread whose fill was given up writes what it has in hand, then notices and acknowledges.
void World::FinishLateCopy(Process& process, size_t index) {
  Copy& copy = process.copies[index];
  if (copy.next < kChunks && random_.Chance(600)) {
    files_[copy.file][copy.next++] = copy.tag;
    regions_dirty_ = true;
    return;
  }
  SimBellSlot* slot = Word(process, copy.slot);
  if (slot->word.epoch == copy.epoch) slot->word.ack = copy.epoch;
  process.copies.erase(process.copies.begin() + static_cast<ptrdiff_t>(index));
}

// One step of training is collective.
bool World::BarrierOpen(const Process& process) const {
  for (Rank rank = 0; rank < options_.ranks; ++rank) {
    const bool there = std::any_of(processes_.begin(), processes_.end(), [&](const auto& other) {
      return other->rank == rank && other->life == Life::kRunning && other->attempt == process.attempt &&
             other->step >= process.step;
    });
    if (!there) return false;
  }
  return true;
}

void World::Save(Process& process) {
  const StepId step = process.step;
  if (step <= process.pos) return;
  process.waiting = options_.wait_for_slot && !process.grant && !random_.Chance(30);  // else its deadline has passed
  if (process.waiting) return;
  process.pos = step;
  if (random_.Chance(100)) process.wanted = step;
  if (!process.grant || random_.Chance(healing_ ? 5 : 60)) return;  // dropped
  const SimGrant grant = *process.grant;
  SimBellSlot* slot = Word(process, grant.slot);
  const bool open = slot->word.epoch == grant.epoch && slot->word.state == CaptureState::kOpen;
  if (!open || step < grant.floor) return;
  process.grant.reset();
  slot->word.step = step;
  const Tag tag = MakeTag({process.attempt, step}, process.rank, grant.slot.layout);
  process.copies.push_back({grant.slot, grant.epoch, grant.file, tag, 0});
}

}  // namespace ckptd::sim
