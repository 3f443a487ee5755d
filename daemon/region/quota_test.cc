#include "daemon/region/quota.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "daemon/base/errors.h"
#include "daemon/region/reclaim.h"

namespace ckptd::region {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Quota, BothLimitsHoldToTheByte) {
  auto quota = Quota::Create(100, 60);
  auto a = quota->Take("a", 60);
  ASSERT_TRUE(a.ok());
  EXPECT_EQ(CodeOf(quota->Take("a", 1).status()), ErrorCode::QUOTA_EXCEEDED);
  auto b = quota->Take("b", 40);
  ASSERT_TRUE(b.ok());
  EXPECT_EQ(quota->Left("c"), 0u);
  EXPECT_FALSE(quota->Take("c", 1).ok());
  *a = QuotaHold();
  EXPECT_EQ(quota->UsedBy("a"), 0u);
  EXPECT_EQ(quota->Left("c"), 60u);
}

TEST(Quota, AShareHasALimitOfItsOwnAndCountsForTheNode) {
  auto node = Quota::Create(100, 50);
  auto share = Quota::CreateShare(node, ".peers", 80);
  auto kept = share->Take("a", 70);
  ASSERT_TRUE(kept.ok()) << "the limit of one job is for those that run here";
  EXPECT_EQ(node->used(), 70u);
  EXPECT_EQ(node->UsedBy(".peers"), 70u);
  EXPECT_EQ(node->UsedBy("a"), 0u);
  EXPECT_EQ(share->Left("b"), 10u);
  EXPECT_EQ(node->Left("a"), 30u);
  auto own = node->Take("a", 25);
  EXPECT_EQ(share->Left("b"), 5u) << "what the node has left is less than the share";
  EXPECT_EQ(CodeOf(share->Take("b", 6).status()), ErrorCode::QUOTA_EXCEEDED);
  EXPECT_EQ(node->used(), 95u) << "a refused one takes nothing, here or there";
  EXPECT_EQ(share->used(), 70u);
  *kept = QuotaHold();
  EXPECT_EQ(node->used(), 25u);
  EXPECT_EQ(share->used(), 0u);
}

TEST(Quota, AShareTakesOverWhatWasThereEvenAboveTheLimits) {
  auto node = Quota::Create(100, 0);
  auto share = Quota::CreateShare(node, ".peers", 0);
  QuotaHold adopted = share->TakeAdopted("a", 120);
  EXPECT_EQ(node->used(), 120u);
  EXPECT_EQ(share->Left("a"), 0u);
  EXPECT_FALSE(node->Take("b", 1).ok());
}

TEST(Quota, SaysWhichLimitLeavesWhat) {
  auto quota = Quota::Create(100, 60);
  auto a = quota->Take("a", 50);
  auto b = quota->Take("b", 30);
  EXPECT_EQ(quota->LeftOfJob("a"), 10u);
  EXPECT_EQ(quota->LeftOfJob("c"), 60u);
  EXPECT_EQ(quota->LeftOfNode(), 20u);
  EXPECT_EQ(quota->Left("c"), 20u);
  auto without = Quota::Create(0, 0);
  EXPECT_EQ(without->LeftOfJob("a"), ~uint64_t{0});
  EXPECT_EQ(without->LeftOfNode(), ~uint64_t{0});
}

TEST(Quota, HoldsGiveBack) {
  auto quota = Quota::Create(100, 0);
  {
    QuotaHold hold = *quota->Take("a", 70);
    QuotaHold part = hold.Split(30);
    EXPECT_EQ(hold.bytes(), 40u);
    EXPECT_EQ(part.bytes(), 30u);
    QuotaHold moved = std::move(part);
    EXPECT_EQ(quota->used(), 70u);
    EXPECT_EQ(hold.Split(1000).bytes(), 40u) << "never more than there is";
    EXPECT_EQ(quota->used(), 30u);
  }
  EXPECT_EQ(quota->used(), 0u);
  EXPECT_EQ(quota->UsedBy("a"), 0u);
}

TEST(Quota, WhatLeavesIsHeldUntilItIsGone) {
  auto node = Quota::Create(100, 80);
  auto share = Quota::CreateShare(node, ".peers", 60);
  auto kept = share->Take("a", 50);
  auto own = node->Take("b", 30);
  kept->Leave();
  kept->Leave();
  EXPECT_EQ(share->Left("c"), 10u);
  EXPECT_EQ(share->Left("c", QuotaAt::kOnceFreed), 60u);
  EXPECT_EQ(node->Left("b"), 20u);
  EXPECT_EQ(node->Left("b", QuotaAt::kOnceFreed), 50u) << "the job's own limit";
  EXPECT_EQ(share->NodeUse().used, 80u);
  EXPECT_EQ(share->NodeUse().leaving, 50u);
  EXPECT_FALSE(share->Take("c", 11).ok());
  {
    QuotaHold part = kept->Split(20);
    QuotaHold moved = std::move(part);
  }
  EXPECT_EQ(share->NodeUse().leaving, 30u);
  EXPECT_EQ(share->Left("c", QuotaAt::kOnceFreed), 60u) << "it stays true";
  *kept = QuotaHold();
  EXPECT_EQ(share->NodeUse().used, 30u);
  EXPECT_EQ(share->NodeUse().leaving, 0u);
  EXPECT_EQ(share->Left("c"), 60u);
}

TEST(Quota, HugeRequestsDoNotWrap) {
  auto quota = Quota::Create(100, 0);
  auto held = quota->Take("a", 10);
  EXPECT_FALSE(quota->Take("a", ~uint64_t{0}).ok());
  EXPECT_FALSE(quota->Take("a", ~uint64_t{0} - 9).ok());
}

