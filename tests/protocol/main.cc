// protocol_run [STEPS [SEED [WORLDS]]]    worlds from SEED, else from a random one, until STEPS steps were taken. With
//                                         $CKPTD_STEPS, for the night, that many and a random SEED. It is printed
// protocol_run --replay SEED [WORLDS]     one world again, with every event and effect on stderr
// protocol_run --mutants [STEPS [WHICH]]  each rule taken away: how many steps until the checker notices. Without STEPS
//                                         only the rules that are known to be needed, each within its bound; by day
//                                         without the few whose bound takes longer than all others. WHICH: the
//                                         invariant, or a part of the rule's name
// WORLDS: copies, strikes, parity or apart (run.h); without, agents keep nothing for each other.
// Options come from the seed alone. Exit 0: every invariant held.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <utility>

#include "tests/protocol/mutants.h"
#include "tests/protocol/run.h"

namespace {

ckptd::sim::Worlds WorldsOf(const char* name) {
  using ckptd::sim::Worlds;
  static constexpr std::pair<const char*, Worlds> kNames[] = {{"copies", Worlds::kCopies},
                                                              {"strikes", Worlds::kStrikes},
                                                              {"parity", Worlds::kParity},
                                                              {"apart", Worlds::kApart}};
  for (const auto& [known, worlds] : kNames) {
    if (std::strcmp(name, known) == 0) return worlds;
  }
  return Worlds::kAlone;
}

constexpr uint64_t kMostByDay = 10'000'000;  // steps of a mutant's bound

bool Night() {
  const char* night = std::getenv("CKPTD_NIGHTLY");
  return night != nullptr && *night != '\0';
}

int RunMutants(uint64_t steps, const char* only) {
  using namespace ckptd::sim;
  int missed = 0;
  for (const Mutant& mutant : Mutants()) {
    if (std::strcmp(mutant.breaks, only) != 0 && std::strstr(mutant.rule, only) == nullptr) continue;
    Rules rules;
    mutant.apply(&rules);
    const uint64_t limit = steps != 0 ? steps : 4 * mutant.steps;
    if (limit == 0 || (steps == 0 && mutant.steps > kMostByDay && !Night())) continue;
    const Outcome outcome = RunWorlds(1, limit, rules, mutant.worlds);
    const bool caught = !outcome.violation.empty();
    missed += caught ? 0 : 1;
    std::printf("%-56s %-3s %10lu steps  world %-5lu %s\n", mutant.rule, mutant.breaks, outcome.steps, outcome.seed,
                caught ? outcome.violation.c_str() : "resists");
    std::fflush(stdout);
  }
  return missed == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace ckptd::sim;
  if (argc >= 3 && std::strcmp(argv[1], "--replay") == 0) {
    const Outcome outcome =
        RunWorlds(std::strtoull(argv[2], nullptr, 10), 1, Rules(), WorldsOf(argc > 3 ? argv[3] : ""), true);
    std::printf("%lu steps: %s\n", outcome.steps, outcome.violation.c_str());
    return outcome.violation.empty() ? 0 : 1;
  }
  if (argc >= 2 && std::strcmp(argv[1], "--mutants") == 0) {
    return RunMutants(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 0, argc > 3 ? argv[3] : "");
  }
  const char* night = std::getenv("CKPTD_STEPS");
  const char* given = night != nullptr ? night : argc > 1 ? argv[1] : "10000000";
  const uint64_t steps = std::strtoull(given, nullptr, 10);
  const uint64_t seed = night == nullptr && argc > 2 ? std::strtoull(argv[2], nullptr, 10) : std::random_device()();
  std::printf("seed %lu\n", seed);
  std::fflush(stdout);
  const auto begin = std::chrono::steady_clock::now();
  const Worlds worlds = WorldsOf(argc > 3 ? argv[3] : "");
  const Outcome outcome = RunWorlds(seed, steps, Rules(), worlds);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const World::Counts& counts = outcome.counts;
  std::printf(
      "%lu steps in %lu worlds, %.1f s: %lu attempts, %lu restores, %lu captures, %lu commits, %lu deletions, "
      "%lu faults, %lu refusals; %lu copies, %lu protected, %lu promises kept (%lu after a loss), %lu replicas read, "
      "%lu made good; %lu parities, %lu rebuilt, %lu regrouped, %lu partitions, %lu coordinators lost; %lu parts "
      "proven, "
      "%lu rotten, %lu asked for others\n",
      outcome.steps, outcome.worlds, seconds, counts.attempts, counts.restores, counts.captures, counts.commits,
      counts.deletions, counts.faults, counts.refusals, counts.copies, counts.protections, counts.kept, counts.survived,
      counts.replicas, counts.made_good, counts.parities, counts.rebuilt, counts.regroups, counts.partitions,
      counts.coordinators, counts.proven, counts.rotten, counts.for_others);
  if (outcome.violation.empty()) return 0;
  std::printf("VIOLATION %s\nreplay: protocol_run --replay %lu\n", outcome.violation.c_str(), outcome.seed);
  return 1;
}
