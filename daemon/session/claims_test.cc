#include "daemon/session/claims.h"

#include <gtest/gtest.h>

#include "daemon/base/errors.h"

namespace ckptd {
namespace {

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

}  // namespace
}  // namespace ckptd
