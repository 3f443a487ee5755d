// What an agent may cost: memory, processor time at rest, the time until it serves, also with a large region.
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "tests/integration/harness.h"
#include "tests/integration/sanitized.h"
#include "tests/integration/tmpfs.h"

namespace ckptd::harness {
namespace {

constexpr uint64_t kMostResidentKib = 30 * 1024;

TEST(Agent, SmallIdleAndFast) {
  if (kSanitized) GTEST_SKIP() << "skipped: a sanitizer's memory and time are not the agent's";
  Node node;
  ASSERT_TRUE(node.StartAgent());
  auto trainer = node.Train(Args("--steps 20 --every 5 --step-ms 5"));
  ASSERT_EQ(trainer->Wait(), 0);
  node.KillAgent();
  Millis best{10'000};  // of a few: other work on this machine is not the agent's
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(node.StartAgent());
    best = std::min(best, node.start_time());
    if (i < 4) node.KillAgent();
  }
  auto idle = node.Train(Args("--job waits --steps 3 --step-ms 60000"));  // a connected trainer that saves nothing
  Restored(*idle);
  idle->WaitFor("never", Millis(500));
  Usage before = UsageOf(node.agent()->pid());
  idle->WaitFor("never", Millis(2000));
  Usage after = UsageOf(node.agent()->pid());
  printf("start %ld ms, resident %lu KiB (own %lu), idle ticks in 2 s: %lu\n", static_cast<long>(best.count()),
         after.resident_kib, after.anonymous_kib, after.cpu_ticks - before.cpu_ticks);
  EXPECT_LT(best.count(), 100);
  EXPECT_LT(after.resident_kib, kMostResidentKib);
  EXPECT_LE(after.cpu_ticks - before.cpu_ticks, 1u);
}

// The region of a job of 2 x 2 GiB, by night of 2 x 4 GiB, if the tmpfs and memory hold that twice; else what they
// hold.
uint64_t BytesForALargeSlot() {
  const char* night = getenv("CKPTD_NIGHTLY");
  struct statvfs shm {};
  statvfs("/dev/shm", &shm);
  uint64_t room = shm.f_bavail * shm.f_bsize;
  uint64_t bytes = uint64_t{night != nullptr && *night != '\0' ? 4u : 2u} << 30;
  uint64_t memory = static_cast<uint64_t>(sysconf(_SC_AVPHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  while (bytes > (64u << 20) && 4 * bytes > std::min(room, memory)) bytes /= 2;
  return bytes;
}

TEST(Agent, AdoptsALargeRegionWithoutReadingItFirst) {
  if (kSanitized) GTEST_SKIP() << "skipped: a sanitizer's memory and time are not the agent's";
  Tmpfs full("1m");  // nothing is flushed: gigabytes of writes would test the disk
  if (!full.mounted()) GTEST_SKIP() << kNoMount;
  Node node({.region = "", .storage = full.path(), .settings = {}});
  ASSERT_TRUE(node.StartAgent());
  uint64_t bytes = BytesForALargeSlot();
  auto trainer = node.Train(Args("--bytes " + std::to_string(bytes) + " --steps 100000 --every 2 --step-ms 50"));
  ASSERT_TRUE(trainer->WaitFor("CAPTURED", Millis(120'000))) << trainer->Errors() << node.AgentLog();
  trainer->Kill();
  node.KillAgent();
  ASSERT_TRUE(node.StartAgent());
  printf("region of %.1f GiB: serves after %ld ms\n", 2 * static_cast<double>(bytes) / (1 << 30),
         static_cast<long>(node.start_time().count()));
  EXPECT_LT(node.start_time().count(), 100 + 100);  // reading it takes seconds
  EXPECT_LT(UsageOf(node.agent()->pid()).resident_kib, kMostResidentKib);
}

}  // namespace
}  // namespace ckptd::harness
