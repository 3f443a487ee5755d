#include "tests/protocol/run.h"

#include <iterator>

namespace ckptd::sim {
namespace {

constexpr uint64_t kFaultySteps = 4000;
constexpr uint64_t kHealSteps = 40000;
constexpr uint64_t kLonger = 3;  // with parity: until it is made many pieces are on their way

void Add(const World::Counts& from, World::Counts* to) {
  to->attempts += from.attempts;
  to->captures += from.captures;
  to->commits += from.commits;
  to->deletions += from.deletions;
  to->remains += from.remains;
  to->restores += from.restores;
  to->faults += from.faults;
  to->refusals += from.refusals;
  to->removals += from.removals;
  to->dropped_files += from.dropped_files;
  to->damaged += from.damaged;
  to->superseded += from.superseded;
  to->told_dropped += from.told_dropped;
  to->gone += from.gone;
  to->copies += from.copies;
  to->protections += from.protections;
  to->kept += from.kept;
  to->survived += from.survived;
  to->replicas += from.replicas;
  to->briefs += from.briefs;
  to->asked += from.asked;
  to->made_good += from.made_good;
  to->parities += from.parities;
  to->rebuilt += from.rebuilt;
  to->regroups += from.regroups;
  to->partitions += from.partitions;
  to->coordinators += from.coordinators;
  to->pruned += from.pruned;
  to->proven += from.proven;
  to->rotten += from.rotten;
  to->for_others += from.for_others;
  to->refused_with.insert(from.refused_with.begin(), from.refused_with.end());
}

// Memory that is lost counts here, and a slot that is destroyed is a lost node in all but name.
void AddCopies(Random& random, Options* options) {
  options->nodes = 2 + static_cast<int>(random.Below(3));
  options->copies = 2 + (options->nodes > 2 && random.Chance(300) ? 1 : 0);
  options->slots = 2 + static_cast<uint32_t>(random.Below(2));
  options->cut_slots = false;
  if (random.Chance(500)) options->copy_rate = random.Chance(500) ? 40 : 15;
  options->faults.lose_node = random.Chance(800) ? 60 : 0;
  if (random.Chance(600)) options->faults.flush_errors = 990;  // else the storage has what memory lost
  if (random.Chance(500)) options->faults.membership = 0;
  if (random.Chance(400)) options->refusals = 20;
  if (random.Chance(500)) options->faults.hang_storage = 0;
}

void AddStrikes(Random& random, Options* options) {
  options->strikes = true;
  options->nodes = 2 + static_cast<int>(random.Below(2));
  options->ranks = 2;
  options->copies = 2;
  options->slots = 2 + static_cast<uint32_t>(random.Below(2));
  options->lost_messages = static_cast<int>(random.Below(150));
  options->copy_rate = 100 + static_cast<int>(random.Below(300));
  options->agent_back = 600;
  options->at_once = 64;
  options->bad_parts = options->cut_slots = false;
  options->flush = {};
  Faults& faults = options->faults;
  faults.flush_errors = 990;
  faults.lose_node = random.Chance(500) ? 20 : 0;
  faults.hang_storage = faults.membership = faults.remove = faults.rollback = faults.change_layout = 0;
  faults.move_rank_zero = faults.take_over = faults.scatter = 0;
  faults.kill_trainer = faults.stop_trainer = 30;
  faults.kill_agent = 30;
}

void AddPartitions(Random& random, Options* options) {
  if (random.Chance(600)) options->faults.partition = 40;
  if (random.Chance(600)) options->faults.lose_coordinator = 40;
}

// Two groups, one, one of too few nodes; with spare nodes that have no rank, with several ranks on some nodes.
void AddParity(Random& random, Options* options) {
  struct Size {
    int nodes;
    uint32_t data, parity;
  };
  static constexpr Size kSizes[] = {{2, 1, 1}, {3, 2, 1}, {3, 3, 1}, {4, 3, 1}, {4, 1, 1}, {5, 3, 1},
                                    {3, 1, 2}, {4, 2, 2}, {5, 2, 2}, {4, 4, 2}, {6, 2, 1}};
  const Size& size = kSizes[random.Below(std::size(kSizes))];
  options->copies = 0;
  options->nodes = size.nodes;
  options->data = size.data;
  options->parity = size.parity;
  const auto nodes = static_cast<size_t>(size.nodes);
  options->ranks = static_cast<uint32_t>(random.Chance(600) ? nodes : 2 + random.Below(nodes + 2));
  options->copy_rate = 200 + static_cast<int>(random.Below(400));
  options->lost_messages = random.Chance(300) ? 0 : static_cast<int>(random.Below(80));
  options->strikes = random.Chance(200);
  options->agent_back = random.Chance(200) ? 50 : 500;
  Faults& faults = options->faults;
  faults.kill_trainer = faults.stop_trainer = 15;
  faults.kill_agent = 15;
  faults.lose_node = random.Chance(800) ? 20 : 0;
  faults.restart_all = 15;
  faults.move_rank_zero = 0;
  faults.take_over = random.Chance(500) ? 10 : 0;
  faults.scatter = random.Chance(500) ? 15 : 0;
  faults.rollback = random.Chance(300) ? 10 : 0;
  faults.change_layout = random.Chance(300) ? 10 : 0;
  faults.hang_storage = 0;
  faults.remove = random.Chance(200) ? 30 : 0;
  faults.membership = random.Chance(300) ? 30 : 0;
  faults.partition = random.Chance(500) ? 20 : 0;
  faults.lose_coordinator = random.Chance(500) ? 15 : 0;
}

}  // namespace

Options WorldOf(uint64_t seed, const Rules& rules, Worlds worlds) {
  Random random(seed * 77);
  Options options;
  options.seed = seed;
  options.rules = rules;
  options.nodes = 1 + static_cast<int>(random.Below(3));
  options.ranks = 1 + static_cast<uint32_t>(random.Below(3));
  options.lost_messages = random.Chance(300) ? 0 : static_cast<int>(random.Below(200));
  options.bad_parts = random.Chance(200);
  options.through_wire = random.Chance(50);
  options.flush.newest_only = seed % 4 == 1;
  options.flush.every = seed % 3 == 1 ? 1 + random.Below(4) : 1;
  options.wait_for_slot = seed % 4 == 2;
  options.cut_slots = seed % 6 == 3;
  Faults& faults = options.faults;
  if (random.Chance(600)) faults.lose_node = 0;
  if (random.Chance(500)) faults.move_rank_zero = faults.take_over = faults.scatter = 0;
  if (random.Chance(200)) faults.take_over *= 5;
  if (random.Chance(200)) faults.scatter *= 5;
  if (random.Chance(250)) faults.flush_errors = 950;
  if (random.Chance(300)) options.agent_back = 20;
  if (random.Chance(300)) options.slow_ops = 200;
  options.keep_last = 1 + static_cast<uint32_t>(random.Below(3));
  if (random.Chance(300)) faults.hang_storage = 0;
  if (random.Chance(300)) faults.kill_agent *= 5;
  if (random.Chance(300)) faults.rollback *= 4;
  if (random.Chance(300)) faults.stop_trainer *= 5;
  if (random.Chance(400)) faults.remove = 200;
  if (random.Chance(400)) faults.membership = 100;
  if (random.Chance(400)) options.at_once = 0;  // REPORTs are acted on together, later
  if (worlds != Worlds::kAlone) AddCopies(random, &options);
  if (worlds == Worlds::kStrikes) AddStrikes(random, &options);
  if (worlds == Worlds::kParity) AddParity(random, &options);
  if (worlds == Worlds::kApart) AddPartitions(random, &options);
  if (options.bad_parts && random.Chance(500)) options.faults.rot = 60;
  if (random.Chance(300)) options.read_errors = 100;
  options.older_agents = random.Chance(200);
  options.damage = random.Chance(300);
  return options;
}

Outcome RunWorlds(uint64_t seed, uint64_t steps, const Rules& rules, Worlds worlds, bool trace) {
  Outcome outcome;
  while (outcome.steps < steps && outcome.violation.empty()) {
    Options options = WorldOf(seed, rules, worlds);
    options.trace = trace;
    World world(options);
    bool sound = true;
    const uint64_t faulty = kFaultySteps * (worlds == Worlds::kParity ? kLonger : 1);
    for (uint64_t i = 0; i < faulty && sound; ++i, ++outcome.steps) sound = world.Act();
    // With copies saves are dropped while the one before is on its way to the holders.
    if (sound) outcome.steps += world.Heal(worlds != Worlds::kAlone ? 4 * kHealSteps : kHealSteps);
    Add(world.counts(), &outcome.counts);
    ++outcome.worlds;
    outcome.violation = world.violation();
    outcome.seed = seed++;
  }
  return outcome;
}

}  // namespace ckptd::sim
