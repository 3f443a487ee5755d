// Parity on other agents, as daemon/protect has it: who owes which piece to whom comes from STATE, a holder makes one
// parity of a stripe at a time and begins when all have offered, and which slot it takes say room region's own rules.
// Each offer and each block takes its time, and is lost with either agent.
#include <algorithm>
#include <utility>

#include "daemon/erasure/rotation.h"
#include "daemon/format/snapshot_ref.h"
#include "daemon/placement/placement.h"
#include "tests/protocol/world.h"

namespace ckptd::sim {
namespace {

constexpr size_t kMaxPieces = 16;

job::Groups PlaceParity(uint32_t data, uint32_t parity, const std::vector<std::string>& agents,
                        const job::Groups& before) {
  if (agents.size() <= parity) return {};
  const auto fits = std::min(data, static_cast<uint32_t>(agents.size()) - parity);
  const auto scheme = parity == 1 ? placement::Scheme::Xor(fits) : placement::Scheme::ReedSolomon(fits, parity);
  std::vector<placement::Member> members;
  members.reserve(agents.size());
  for (const std::string& agent : agents) members.push_back({agent});
  const auto placed = before.empty() ? placement::Place(scheme, members)
                                     : placement::Rearrange(placement::Placement{scheme, before}, members);
  return placed.ok() ? placed->groups : job::Groups();
}

std::vector<SnapshotId> CompleteOf(const std::vector<ParityLayout>& layouts) {
  std::vector<SnapshotId> complete;
  for (const ParityLayout& layout : layouts) {
    for (const ParitySlot& slot : layout.slots) {
      if (slot.state == SlotStateCode::kSealed) complete.push_back(slot.id);
    }
  }
  return complete;
}

ParityLayout* LayoutAt(std::vector<ParityLayout>& layouts, const protect::ParityPlace& place) {
  const auto at =
      std::find_if(layouts.begin(), layouts.end(), [&](const ParityLayout& layout) { return layout.place == place; });
  return at == layouts.end() ? nullptr : &*at;
}

void Free(ParitySlot* slot) { *slot = ParitySlot(); }

std::vector<ParitySlot*> SlotsWith(std::vector<ParityLayout>& layouts, const SnapshotId& id) {
  std::vector<ParitySlot*> found;
  for (ParityLayout& layout : layouts) {
    for (ParitySlot& slot : layout.slots) {
      if (slot.state == SlotStateCode::kSealed && slot.id == id) found.push_back(&slot);
    }
  }
  return found;
}

// Memory of other groupings, as far as it may go.
void Trim(std::vector<ParityLayout>* layouts, const protect::ParityPlace* but, const region::PeerMarks& marks) {
  for (ParityLayout& layout : *layouts) {
    if (but != nullptr && layout.place == *but) continue;
    for (ParitySlot& slot : layout.slots) {
      const bool complete = slot.state == SlotStateCode::kSealed;
      if (slot.held || (complete && !region::MayGo(slot.id, CompleteOf(*layouts), marks))) continue;
      Free(&slot);
    }
  }
  std::erase_if(*layouts, [&](const ParityLayout& layout) {
    const bool stays = but != nullptr && layout.place == *but;
    return !stays && std::all_of(layout.slots.begin(), layout.slots.end(), [](const ParitySlot& slot) {
      return slot.state == SlotStateCode::kFree && !slot.held;
    });
  });
}

bool IsFenced(const Agent& agent, const ParityMaking& making) {
  return making.begun && agent.marks.attempt > making.fenced_by;
}

}  // namespace

void World::ConfigureParity(job::Config* config) const {
  config->parity = options_.parity;
  config->place = [data = options_.data, parity = options_.parity](const auto& agents, const auto& before) {
    return PlaceParity(data, parity, agents, before);
  };
}

void World::AddParityOf(int node, job::CopiesChanged* event) const {
  for (const auto& [key, layouts] : nodes_[node].region.parity) {
    for (const ParityLayout& layout : layouts) {
      for (const ParitySlot& slot : layout.slots) {
        if (slot.state != SlotStateCode::kSealed) continue;
        v1::HeldParity& held = event->parity.emplace_back();
        held.mutable_ranks()->Assign(layout.place.ranks.begin(), layout.place.ranks.end());
        held.set_parity(layout.place.shape.parity);
        held.set_stripe(layout.place.stripe);
        held.set_row(layout.place.row);
        SetRef(slot.id, held.add_complete());
      }
    }
  }
}

// What a predecessor was making is not complete.
void World::AdoptParity(int node) {
  for (auto& [key, layouts] : nodes_[node].region.parity) {
    for (ParityLayout& layout : layouts) {
      for (ParitySlot& slot : layout.slots) slot.held = false;
    }
  }
}

bool World::ParityStep(int node) {
  Agent* agent = nodes_[node].agent.get();
  if (agent != nullptr && !agent->making.empty() && random_.Chance(3)) {  // nothing of it came for a minute
    DropMaking(node, agent->making.begin()->first);
    return true;
  }
  if (pieces_.empty() || (pieces_.size() < kMaxPieces && random_.Chance(400))) return OrderPiece(node);
  const size_t index = random_.Below(pieces_.size());
  Piece piece = pieces_[index];
  if (MovePiece(piece)) {
    pieces_[index] = std::move(piece);
  } else {
    pieces_.erase(pieces_.begin() + static_cast<ptrdiff_t>(index));
  }
  return true;
}

// An owner offers what it has sealed of the target to one who keeps parity of it.
bool World::OrderPiece(int node) {
  const Agent* agent = nodes_[node].agent.get();
  if (agent == nullptr || agent->known == nullptr || agent->known->phase() == v1::State::GATHER) return false;
  const v1::State& state = *agent->known;
  const SnapshotId target = ToId(state.protecting());
  const std::vector<protect::RankGroup> groups = protect::RankGroupsOf(state);
  if (groups.empty() || target.none()) return false;
  if (!healing_ && random_.Chance(options_.refusals)) {  // none of them has room, for now
    Feed(node, job::CopyRefused{target});
    return true;
  }
  const protect::RankGroup& group = groups[random_.Below(groups.size())];
  const auto shape = protect::ShapeOf(group.ranks.size(), state.parity());
  const auto at = std::find(group.agents.begin(), group.agents.end(), AgentName(node));
  if (!shape || at == group.agents.end()) return false;
  const auto place = static_cast<uint32_t>(at - group.agents.begin());
  const uint32_t stripe = erasure::StripeOf(*shape, place, static_cast<uint32_t>(random_.Below(shape->data)));
  const auto row = static_cast<uint32_t>(random_.Below(shape->parity));
  Piece piece;
  piece.from = node;
  piece.sender = agent->incarnation;
  piece.rank = group.ranks[place];
  piece.id = target;
  piece.marks = agent->marks;
  piece.to = group.agents[erasure::ParityHolder(*shape, stripe, row)][0] - 'A';
  piece.place = {group.ranks, *shape, stripe, row};
  const auto same = [&](const Piece& other) {
    return other.from == node && other.rank == piece.rank && other.id == target && other.place == piece.place;
  };
  if (std::any_of(pieces_.begin(), pieces_.end(), same)) return false;
  for (const RegionSlot& slot : nodes_[node].region.ranks[piece.rank]) {
    if (slot.state != SlotStateCode::kSealed || slot.record != target) continue;
    piece.image = files_[slot.file];
    pieces_.push_back(std::move(piece));
    return true;
  }
  return false;
}

// False: it ended, one way or another.
bool World::MovePiece(Piece& piece) {
  const Agent* sender = nodes_[piece.from].agent.get();
  const Agent* holder = nodes_[piece.to].agent.get();
  const bool cut = sender == nullptr || sender->incarnation != piece.sender || holder == nullptr ||
                   cut_.count({piece.from, piece.to}) != 0 || (!healing_ && random_.Chance(options_.lost_messages));
  if (cut) return false;
  if (piece.holder == 0) {
    const bool taken = OfferPiece(piece);
    StrikeAtOldOrder(piece.from, piece.to, piece.marks.attempt);
    return taken && nodes_[piece.from].agent != nullptr;
  }
  return holder->incarnation == piece.holder && SealPiece(piece);
}

// Of a rank that the sender has in the attempt that the holder knows, for a group that its STATE makes.
bool World::MayOffer(const Agent& holder, const Piece& piece) const {
  if (!options_.rules.orders_fenced) return true;
  const job::StatePtr& state = holder.known;
  if (state == nullptr || state->attempt() != piece.marks.attempt || !state->has_decision()) return false;
  const auto& claims = state->decision().ranks();
  const bool has = std::any_of(claims.begin(), claims.end(), [&](const v1::RankClaim& claim) {
    return claim.rank() == piece.rank && claim.agent() == AgentName(piece.from);
  });
  const bool group = protect::IsGroupIn(*state, piece.place.ranks, piece.place.shape.parity);
  return has && (group || !options_.rules.pieces_of_known_groups);
}

bool World::OfferPiece(Piece& piece) {
  Agent& agent = *nodes_[piece.to].agent;
  if (!MayOffer(agent, piece) || ParityAt(nodes_[piece.to], piece.place, piece.id) != nullptr) return false;
  ParityMaking* making = JoinMaking(piece);
  if (making == nullptr) return false;
  const auto [offered, first] = making->offered.emplace(piece.rank, piece.from);
  if (!first && offered->second != piece.from) return false;
  piece.holder = agent.incarnation;
  if (making->offered.size() < making->place.shape.data || making->begun) return true;
  return BeginParity(piece.to, piece.place.key().number, *making);
}

// The newest order takes the place of an older one.
ParityMaking* World::JoinMaking(const Piece& piece) {
  Agent& agent = *nodes_[piece.to].agent;
  const Rank key = piece.place.key().number;
  const bool loading = agent.known != nullptr && agent.known->phase() == v1::State::LOAD;
  if (const auto found = agent.making.find(key); found != agent.making.end()) {
    ParityMaking& now = found->second;
    const bool same = now.attempt == piece.marks.attempt && now.id == piece.id && now.place == piece.place;
    const bool newer = std::pair(now.attempt, now.id) > std::pair(piece.marks.attempt, piece.id);
    if (same && !IsFenced(agent, now)) {
      now.loading = loading;
      return &now;
    }
    if (newer && !IsFenced(agent, now)) return nullptr;
    DropMaking(piece.to, key);
  }
  ParityMaking& making = agent.making[key];
  making.place = piece.place;
  making.id = piece.id;
  making.attempt = piece.marks.attempt;
  making.loading = loading;
  return &making;
}

// As ParityKeeper::OpenFill and GiveUpOther, and PeerRank::Begin.
bool World::BeginParity(int node, Rank key, ParityMaking& making) {
  Agent& agent = *nodes_[node].agent;
  std::vector<ParityLayout>& layouts = nodes_[node].region.parity[key];
  const std::vector<ParitySlot*> others = SlotsWith(layouts, making.id);  // of other groupings
  if (!others.empty() && making.loading && options_.rules.kept_while_loading) return false;
  if (making.attempt != agent.marks.attempt && options_.rules.orders_fenced) return false;
  if (LayoutAt(layouts, making.place) == nullptr) {
    if (random_.Chance(300)) {                                                     // memory is short
      if (random_.Chance(500)) std::for_each(others.begin(), others.end(), Free);  // even for both
      Trim(&layouts, nullptr, agent.marks);
      FeedCopies(node);
    }
    layouts.push_back({making.place, {}});
  }
  ParityLayout& layout = *LayoutAt(layouts, making.place);
  const std::vector<SnapshotId> complete = CompleteOf(layouts);
  std::vector<SnapshotId> beside = complete;
  std::erase(beside, making.id);  // of another grouping, and stays until this one is complete
  std::vector<region::PeerSlotFacts> facts;
  for (const ParitySlot& slot : layout.slots) facts.push_back({slot.state, slot.id, slot.held});
  const auto slot = region::ChooseSlot(facts, complete, agent.marks);
  if (!region::CheckWanted(making.id, beside, agent.marks).ok() || !slot.ok()) return false;
  if (!options_.rules.parity_before_stays) {
    for (ParitySlot& other : layout.slots) Free(&other);
  }
  making.begun = true;
  making.fenced_by = agent.marks.attempt;
  making.slot = *slot;
  layout.slots[*slot] = {SlotStateCode::kFilling, making.id, {}, true};
  FeedCopies(node);
  return true;
}

// True: it still waits for others. The bytes and the seal in one.
bool World::SealPiece(const Piece& piece) {
  Agent& agent = *nodes_[piece.to].agent;
  const Rank key = piece.place.key().number;
  const auto found = agent.making.find(key);
  const bool its = found != agent.making.end() && found->second.place == piece.place && found->second.id == piece.id;
  if (!its || !MayOffer(agent, piece)) return false;
  ParityMaking& making = found->second;
  if (!making.begun) return true;
  if (IsFenced(agent, making)) return false;
  making.sealed[piece.rank] = piece.image;
  if (making.sealed.size() == making.place.shape.data) CompleteParity(piece.to, key);
  return false;
}

void World::CompleteParity(int node, Rank key) {
  Agent& agent = *nodes_[node].agent;
  const ParityMaking making = std::move(agent.making.at(key));
  agent.making.erase(key);
  std::vector<ParityLayout>& layouts = nodes_[node].region.parity[key];
  LayoutAt(layouts, making.place)->slots[making.slot] = {SlotStateCode::kSealed, making.id, making.sealed, false};
  Trim(&layouts, &making.place, agent.marks);
  ++counts_.parities;
  regions_dirty_ = true;
  FeedCopies(node);
}

void World::DropMaking(int node, Rank key) {
  Agent& agent = *nodes_[node].agent;
  const ParityMaking making = std::move(agent.making.at(key));
  agent.making.erase(key);
  if (making.begun) Free(&LayoutAt(nodes_[node].region.parity[key], making.place)->slots[making.slot]);
}

}  // namespace ckptd::sim
