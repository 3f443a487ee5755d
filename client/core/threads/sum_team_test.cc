#include "client/core/threads/sum_team.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "client/core/copy/crc32c.h"

namespace ckptd {
namespace {

std::vector<std::string> Blocks(size_t count, size_t bytes) {
  std::vector<std::string> blocks;
  for (size_t i = 0; i < count; ++i) blocks.emplace_back(bytes + i, static_cast<char>('a' + i % 26));
  return blocks;
}

class SumTeamTest : public testing::TestWithParam<uint32_t> {
 protected:
  // Of all blocks, pushed as far as there is room.
  void ExpectSums(const std::vector<std::string>& blocks) {
    size_t pushed = 0;
    for (const std::string& block : blocks) {
      while (pushed < blocks.size() && !team_.IsFull()) {
        team_.Push(blocks[pushed].data(), blocks[pushed].size());
        ++pushed;
      }
      const SumTeam::Sum sum = team_.Pop();
      EXPECT_EQ(sum.bytes, block.size());
      EXPECT_EQ(sum.crc, Crc32c(0, block.data(), block.size()));
    }
    EXPECT_TRUE(team_.IsEmpty());
  }

  SumTeam team_{GetParam()};
};

TEST_P(SumTeamTest, SumsComeInTheirOrder) { ExpectSums(Blocks(500, 20'000)); }

TEST_P(SumTeamTest, SmallBlocksToo) { ExpectSums(Blocks(3000, 0)); }

TEST_P(SumTeamTest, AfterADropNobodyReads) {
  const std::vector<std::string> wanted = Blocks(40, 10'000);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::string> dropped = Blocks(3, 200'000);
    for (size_t i = 0; i < dropped.size() && !team_.IsFull(); ++i) team_.Push(dropped[i].data(), dropped[i].size());
    team_.Drop();
    dropped.clear();  // a sanitizer sees who still reads
    EXPECT_TRUE(team_.IsEmpty());
  }
  ExpectSums(wanted);
}

TEST_P(SumTeamTest, WhoHelpsSumsOneBlock) {
  const std::string block(1000, 'x');
  EXPECT_FALSE(team_.Help());
  team_.Push(block.data(), block.size());
  (void)team_.Help();  // unless a helper was quicker
  EXPECT_FALSE(team_.Help());
  EXPECT_EQ(team_.Pop().crc, Crc32c(0, block.data(), block.size()));
}

TEST_P(SumTeamTest, OneRangeByAll) {
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{64 << 10}, size_t{1'000'003}, size_t{70 << 20}}) {
    const std::string range(bytes, 'r');
    EXPECT_EQ(team_.SumOf(range.data(), bytes), Crc32c(0, range.data(), bytes)) << bytes;
    EXPECT_TRUE(team_.IsEmpty());
  }
}

TEST_P(SumTeamTest, EndsWithBlocksThatNobodyTook) {
  const std::string block(300'000, 'x');
  for (int i = 0; i < 2 && !team_.IsFull(); ++i) team_.Push(block.data(), block.size());
  team_.Drop();
}

INSTANTIATE_TEST_SUITE_P(Helpers, SumTeamTest, testing::Values(0, 1, 3, 100));

TEST(SumTeam, AloneItCollectsNothing) {
  const std::string block(10, 'x');
  SumTeam team(0);
  team.Push(block.data(), block.size());
  EXPECT_TRUE(team.IsFull());
  EXPECT_FALSE(team.IsReady());
  EXPECT_TRUE(team.Help());
  EXPECT_TRUE(team.IsReady());
  EXPECT_EQ(team.Pop().crc, Crc32c(0, block.data(), block.size()));
  EXPECT_FALSE(team.IsFull());
}

TEST(SumTeam, HalfOfTheCores) {
  EXPECT_EQ(SumTeam::HelpersFor(1), 0u);
  EXPECT_EQ(SumTeam::HelpersFor(2), 1u);
  EXPECT_EQ(SumTeam::HelpersFor(8), 4u);
  EXPECT_EQ(SumTeam::HelpersFor(16), 7u);
  EXPECT_EQ(SumTeam::HelpersFor(192), 7u);
}

}  // namespace
}  // namespace ckptd
