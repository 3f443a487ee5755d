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

constexpr ProcessId kTrainer{100, 5000};
constexpr ProcessId kOther{101, 6000};
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
  Arm(kTrainer);
  EXPECT_FALSE(rescues_.Delays("job"));
  EXPECT_EQ(rescues_.Of(kTrainer), Standing::kLives);
  EXPECT_TRUE(Die(kTrainer));
  EXPECT_TRUE(rescues_.Delays("job"));
  EXPECT_FALSE(rescues_.Delays("another"));
  EXPECT_EQ(rescues_.Of(kTrainer), Standing::kHeld);
  EXPECT_EQ(rescues_.Find(kTrainer), nullptr) << "the dead say nothing";
  EXPECT_TRUE(rescues_.End(kTrainer).has_value());
  EXPECT_FALSE(rescues_.Delays("job"));
  EXPECT_FALSE(rescues_.End(kTrainer).has_value());
}

TEST_F(RescuesTest, JoinsWaitForTheLastOfAJob) {
  Arm(kTrainer);
  Arm(kOther);
  EXPECT_TRUE(Die(kTrainer));
  EXPECT_TRUE(Die(kOther));
  (void)rescues_.End(kTrainer);
  EXPECT_TRUE(rescues_.Delays("job"));
  (void)rescues_.End(kOther);
  EXPECT_FALSE(rescues_.Delays("job"));
}

// It sleeps in the kernel: it may be a fill's end still, but nobody waits for it.
TEST_F(RescuesTest, AtTheDeadlineJoinsGoOnAlsoWhenItIsNotReaped) {
  Arm(kTrainer, milliseconds(500));
  EXPECT_TRUE(Die(kTrainer));
  EXPECT_EQ(rescues_.deadline(), kNow + milliseconds(500));
  EXPECT_THAT(rescues_.TakeOverdue(kNow + milliseconds(499)), IsEmpty());
  EXPECT_TRUE(rescues_.Delays("job"));
  EXPECT_THAT(rescues_.TakeOverdue(kNow + milliseconds(500)), ElementsAre(kTrainer));
  EXPECT_FALSE(rescues_.Delays("job"));
  EXPECT_THAT(rescues_.TakeOverdue(kNow + seconds(9)), IsEmpty()) << "told once";
  EXPECT_EQ(rescues_.deadline(), std::nullopt);
  EXPECT_EQ(rescues_.Of(kTrainer), Standing::kHeld);
  EXPECT_TRUE(rescues_.End(kTrainer)->over);
}

TEST_F(RescuesTest, TheFirstDeadlineIsTold) {
  Arm(kTrainer, seconds(3));
  Arm(kOther, seconds(1));
  EXPECT_TRUE(Die(kTrainer));
  EXPECT_TRUE(Die(kOther));
  EXPECT_EQ(rescues_.deadline(), kNow + seconds(1));
}

TEST_F(RescuesTest, WithoutAHoldThereIsNone) {
  EXPECT_FALSE(Die(kOther));
  EXPECT_EQ(rescues_.Of(kOther), Standing::kRefused) << "it never spoke of it";
  rescues_.Tell(kTrainer, {Nanos(0), "a module without a gate"});
  EXPECT_EQ(rescues_.Find(kTrainer)->why, "a module without a gate");
  EXPECT_FALSE(Die(kTrainer));
  EXPECT_FALSE(rescues_.Delays("job"));
  EXPECT_EQ(rescues_.Of(kTrainer), Standing::kRefused) << "what its copier may have done just now does not count";
}

TEST_F(RescuesTest, ARefusedOneIsNotHeld) {
  Arm(kTrainer);
  EXPECT_FALSE(Die(kTrainer, kNow, /*refused=*/true));
  EXPECT_FALSE(rescues_.Delays("job"));
  EXPECT_EQ(rescues_.Of(kTrainer), Standing::kRefused);
  EXPECT_FALSE(rescues_.End(kTrainer).has_value());
}

TEST_F(RescuesTest, ByeForgetsIt) {
  Arm(kTrainer);
  rescues_.Forget(kTrainer);
  EXPECT_EQ(rescues_.Find(kTrainer), nullptr);
  EXPECT_FALSE(Die(kTrainer));
  EXPECT_EQ(rescues_.Of(kTrainer), Standing::kRefused);
}

TEST_F(RescuesTest, TheNewestSealedIsTold) {
  Arm(kTrainer);
  rescues_.Sealed(kTrainer, {1, 5});  // it lives: a save
  EXPECT_TRUE(Die(kTrainer));
  EXPECT_TRUE(rescues_.FindRescue(kTrainer)->newest.none());
  rescues_.Sealed(kTrainer, {1, 8});
  rescues_.Sealed(kTrainer, {1, 7});
  EXPECT_EQ(rescues_.End(kTrainer)->newest, (SnapshotId{1, 8}));
}

}  // namespace
}  // namespace ckptd
