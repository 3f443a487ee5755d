#include "daemon/job/parity_stock.h"

#include <algorithm>

#include "daemon/erasure/rotation.h"

namespace ckptd::job {
namespace {

bool InBounds(const v1::HeldParity& held) {
  const auto shape = protect::ShapeOf(static_cast<size_t>(held.ranks_size()), held.parity());
  const std::set<Rank> ranks(held.ranks().begin(), held.ranks().end());
  return shape && ranks.size() == static_cast<size_t>(held.ranks_size()) && held.stripe() < shape->members() &&
         held.row() < shape->parity;
}

}  // namespace

ParityStock::ParityStock(const std::vector<Said<v1::HeldParity>>& parity,
                         const std::map<Rank, std::set<std::string>>& having, const Rules& rules)
    : having_(having), rules_(rules) {
  for (const auto& [held, agent] : parity) {
    if (!InBounds(*held)) continue;
    const Key key{{held->ranks().begin(), held->ranks().end()}, held->parity()};
    groups_[key][{held->stripe(), held->row()}].insert(*agent);
  }
}

bool ParityStock::Has(Rank rank) const {
  const auto having = having_.find(rank);
  return having != having_.end() && !having->second.empty();
}

ParityStock::Blocks ParityStock::BlocksOf(const protect::RankGroup& group, uint32_t parity) const {
  Blocks out;
  for (const auto& [key, blocks] : groups_) {
    const bool same = rules_.parity_of_these_ranks ? key.ranks == group.ranks : group.PlaceOf(key.ranks[0]).has_value();
    if (!same || key.parity != parity) continue;
    for (const auto& [block, agents] : blocks) out[block].insert(agents.begin(), agents.end());
  }
  return out;
}

bool ParityStock::Whole(const protect::RankGroup& group, uint32_t parity) const {
  const auto shape = protect::ShapeOf(group.ranks.size(), parity);
  if (!shape) return false;
  const Blocks blocks = BlocksOf(group, parity);
  for (uint32_t stripe = 0; stripe < shape->members(); ++stripe) {
    for (uint32_t row = 0; row < parity; ++row) {
      const auto block = blocks.find({stripe, row});
      if (block == blocks.end()) return false;
      const std::string& holder = group.agents[erasure::ParityHolder(*shape, stripe, row)];
      if (block->second.count(holder) == 0 && rules_.parity_in_its_place) return false;
    }
  }
  return true;
}

// In each stripe that the member gives a block to, k of its other places are there.
bool ParityStock::Suffices(const Key& key, const Blocks& blocks, uint32_t place) const {
  const erasure::Shape shape = *protect::ShapeOf(key.ranks.size(), key.parity);
  for (uint32_t block = 0; block < shape.data; ++block) {
    const uint32_t stripe = erasure::StripeOf(shape, place, block);
    const std::vector<uint32_t> members = erasure::StripeMembers(shape, stripe);
    uint32_t there = 0;
    for (uint32_t i = 0; i < shape.data; ++i) there += members[i] != place && Has(key.ranks[members[i]]) ? 1 : 0;
    for (uint32_t row = 0; row < shape.parity; ++row) there += blocks.count({stripe, row}) != 0 ? 1 : 0;
    if ((there < shape.data) == rules_.every_stripe_rebuilds) return !rules_.every_stripe_rebuilds;
  }
  return rules_.every_stripe_rebuilds;
}

std::optional<v1::ParitySources> ParityStock::SourcesOf(Rank rank) const {
  for (const auto& [key, blocks] : groups_) {
    const auto at = std::find(key.ranks.begin(), key.ranks.end(), rank);
    if (at == key.ranks.end()) continue;
    if (Suffices(key, blocks, static_cast<uint32_t>(at - key.ranks.begin()))) return Describe(key, blocks);
  }
  return std::nullopt;
}

v1::ParitySources ParityStock::Describe(const Key& key, const Blocks& blocks) const {
  v1::ParitySources sources;
  sources.mutable_ranks()->Assign(key.ranks.begin(), key.ranks.end());
  sources.set_parity(key.parity);
  for (const Rank rank : key.ranks) {
    if (!Has(rank)) continue;
    v1::ParitySources::Data* data = sources.add_data();
    data->set_rank(rank);
    const std::set<std::string>& agents = having_.at(rank);
    data->mutable_agents()->Assign(agents.begin(), agents.end());
  }
  for (const auto& [block, agents] : blocks) {
    v1::ParitySources::Block* out = sources.add_blocks();
    out->set_stripe(block.first);
    out->set_row(block.second);
    out->set_agent(*agents.begin());
  }
  return sources;
}

std::vector<Rank> ParityStock::Rebuildable() const {
  std::set<Rank> ranks;
  for (const auto& [key, blocks] : groups_) {
    for (uint32_t place = 0; place < key.ranks.size(); ++place) {
      if (!Has(key.ranks[place]) && Suffices(key, blocks, place)) ranks.insert(key.ranks[place]);
    }
  }
  return {ranks.begin(), ranks.end()};
}

}  // namespace ckptd::job
