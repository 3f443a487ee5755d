// Images that come back by parity: read stripe by stripe, while nodes may be lost and agents may die; and what the
// arithmetic says of what is really there, which nobody in the machines is asked for.
#include <algorithm>

#include "daemon/erasure/rotation.h"
#include "daemon/format/snapshot_ref.h"
#include "tests/protocol/world.h"

namespace ckptd::sim {

const ParitySlot* World::ParityAt(const Node& node, const protect::ParityPlace& place, const SnapshotId& id) {
  const auto layouts = node.region.parity.find(place.key().number);
  if (layouts == node.region.parity.end()) return nullptr;
  for (const ParityLayout& layout : layouts->second) {
    if (layout.place != place) continue;
    for (const ParitySlot& slot : layout.slots) {
      if (slot.state == SlotStateCode::kSealed && slot.id == id) return &slot;
    }
  }
  return nullptr;
}

bool World::Reachable(int asker, const std::string& agent) {
  const int node = agent[0] - 'A';
  const bool cut = cut_.count({asker, node}) != 0 || cut_.count({node, asker}) != 0;
  return nodes_[node].agent != nullptr && !cut && (healing_ || !random_.Chance(20));
}

// What is there of the stripe that the rank's next block went to, as `sources` name it.
World::Needed World::Gather(const StoreOp& op, const snapshot::Sources& sources, const SnapshotId& id) {
  const v1::ParitySources& from = *sources.parity;
  protect::ParityPlace place{{from.ranks().begin(), from.ranks().end()}, {}, 0, 0};
  place.shape = *protect::ShapeOf(place.ranks.size(), from.parity());
  place.stripe = erasure::StripeOf(place.shape, *place.PlaceOf(op.rank), op.blocks);
  const std::vector<Rank> data = place.DataRanks();
  Needed needed;
  std::map<Rank, Image> images;
  for (const v1::ParitySources::Data& of : from.data()) {
    if (of.rank() == op.rank || std::find(data.begin(), data.end(), of.rank()) == data.end()) continue;
    std::optional<Image> image;
    for (const std::string& agent : of.agents()) {
      const bool reached = image.has_value() || Reachable(op.node, agent);
      needed.unreachable |= !reached;
      if (reached && !image) image = ImageAt(nodes_[agent[0] - 'A'], of.rank(), id);
    }
    if (image) images[of.rank()] = *image;
  }
  needed.there = static_cast<uint32_t>(images.size());
  for (const v1::ParitySources::Block& block : from.blocks()) {
    if (block.stripe() != place.stripe) continue;
    place.row = block.row();
    const bool reached = Reachable(op.node, block.agent());
    const ParitySlot* slot = reached ? ParityAt(nodes_[block.agent()[0] - 'A'], place, id) : nullptr;
    needed.unreachable |= !reached;
    if (slot == nullptr) continue;
    ++needed.there;
    needed.image = slot->of.at(op.rank);
    for (const auto& [rank, image] : images) {
      if (slot->of.at(rank) != image) Fail("I2", "a parity of " + ToString(id) + " was made of other images");
    }
  }
  if (needed.there < place.shape.data) needed.image.reset();
  return needed;
}

// A block each time: the next one when everything else had its turn.
void World::RunRebuild(const StoreOp& op, const snapshot::Fetch& effect) {
  const Needed found = Gather(op, effect.sources, effect.snapshot);
  if (!found.image) {
    CannotRebuild(op, effect.snapshot, found);
    return FetchFromStorage(op, effect);
  }
  const v1::ParitySources& from = *effect.sources.parity;
  if (op.blocks != 0 && op.rebuilt != *found.image) Fail("I2", "blocks of different images were rebuilt");
  if (op.blocks + 1 < static_cast<uint32_t>(from.ranks_size()) - from.parity()) {
    StoreOp next = op;
    ++next.blocks;
    next.rebuilt = *found.image;
    return Ask(std::move(next));
  }
  files_[SlotOf(op.node, op.rank, effect.slot)->file] = *found.image;
  ++counts_.rebuilt;
  Answer(op, snapshot::Fetched{effect.slot, effect.snapshot, absl::OkStatus(), snapshot::Source::kParity, false});
}

// I9 speaks of agents that can be reached; of these the coordinator has said what is there, and while no other attempt
// is known they keep it. A later one has asked them anew, perhaps after a loss.
void World::CannotRebuild(const StoreOp& op, const SnapshotId& id, const Needed& found) {
  const AttemptId attempt = nodes_[op.node].region.seen;
  if (found.unreachable) return NoteUnreached(op.node);
  const auto before = losses_before_.find({attempt, 0});
  const bool lost = before == losses_before_.end() || before->second != losses_.size();
  const bool now = nodes_[op.node].agent->known != nullptr && nodes_[op.node].agent->known->attempt() == attempt;
  if (lost || !now || store_.Newest() != attempt || op.asked_in != attempt) return;
  Fail("I9", "rank " + std::to_string(op.rank) + " is told to rebuild " + ToString(id) + ", and cannot");
}

// `lost`: nodes, as bits, that are looked away from.
bool World::ImageLeft(Rank rank, const SnapshotId& id, uint32_t lost) const {
  return std::any_of(nodes_.begin(), nodes_.end(), [&](const Node& node) {
    if ((lost >> (&node - nodes_.data()) & 1) != 0) return false;
    if (HasCopy(node, rank, id)) return true;
    const auto slots = node.region.ranks.find(rank);
    return slots != node.region.ranks.end() &&
           std::any_of(slots->second.begin(), slots->second.end(), [&](const RegionSlot& slot) {
             return slot.state == SlotStateCode::kSealed && slot.record == id;
           });
  });
}

// Of each stripe of one of its groups not more than m places are lost, its own among them.
bool World::CanBeRebuilt(Rank rank, const SnapshotId& id, uint32_t lost) const {
  using Key = std::pair<std::vector<Rank>, uint32_t>;
  std::map<Key, std::set<std::pair<uint32_t, uint32_t>>> there;
  for (const Node& node : nodes_) {
    if ((lost >> (&node - nodes_.data()) & 1) != 0) continue;
    for (const auto& [key, layouts] : node.region.parity) {
      for (const ParityLayout& of : layouts) {
        const bool complete = std::any_of(of.slots.begin(), of.slots.end(), [&](const ParitySlot& slot) {
          return slot.state == SlotStateCode::kSealed && slot.id == id;
        });
        if (complete) there[{of.place.ranks, of.place.shape.parity}].insert({of.place.stripe, of.place.row});
      }
    }
  }
  return std::any_of(there.begin(), there.end(), [&](const auto& entry) {
    const auto& [ranks, parity] = entry.first;
    const auto at = static_cast<size_t>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
    if (at == ranks.size()) return false;
    for (uint32_t stripe = 0; stripe < ranks.size(); ++stripe) {
      const auto place_of = [&, n = ranks.size()](size_t member) { return (member + n - stripe) % n; };
      if (place_of(at) < parity) continue;  // it gives no block to this one
      uint32_t missing = 0;
      for (size_t member = 0; member < ranks.size(); ++member) {
        const size_t place = place_of(member);
        const bool has = place < parity ? entry.second.count({stripe, static_cast<uint32_t>(place)}) != 0
                                        : member != at && ImageLeft(ranks[member], id, lost);
        missing += has ? 0 : 1;
      }
      if (missing > parity) return false;
    }
    return true;
  });
}

void World::CheckParity() {
  for (const Node& node : nodes_) {
    for (const auto& [key, layouts] : node.region.parity) {
      for (const ParityLayout& layout : layouts) {
        for (const ParitySlot& slot : layout.slots) {
          if (slot.state != SlotStateCode::kSealed) continue;
          for (const auto& [rank, image] : slot.of) {
            const Tag whole = MakeTag(slot.id, rank, LayoutOf(image[0]));
            if (image[0] != whole || image[1] != whole) Fail("I2", "a parity of " + ToString(slot.id) + " is torn");
          }
        }
      }
    }
  }
}

// What is chosen can be had: nobody gives anything up before the decision is known.
void World::CheckRebuildable(const v1::DecisionRecord& decision) {
  const SnapshotId parent = ToId(decision.parent());
  if (options_.parity == 0 || parent.none() || late_decisions_.count(decision.attempt()) != 0) return;
  const auto before = losses_before_.find({decision.attempt(), 0});
  const auto stored = store_.steps.find(parent);
  const bool lost = before == losses_before_.end() || before->second != losses_.size();
  if (lost || (stored != store_.steps.end() && stored->second.committed)) return;
  for (Rank rank = 0; rank < options_.ranks; ++rank) {
    if (ImageLeft(rank, parent) || CanBeRebuilt(rank, parent)) continue;
    Fail("I9", "attempt " + std::to_string(decision.attempt()) + " took " + ToString(parent) + ", and rank " +
                   std::to_string(rank) + " can have it from nowhere");
  }
}

}  // namespace ckptd::sim
