#include "daemon/session/rescues.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ckptd {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Standing = Rescues::Standing;

constexpr ProcessId kDying{100, 5000};
constexpr ProcessId kSecond{101, 6000};
constexpr Nanos kNow = seconds(1000);

class RescuesTest : public ::testing::Test {
 protected:
  void Arm(const ProcessId& process, Nanos hold = seconds(1)) { rescues_.Tell(process, {hold, ""}); }
  bool Die(const ProcessId& process, Nanos now = kNow, bool refused = false) {
    return rescues_.Begin(process, {"job"}, refused, now);
  }

  Rescues rescues_;
};

TEST_F(RescuesTest, JoinsWaitFromTheDeathUntilItIsReaped) {
  Arm(kDying);
  EXPECT_FALSE(rescues_.Delays("job"));
  EXPECT_EQ(rescues_.Of(kDying), Standing::kLives);
  EXPECT_TRUE(Die(kDying));
  EXPECT_TRUE(rescues_.Delays("job"));
  EXPECT_FALSE(rescues_.Delays("another"));
  EXPECT_EQ(rescues_.Of(kDying), Standing::kHeld);
  EXPECT_EQ(rescues_.Find(kDying), nullptr) << "the dead say nothing";
  EXPECT_TRUE(rescues_.End(kDying).has_value());
  EXPECT_FALSE(rescues_.Delays("job"));
  EXPECT_FALSE(rescues_.End(kDying).has_value());
}

TEST_F(RescuesTest, JoinsWaitForTheLastOfAJob) {
  Arm(kDying);
  Arm(kSecond);
  EXPECT_TRUE(Die(kDying));
  EXPECT_TRUE(Die(kSecond));
  (void)rescues_.End(kDying);
  EXPECT_TRUE(rescues_.Delays("job"));
  (void)rescues_.End(kSecond);
  EXPECT_FALSE(rescues_.Delays("job"));
}

// It sleeps in the kernel: it may be a fill's end still, but nobody waits for it.
TEST_F(RescuesTest, AtTheDeadlineJoinsGoOnAlsoWhenItIsNotReaped) {
  Arm(kDying, milliseconds(500));
  EXPECT_TRUE(Die(kDying));
  EXPECT_EQ(rescues_.deadline(), kNow + milliseconds(500));
  EXPECT_THAT(rescues_.TakeOverdue(kNow + milliseconds(499)), IsEmpty());
  EXPECT_TRUE(rescues_.Delays("job"));
  EXPECT_THAT(rescues_.TakeOverdue(kNow + milliseconds(500)), ElementsAre(kDying));
  EXPECT_FALSE(rescues_.Delays("job"));
  EXPECT_THAT(rescues_.TakeOverdue(kNow + seconds(9)), IsEmpty()) << "told once";
  EXPECT_EQ(rescues_.deadline(), std::nullopt);
  EXPECT_EQ(rescues_.Of(kDying), Standing::kHeld);
  EXPECT_TRUE(rescues_.End(kDying)->over);
}

TEST_F(RescuesTest, TheFirstDeadlineIsTold) {
  Arm(kDying, seconds(3));
  Arm(kSecond, seconds(1));
  EXPECT_TRUE(Die(kDying));
  EXPECT_TRUE(Die(kSecond));
  EXPECT_EQ(rescues_.deadline(), kNow + seconds(1));
}

TEST_F(RescuesTest, WithoutAHoldThereIsNone) {
  EXPECT_FALSE(Die(kSecond));
  EXPECT_EQ(rescues_.Of(kSecond), Standing::kRefused) << "it never spoke of it";
  rescues_.Tell(kDying, {Nanos(0), "a module without a gate"});
  EXPECT_EQ(rescues_.Find(kDying)->why, "a module without a gate");
  EXPECT_FALSE(Die(kDying));
  EXPECT_FALSE(rescues_.Delays("job"));
  EXPECT_EQ(rescues_.Of(kDying), Standing::kRefused) << "what its copier may have done just now does not count";
}

TEST_F(RescuesTest, ARefusedOneIsNotHeld) {
  Arm(kDying);
  EXPECT_FALSE(Die(kDying, kNow, /*refused=*/true));
  EXPECT_FALSE(rescues_.Delays("job"));
  EXPECT_EQ(rescues_.Of(kDying), Standing::kRefused);
  EXPECT_FALSE(rescues_.End(kDying).has_value());
}

TEST_F(RescuesTest, ByeForgetsIt) {
  Arm(kDying);
  rescues_.Forget(kDying);
  EXPECT_EQ(rescues_.Find(kDying), nullptr);
  EXPECT_FALSE(Die(kDying));
  EXPECT_EQ(rescues_.Of(kDying), Standing::kRefused);
}

TEST_F(RescuesTest, TheNewestSealedIsTold) {
  Arm(kDying);
  rescues_.Sealed(kDying, {1, 5});  // it lives: a save
  EXPECT_TRUE(Die(kDying));
  EXPECT_TRUE(rescues_.FindRescue(kDying)->newest.none());
  rescues_.Sealed(kDying, {1, 8});
  rescues_.Sealed(kDying, {1, 7});
  EXPECT_EQ(rescues_.End(kDying)->newest, (SnapshotId{1, 8}));
}

}  // namespace
}  // namespace ckptd
