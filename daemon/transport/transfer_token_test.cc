#include "daemon/transport/transfer_token.h"

#include <gtest/gtest.h>

#include <set>

#include "daemon/base/errors.h"

namespace ckptd::transport {
namespace {

using std::chrono::seconds;

constexpr seconds kNow{100};

TransferName Name() { return {"n2", "gpt", 3, {1, 1000}, 1}; }

TEST(TokenTable, ATokenIsGoodOnce) {
  TokenTable table;
  const TransferToken token = RandomToken();
  ASSERT_TRUE(table.Issue(token, Name(), seconds(110), kNow).ok());
  EXPECT_TRUE(table.Redeem(token, Name(), kNow).ok());
  EXPECT_EQ(CodeOf(table.Redeem(token, Name(), kNow)), ErrorCode::PERMISSION);
  EXPECT_EQ(table.size(), 0U);
}

TEST(TokenTable, ATokenIsForOneTransferOnlyAndSpentByATry) {
  TransferName others[5] = {Name(), Name(), Name(), Name(), Name()};
  others[0].peer = "n3";
  others[1].job = "other";
  others[2].rank = 4;
  others[3].snapshot.step = 1001;
  others[4].slot = 0;
  for (const TransferName& other : others) {
    TokenTable table;
    const TransferToken token = RandomToken();
    ASSERT_TRUE(table.Issue(token, Name(), seconds(110), kNow).ok());
    EXPECT_EQ(CodeOf(table.Redeem(token, other, kNow)), ErrorCode::PERMISSION) << ToString(other);
    EXPECT_EQ(CodeOf(table.Redeem(token, Name(), kNow)), ErrorCode::PERMISSION) << "it was tried out";
  }
}

TEST(TokenTable, ADeadlineIsADeadline) {
  TokenTable table;
  const TransferToken early = RandomToken(), late = RandomToken();
  ASSERT_TRUE(table.Issue(early, Name(), seconds(110), kNow).ok());
  ASSERT_TRUE(table.Issue(late, Name(), seconds(110), kNow).ok());
  EXPECT_TRUE(table.Redeem(early, Name(), seconds(110) - Nanos(1)).ok());
  EXPECT_EQ(CodeOf(table.Redeem(late, Name(), seconds(110))), ErrorCode::PERMISSION);
}

TEST(TokenTable, AWrongTokenSpendsNothing) {
  TokenTable table;
  const TransferToken token = RandomToken();
  ASSERT_TRUE(table.Issue(token, Name(), seconds(110), kNow).ok());
  for (size_t i = 0; i < token.size(); ++i) {
    TransferToken wrong = token;
    wrong[i] ^= 1;
    EXPECT_EQ(CodeOf(table.Redeem(wrong, Name(), kNow)), ErrorCode::PERMISSION);
  }
  EXPECT_TRUE(table.Redeem(token, Name(), kNow).ok());
}

TEST(TokenTable, IsBoundedAndMakesRoomForWhatHasExpired) {
  TokenTable table(/*capacity=*/2);
  ASSERT_TRUE(table.Issue(RandomToken(), Name(), seconds(110), kNow).ok());
  ASSERT_TRUE(table.Issue(RandomToken(), Name(), seconds(120), kNow).ok());
  EXPECT_EQ(CodeOf(table.Issue(RandomToken(), Name(), seconds(120), kNow)), ErrorCode::BUSY);
  EXPECT_TRUE(table.Issue(RandomToken(), Name(), seconds(120), seconds(110)).ok());
  table.Revoke(Name());
  EXPECT_EQ(table.size(), 0U);
}

TEST(TokenTable, OnePeerLeavesSomeToOthers) {
  TokenTable table(/*capacity=*/4, /*of_one_peer=*/2);
  TransferName other = Name();
  other.peer = "n3";
  const TransferToken first = RandomToken();
  ASSERT_TRUE(table.Issue(first, Name(), seconds(110), kNow).ok());
  ASSERT_TRUE(table.Issue(RandomToken(), Name(), seconds(110), kNow).ok());
  EXPECT_EQ(CodeOf(table.Issue(RandomToken(), Name(), seconds(110), kNow)), ErrorCode::BUSY);
  EXPECT_TRUE(table.Issue(RandomToken(), other, seconds(110), kNow).ok());
  ASSERT_TRUE(table.Redeem(first, Name(), kNow).ok());
  EXPECT_TRUE(table.Issue(RandomToken(), Name(), seconds(110), kNow).ok()) << "it came for one";
}

TEST(TokenTable, RefusesTheSameTokenAndBadNames) {
  TokenTable table;
  const TransferToken token = RandomToken();
  ASSERT_TRUE(table.Issue(token, Name(), seconds(110), kNow).ok());
  EXPECT_EQ(CodeOf(table.Issue(token, Name(), seconds(110), kNow)), ErrorCode::INVALID_ARGUMENT);
  TransferName bad = Name();
  bad.peer = "";
  EXPECT_EQ(CodeOf(table.Issue(RandomToken(), bad, seconds(110), kNow)), ErrorCode::INVALID_ARGUMENT);
  bad = Name();
  bad.job = "../x";
  EXPECT_FALSE(table.Issue(RandomToken(), bad, seconds(110), kNow).ok());
}

TEST(RandomToken, NeverRepeats) {
  std::set<TransferToken> seen;
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(seen.insert(RandomToken()).second);
}

}  // namespace
}  // namespace ckptd::transport
