#include "daemon/membership/fence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"

namespace ckptd::membership {
namespace {

using ::testing::HasSubstr;

TEST(Fence, ALaterGenerationFencesTheEarlier) {
  Fence fence;
  ASSERT_TRUE(fence.Named("a", 5).ok());
  EXPECT_TRUE(fence.Claimed("a", 5).ok());
  ASSERT_TRUE(fence.Named("a", 9).ok());
  const absl::Status late = fence.Claimed("a", 5);
  EXPECT_EQ(CodeOf(late), ErrorCode::FENCED);
  EXPECT_THAT(late.message(), HasSubstr("node a, generation 5: generation 9 has taken its place"));
  EXPECT_EQ(CodeOf(fence.Named("a", 8)), ErrorCode::FENCED) << "a source that goes back";
  EXPECT_TRUE(fence.Claimed("a", 9).ok());
}

TEST(Fence, WhatEndedStaysEnded) {
  Fence fence;
  ASSERT_TRUE(fence.Named("a", 5).ok());
  fence.Left("a");
  EXPECT_EQ(CodeOf(fence.Claimed("a", 5)), ErrorCode::FENCED);
  EXPECT_EQ(CodeOf(fence.Named("a", 5)), ErrorCode::FENCED);
  EXPECT_EQ(CodeOf(fence.Claimed("a", 6)), ErrorCode::NOT_FOUND) << "not named yet";
  ASSERT_TRUE(fence.Named("a", 6).ok());
  EXPECT_TRUE(fence.Claimed("a", 6).ok());
  EXPECT_EQ(CodeOf(fence.Claimed("a", 5)), ErrorCode::FENCED);
}

TEST(Fence, WhereTheSourceKnowsNoneTheClaimsCount) {
  Fence fence;
  ASSERT_TRUE(fence.Named("a", 0).ok());
  EXPECT_TRUE(fence.Claimed("a", 3).ok());
  EXPECT_TRUE(fence.Claimed("a", 3).ok());
  EXPECT_TRUE(fence.Claimed("a", 4).ok());
  const absl::Status older = fence.Claimed("a", 3);
  EXPECT_EQ(CodeOf(older), ErrorCode::FENCED) << "it was paused while 4 was started";
  EXPECT_THAT(older.message(), HasSubstr("generation 4 was here already; stop it, if it is an older process"));
  fence.Left("a");
  EXPECT_EQ(CodeOf(fence.Claimed("a", 4)), ErrorCode::NOT_FOUND);
  ASSERT_TRUE(fence.Named("a", 0).ok());
  EXPECT_TRUE(fence.Claimed("a", 4).ok()) << "the same process, listed again";
  EXPECT_EQ(CodeOf(fence.Claimed("a", 3)), ErrorCode::FENCED);
  EXPECT_EQ(CodeOf(fence.Claimed("a", 0)), ErrorCode::INVALID_ARGUMENT);
}

TEST(Fence, WhatIsOnlyAskedFencesNobody) {
  Fence fence;
  EXPECT_EQ(CodeOf(fence.WouldClaim("a", 3)), ErrorCode::NOT_FOUND);
  ASSERT_TRUE(fence.Named("a", 0).ok());
  EXPECT_TRUE(fence.WouldClaim("a", UINT64_MAX).ok());
  EXPECT_TRUE(fence.Claimed("a", 3).ok());
  EXPECT_EQ(CodeOf(fence.WouldClaim("a", 2)), ErrorCode::FENCED);
  EXPECT_EQ(CodeOf(fence.WouldClaim("a", 0)), ErrorCode::INVALID_ARGUMENT);
  fence.Left("a");
  EXPECT_EQ(CodeOf(fence.WouldClaim("a", 4)), ErrorCode::NOT_FOUND);
}

TEST(Fence, APeerMayKnowItsNewGenerationBeforeTheSourceSaysIt) {
  Fence fence;
  ASSERT_TRUE(fence.Named("a", 5).ok());
  EXPECT_TRUE(fence.Claimed("a", 7).ok());
  EXPECT_EQ(CodeOf(fence.Claimed("a", 5)), ErrorCode::FENCED);
  EXPECT_TRUE(fence.Named("a", 5).ok()) << "the source is behind, which is no error";
}

TEST(Fence, ForgottenNamesStayFenced) {
  Fence fence(/*max_departed=*/3);
  for (uint64_t i = 1; i <= 10; ++i) {
    const std::string name = absl::StrCat("n", i);
    ASSERT_TRUE(fence.Named(name, i).ok());
    fence.Left(name);
  }
  for (uint64_t i = 1; i <= 10; ++i) EXPECT_EQ(CodeOf(fence.Claimed(absl::StrCat("n", i), i)), ErrorCode::FENCED) << i;
  EXPECT_EQ(CodeOf(fence.Named("stranger", 7)), ErrorCode::FENCED) << "seven were forgotten: 7 is the floor";
  EXPECT_TRUE(fence.Named("stranger", 11).ok());
}

}  // namespace
}  // namespace ckptd::membership
