#include "daemon/transport/path_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ckptd::transport {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;
using testing::ElementsAre;

constexpr uint64_t kMove = kGiB;

class PathChoiceTest : public testing::Test {
 protected:
  // A move over whatever is chosen, at the speed that the way has now.
  BulkWay Move() {
    const BulkWay way = choice_.Choose("n2", open_, now_);
    now_ += seconds(1);
    choice_.Moved("n2", way, kMove, std::chrono::nanoseconds(static_cast<int64_t>(1e9 / speed_[way])), now_);
    return way;
  }
  std::vector<BulkWay> Moves(int count) {
    std::vector<BulkWay> ways;
    while (count-- > 0) ways.push_back(Move());
    return ways;
  }

  PathChoice choice_;
  std::vector<BulkWay> open_{BulkWay::kUcx, BulkWay::kTls, BulkWay::kGrpc};
  std::map<BulkWay, double> speed_{{BulkWay::kUcx, 1.0}, {BulkWay::kTls, 3.0}, {BulkWay::kGrpc, 2.0}};  // GiB a second
  Nanos now_ = seconds(100);
};

TEST_F(PathChoiceTest, TriesEachOnceAndStaysWithTheFastest) {
  EXPECT_THAT(Moves(6),
              ElementsAre(BulkWay::kUcx, BulkWay::kTls, BulkWay::kGrpc, BulkWay::kTls, BulkWay::kTls, BulkWay::kTls));
}

TEST_F(PathChoiceTest, LeavesAWayThatBecomesSlow) {
  (void)Moves(4);
  speed_[BulkWay::kTls] = 0.5;
  const std::vector<BulkWay> ways = Moves(10);
  EXPECT_EQ(ways.front(), BulkWay::kTls);
  EXPECT_EQ(ways.back(), BulkWay::kGrpc);
}

TEST_F(PathChoiceTest, DoesNotTakeTurnsBetweenTwoThatAreAboutAsFast) {
  (void)Moves(4);
  for (int i = 0; i < 50; ++i) {
    speed_[BulkWay::kTls] = i % 2 == 0 ? 2.9 : 1.9;  // the other one: 2.0
    EXPECT_EQ(Move(), BulkWay::kTls) << i;
  }
}

TEST_F(PathChoiceTest, TriesAgainWhatWasNotMuchSlower) {
  (void)Moves(4);
  speed_[BulkWay::kGrpc] = 9.0;
  now_ += PathChoice::kStale;
  EXPECT_EQ(Move(), BulkWay::kGrpc) << "2 of 3 GiB a second; UCX, with 1, is not worth it";
  EXPECT_EQ(Move(), BulkWay::kGrpc) << "it is faster now";
  EXPECT_EQ(Move(), BulkWay::kGrpc);
}

TEST_F(PathChoiceTest, AWayThatIsGoneIsNotChosen) {
  (void)Moves(4);
  open_ = {BulkWay::kUcx, BulkWay::kGrpc};
  EXPECT_EQ(Move(), BulkWay::kGrpc);
  open_ = {BulkWay::kUcx, BulkWay::kTls, BulkWay::kGrpc};
  EXPECT_EQ(Move(), BulkWay::kTls) << "it is still half as fast again";
}

TEST_F(PathChoiceTest, AFailureForgetsWhatWasMeasured) {
  (void)Moves(4);
  choice_.Failed("n2", BulkWay::kTls);
  open_ = {BulkWay::kUcx, BulkWay::kGrpc};  // it rests
  EXPECT_EQ(Move(), BulkWay::kGrpc);
  open_.insert(open_.begin() + 1, BulkWay::kTls);
  EXPECT_EQ(Move(), BulkWay::kTls) << "tried as at first";
}

TEST_F(PathChoiceTest, ATrialThatIsUnderWayIsNotBegunTwice) {
  EXPECT_EQ(choice_.Choose("n2", open_, now_), BulkWay::kUcx);
  EXPECT_EQ(choice_.Choose("n2", open_, now_), BulkWay::kTls);
  EXPECT_EQ(choice_.Choose("n2", open_, now_), BulkWay::kGrpc);
  EXPECT_EQ(choice_.Choose("n2", open_, now_), BulkWay::kUcx) << "nothing is known yet: the best guess";
}

TEST_F(PathChoiceTest, SmallMovesTellNothing) {
  EXPECT_EQ(choice_.Choose("n2", open_, now_), BulkWay::kUcx);
  choice_.Moved("n2", BulkWay::kUcx, 4096, seconds(1), now_);
  choice_.Moved("n2", BulkWay::kUcx, kMove, Nanos(0), now_);
  EXPECT_TRUE(choice_.Speeds().empty());
}

TEST_F(PathChoiceTest, PeersAreApart) {
  (void)Moves(4);
  EXPECT_EQ(choice_.Choose("n3", {BulkWay::kGrpc}, now_), BulkWay::kGrpc);
  choice_.Moved("n3", BulkWay::kGrpc, kMove, seconds(1), now_);
  const auto speeds = choice_.Speeds();
  ASSERT_EQ(speeds.size(), 4u);
  EXPECT_EQ(speeds[1].peer, "n2");
  EXPECT_EQ(speeds[1].way, BulkWay::kTls);
  EXPECT_TRUE(speeds[1].in_use);
  EXPECT_NEAR(speeds[1].bytes_per_second, 3.0 * kGiB, 1e6);
  EXPECT_EQ(speeds[3].peer, "n3");
}

TEST_F(PathChoiceTest, WhoeverIsNoPeerAnyMoreIsForgotten) {
  (void)Moves(4);
  EXPECT_EQ(choice_.Choose("n3", {BulkWay::kGrpc}, now_), BulkWay::kGrpc);
  choice_.Moved("n3", BulkWay::kGrpc, kMove, seconds(1), now_);
  choice_.ForgetOthers([](const std::string& name) { return name == "n3"; });
  choice_.Moved("n2", BulkWay::kTls, kMove, seconds(1), now_);
  choice_.Failed("n2", BulkWay::kUcx);
  const auto speeds = choice_.Speeds();
  ASSERT_EQ(speeds.size(), 1u) << "what ends after its peer has left tells nothing";
  EXPECT_EQ(speeds[0].peer, "n3");
  EXPECT_EQ(Move(), BulkWay::kUcx) << "it is back, as new";
}

}  // namespace
}  // namespace ckptd::transport
