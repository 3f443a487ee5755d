#include "client/core/threads/slot_sums.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "client/core/copy/crc32c.h"

namespace ckptd {
namespace {

constexpr uint64_t kMiB = 1 << 20;

std::string Slot(uint64_t bytes) {
  std::string slot(bytes, '\0');
  for (uint64_t i = 0; i < bytes; i += 509) slot[i] = static_cast<char>(i * 31 >> 7);
  return slot;
}

std::vector<uint32_t> OneByOne(const std::string& slot, uint64_t chunk_bytes) {
  std::vector<uint32_t> crcs;
  for (uint64_t at = 0; at < slot.size(); at += chunk_bytes) {
    crcs.push_back(Crc32c(0, slot.data() + at, std::min(chunk_bytes, slot.size() - at)));
  }
  return crcs;
}

// As the copy thread does it; `arrivals`: the chunks whose bytes it looked for.
std::vector<uint32_t> ByTeam(uint32_t helpers, const std::string& slot, uint64_t chunk_bytes,
                             std::vector<uint64_t>* arrivals) {
  SumTeam team(helpers);
  SlotSums sums(team, slot.data(), slot.size(), chunk_bytes);
  const size_t count = (slot.size() + chunk_bytes - 1) / chunk_bytes;
  std::vector<uint32_t> crcs;
  while (crcs.size() < count) {
    if (sums.CanAdd()) {
      if (sums.added() % chunk_bytes == 0) arrivals->push_back(sums.added() / chunk_bytes);
      sums.Add();
      if (!sums.IsReady()) continue;
    }
    if (auto crc = sums.Take()) crcs.push_back(*crc);
  }
  EXPECT_FALSE(sums.CanAdd());
  return crcs;
}

class SlotSumsTest : public testing::TestWithParam<std::pair<uint64_t, uint64_t>> {};

TEST_P(SlotSumsTest, TheSumsOfTheChunksInTheirOrder) {
  const auto [bytes, chunk_bytes] = GetParam();
  const std::string slot = Slot(bytes);
  const std::vector<uint32_t> wanted = OneByOne(slot, chunk_bytes);
  for (uint32_t helpers : {0u, 1u, 5u}) {
    std::vector<uint64_t> arrivals;
    EXPECT_EQ(ByTeam(helpers, slot, chunk_bytes, &arrivals), wanted) << helpers;
    EXPECT_EQ(arrivals.size(), wanted.size());
    EXPECT_TRUE(std::is_sorted(arrivals.begin(), arrivals.end()));
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, SlotSumsTest,
                         testing::Values(std::pair{uint64_t{4096}, kMiB}, std::pair{5 * kMiB + 4096, kMiB},
                                         std::pair{8 * kMiB, 8 * kMiB}, std::pair{33 * kMiB, 16 * kMiB},
                                         std::pair{30 * kMiB, 2 * kMiB}));

TEST(SlotSums, LeftInTheMiddleNobodyReadsTheSlot) {
  for (int round = 0; round < 20; ++round) {
    std::string slot = Slot(20 * kMiB);
    SumTeam team(3);
    {
      SlotSums sums(team, slot.data(), slot.size(), kMiB);
      while (sums.CanAdd()) sums.Add();
    }
    slot.clear();
    slot.shrink_to_fit();
    EXPECT_TRUE(team.IsEmpty());
  }
}

}  // namespace
}  // namespace ckptd
