// The simulation, short: for the sanitizers and for every build. protocol_run is the long one.
#include <cstdlib>

#include "gtest/gtest.h"
#include "tests/protocol/mutants.h"
#include "tests/protocol/run.h"

namespace ckptd::sim {
namespace {

uint64_t Steps(uint64_t steps) {
  const char* given = std::getenv("CKPTD_SIM_STEPS");
  return given == nullptr ? steps : std::strtoull(given, nullptr, 10);
}

TEST(Protocol, HoldsUnderRandomFaults) {
  const Outcome outcome = RunWorlds(1, Steps(1'000'000), Rules());
  EXPECT_EQ(outcome.violation, "") << "protocol_run --replay " << outcome.seed;
  EXPECT_GT(outcome.counts.captures, 0u);
  EXPECT_GT(outcome.counts.commits, 0u);
  EXPECT_GT(outcome.counts.deletions, 0u);
  EXPECT_GT(outcome.counts.remains, 0u);
  EXPECT_GT(outcome.counts.removals, 0u);
  EXPECT_GT(outcome.counts.proven, outcome.counts.deletions / 4) << "parts that their agents read back";
  EXPECT_GT(outcome.counts.rotten, 0u);
  EXPECT_GT(outcome.counts.for_others, 0u) << "and that the coordinator's agent had to read";
  EXPECT_GT(outcome.counts.pruned, outcome.worlds / 10) << "decisions that nothing needed any more";
  EXPECT_GT(outcome.counts.dropped_files, outcome.worlds / 10) << "memory for one layout only";
  EXPECT_GT(outcome.counts.damaged, 0u) << "slots that were getting a fresh file";
  EXPECT_GT(outcome.counts.superseded, outcome.worlds) << "not every captured step is flushed";
  EXPECT_GT(outcome.counts.told_dropped, outcome.worlds / 10) << "captures that ended too late";
  EXPECT_GT(outcome.counts.gone, outcome.worlds) << "ranks that died while others ran";
  EXPECT_GT(outcome.counts.faults, outcome.worlds) << "several faults a run";
  EXPECT_GT(outcome.counts.attempts, 3 * outcome.worlds) << "three and more attempts a run";
  EXPECT_GT(outcome.counts.briefs, outcome.worlds) << "States without the decision";
  EXPECT_GT(outcome.counts.asked, 0u) << "agents that started anew, and were told too little";
}

TEST(Protocol, WhatIsProtectedSurvivesLostNodes) {
  const Outcome outcome = RunWorlds(1, Steps(1'000'000), Rules(), Worlds::kCopies);
  EXPECT_EQ(outcome.violation, "") << "protocol_run --replay " << outcome.seed << " copies";
  EXPECT_GT(outcome.counts.copies, outcome.worlds);
  EXPECT_GT(outcome.counts.protections, outcome.worlds / 2);
  EXPECT_GT(outcome.counts.made_good, outcome.worlds / 40) << "given up, and protected anew as the same step";
  EXPECT_GT(outcome.counts.survived, outcome.worlds / 20) << "restores after a loss within what was promised";
  EXPECT_GT(outcome.counts.replicas, outcome.worlds / 10) << "restores from copies";
}

TEST(Protocol, WhatParityProtectsSurvivesLostNodes) {
  const Outcome outcome = RunWorlds(1, Steps(1'000'000), Rules(), Worlds::kParity);
  EXPECT_EQ(outcome.violation, "") << "protocol_run --replay " << outcome.seed << " parity";
  EXPECT_GT(outcome.counts.parities, outcome.worlds);
  EXPECT_GT(outcome.counts.protections, outcome.worlds / 2);
  EXPECT_GT(outcome.counts.rebuilt, outcome.worlds / 20) << "images that came back by parity";
  EXPECT_GT(outcome.counts.partitions, 0u);
  EXPECT_GT(outcome.counts.coordinators, 0u);
}

// What broke once, each a whole world.
TEST(Protocol, TheseWorldsHold) {
  // Timers of restore() calls that were long over held up the one that a coordinator acts by.
  for (const uint64_t seed : {205, 2000217}) {
    EXPECT_EQ(RunWorlds(seed, 1, Rules()).violation, "") << "protocol_run --replay " << seed;
  }
  // An older STATE that was late was answered as if nothing were in memory, and the job began afresh.
  EXPECT_EQ(RunWorlds(4576, 1, Rules(), Worlds::kApart).violation, "");
  // Remains that somebody wrote to the end: an agent that was no member any more, then one that could not replace a
  // file of its region.
  EXPECT_EQ(RunWorlds(364, 1, Rules(), Worlds::kCopies).violation, "");
  EXPECT_EQ(RunWorlds(5268, 1, Rules()).violation, "");
  EXPECT_EQ(RunWorlds(2781, 1, Rules(), Worlds::kStrikes).violation, "");
}

TEST(Protocol, EveryRunIsItsSeed) {
  const Outcome first = RunWorlds(7, 20'000, Rules());
  const Outcome second = RunWorlds(7, 20'000, Rules());
  EXPECT_EQ(first.steps, second.steps);
  EXPECT_EQ(first.counts.captures, second.counts.captures);
}

// The simulation sees: rules that it catches within a short run.
TEST(Protocol, NoticesWhatIsTakenAway) {
  int caught = 0;
  for (const Mutant& mutant : Mutants()) {
    if (mutant.steps == 0 || mutant.steps > Steps(400'000)) continue;  // protocol_run --mutants looks longer
    Rules rules;
    mutant.apply(&rules);
    const Outcome outcome = RunWorlds(1, 2 * mutant.steps, rules, mutant.worlds);
    EXPECT_NE(outcome.violation, "") << mutant.rule;
    ++caught;
  }
  EXPECT_GT(caught, 8);
}

}  // namespace
}  // namespace ckptd::sim
