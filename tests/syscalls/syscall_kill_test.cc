// SIGKILL at every system call of publish, commit, retention, roll-back and recovery (sweep.h). By day every 10th call
// (of the file system without hard links every 30th), and recovery from 2 storages that a killed agent left
// ($CKPTD_STARTS); by night all.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "daemon/base/log.h"
#include "daemon/os/testing/temp_dir.h"
#include "tests/syscalls/mutants.h"
#include "tests/syscalls/strace.h"
#include "tests/syscalls/sweep.h"

namespace ckptd::syscalls {
namespace {

constexpr auto kSilent = static_cast<LogLevel>(0);

// Of 94 places where the agent before can be killed.
size_t Starts() {
  if (const char* given = std::getenv("CKPTD_STARTS")) return std::max(1UL, std::strtoul(given, nullptr, 10));
  return Night() ? 94 : 2;
}

class KillAtEverySyscall : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNoStrace(); !why.empty()) GTEST_SKIP() << "skipped: " << why;
    SetLogLevel(kSilent);
  }
};

TEST_F(KillAtEverySyscall, LosesNothingThatWasTold) {
  uint64_t points = 0, violations = 0;
  for (const Life& life : Lives()) {
    Plan plan;
    plan.starts = Starts();
    if (!Night()) plan.stride = life.links ? 20 : 60;
    const crash::Tally tally = Sweep(life, plan);
    std::printf("kill: %-14s %6lu calls (every %lu. one), each killed; %lu lost or torn\n", life.name.c_str(),
                tally.tried, plan.stride, tally.violations);
    std::fflush(stdout);
    EXPECT_EQ(tally.violations, 0u) << life.name << ": " << tally.first;
    EXPECT_GT(tally.tried * plan.stride, 300u) << life.name;
    points += tally.tried;
    violations += tally.violations;
  }
  std::printf("kill: %lu calls, %lu lost or torn\n", points, violations);
}

// Else a sweep passes that kills nobody.
TEST_F(KillAtEverySyscall, WhoIsNotKilledIsNotTakenForKilled) {
  const TempDir folder("/dev/shm");
  const Program program{.argv = {"true"}, .folder = folder.path()};
  EXPECT_FALSE(KillAt(program, {.name = "close", .number = 1'000'000}).killed);
  EXPECT_TRUE(KillAt(program, {.name = "close", .number = 1}).killed);
}

TEST_F(KillAtEverySyscall, EveryOrderIsNeeded) {
  size_t noticed = 0;
  for (const Mutant& mutant : KillMutants()) {
    crash::Tally tally;
    for (const Life& life : Lives()) {
      if (tally.violations != 0) break;
      tally = Sweep(life, {.mutant = mutant.name, .stride = Night() ? 1u : 5u});
    }
    std::printf("kill: without \"%s\": %s\n", mutant.name.c_str(),
                tally.violations == 0 ? "NOT NOTICED" : tally.first.substr(0, 120).c_str());
    std::fflush(stdout);
    EXPECT_NE(tally.violations, 0u) << mutant.name << " can be taken away unnoticed";
    noticed += tally.violations == 0 ? 0 : 1;
  }
  std::printf("kill: protections taken away and noticed: %zu of %zu\n", noticed, KillMutants().size());
}

}  // namespace
}  // namespace ckptd::syscalls
