#include "daemon/session/copiers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/base/errors.h"

namespace ckptd {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

constexpr ProcessId kTrainer{100, 5000};
constexpr ProcessId kOther{101, 6000};
constexpr GpuId kGpu0{1};
constexpr GpuId kGpu1{2};

class CopiersTest : public ::testing::Test {
 protected:
  std::string Refusal(const ProcessId& process, const GpuId& gpu) {
    return std::string(copiers_.MayStart(process, gpu, now_).message());
  }
  // A start that must be allowed.
  Copiers::CopierId Start(const ProcessId& process, const GpuId& gpu, Copiers::CopierId* replaced = nullptr) {
    EXPECT_EQ(Refusal(process, gpu), "");
    const Copiers::CopierId before = copiers_.Started(process, gpu, ++last_, now_);
    if (replaced != nullptr) *replaced = before;
    return last_;
  }

  Copiers copiers_;
  Copiers::CopierId last_ = 0;
  Nanos now_ = seconds(1000);
};

TEST_F(CopiersTest, AProcessIsReapedWithItsLastCopier) {
  const auto first = Start(kTrainer, kGpu0);
  const auto second = Start(kTrainer, kGpu1);
  const auto others = Start(kOther, kGpu0);
  EXPECT_THAT(copiers_.TakeReaped(), IsEmpty());
  EXPECT_THAT(copiers_.ProcessDied(kTrainer), UnorderedElementsAre(first, second));
  EXPECT_THAT(copiers_.TakeReaped(), IsEmpty());
  EXPECT_THAT(copiers_.waiting(), ElementsAre(Pair(kTrainer, UnorderedElementsAre(first, second))));
  EXPECT_TRUE(copiers_.Ended(first, now_));
  EXPECT_FALSE(copiers_.Ended(others, now_)) << "its process lives and wanted it";
  EXPECT_THAT(copiers_.TakeReaped(), IsEmpty());
  EXPECT_TRUE(copiers_.Ended(second, now_));
  EXPECT_THAT(copiers_.TakeReaped(), ElementsAre(kTrainer));
  EXPECT_THAT(copiers_.TakeReaped(), IsEmpty()) << "told once";
  EXPECT_THAT(copiers_.waiting(), IsEmpty());
}

TEST_F(CopiersTest, AProcessWithoutCopiersIsReapedAtOnce) {
  Start(kOther, kGpu0);
  EXPECT_THAT(copiers_.ProcessDied(kTrainer), IsEmpty());
  EXPECT_THAT(copiers_.TakeReaped(), ElementsAre(kTrainer));
}

// Killed long ago, asleep in the kernel with the slot mapped.
TEST_F(CopiersTest, OneThatWasReplacedOrReleasedHoldsItsProcessBackToo) {
  const auto first = Start(kTrainer, kGpu0);
  now_ += seconds(2);
  Copiers::CopierId replaced = 0;
  const auto second = Start(kTrainer, kGpu0, &replaced);
  EXPECT_EQ(replaced, first);
  EXPECT_EQ(copiers_.Find(kTrainer, kGpu0), second);
  EXPECT_THAT(copiers_.Release(kTrainer), ElementsAre(second));
  EXPECT_THAT(copiers_.Release(kTrainer), IsEmpty());
  EXPECT_EQ(copiers_.Find(kTrainer, kGpu0), 0u);
  EXPECT_TRUE(copiers_.Ended(second, now_));
  EXPECT_THAT(copiers_.ProcessDied(kTrainer), IsEmpty());
  EXPECT_THAT(copiers_.TakeReaped(), IsEmpty());
  now_ += std::chrono::hours(1);
  EXPECT_THAT(copiers_.TakeReaped(), IsEmpty());
  EXPECT_TRUE(copiers_.Ended(first, now_));
  EXPECT_THAT(copiers_.TakeReaped(), ElementsAre(kTrainer));
}

TEST_F(CopiersTest, AnOrphanHoldsBackWhoeverIsOlder) {
  copiers_.Orphan({4711, 5500}, 77);
  EXPECT_THAT(copiers_.ProcessDied(kTrainer), IsEmpty());  // from 5000 on: it may be its
  EXPECT_THAT(copiers_.ProcessDied(kOther), IsEmpty());    // from 6000 on
  EXPECT_THAT(copiers_.TakeReaped(), ElementsAre(kOther));
  EXPECT_THAT(copiers_.waiting(), ElementsAre(Pair(kTrainer, ElementsAre(77u))));
  EXPECT_TRUE(copiers_.Ended(77, now_));
  EXPECT_THAT(copiers_.TakeReaped(), ElementsAre(kTrainer));
}

TEST_F(CopiersTest, AskedAgainAtOnceIsToldWhen) {
  const auto first = Start(kTrainer, kGpu0);
  now_ += std::chrono::milliseconds(400);
  EXPECT_THAT(Refusal(kTrainer, kGpu0), HasSubstr("ask again in 600 ms"));
  EXPECT_EQ(CodeOf(copiers_.MayStart(kTrainer, kGpu0, now_)), ErrorCode::BUSY);
  EXPECT_FALSE(copiers_.Ended(first, now_));
  EXPECT_THAT(Refusal(kTrainer, kGpu0), HasSubstr("ask again in 600 ms")) << "also when it died";
  Start(kTrainer, kGpu1);  // another GPU, and another process, have their own time
  Start(kOther, kGpu0);
  now_ += std::chrono::milliseconds(600);
  Start(kTrainer, kGpu0);
}

TEST_F(CopiersTest, ThreeDeathsWithinAMinuteAreAMinuteWithout) {
  for (int i = 0; i < 3; ++i) {
    const auto copier = Start(kTrainer, kGpu0);
    now_ += seconds(10);
    EXPECT_FALSE(copiers_.Ended(copier, now_));
  }
  EXPECT_THAT(Refusal(kTrainer, kGpu0), HasSubstr("died 3 times within 1m00s; ask again in 1m00s"));
  now_ += seconds(59);
  EXPECT_THAT(Refusal(kTrainer, kGpu0), HasSubstr("ask again in 1.0 s"));
  now_ += seconds(1);
  const auto copier = Start(kTrainer, kGpu0);
  now_ += seconds(2);
  EXPECT_FALSE(copiers_.Ended(copier, now_));
  Start(kTrainer, kGpu0);  // the count began anew
}

TEST_F(CopiersTest, DeathsThatAreFarApartAreBorne) {
  for (int i = 0; i < 6; ++i) {
    const auto copier = Start(kTrainer, kGpu0);
    now_ += seconds(31);
    EXPECT_FALSE(copiers_.Ended(copier, now_));
  }
}

TEST_F(CopiersTest, OneThatWeEndedDidNotDie) {
  for (int i = 0; i < 6; ++i) {
    Copiers::CopierId replaced = 0;
    Start(kTrainer, kGpu0, &replaced);
    EXPECT_TRUE(replaced == 0 || copiers_.Ended(replaced, now_));
    now_ += seconds(2);
  }
  copiers_.GiveUp(last_);  // it could not be run at all
  EXPECT_EQ(copiers_.Find(kTrainer, kGpu0), 0u);
  EXPECT_TRUE(copiers_.Ended(last_, now_));
}

TEST_F(CopiersTest, AProcessHasAtMostSixteen) {
  for (uint8_t gpu = 0; gpu < Copiers::kMostOfAProcess; ++gpu) Start(kTrainer, GpuId{gpu});
  EXPECT_THAT(Refusal(kTrainer, GpuId{99}), HasSubstr("process 100 has 16 copiers"));
  Start(kOther, GpuId{99});
  now_ += seconds(2);
  Start(kTrainer, GpuId{3});  // in the place of the one that has this GPU
  now_ += seconds(2);
  EXPECT_THAT(Refusal(kTrainer, GpuId{3}), HasSubstr("has 16 copiers")) << "the one before has not ended yet";
}

TEST_F(CopiersTest, EverNewGpusCostNoMemory) {
  for (int i = 0; i < 16; ++i) {
    const auto copier = Start(kTrainer, GpuId{static_cast<uint8_t>(i)});
    EXPECT_FALSE(copiers_.Ended(copier, now_));
  }
  EXPECT_THAT(Refusal(kTrainer, GpuId{99}), HasSubstr("16"));
  now_ += seconds(60);
  Start(kTrainer, GpuId{99});
}

TEST_F(CopiersTest, WhoHasEndedGetsNone) {
  const auto copier = Start(kTrainer, kGpu0);
  (void)copiers_.ProcessDied(kTrainer);
  EXPECT_THAT(Refusal(kTrainer, kGpu1), HasSubstr("has ended"));
  EXPECT_EQ(copiers_.running(), 1u);
  EXPECT_TRUE(copiers_.Ended(copier, now_));
  EXPECT_EQ(copiers_.running(), 0u);
}

}  // namespace
}  // namespace ckptd
