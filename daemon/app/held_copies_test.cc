#include "daemon/app/held_copies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ckptd {
namespace {

using testing::HasSubstr;

// Ended an hour ago; step 120 is held.
CopiesFacts Ended(const SnapshotId& stored) {
  CopiesFacts facts;
  facts.held.job = "gpt";
  facts.held.newest = {2, 120};
  facts.held.silent = std::chrono::hours(1);
  facts.stored = stored;
  return facts;
}

TEST(HeldCopies, WhatStorageHasIsGivenBackWhenTheJobIsNamed) {
  EXPECT_TRUE(JudgeCopies(Ended({2, 120}), true, false).goes);
  EXPECT_TRUE(JudgeCopies(Ended({2, 130}), true, false).goes);
  const CopiesVerdict unnamed = JudgeCopies(Ended({2, 120}), false, false);
  EXPECT_FALSE(unnamed.goes);
  EXPECT_THAT(unnamed.reason, HasSubstr("ckptctl gc gpt gives it back"));
}

TEST(HeldCopies, WhatMayBeNowhereElseIsKeptUntilItIsForced) {
  for (const SnapshotId& stored : {SnapshotId{}, SnapshotId{2, 110}, SnapshotId{1, 500}}) {
    const CopiesVerdict kept = JudgeCopies(Ended(stored), true, false);
    EXPECT_FALSE(kept.goes);
    EXPECT_THAT(kept.reason, HasSubstr("step 120 may be nowhere else"));
    EXPECT_THAT(kept.reason, HasSubstr("ckptctl gc gpt --force"));
    const CopiesVerdict forced = JudgeCopies(Ended(stored), true, true);
    EXPECT_TRUE(forced.goes);
    EXPECT_THAT(forced.reason, HasSubstr("given up with it: step 120"));
  }
  EXPECT_THAT(JudgeCopies(Ended({}), true, true).reason, HasSubstr("storage has no step of it"));
  EXPECT_THAT(JudgeCopies(Ended({2, 110}), true, true).reason, HasSubstr("the newest on storage is step 110"));
}

// Its coordinator speaks every five minutes while a rank lives.
TEST(HeldCopies, AJobThatMayRunKeepsThemUntilItIsForced) {
  CopiesFacts facts = Ended({2, 120});
  facts.held.silent = kEndedAfter - std::chrono::seconds(100);
  const CopiesVerdict kept = JudgeCopies(facts, true, false);
  EXPECT_FALSE(kept.goes);
  EXPECT_THAT(kept.reason, HasSubstr("may run; ask again in 1m40s"));
  EXPECT_TRUE(JudgeCopies(facts, true, true).goes);
}

TEST(HeldCopies, WhatIsUsedJustNowIsNotGivenUpByForce) {
  CopiesFacts facts = Ended({});
  facts.in_use = true;
  EXPECT_FALSE(JudgeCopies(facts, true, true).goes);
  facts = Ended({});
  facts.restoring = true;
  EXPECT_FALSE(JudgeCopies(facts, true, true).goes);
  facts = Ended({});
  facts.held.busy = true;
  EXPECT_FALSE(JudgeCopies(facts, true, true).goes);
}

TEST(HeldCopies, TheNextStepSaysWhatGivesTheMemoryBack) {
  region::PeerJob held = Ended({}).held;
  EXPECT_THAT(NextStepFor(held), HasSubstr("restart the job"));
  held.durable = {2, 120};
  EXPECT_EQ(NextStepFor(held), "ckptctl gc gpt gives it back");
}

}  // namespace
}  // namespace ckptd
