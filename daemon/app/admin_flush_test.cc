#include "daemon/app/admin_flush.h"

#include "gtest/gtest.h"

namespace ckptd {
namespace {

job::View ViewOf(AttemptId seen, SnapshotId parent, SnapshotId durable) {
  job::View view;
  view.seen = seen;
  view.parent = parent;
  view.durable = durable;
  return view;
}

TEST(IsCommitted, NothingIsDurable) { EXPECT_FALSE(IsCommitted(ViewOf(1, {}, {}), {1, 10})); }

TEST(IsCommitted, WhatIsDurableHoldsTheStepsBeforeIt) {
  const job::View view = ViewOf(3, {}, {3, 100});
  EXPECT_TRUE(IsCommitted(view, {3, 100}));
  EXPECT_TRUE(IsCommitted(view, {3, 90}));
  EXPECT_FALSE(IsCommitted(view, {3, 110}));
}

TEST(IsCommitted, AStepThatTheNextAttemptWentOnFrom) {
  EXPECT_TRUE(IsCommitted(ViewOf(4, {3, 100}, {4, 120}), {3, 100}));
}

TEST(IsCommitted, AStepThatWasLostIsNotDurableForWhatOthersSavedSince) {
  const job::View view = ViewOf(4, {3, 50}, {4, 120});
  EXPECT_FALSE(IsCommitted(view, {3, 100}));
  job::View stored = view;
  job::StoredStep step;
  step.id = {3, 100};
  step.committed = true;
  stored.stored.push_back(step);
  EXPECT_TRUE(IsCommitted(stored, {3, 100}));
}

}  // namespace
}  // namespace ckptd
