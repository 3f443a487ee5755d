#include "daemon/app/scrub_plan.h"

#include <gtest/gtest.h>

namespace ckptd {
namespace {

using std::chrono::hours;

constexpr ScrubIntervals kDaily{hours(24), hours(168)};
const ScrubItem kSlot{ScrubItem::Tier::kRegion, "job", {1, 10}, 0};
const ScrubItem kOtherSlot{ScrubItem::Tier::kRegion, "job", {1, 10}, 1};
const ScrubItem kStep{ScrubItem::Tier::kStorage, "job", {1, 10}, 0};

TEST(ScrubPlan, NothingIsDueBeforeItsInterval) {
  ScrubPlan plan;
  EXPECT_FALSE(plan.Next(hours(1000), kDaily));
  plan.Present({{kSlot, hours(100)}, {kStep, hours(100)}});
  EXPECT_FALSE(plan.Next(hours(123), kDaily));
  EXPECT_EQ(plan.Next(hours(124), kDaily), kSlot);
  plan.Read(kSlot, hours(124));
  EXPECT_FALSE(plan.Next(hours(147), kDaily));
}

TEST(ScrubPlan, WhatWaitsLongestIsNext) {
  ScrubPlan plan;
  plan.Present({{kSlot, hours(3)}, {kOtherSlot, hours(2)}, {kStep, hours(1)}});
  EXPECT_EQ(plan.Next(hours(500), kDaily), kStep);
  plan.Read(kStep, hours(500));
  EXPECT_EQ(plan.Next(hours(500), kDaily), kOtherSlot);
  plan.Read(kOtherSlot, hours(500));
  EXPECT_EQ(plan.Next(hours(500), kDaily), kSlot);
}

TEST(ScrubPlan, WhatIsBadIsReadAgainSoonUntilItIsGood) {
  ScrubPlan plan;
  plan.Present({{kStep, hours(0)}});
  plan.FoundBad(kStep, hours(168));
  EXPECT_FALSE(plan.Next(hours(168) + kBadAgain - Nanos(1), kDaily));
  EXPECT_EQ(plan.Next(hours(168) + kBadAgain, kDaily), kStep);
  EXPECT_EQ(plan.Next(hours(168) + Nanos(5), {Nanos(0), Nanos(5)}), kStep) << "or even sooner";
  plan.Read(kStep, hours(169));
  EXPECT_FALSE(plan.Next(hours(170), kDaily));
}

TEST(ScrubPlan, AnIntervalOfZeroIsNever) {
  ScrubPlan plan;
  plan.Present({{kSlot, hours(0)}, {kStep, hours(0)}});
  EXPECT_EQ(plan.Next(hours(1000), {Nanos(0), hours(1)}), kStep);
  EXPECT_FALSE(plan.Next(hours(1000), {Nanos(0), Nanos(0)}));
}

// An agent that starts on old steps reads them first: it does not know whether anybody did.
TEST(ScrubPlan, WhatWasMadeLongAgoIsDueAtOnce) {
  ScrubPlan plan;
  plan.Present({{kStep, -hours(200)}});
  EXPECT_EQ(plan.Next(Nanos(1), kDaily), kStep);
}

TEST(ScrubPlan, TheStepsOfAJobThatCouldNotBeListedStay) {
  const ScrubItem other{ScrubItem::Tier::kStorage, "other", {1, 10}, 0};
  ScrubPlan plan;
  plan.Present({{kSlot, hours(0)}, {kStep, hours(0)}, {other, hours(1)}});
  plan.FoundBad(kStep, hours(168));
  plan.Present({}, {"job"});
  EXPECT_FALSE(plan.Next(hours(168) + kBadAgain - Nanos(1), kDaily)) << "slots are not of the listing";
  EXPECT_EQ(plan.Next(hours(168) + kBadAgain, kDaily), kStep) << "and it is still known to be bad";
  plan.Present({});
  EXPECT_FALSE(plan.Next(hours(1000), kDaily));
}

TEST(ScrubPlan, WhatIsKnownKeepsItsTimeAndWhatIsGoneIsForgotten) {
  ScrubPlan plan;
  plan.Present({{kSlot, hours(0)}, {kStep, hours(0)}});
  plan.Read(kSlot, hours(24));
  plan.Present({{kSlot, hours(0)}});
  EXPECT_FALSE(plan.Next(hours(47), kDaily));
  EXPECT_EQ(plan.Next(hours(1000), kDaily), kSlot);
  plan.Read(kStep, hours(1000));  // it ended after the step had gone
  plan.Present({{kStep, hours(30)}});
  EXPECT_EQ(plan.Next(hours(1000), kDaily), kStep);
}

}  // namespace
}  // namespace ckptd
