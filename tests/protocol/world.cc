#include "tests/protocol/world.h"

#include <algorithm>
#include <cstdio>

namespace ckptd::sim {

World::World(const Options& options) : options_(options), random_(options.seed) {
  store_.world_size = options.ranks;
  layout_.assign(options.ranks, 1);
  for (Rank rank = 0; rank < options.ranks; ++rank) placement_.push_back(static_cast<int>(rank) % options.nodes);
  nodes_.resize(static_cast<size_t>(options.nodes));
  for (int node = 0; node < options.nodes; ++node) {
    nodes_[node].region.id = ++last_id_;
    StartAgent(node);
  }
  for (Rank rank = 0; rank < options.ranks; ++rank) Spawn(rank, placement_[rank]);
}

bool World::Act() {
  ++steps_;
  if (steps_ % 64 == 0) {
    std::erase_if(processes_, [&](const auto& process) {
      return process->life == Life::kDead && process->noticed && Holder(process->rank) != process.get();
    });
    Reincarnate();
    for (int node = 0; node < options_.nodes; ++node) {
      if (nodes_[node].agent == nullptr && (healing_ || random_.Chance(options_.agent_back))) StartAgent(node);
    }
  }
  if (cut_until_ != 0 && steps_ >= cut_until_) {
    cut_.clear();
    cut_until_ = 0;
  }
  if (strike_at_ != 0 && steps_ >= strike_at_) Strike();
  for (int tries = 0; tries < 8; ++tries) {
    if (copying() && random_.Chance(options_.copy_rate) && CopyStep()) break;
    const size_t dice = random_.Below(100);
    bool acted = false;
    if (dice < 25) {
      acted = DeliverMessage();
    } else if (dice < 50) {
      acted = StoreStep();
    } else if (dice < 80) {
      acted = TrainerStep();
    } else if (dice < 92) {
      acted = ReadBell();
    } else if (dice < 94) {
      acted = FireTimer();
    } else if (dice < 97) {
      acted = NoticeDeath() || (!healing_ && random_.Chance(20) && PinSomething());
    } else {
      acted = !healing_ && Fault();
    }
    if (acted) break;
  }
  Doom();
  if (regions_dirty_) {
    CheckRegions();
    CheckWatermark();
    regions_dirty_ = false;
  }
  return violation_.empty();
}

// I5. A launcher restarts everything until it runs: without faults one or two launches are enough, but a launch may
// still be refused for good reasons (a lost node), and then the user says restart=True.
uint64_t World::Heal(uint64_t limit) {
  healing_ = true;
  store_.hung = false;
  cut_.clear();
  refusals_in_a_row_ = 0;
  for (int node = 0; node < options_.nodes; ++node) ChangeMembers(node);
  RestartAll({});
  uint64_t taken = 0;
  uint64_t launched = 0;
  const uint64_t captures = counts_.captures;
  const uint64_t commits = counts_.commits;
  const uint64_t retired = counts_.retired;
  while (taken < limit && violation_.empty()) {
    ++taken;
    if (!Act()) break;
    const bool stored = counts_.commits > commits && counts_.retired > retired;  // and older steps go
    if (counts_.captures >= captures + 3 && stored && Progressed()) return taken;
    const bool broken = std::any_of(processes_.begin(), processes_.end(), [&](const auto& process) {
      return Holder(process->rank) == process.get() && (process->life == Life::kDead || process->fenced);
    });
    if (!broken && taken - launched < limit / 4) continue;
    launched = taken;
    v1::Want want;
    if (refusals_in_a_row_ > 1) want.set_kind(v1::Want::FRESH);
    RestartAll(want);
  }
  if (violation_.empty()) Fail("I5", "no progress within " + std::to_string(limit) + " steps without faults");
  return taken;
}

bool World::Progressed() const {
  return std::all_of(processes_.begin(), processes_.end(), [&](const auto& process) {
    return process->life == Life::kDead || process->life == Life::kRunning;
  });
}

void World::Trace(const std::string& line) const { std::fprintf(stderr, "%6lu %s\n", steps_, line.c_str()); }

}  // namespace ckptd::sim
