#include "daemon/session/claims.h"

#include <gtest/gtest.h>

#include "daemon/base/errors.h"

namespace ckptd {
namespace {

std::vector<std::pair<std::string, size_t>> JobsOf(const Claims& claims, uint32_t uid, size_t most = SIZE_MAX) {
  std::vector<std::pair<std::string, size_t>> jobs;
  claims.VisitJobsOf(uid, [&](const std::string& job, size_t ranks) {
    jobs.emplace_back(job, ranks);
    return jobs.size() < most;
  });
  return jobs;
}

TEST(Claims, SecondProcessIsRefusedWhileTheFirstLives) {
  Claims claims;
  ASSERT_TRUE(claims.Claim("job", 0, {100, 5, 1000, 1, 1}).ok());
  EXPECT_EQ(CodeOf(claims.Claim("job", 0, {101, 6, 1000, 2, 2})), ErrorCode::RANK_TAKEN);
  EXPECT_EQ(claims.EndProcess(100, 5).size(), 1u);
  EXPECT_TRUE(claims.Claim("job", 0, {101, 6, 1000, 2, 2}).ok());
}

TEST(Claims, ReusedPidIsAnotherProcess) {
  Claims claims;
  ASSERT_TRUE(claims.Claim("job", 0, {100, 5, 1000, 1, 1}).ok());
  EXPECT_EQ(CodeOf(claims.Claim("job", 0, {100, 9, 1000, 2, 2})), ErrorCode::RANK_TAKEN);
  EXPECT_TRUE(claims.EndProcess(100, 9).empty());
}

TEST(Claims, JobBelongsToItsFirstUser) {
  Claims claims;
  ASSERT_TRUE(claims.Claim("job", 0, {100, 5, 1000, 1, 1}).ok());
  EXPECT_EQ(CodeOf(claims.Claim("job", 1, {101, 5, 1001, 2, 2})), ErrorCode::JOB_OWNED);
  claims.SetOwner("old", 1000);
  EXPECT_EQ(CodeOf(claims.Claim("old", 0, {101, 5, 1001, 2, 2})), ErrorCode::JOB_OWNED);
}

TEST(Claims, NewTicketOfTheSameProcessVoidsTheOld) {
  Claims claims;
  ASSERT_TRUE(claims.Claim("job", 0, {100, 5, 1000, 1, 1}).ok());
  ASSERT_TRUE(claims.Claim("job", 0, {100, 5, 1000, 2, 1}).ok());
  EXPECT_EQ(claims.SessionOf("job", 0, 1), 0u);
  EXPECT_EQ(claims.SessionOf("job", 0, 2), 1u);
  EXPECT_FALSE(claims.Release("job", 0, 1));
  EXPECT_TRUE(claims.Release("job", 0, 2));
}

TEST(Claims, ClosedSocketEndsNoClaim) {
  Claims claims;
  ASSERT_TRUE(claims.Claim("job", 0, {100, 5, 1000, 1, 1}).ok());
  claims.Disconnect(1);
  EXPECT_EQ(claims.SessionOf("job", 0, 1), 0u);
  EXPECT_EQ(CodeOf(claims.Claim("job", 0, {101, 6, 1000, 2, 2})), ErrorCode::RANK_TAKEN);
}

TEST(Claims, WhatAProcessHoldsAndWhoHoldsAJob) {
  Claims claims;
  ASSERT_TRUE(claims.Claim("a", 0, {100, 5, 1000, 1, 1}).ok());
  ASSERT_TRUE(claims.Claim("a", 1, {101, 6, 1000, 2, 2}).ok());
  ASSERT_TRUE(claims.Claim("b", 0, {100, 5, 1000, 3, 3}).ok());
  EXPECT_EQ(claims.HoldersOf("a").size(), 2u);
  EXPECT_EQ(claims.HoldersOf("b").at(0).pid, 100u);
  EXPECT_TRUE(claims.HoldersOf("").empty());
  EXPECT_TRUE(claims.HoldsAny(100, 5, "a"));
  EXPECT_TRUE(claims.HoldsAny(101, 6));
  EXPECT_FALSE(claims.HoldsAny(101, 6, "a"));
  EXPECT_FALSE(claims.HoldsAny(100, 6)) << "another process with this pid";
  (void)claims.EndProcess(100, 5);
  EXPECT_FALSE(claims.HoldsAny(100, 5));
}

TEST(Claims, JobsOfAUserAreBounded) {
  Claims claims;
  claims.SetOwner("found in the region", 1000);
  for (size_t i = 1; i < Claims::kMostJobsOfUser; ++i)
    ASSERT_TRUE(claims.Claim("job" + std::to_string(i), 0, {100, 5, 1000, 1, 1}).ok());
  const absl::Status refused = claims.Claim("one", 0, {100, 5, 1000, 1, 1});
  EXPECT_EQ(CodeOf(refused), ErrorCode::REFUSED);
  EXPECT_NE(refused.message().find("uid 1000 has 1024 jobs on this node"), std::string::npos) << refused;
  EXPECT_EQ(claims.Find("one", 0), std::nullopt);
  EXPECT_TRUE(claims.Claim("job1", 1, {100, 5, 1000, 1, 1}).ok()) << "one that is known";
  EXPECT_TRUE(claims.Claim("one", 0, {101, 5, 1001, 1, 1}).ok()) << "another user";
  (void)claims.EndProcess(100, 5);
  EXPECT_FALSE(claims.Claim("two", 0, {100, 6, 1000, 1, 1}).ok()) << "they stay known";
  claims.Forget("job1");
  EXPECT_TRUE(claims.Claim("two", 0, {100, 6, 1000, 1, 1}).ok());
}

TEST(Claims, SayWhatHasToBeForgottenForAnother) {
  Claims claims;
  for (size_t i = 0; i < Claims::kMostJobsOfUser + 2; ++i) claims.SetOwner("found" + std::to_string(i), 1000);
  EXPECT_EQ(claims.ExcessFor("one", 0, 1000).jobs, 3u) << "what the region held may be above the bound";
  EXPECT_TRUE(claims.ExcessFor("found1", 0, 1000).none()) << "one that is known";
  EXPECT_TRUE(claims.ExcessFor("one", 0, 1001).none()) << "another user";
  EXPECT_TRUE(claims.ExcessFor("found1", 0, 1001).none()) << "another user's is refused for that";
  for (int i = 0; i < 3; ++i) claims.Forget("found" + std::to_string(i));
  EXPECT_TRUE(claims.ExcessFor("one", 0, 1000).none());
  EXPECT_TRUE(claims.Claim("one", 0, {100, 5, 1000, 1, 1}).ok());
}

TEST(Claims, SayHowManyRanksHaveToBeForgotten) {
  Claims claims;
  for (Rank rank = 0; rank < Claims::kMostRanksOfUser; ++rank)
    ASSERT_TRUE(claims.Claim(rank < 7 ? "a" : "b", rank, {100, 5, 1000, 1, 1}).ok());
  EXPECT_TRUE(claims.ExcessFor("a", 6, 1000).none());
  EXPECT_EQ(claims.ExcessFor("a", 7, 1000).ranks, 1u);
  EXPECT_EQ(claims.ExcessFor("c", 0, 1000).ranks, 1u);
  EXPECT_EQ(claims.ExcessFor("c", 0, 1000).jobs, 0u);
  using Jobs = std::vector<std::pair<std::string, size_t>>;
  EXPECT_EQ(JobsOf(claims, 1000), (Jobs{{"a", 7}, {"b", Claims::kMostRanksOfUser - 7}}));
  EXPECT_EQ(JobsOf(claims, 1000, 1), (Jobs{{"a", 7}})) << "whoever has seen enough is told of no more";
  EXPECT_TRUE(JobsOf(claims, 1001).empty());
  claims.Forget("a");
  EXPECT_TRUE(claims.ExcessFor("c", 0, 1000).none());
}

TEST(Claims, RanksOfAUserAreBounded) {
  Claims claims;
  for (Rank rank = 0; rank < Claims::kMostRanksOfUser; ++rank) {
    ASSERT_TRUE(claims.Claim("job", rank, {100, 5, 1000, 1, 1}).ok());
    ASSERT_TRUE(claims.Release("job", rank, 1));
  }
  EXPECT_EQ(CodeOf(claims.Claim("job", Claims::kMostRanksOfUser, {100, 5, 1000, 1, 1})), ErrorCode::REFUSED);
  EXPECT_EQ(CodeOf(claims.Claim("other", 0, {100, 5, 1000, 1, 1})), ErrorCode::REFUSED);
  EXPECT_TRUE(claims.Claim("job", 7, {100, 5, 1000, 1, 1}).ok()) << "one it had";
  claims.Forget("job");
  EXPECT_TRUE(claims.Claim("other", 0, {100, 5, 1000, 1, 1}).ok());
}

TEST(Claims, AForgottenJobIsAnybodysAgain) {
  Claims claims;
  ASSERT_TRUE(claims.Claim("job", 0, {100, 5, 1000, 1, 1}).ok());
  claims.Forget("job");
  EXPECT_FALSE(claims.Holds("job"));
  EXPECT_TRUE(claims.Claim("job", 0, {101, 6, 1001, 2, 2}).ok());
}

}  // namespace
}  // namespace ckptd
