// Copies of a rank's snapshots on other agents: who owes what to whom comes from STATE, which slot a copy may take from
// room region's own rules. An order and its bytes take their time, and are lost with either agent.
#include <algorithm>
#include <utility>

#include "daemon/format/snapshot_ref.h"
#include "daemon/placement/placement.h"
#include "tests/protocol/world.h"

namespace ckptd::sim {
namespace {

constexpr size_t kMaxTransfers = 6;

job::Groups PlaceCopies(uint32_t copies, const std::vector<std::string>& agents, const job::Groups& before) {
  placement::Scheme scheme;
  scheme.kind = placement::Kind::kMixed;
  scheme.copies = copies;
  std::vector<placement::Member> members;
  members.reserve(agents.size());
  for (const std::string& agent : agents) members.push_back({agent});
  if (agents.size() < copies) return {};
  const auto placed = before.empty() ? placement::Place(scheme, members)
                                     : placement::Rearrange(placement::Placement{scheme, before}, members);
  return placed.ok() ? placed->groups : job::Groups();
}

std::vector<SnapshotId> CompleteOf(const std::vector<CopySlot>& slots) {
  std::vector<SnapshotId> complete;
  for (const CopySlot& slot : slots) {
    if (slot.state == SlotStateCode::kSealed) complete.push_back(slot.id);
  }
  return complete;
}

// The next copies - 1 of its ring.
std::vector<std::string> HoldersOf(const v1::State& state, const std::string& agent) {
  std::vector<std::string> holders;
  for (const v1::HolderGroup& group : state.groups()) {
    for (int i = 0; i < group.agents_size(); ++i) {
      if (group.agents(i) != agent) continue;
      const int count = std::min<int>(static_cast<int>(state.copies()), group.agents_size());
      for (int next = 1; next < count; ++next) holders.push_back(group.agents((i + next) % group.agents_size()));
    }
  }
  return holders;
}

}  // namespace

void World::ConfigureCopies(job::Config* config) const {
  if (!copying()) return;
  if (options_.parity != 0) return ConfigureParity(config);
  const uint32_t copies = options_.copies;
  config->copies = copies;
  config->place = [copies](const auto& agents, const auto& before) { return PlaceCopies(copies, agents, before); };
}

// What a predecessor was writing is not complete; its own marks are gone, and nothing is given up before they are back.
void World::AdoptCopies(int node) {
  if (!copying()) return;
  Region& region = nodes_[node].region;
  nodes_[node].agent->marks.attempt = region.seen;
  for (auto& [rank, slots] : region.copies) {
    for (CopySlot& slot : slots) slot.held = false;
  }
  AdoptParity(node);
  FeedCopies(node);
}

void World::FeedCopies(int node) {
  Agent& agent = *nodes_[node].agent;
  job::CopiesChanged event;
  event.seen = agent.marks.attempt;
  for (const auto& [rank, slots] : nodes_[node].region.copies) {
    v1::HeldCopies& held = event.copies.emplace_back();
    held.set_rank(rank);
    for (const SnapshotId& id : CompleteOf(slots)) SetRef(id, held.add_complete());
  }
  AddParityOf(node, &event);
  Feed(node, event);
}

void World::NoteMarks(int node, const v1::State& state) {
  Agent& agent = *nodes_[node].agent;
  if (state.attempt() < agent.marked) return;
  if (state.attempt() > agent.marked) {
    agent.protected_ = agent.unprotected = {};
    agent.protection_turns = 0;
  }
  agent.marked = state.attempt();
  agent.protected_ = std::max(agent.protected_, ToId(state.protected_()));
  agent.unprotected = std::max(agent.unprotected, ToId(state.unprotected()));
  agent.protection_turns = std::max(agent.protection_turns, state.protection_turns());
}

// Another thread may have the copies: then they are frozen for a new attempt a little later, and CopiesChanged says
// when. What is told of an attempt that it knows it obeys at once, as protect::CopyKeeper::Heard does: `heard` counts
// on it.
void World::HearMarks(int node, const job::StatePtr& state) {
  if (!copying()) return;
  Agent& agent = *nodes_[node].agent;
  agent.state = state;
  if (state->attempt() > agent.marks.attempt && random_.Chance(200)) {
    agent.late = state;
  } else {
    TakeMarks(node, state);
  }
}

void World::TakeMarks(int node, const job::StatePtr& state) {
  Agent& agent = *nodes_[node].agent;
  region::PeerMarks told{state->attempt(), ToId(state->protected_()), ToId(state->protecting()), state->floor()};
  if (!options_.rules.copies_frozen) told.floor = std::max<StepId>(told.floor, 1);
  const bool higher = told.attempt > agent.marks.attempt;
  const bool stale = !region::Advance(agent.marks, told).ok();
  if (!stale) agent.known = state;
  if (higher || stale) FeedCopies(node);
}

bool World::CopyStep() {
  const int node = static_cast<int>(random_.Below(nodes_.size()));
  if (Agent* agent = nodes_[node].agent.get(); agent != nullptr && agent->late != nullptr) {
    TakeMarks(node, std::exchange(agent->late, nullptr));
    return true;
  }
  if (options_.parity != 0) return ParityStep(node);
  if (!transfers_.empty() && (transfers_.size() == kMaxTransfers || random_.Chance(600))) {
    const size_t index = random_.Below(transfers_.size());
    Transfer transfer = transfers_[index];
    const bool goes_on = MoveOn(transfer);
    if (goes_on) {
      transfers_[index] = transfer;
    } else {
      transfers_.erase(transfers_.begin() + static_cast<ptrdiff_t>(index));
    }
    return true;
  }
  return OrderCopy(node);
}

// An owner sends what one of its slots has sealed, or is being filled with, to one of its holders.
bool World::OrderCopy(int node) {
  const Agent* agent = nodes_[node].agent.get();
  if (agent == nullptr || agent->state == nullptr || agent->state->phase() == v1::State::GATHER) return false;
  const std::vector<std::string> holders = HoldersOf(*agent->state, AgentName(node));
  const auto& claims = agent->state->decision().ranks();
  if (holders.empty() || claims.empty()) return false;
  if (!healing_ && random_.Chance(options_.refusals)) {  // none of them has room, for now
    Feed(node, job::CopyRefused{ToId(agent->state->protecting())});
    return true;
  }
  const v1::RankClaim& claim = claims[static_cast<int>(random_.Below(static_cast<size_t>(claims.size())))];
  if (claim.agent() != AgentName(node)) return false;
  for (const RegionSlot& slot : nodes_[node].region.ranks[claim.rank()]) {
    const SnapshotId id = slot.state == SlotStateCode::kSealed ? slot.record : FillOf(slot);
    if (id.none() || !random_.Chance(500)) continue;
    const std::string& holder = holders[random_.Below(holders.size())];
    transfers_.push_back({.from = node,
                          .sender = agent->incarnation,
                          .to = holder[0] - 'A',
                          .rank = claim.rank(),
                          .id = id,
                          .image = files_[slot.file],
                          .marks = agent->marks,
                          .captured_with = slot.state == SlotStateCode::kSealed ? 0 : slot.epoch});
    return true;
  }
  return false;
}

// What is being captured into a slot; none where nothing is.
SnapshotId World::FillOf(const RegionSlot& slot) {
  Process* process = slot.state == SlotStateCode::kFilling ? Find(slot.owner.process) : nullptr;
  if (process == nullptr) return {};
  const snapshot::BellWord& word = Word(*process, slot.id)->word;
  const bool open = word.state == CaptureState::kOpen || word.state == CaptureState::kComplete;
  return open && word.epoch == slot.epoch && word.step != 0 ? SnapshotId{slot.owner.attempt, word.step} : SnapshotId{};
}

// A copy that began before its source was sealed waits for that. Nothing comes of it when the capture was given up.
bool World::WaitsForSeal(Transfer& transfer) {
  for (const RegionSlot& slot : nodes_[transfer.from].region.ranks[transfer.rank]) {
    if (slot.epoch != transfer.captured_with) continue;
    if (slot.state == SlotStateCode::kFilling) return FillOf(slot) == transfer.id;
    if (slot.state != SlotStateCode::kSealed || slot.record != transfer.id) return false;
    transfer.image = files_[slot.file];
    transfer.captured_with = 0;
    return false;
  }
  return false;
}

// False: it ended, one way or another.
bool World::MoveOn(Transfer& transfer) {
  const Agent* sender = nodes_[transfer.from].agent.get();
  Agent* agent = nodes_[transfer.to].agent.get();
  const bool cut = sender == nullptr || sender->incarnation != transfer.sender || agent == nullptr ||
                   cut_.count({transfer.from, transfer.to}) != 0 ||
                   (!healing_ && random_.Chance(options_.lost_messages));
  if (transfer.holder == 0) {
    const bool begun = !cut && BeginCopy(transfer);
    if (!cut) StrikeAtOldOrder(transfer.from, transfer.to, transfer.marks.attempt);
    return begun && nodes_[transfer.from].agent != nullptr;
  }
  if (agent == nullptr || agent->incarnation != transfer.holder) return false;
  CopySlot& slot = nodes_[transfer.to].region.copies[transfer.rank][transfer.slot];
  if (slot.fill != transfer.fill) return false;  // another copy has overtaken it
  if (!cut && transfer.captured_with != 0 && WaitsForSeal(transfer)) return true;
  if ((cut || transfer.captured_with != 0) && random_.Chance(500)) return false;  // its holder does not know yet
  slot.held = false;
  if (cut || transfer.captured_with != 0) return false;
  slot.state = SlotStateCode::kSealed;
  slot.id = transfer.id;
  slot.image = transfer.image;
  ++counts_.copies;
  regions_dirty_ = true;
  FeedCopies(transfer.to);
  return false;
}

// By the marks that the holder has heard of itself, as CopyKeeper::Offer does.
bool World::BeginCopy(Transfer& transfer) {
  const Agent& agent = *nodes_[transfer.to].agent;
  if (transfer.marks.attempt != agent.marks.attempt && options_.rules.orders_fenced) return false;
  const bool taken = TakeSlot(transfer);
  if (taken) FeedCopies(transfer.to);
  return taken;
}

bool World::TakeSlot(Transfer& transfer) {
  Agent& agent = *nodes_[transfer.to].agent;
  std::vector<CopySlot>& slots = nodes_[transfer.to].region.copies[transfer.rank];
  slots.resize(2);
  const std::vector<SnapshotId> complete = CompleteOf(slots);
  if (!region::CheckWanted(transfer.id, complete, agent.marks).ok()) return false;
  std::vector<region::PeerSlotFacts> facts;
  for (CopySlot& slot : slots) {
    if (slot.held && !region::Overtakes(transfer.id, slot.id, agent.marks)) return false;
    if (slot.held) slot.fill = 0;  // and its writer lets go
    slot.held = false;
    facts.push_back({slot.state, slot.id, slot.held});
  }
  const auto slot = region::ChooseSlot(facts, complete, agent.marks);
  if (!slot.ok()) return false;
  transfer.slot = *slot;
  transfer.holder = agent.incarnation;
  slots[*slot].state = SlotStateCode::kFilling;
  slots[*slot].held = true;
  slots[*slot].id = transfer.id;
  slots[*slot].fill = transfer.fill = ++fills_;
  return true;
}

// What `agent` can give of a rank, as a copy or from the rank's own slots there.
std::optional<Image> World::GiveCopy(int asker, const std::string& agent, Rank rank, const SnapshotId& id) {
  return Reachable(asker, agent) ? ImageAt(nodes_[agent[0] - 'A'], rank, id) : std::nullopt;
}

std::optional<Image> World::ImageAt(const Node& node, Rank rank, const SnapshotId& id) const {
  if (const auto copies = node.region.copies.find(rank); copies != node.region.copies.end()) {
    for (const CopySlot& slot : copies->second) {
      if (slot.state == SlotStateCode::kSealed && slot.id == id) return slot.image;
    }
  }
  if (const auto slots = node.region.ranks.find(rank); slots != node.region.ranks.end()) {
    for (const RegionSlot& slot : slots->second) {
      if (slot.state == SlotStateCode::kSealed && slot.record == id) return files_[slot.file];
    }
  }
  return std::nullopt;
}

std::optional<Image> World::FirstCopy(int asker, const std::vector<std::string>& sources, Rank rank,
                                      const SnapshotId& id) {
  for (const std::string& agent : sources) {
    if (const auto image = GiveCopy(asker, agent, rank, id)) return image;
  }
  if (!sources.empty()) NoteUnreached(asker);
  return std::nullopt;
}

bool World::HasCopy(const Node& node, Rank rank, const SnapshotId& id) {
  const auto copies = node.region.copies.find(rank);
  return copies != node.region.copies.end() &&
         std::any_of(copies->second.begin(), copies->second.end(),
                     [&](const CopySlot& slot) { return slot.state == SlotStateCode::kSealed && slot.id == id; });
}

void World::CheckCopies() {
  for (const Node& node : nodes_) {
    for (const auto& [rank, slots] : node.region.copies) {
      for (const CopySlot& slot : slots) {
        const Tag whole = MakeTag(slot.id, rank, LayoutOf(slot.image[0]));
        const bool good = slot.image[0] == whole && slot.image[1] == whole;
        if (slot.state == SlotStateCode::kSealed && !good) Fail("I2", "a copy of " + ToString(slot.id) + " is torn");
      }
    }
  }
}

// Nodes that go in one blow, as many as the copies or the parity allow; the launcher starts the job anew, on the others
// or on what comes back in their place.
void World::LoseNodes(int node) {
  for (uint32_t lost = 1; lost <= outlives(); ++lost) {
    LoseNode(node);
    if (random_.Chance(500)) break;
    node = static_cast<int>(random_.Below(nodes_.size()));
  }
  if (random_.Chance(300)) return;
  for (Rank rank = 0; rank < options_.ranks; ++rank) {
    if (random_.Chance(500)) Place(rank, static_cast<int>(random_.Below(nodes_.size())));
  }
  RestartAll({});
}

void World::Strike() {
  strike_at_ = 0;
  if (!healing_ && random_.Chance(500)) LoseNodes(static_cast<int>(random_.Below(nodes_.size())));
}

}  // namespace ckptd::sim
