// An error at every system call, a short transfer at every transfer, of publish, commit, retention, roll-back and
// recovery (sweep.h). By day a part of the errors (ErrorStride) and every 3rd transfer; by night all.
#include <gtest/gtest.h>

#include <cstdio>

#include "daemon/base/log.h"
#include "tests/syscalls/mutants.h"
#include "tests/syscalls/strace.h"
#include "tests/syscalls/sweep.h"

namespace ckptd::syscalls {
namespace {

constexpr auto kSilent = static_cast<LogLevel>(0);

class ErrnoAtEverySyscall : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNoStrace(); !why.empty()) GTEST_SKIP() << "skipped: " << why;
    SetLogLevel(kSilent);
  }

  static void SweepAll(const char* what, const Plan& plan) {
    uint64_t points = 0, violations = 0;
    for (const Life& life : Lives()) {
      const crash::Tally tally = Sweep(life, plan);
      std::printf("%s: %-14s %6lu, %lu wrong\n", what, life.name.c_str(), tally.tried, tally.violations);
      std::fflush(stdout);
      EXPECT_EQ(tally.violations, 0u) << life.name << ": " << tally.first;
      EXPECT_GT(tally.tried, 0u) << life.name;
      points += tally.tried;
      violations += tally.violations;
    }
    std::printf("%s: %lu (every %lu. one), %lu wrong acknowledgements, crashes, hangs or leaks\n", what, points,
                plan.stride, violations);
  }
};

TEST_F(ErrnoAtEverySyscall, IsAnErrorAndNothingWorse) {
  SweepAll("errors", {.harm = Harm::kErrors, .stride = ErrorStride()});
}

TEST_F(ErrnoAtEverySyscall, AShortTransferIsGoneOnWith) {
  SweepAll("short transfers", {.harm = Harm::kShort, .stride = Night() ? 1u : 3u});
}

TEST_F(ErrnoAtEverySyscall, EveryHandlingIsNeeded) {
  size_t noticed = 0;
  for (const Mutant& mutant : ErrnoMutants()) {
    crash::Tally tally;
    for (const Life& life : Lives()) {
      if (tally.violations != 0) break;
      const Harm harm = mutant.short_transfers ? Harm::kShort : Harm::kErrors;
      tally = Sweep(life, {.harm = harm, .mutant = mutant.name, .call = mutant.call});
    }
    std::printf("errors: without \"%s\": %s\n", mutant.name.c_str(),
                tally.violations == 0 ? "NOT NOTICED" : tally.first.substr(0, 120).c_str());
    std::fflush(stdout);
    EXPECT_NE(tally.violations, 0u) << mutant.name << " can be taken away unnoticed";
    noticed += tally.violations == 0 ? 0 : 1;
  }
  std::printf("errors: protections taken away and noticed: %zu of %zu\n", noticed, ErrnoMutants().size());
}

}  // namespace
}  // namespace ckptd::syscalls