TEST(Quota, AdoptedBytesMayExceedALoweredLimit) {
  auto quota = Quota::Create(100, 0);
  QuotaHold hold = quota->TakeAdopted("a", 150);
  EXPECT_EQ(quota->Left("a"), 0u);
  EXPECT_FALSE(quota->Take("b", 1).ok());
}

TEST(Reclaim, OldestOrphansFirstAndNoMoreThanNeeded) {
  std::vector<JobFacts> jobs = {{.job = "new", .bytes = 10, .newest_unix_ns = 9},
                                {.job = "old", .bytes = 10, .newest_unix_ns = 1},
                                {.job = "empty", .bytes = 10, .newest_unix_ns = 0}};
  EXPECT_THAT(*PlanReclaim(jobs, {.bytes = 15}), ElementsAre("empty", "old"));
  EXPECT_THAT(*PlanReclaim(jobs, {.bytes = 0}), ElementsAre());
}

TEST(Reclaim, WhatIsNotOnStorageOrInUseStays) {
  std::vector<JobFacts> jobs = {{.job = "a", .bytes = 10, .unpersisted = 1, .newest_unix_ns = 1},
                                {.job = "b", .bytes = 10, .newest_unix_ns = 2, .in_use = true},
                                {.job = "c", .bytes = 10, .newest_unix_ns = 3}};
  EXPECT_THAT(*PlanReclaim(jobs, {.bytes = 10}), ElementsAre("c"));
  absl::Status full = PlanReclaim(jobs, {.bytes = 11}).status();
  EXPECT_EQ(CodeOf(full), ErrorCode::REGION_FULL);
  EXPECT_THAT(std::string(full.message()), HasSubstr("a (1 snapshots not on storage)"));
  EXPECT_THAT(std::string(full.message()), HasSubstr("b (in use)"));
}

// As many jobs as a user may have, and one more.
TEST(Reclaim, ForNamesTheOldestOrphansGoAndNoMoreThanNeeded) {
  std::vector<JobFacts> jobs = {{.job = "new", .bytes = 10, .newest_unix_ns = 9, .ranks = 1},
                                {.job = "old", .bytes = 10, .newest_unix_ns = 1, .ranks = 8},
                                {.job = "memory only", .bytes = 10, .unpersisted = 1, .newest_unix_ns = 1, .ranks = 1},
                                {.job = "visited", .ranks = 0},
                                {.job = "trains", .in_use = true, .ranks = 1}};
  EXPECT_THAT(*PlanReclaim(jobs, {.jobs = 1}), ElementsAre("visited"));
  EXPECT_THAT(*PlanReclaim(jobs, {.jobs = 2}), ElementsAre("visited", "old"));
  EXPECT_THAT(*PlanReclaim(jobs, {.jobs = 1, .ranks = 1}), ElementsAre("visited", "old"));
  EXPECT_THAT(*PlanReclaim(jobs, {.ranks = 1}), ElementsAre("old")) << "what has no rank is no help";
  EXPECT_THAT(*PlanReclaim(jobs, {.ranks = 9}), ElementsAre("old", "new"));
}

// What is asked for in the order of names, and no further than needed, gives the plan that all would give.
TEST(Reclaim, TheFirstNeverSavedAreEnough) {
  std::mt19937_64 random(5);
  const auto draw = [&random](uint64_t below) { return random() % below; };
  int early = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::vector<JobFacts> jobs;
    for (uint64_t i = draw(12); i > 0; --i) {
      jobs.push_back({.job = std::string(1, static_cast<char>('z' - i)),
                      .bytes = draw(3),
                      .unpersisted = static_cast<uint32_t>(draw(5) == 0),
                      .newest_unix_ns = draw(3),
                      .in_use = draw(4) == 0,
                      .ranks = draw(4)});
    }
    const Need need{.bytes = draw(4) == 0 ? draw(6) : 0, .jobs = draw(4), .ranks = draw(9)};
    NeverSaved never_saved(need);
    size_t asked = 0;
    while (asked < jobs.size() && !never_saved.SufficeWith(jobs[asked++])) continue;
    const auto all = PlanReclaim(jobs, need);
    const auto first = PlanReclaim({jobs.begin(), jobs.begin() + static_cast<ptrdiff_t>(asked)}, need);
    ASSERT_EQ(all.status(), first.status()) << round;
    if (all.ok()) {
      ASSERT_EQ(*all, *first) << round;
    }
    early += asked < jobs.size() ? 1 : 0;
  }
  EXPECT_GT(early, 2'000);
}

TEST(Reclaim, SaysWhatKeepsTheNames) {
  std::vector<JobFacts> jobs = {{.job = "a", .unpersisted = 2, .newest_unix_ns = 2, .ranks = 1},
                                {.job = "b", .unpersisted = 1, .newest_unix_ns = 1, .ranks = 1},
                                {.job = "c", .unpersisted = 1, .in_use = true, .ranks = 1},
                                {.job = "d", .newest_unix_ns = 1, .ranks = 1}};
  const absl::Status full = PlanReclaim(jobs, {.jobs = 2}).status();
  EXPECT_EQ(CodeOf(full), ErrorCode::REFUSED);
  EXPECT_EQ(full.message(), "1 in use, 2 with snapshots that are not on storage; stop one, or ckptctl flush b");
  EXPECT_EQ(PlanReclaim({jobs[2]}, {.ranks = 1}).status().message(), "1 in use; stop one");
}

}  // namespace
}  // namespace ckptd::region
