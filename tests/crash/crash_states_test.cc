// The durable life of a job, and the power fails: at every operation, and every subset or many of what no fsync had
// covered. No state may break what was told (crash_explore.h). 100,000 distinct states, a million in the night;
// $CKPTD_CRASH_STATES says another number.
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "daemon/base/log.h"
#include "tests/crash/crash_mutants.h"
#include "tests/crash/crash_parts.h"
#include "tests/crash/crash_workloads.h"
#include "tests/integration/sanitized.h"

namespace ckptd::crash {
namespace {

constexpr auto kSilent = static_cast<LogLevel>(0);  // damage is what this test makes

constexpr uint64_t kForOneCore = 200'000;

// The memory of a disk comes and goes with each state: given back to the kernel each time it costs a tenth.
void Prepare() {
  constexpr int kKept = 256 << 20;
  SetLogLevel(kSilent);
  mallopt(M_TRIM_THRESHOLD, kKept);
  mallopt(M_MMAP_THRESHOLD, kKept / 8);
}

bool Night() {
  const char* night = std::getenv("CKPTD_NIGHTLY");
  return night != nullptr && *night != '\0';
}

uint64_t States() {
  if (const char* given = std::getenv("CKPTD_CRASH_STATES")) return std::strtoull(given, nullptr, 10);
  if (Night()) return 1'000'000;
  return harness::kSanitized ? 1'000 : 100'000;
}

// Workload by workload: one that has fewer states than its share leaves the rest to those after it.
Tally ExploreAll(const std::vector<Workload>& workloads, uint64_t least) {
  const uint64_t states = least + least / 50;  // a run whose new disks are rare gives fewer than its share
  Tally sum;
  for (size_t i = 0; i < workloads.size(); ++i) {
    const uint64_t wanted = (states - std::min(states, sum.distinct)) / (workloads.size() - i);
    const auto begin = std::chrono::steady_clock::now();
    const uint64_t parts = states > kForOneCore ? 2 : 1;
    const Tally tally = ExploreInParts(parts, [&](uint64_t part) {
      return Explore(workloads[i], {.part = part, .parts = parts, .states = wanted / parts + 1});
    });
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    std::printf("%-30s %9lu states tried, %8lu distinct, left as %lu, %lu violations, %.1f s\n",
                workloads[i].name.c_str(), tally.tried, tally.distinct, tally.left, tally.violations, seconds);
    EXPECT_EQ(tally.violations, 0u) << workloads[i].name << ": " << tally.first;
    sum.tried += tally.tried;
    sum.distinct += tally.distinct;
    sum.violations += tally.violations;
  }
  return sum;
}

TEST(CrashStates, NoneBreaksWhatWasTold) {
  Prepare();
  const uint64_t states = States();
  const Tally sum = ExploreAll(Workloads(), states);
  std::printf("%lu states tried, %lu distinct, %lu violations\n", sum.tried, sum.distinct, sum.violations);
  EXPECT_GE(sum.distinct, states);
}

// Else the states above would be those of jobs that never came to a commit.
TEST(CrashStates, EveryWorkloadCommits) {
  Prepare();
  for (const Workload& workload : Workloads()) {
    const auto run = workload.make(0);
    ASSERT_NE(run, nullptr) << workload.name;
    const Promise promise = Ledger::Walk(run->ledger).At(run->files.OpCount());
    EXPECT_FALSE(promise.least.none()) << workload.name;
    EXPECT_EQ(promise.broken, "") << workload.name;
    EXPECT_EQ(run->files.OpenFiles(), 0u) << workload.name;
  }
}

// The second line, in the night: what shows without a look at the names, by what restore() gives.
void PrintCaught(const Mutant& mutant, const Caught& caught) {
  std::printf("%-44s %-26s %s\n", mutant.name.c_str(), caught.workload.c_str(), caught.tally.first.c_str());
  if (Night()) {
    const Caught restore = Hunt(mutant, /*names=*/false);
    std::printf("%-44s %-26s %s\n", "  by restore() alone", restore.workload.c_str(),
                restore.workload.empty() ? "not seen" : restore.tally.first.c_str());
  }
  std::fflush(stdout);
}

void HuntAll(const std::vector<Mutant>& mutants) {
  size_t killed = 0;
  for (const Mutant& mutant : mutants) {
    const Caught caught = Hunt(mutant, /*names=*/true);
    PrintCaught(mutant, caught);
    killed += caught.workload.empty() ? 0 : 1;
    EXPECT_FALSE(caught.workload.empty()) << mutant.name << " can be taken away unnoticed";
  }
  std::printf("mutants killed: %zu of %zu\n", killed, mutants.size());
}

constexpr char kProvenElsewhere[] = "skipped: what a sanitizer looks for is not what these take away";

TEST(CrashMutants, EveryFsyncIsNeeded) {
  if (harness::kSanitized) GTEST_SKIP() << kProvenElsewhere;
  Prepare();
  HuntAll(SyncMutants());
}

TEST(CrashMutants, EveryOrderIsNeeded) {
  if (harness::kSanitized) GTEST_SKIP() << kProvenElsewhere;
  Prepare();
  HuntAll(OrderMutants());
}

}  // namespace
}  // namespace ckptd::crash
