// The executor of the simulation: does with the effects what room app does.
#include <algorithm>

#include "daemon/format/snapshot_ref.h"
#include "tests/protocol/world.h"

namespace ckptd::sim {
namespace {

template <typename T>
std::shared_ptr<const T> ThroughWire(const std::shared_ptr<const T>& message) {
  auto copy = std::make_shared<T>();
  copy->ParseFromString(message->SerializeAsString());
  return copy;
}

std::variant<job::StatePtr, job::ReportPtr> ThroughWire(const std::variant<job::StatePtr, job::ReportPtr>& body) {
  if (const auto* state = std::get_if<job::StatePtr>(&body)) return ThroughWire(*state);
  return ThroughWire(std::get<job::ReportPtr>(body));
}

// Of an agent that knows nothing of proofs, as others hear it.
job::ReportPtr OfOlder(const job::ReportPtr& report) {
  auto older = std::make_shared<v1::Report>(*report);
  older->clear_proves();
  older->clear_proof();
  return older;
}

}  // namespace

void World::StartAgent(int node) {
  job::Config config;
  config.job = "sim";
  config.agent = AgentName(node);
  config.members = SomeMembers(node);
  config.incarnation = ++last_id_;
  config.decide_timeout = config.resend = config.retry = Nanos(1);
  config.at_once = options_.at_once;
  config.settle = Nanos(1);
  config.retention.keep_last = options_.keep_last;
  config.flush = options_.flush;
  config.rules = options_.rules.job;
  ConfigureCopies(&config);
  nodes_[node].agent = std::make_unique<Agent>(config.incarnation, config);
  Region& region = nodes_[node].region;
  nodes_[node].agent->kept = region.marks;
  if (options_.cut_slots && !healing_) CutSlots(region);
  Feed(node, job::Started{region.seen, region.id, region.lost, region.marks});
  AdoptCopies(node);
  for (auto& [rank, slots] : region.ranks) {
    RankMachine(node, rank);
    for (const RegionSlot& slot : slots) {
      const Process* owner = Find(slot.owner.process);
      const bool writes = slot.state == SlotStateCode::kFilling || slot.state == SlotStateCode::kRetired;
      if (writes && slot.owner.process != 0 && (owner == nullptr || owner->life == Life::kDead)) {
        Feed(node, rank, snapshot::Reaped{slot.owner.process});
        if (!nodes_[node].agent) return;
      }
    }
  }
}

snapshot::Machine& World::RankMachine(int node, Rank rank) {
  Agent& agent = *nodes_[node].agent;
  if (const auto it = agent.ranks.find(rank); it != agent.ranks.end()) return it->second;
  snapshot::Config config{"sim", rank, options_.rules.snapshot, AgentName(node)};
  snapshot::Machine& machine = agent.ranks.emplace(rank, std::move(config)).first->second;
  snapshot::Adopted adopted;
  adopted.seen = nodes_[node].region.seen;
  for (RegionSlot& slot : nodes_[node].region.ranks[rank]) {
    if (slot.state == SlotStateCode::kLoading) slot.state = SlotStateCode::kFree;
    adopted.slots.push_back({slot.id, slot.state, slot.epoch, slot.owner, slot.record, slot.persisted});
  }
  Feed(node, rank, adopted);
  return machine;
}

// G goes with it: a step that was below may be captured after all.
void World::StopAgent(int node) {
  nodes_[node].agent.reset();
  told_dropped_.clear();
}

void World::Feed(int node, const job::Event& event) {
  queue_.push_back({node, 0, 0, event});
  if (queue_.size() == 1) Drain(node);
}

void World::Feed(int node, Rank rank, const snapshot::Event& event) {
  queue_.push_back({node, 0, rank, event});
  if (queue_.size() == 1) Drain(node);
}

void World::Drain(int) {
  while (!queue_.empty()) {
    const StoreAnswer next = queue_.front();
    if (nodes_[next.node].agent != nullptr) {
      if (const auto* event = std::get_if<job::Event>(&next.event)) {
        StepJob(next.node, *event);
      } else {
        StepRank(next.node, next.rank, std::get<snapshot::Event>(next.event));
      }
    }
    queue_.pop_front();
  }
}

void World::StepJob(int node, const job::Event& event) {
  if (options_.trace) Trace(AgentName(node) + " < " + job::ToString(event));
  job::Effects effects;
  nodes_[node].agent->job.Step(event, effects);
  for (const job::Effect& effect : effects) {
    if (options_.trace) Trace(AgentName(node) + " > " + job::ToString(effect));
    Execute(node, effect);
  }
}

void World::StepRank(int node, Rank rank, const snapshot::Event& event) {
  const auto machine = nodes_[node].agent->ranks.find(rank);
  if (machine == nodes_[node].agent->ranks.end()) return;
  if (options_.trace) Trace(AgentName(node) + std::to_string(rank) + " < " + snapshot::ToString(event));
  snapshot::Effects effects;
  machine->second.Step(event, effects);
  for (const snapshot::Effect& effect : effects) {
    if (options_.trace) Trace(AgentName(node) + std::to_string(rank) + " > " + snapshot::ToString(effect));
    Execute(node, rank, effect);
  }
}

void World::Execute(int node, const job::Effect& effect) {
  Agent& agent = *nodes_[node].agent;
  if (const auto* persist = std::get_if<job::PersistSeen>(&effect)) {
    CheckSeen(node, persist->attempt);
    nodes_[node].region.seen = persist->attempt;
  } else if (const auto* marks = std::get_if<job::PersistMarks>(&effect)) {
    nodes_[node].region.marks.Raise(marks->marks);
  } else if (const auto* forward = std::get_if<job::ForwardState>(&effect)) {
    NoteMarks(node, *forward->state);
    for (auto& [rank, machine] : agent.ranks) StepRank(node, rank, snapshot::JobState{forward->state});
    HearMarks(node, forward->state);
  } else if (const auto* state = std::get_if<job::SendState>(&effect)) {
    NoteState(*state->state);
    SendTo(state->agent, node, state->state);
  } else if (const auto* report = std::get_if<job::SendReport>(&effect)) {
    CheckReport(node, *report->report);
    SendTo(report->agent, node, report->report);
  } else if (const auto* refuse = std::get_if<job::Refuse>(&effect)) {
    RefuseTicket(node, *refuse);
  } else if (const auto* accept = std::get_if<job::AcceptJoin>(&effect)) {
    RankMachine(node, accept->rank);
    Feed(node, accept->rank, snapshot::Attached{accept->process, accept->ticket, 0});
  } else if (const auto* timer = std::get_if<job::StartTimer>(&effect)) {
    agent.timers.push_back(*timer);
  } else if (!std::holds_alternative<job::DeleteEnded>(effect) && !std::holds_alternative<job::KeepWaiting>(effect) &&
             !std::holds_alternative<job::EndVerification>(effect)) {
    if (const auto* decide = std::get_if<job::CreateDecision>(&effect)) {
      CheckAnswered(agent, decide->decision);
      const std::pair by{decide->decision.attempt(), agent.incarnation};
      if (!EveryoneAnswered(by.first, by.second)) hasty_.insert(by);
    }
    Ask({node, agent.incarnation, 0, effect});
  }
}

void World::Execute(int node, Rank rank, const snapshot::Effect& effect) {
  Agent& agent = *nodes_[node].agent;
  if (const auto* grant = std::get_if<snapshot::OpenGrant>(&effect)) {
    Grant(node, rank, *grant);
  } else if (const auto* floor = std::get_if<snapshot::MoveFloor>(&effect)) {
    Process* process = Find(floor->owner.process);
    if (process != nullptr && process->grant && process->grant->epoch == floor->epoch) {
      process->grant->floor = floor->floor;
    }
  } else if (const auto* abandon = std::get_if<snapshot::AbandonWord>(&effect)) {
    Process* process = Find(abandon->process);
    if (process == nullptr || process->connection != agent.incarnation) return;  // no bell at hand
    SimBellSlot* word = Word(*process, abandon->slot);
    const bool open = word->word.epoch == abandon->epoch && word->word.state == CaptureState::kOpen;
    if (open) word->word.state = CaptureState::kAbandoned;
    if (process->grant && process->grant->epoch == abandon->epoch) process->grant.reset();
    FeedBell(node, *process);
  } else if (const auto* seal = std::get_if<snapshot::SealSlot>(&effect)) {
    CheckSeal(*seal, agent.ranks.at(rank).view().seen);
    Seal(node, rank, *seal);
  } else if (const auto* set = std::get_if<snapshot::SetSlotState>(&effect)) {
    CheckFreed(node, *SlotOf(node, rank, set->slot));
    SlotOf(node, rank, set->slot)->state = set->state;
    regions_dirty_ = true;
  } else if (const auto* persisted = std::get_if<snapshot::SetPersisted>(&effect)) {
    SlotOf(node, rank, persisted->slot)->persisted = true;
  } else if (const auto* drop = std::get_if<snapshot::DropFile>(&effect)) {
    DropFile(node, rank, drop->slot);
  } else if (const auto* layout = std::get_if<snapshot::RemoveLayout>(&effect)) {
    std::erase_if(nodes_[node].region.ranks[rank],
                  [&](const RegionSlot& slot) { return slot.id.layout == layout->layout; });
    regions_dirty_ = true;
  } else if (const auto* load = std::get_if<snapshot::SendLoad>(&effect)) {
    Delivery delivery{*load, 0, {}};
    if (!load->snapshot.none()) {
      const RegionSlot* slot = SlotOf(node, rank, load->slot);
      delivery.file = slot->file;
      delivery.crcs = slot->crcs;
    }
    Deliver(node, rank, load->process, delivery);
  } else if (const auto* go = std::get_if<snapshot::SendGo>(&effect)) {
    Deliver(node, rank, go->process, {*go, 0, {}});
  } else if (const auto* news = std::get_if<snapshot::SendNews>(&effect)) {
    CheckNews(*news);
    Deliver(node, rank, news->process, {*news, 0, {}});
  } else if (const auto* report = std::get_if<snapshot::ReportChanged>(&effect)) {
    Feed(node, job::RankChanged{report->report});
  } else if (std::get_if<snapshot::RetryAt>(&effect) != nullptr) {
    ++agent.retries;
  } else if (std::get_if<snapshot::Superseded>(&effect) != nullptr) {
    ++counts_.superseded;
  } else if (std::get_if<snapshot::CancelFlush>(&effect) == nullptr) {
    Ask({.node = node,
         .incarnation = agent.incarnation,
         .rank = rank,
         .effect = effect,
         .asked_in = nodes_[node].region.seen});
  }
}

void World::Grant(int node, Rank rank, const snapshot::OpenGrant& effect) {
  RegionSlot* slot = SlotOf(node, rank, effect.slot);
  slot->state = SlotStateCode::kFilling;
  slot->epoch = effect.epoch;
  slot->owner = effect.owner;
  Process* process = Find(effect.owner.process);
  if (process == nullptr) return;
  SimBellSlot* word = Word(*process, effect.slot);
  *word = SimBellSlot();
  word->word.slot = effect.slot;
  word->word.epoch = effect.epoch;
  word->word.state = CaptureState::kOpen;
  process->grant = SimGrant{effect.slot, effect.epoch, effect.floor, slot->file};
}

void World::Seal(int node, Rank rank, const snapshot::SealSlot& effect) {
  RegionSlot* slot = SlotOf(node, rank, effect.slot);
  slot->state = SlotStateCode::kSealed;
  slot->epoch = effect.epoch;
  slot->record = effect.snapshot;
  slot->persisted = effect.persisted;
  slot->crcs = files_[slot->file];
  if (!snapshot::IsFetched(effect.source)) {
    if (Process* process = Find(slot->owner.process)) slot->crcs = Word(*process, effect.slot)->crcs;
  }
  regions_dirty_ = true;
}

// Its memory is gone: nobody may write, read or load it any more.
void World::DropFile(int node, Rank rank, const snapshot::SlotId& id) {
  RegionSlot* slot = SlotOf(node, rank, id);
  for (const auto& process : processes_) {
    for (const Copy& copy : process->copies) {
      if (copy.file == slot->file) Fail("I2", "a slot was dropped under its writer");
    }
    for (const Delivery& delivery : process->inbox) {
      const auto* load = std::get_if<snapshot::SendLoad>(&delivery.message);
      const bool loads = load != nullptr && load->ticket == process->ticket && process->life == Life::kRestoring;
      if (loads && !load->snapshot.none() && delivery.file == slot->file && load->attempt == nodes_[node].region.seen)
        Fail("I3", "a slot was dropped that a rank is told to load");
    }
  }
  ++counts_.dropped_files;
  slot->state = SlotStateCode::kRetired;
  slot->owner = {};
  slot->file = kNoFile;
}

void World::Deliver(int node, Rank, snapshot::ProcessId to, Delivery delivery) {
  Process* process = Find(to);
  if (process == nullptr || process->life == Life::kDead) return;
  if (process->connection == nodes_[node].agent->incarnation) process->inbox.push_back(std::move(delivery));
}

void World::SendTo(const std::string& agent, int from, std::variant<job::StatePtr, job::ReportPtr> body) {
  const int to = agent[0] - 'A';
  if (cut_.count({from, to}) != 0) return;
  if (to != from && options_.nodes > 1 && !healing_ && random_.Chance(options_.lost_messages)) return;
  const auto* report = std::get_if<job::ReportPtr>(&body);
  if (report != nullptr && to != from && Older(from)) body = OfOlder(*report);
  if (options_.through_wire) body = ThroughWire(body);
  network_.push_back({to, std::move(body)});
}

void World::RefuseTicket(int node, const job::Refuse& refuse) {
  ++counts_.refusals;
  counts_.refused_with.insert(InfoOf(refuse.code).name);
  Feed(node, refuse.rank, snapshot::Withdrawn{refuse.ticket});
  for (auto& process : processes_) {
    if (process->ticket != refuse.ticket || process->life != Life::kRestoring) continue;
    ++refusals_in_a_row_;
    if (random_.Chance(700)) {
      Kill(*process);
    } else {
      process->life = Life::kStarting;
      process->inbox.clear();
    }
  }
}

bool World::DeliverMessage() {
  if (network_.empty()) return false;
  const size_t index = options_.nodes == 1 ? 0 : random_.Below(network_.size());
  const Message message = network_[index];
  const bool twice = options_.nodes > 1 && random_.Chance(30);
  if (!twice) network_.erase(network_.begin() + static_cast<ptrdiff_t>(index));
  if (nodes_[message.to].agent == nullptr) return true;
  if (const auto* state = std::get_if<job::StatePtr>(&message.body)) {
    heard_durable_.insert(ToId((*state)->durable()));
    counts_.briefs += (*state)->as_in() != 0 ? 1 : 0;
    Feed(message.to, job::StateReceived{*state});
  } else {
    const job::ReportPtr& report = std::get<job::ReportPtr>(message.body);
    NoteReport(*nodes_[message.to].agent, *report);
    counts_.asked += report->lacks() != 0 ? 1 : 0;
    Feed(message.to, job::ReportReceived{report});
  }
  return true;
}

bool World::FireTimer() {
  const int node = static_cast<int>(random_.Below(nodes_.size()));
  Agent* agent = nodes_[node].agent.get();
  if (agent == nullptr) return false;
  if (agent->retries > 0) {
    --agent->retries;
    for (auto& [rank, machine] : agent->ranks) Feed(node, rank, snapshot::RetryTimer{});
    return true;
  }
  if (agent->timers.empty()) return false;
  size_t index = random_.Below(agent->timers.size());
  const auto patient = [this](const job::StartTimer& timer) {
    return timer.kind == job::TimerKind::kJoin || (timer.kind == job::TimerKind::kDecide && (healing_ || copying()));
  };
  if (patient(agent->timers[index]) && !random_.Chance(healing_ ? 2 : 50)) {
    // Those of calls that are long over hold up no other: an agent that has lived for many attempts has dozens.
    const auto next = std::find_if_not(agent->timers.begin(), agent->timers.end(), patient);
    if (!healing_ || next == agent->timers.end()) return false;
    index = static_cast<size_t>(next - agent->timers.begin());
  }
  const job::StartTimer timer = agent->timers[index];
  agent->timers.erase(agent->timers.begin() + static_cast<ptrdiff_t>(index));
  if (timer.kind == job::TimerKind::kDecide) out_of_patience_.insert(agent->incarnation);
  if (timer.kind == job::TimerKind::kResend) {
    for (auto& [of, heard] : heard_) heard.ticks += of.first == agent->incarnation ? 1 : 0;
  }
  Feed(node, job::TimerFired{timer.kind, timer.key});
  return true;
}

void World::FeedBell(int node, const Process& process) {
  snapshot::BellRead bell{process.id, process.pos_attempt, process.pos, {}, process.attempt, process.wanted};
  for (const SimBellSlot& slot : process.bell) {
    snapshot::BellWord& word = bell.words.emplace_back(slot.word);
    word.crcs_valid = slot.word.state == CaptureState::kComplete && slot.done == kChunks;
  }
  Feed(node, process.rank, bell);
}

bool World::ReadBell() {
  const Process& process = *processes_[random_.Below(processes_.size())];
  const Agent* agent = nodes_[process.node].agent.get();
  const bool reachable = agent != nullptr && process.connection == agent->incarnation;
  if (process.life != Life::kRunning || !reachable) return false;
  FeedBell(process.node, process);
  return true;
}

bool World::NoticeDeath() {
  for (auto& process : processes_) {
    if (process->life != Life::kDead || process->noticed) continue;
    const Agent* agent = nodes_[process->node].agent.get();
    if (agent == nullptr || !random_.Chance(500)) continue;
    process->noticed = true;
    if (process->connection == agent->incarnation) FeedBell(process->node, *process);
    Feed(process->node, process->rank, snapshot::Reaped{process->id});
    Feed(process->node, job::Reaped{process->rank, process->id});
    return true;
  }
  return false;
}

void World::AddLayout(int node, Rank rank, uint32_t layout) {
  std::vector<RegionSlot>& slots = nodes_[node].region.ranks[rank];
  const bool known = std::any_of(slots.begin(), slots.end(), [&](const auto& s) { return s.id.layout == layout; });
  if (known) return;
  for (uint32_t index = 0; index < options_.slots; ++index) {
    RegionSlot& slot = slots.emplace_back();
    slot.id = {layout, index};
    slot.file = static_cast<int>(files_.size());
    files_.emplace_back();
  }
  Feed(node, rank, snapshot::LayoutAdded{layout, options_.slots});
}

RegionSlot* World::SlotOf(int node, Rank rank, const snapshot::SlotId& id) {
  for (RegionSlot& slot : nodes_[node].region.ranks[rank]) {
    if (slot.id == id) return &slot;
  }
  Fail("model", "effect for a slot that does not exist: " + snapshot::ToString(id));
  static RegionSlot nowhere;
  return &nowhere;
}

}  // namespace ckptd::sim
