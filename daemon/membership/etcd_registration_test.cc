#include "daemon/membership/etcd_registration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/base/errors.h"
#include "daemon/membership/etcd_mirror.h"

namespace ckptd::membership {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using Call = Registration::Call;

const absl::Status kDown = Error(ErrorCode::TIMEOUT, "etcd does not answer");

EtcdEntry HeldBy(int64_t lease, int64_t revision) {
  return {"/p/n1", EncodeMember({"n1", "other:1", {}, 0}), revision, lease};
}

class RegistrationTest : public ::testing::Test {
 protected:
  // The call that is due now, which must be this one.
  Registration::Next Expect(Call call) {
    const auto next = registration_.Due(now_);
    EXPECT_TRUE(next.has_value());
    if (!next) return {};
    EXPECT_EQ(next->call, call);
    EXPECT_FALSE(registration_.Due(now_).has_value()) << "one call at a time";
    return *next;
  }
  void Register(int64_t lease, int64_t revision) {
    Expect(Call::kGrant);
    registration_.Granted(EtcdLease{lease, 9}, now_, now_);
    EXPECT_EQ(Expect(Call::kClaim).lease, lease);
    registration_.Claimed(EtcdClaim{true, revision, {}}, now_);
  }
  void WaitUntilDue() { now_ = std::max(now_, registration_.due()); }
  [[nodiscard]] ErrorCode Code() const { return CodeOf(registration_.StandingAt(now_).status); }
  [[nodiscard]] std::string Why() const { return std::string(registration_.StandingAt(now_).status.message()); }

  Nanos now_ = seconds(100);
  Registration registration_{"n1", seconds(9)};
};

TEST_F(RegistrationTest, RegistersAndKeepsAliveEveryThirdOfItsTime) {
  EXPECT_EQ(Code(), ErrorCode::REFUSED);
  Register(7, 41);
  EXPECT_EQ(Code(), ErrorCode::OK);
  EXPECT_EQ(registration_.StandingAt(now_).generation, 41U);
  EXPECT_FALSE(registration_.Due(now_).has_value());
  for (int i = 0; i < 10; ++i) {
    const Nanos before = now_;
    WaitUntilDue();
    EXPECT_EQ(now_ - before, seconds(3));
    EXPECT_EQ(Expect(Call::kKeepAlive).lease, 7);
    registration_.KeptAlive(int64_t{9}, now_, now_);
  }
  EXPECT_EQ(Code(), ErrorCode::OK);
  EXPECT_EQ(registration_.StandingAt(now_).generation, 41U);
}

TEST_F(RegistrationTest, AProcessThatStartsTakesItsNameOver) {
  Expect(Call::kGrant);
  registration_.Granted(EtcdLease{7, 9}, now_, now_);
  EXPECT_EQ(Expect(Call::kClaim).taking, Taking::kAnyway);
}

TEST_F(RegistrationTest, WhatEtcdDoesNotAnswerIsAskedAgainAfterAPause) {
  Expect(Call::kGrant);
  registration_.Granted(kDown, now_, now_);
  EXPECT_FALSE(registration_.Due(now_).has_value());
  EXPECT_EQ(Code(), ErrorCode::REFUSED);
  EXPECT_THAT(Why(), HasSubstr("not registered yet: etcd does not answer"));
  WaitUntilDue();
  Expect(Call::kGrant);
  registration_.Granted(EtcdLease{0, 9}, now_, now_);
  EXPECT_THAT(Why(), HasSubstr("without a number"));
}

// Counted from when the last good call was sent, not from its answer: etcd's count began before the answer came.
TEST_F(RegistrationTest, IsFencedWhenItsTimeIsOverAndEtcdWasNotAsked) {
  Register(7, 41);
  WaitUntilDue();
  const Nanos sent = now_;
  Expect(Call::kKeepAlive);
  now_ += seconds(2);
  registration_.KeptAlive(int64_t{9}, sent, now_);
  EXPECT_EQ(registration_.Deadline(), sent + seconds(9));
  now_ = sent + seconds(9) - Nanos(1);
  EXPECT_EQ(Code(), ErrorCode::OK);
  now_ = sent + seconds(9);
  EXPECT_EQ(Code(), ErrorCode::FENCED);
  EXPECT_THAT(Why(), HasSubstr("generation 41: its lease was over before etcd was asked again"));
}

// Every node would be fenced at once by an etcd that nobody reaches.
TEST_F(RegistrationTest, AnEtcdThatIsSilentFencesNobodyUntilItSpeaks) {
  Register(7, 41);
  const Nanos end = now_ + seconds(600);
  for (WaitUntilDue(); now_ < end; WaitUntilDue()) {
    Expect(Call::kKeepAlive);
    now_ += seconds(3);
    registration_.KeptAlive(kDown, now_ - seconds(3), now_);
    ASSERT_EQ(Code(), ErrorCode::OK);
    ASSERT_EQ(registration_.StandingAt(now_).generation, 41U);
  }
  Expect(Call::kKeepAlive);
  registration_.KeptAlive(int64_t{0}, now_, now_);
  EXPECT_EQ(Code(), ErrorCode::FENCED);
  EXPECT_THAT(Why(), HasSubstr("no member any more: its lease ran out"));
}

TEST_F(RegistrationTest, ANameThatWasTakenWhileEtcdWasSilentFencesWhenItIsSeen) {
  Register(7, 41);
  WaitUntilDue();
  Expect(Call::kKeepAlive);
  registration_.KeptAlive(kDown, now_, now_);
  now_ += seconds(600);
  EXPECT_EQ(Code(), ErrorCode::OK);
  registration_.Seen(HeldBy(99, 50), 50, now_);
  EXPECT_EQ(Code(), ErrorCode::FENCED);
  EXPECT_THAT(Why(), HasSubstr("another process registered under this name"));
}

TEST_F(RegistrationTest, APauseFencesWithoutAnyTimer) {
  Register(7, 41);
  now_ += seconds(60);
  EXPECT_EQ(Code(), ErrorCode::FENCED);
  Expect(Call::kKeepAlive);
  registration_.KeptAlive(int64_t{0}, now_, now_);
  EXPECT_EQ(Code(), ErrorCode::FENCED);
  EXPECT_THAT(Why(), HasSubstr("no member any more: its lease ran out"));
  Expect(Call::kGrant);
  registration_.Granted(EtcdLease{8, 9}, now_, now_);
  EXPECT_EQ(Expect(Call::kClaim).taking, Taking::kIfFree) << "its name may be another's by now";
  registration_.Claimed(EtcdClaim{true, 55, {}}, now_);
  EXPECT_EQ(Code(), ErrorCode::OK);
  EXPECT_EQ(registration_.StandingAt(now_).generation, 55U);
}

TEST_F(RegistrationTest, ALeaseThatLivedAfterAllGoesOn) {
  Register(7, 41);
  now_ += seconds(60);
  EXPECT_EQ(Code(), ErrorCode::FENCED);
  Expect(Call::kKeepAlive);
  registration_.KeptAlive(int64_t{9}, now_, now_);
  EXPECT_EQ(Code(), ErrorCode::OK);
  EXPECT_EQ(registration_.StandingAt(now_).generation, 41U);
}

TEST_F(RegistrationTest, WhoComesBackToATakenNameStaysFencedUntilItIsFree) {
  Register(7, 41);
  now_ += seconds(60);
  Expect(Call::kKeepAlive);
  registration_.KeptAlive(int64_t{0}, now_, now_);
  for (int i = 0; i < 3; ++i) {
    WaitUntilDue();
    Expect(Call::kGrant);
    registration_.Granted(EtcdLease{8 + i, 9}, now_, now_);
    Expect(Call::kClaim);
    registration_.Claimed(EtcdClaim{false, 0, HeldBy(99, 50)}, now_);
    EXPECT_EQ(Code(), ErrorCode::FENCED);
    EXPECT_THAT(Why(), HasSubstr("another process registered under this name (generation 50, at other:1)"));
    EXPECT_EQ(registration_.due(), now_ + seconds(9)) << "once per TTL";
  }
  WaitUntilDue();
  Register(20, 77);
  EXPECT_EQ(Code(), ErrorCode::OK);
}

TEST_F(RegistrationTest, AnotherThatTakesTheNameIsSeenInTheWatch) {
  Register(7, 41);
  registration_.Seen(HeldBy(7, 41), 41, now_);
  registration_.Seen(HeldBy(3, 12), 40, now_);
  registration_.Seen(std::nullopt, 40, now_);
  EXPECT_EQ(Code(), ErrorCode::OK) << "its own, and what was before it";
  registration_.Seen(HeldBy(99, 50), 50, now_);
  EXPECT_EQ(Code(), ErrorCode::FENCED);
  EXPECT_FALSE(registration_.Due(now_).has_value()) << "it does not fight";
}

TEST_F(RegistrationTest, AKeyThatIsTakenAwayIsWrittenAgainHigher) {
  Register(7, 41);
  registration_.Seen(std::nullopt, 60, now_);
  EXPECT_EQ(Code(), ErrorCode::FENCED);
  Register(8, 61);
  EXPECT_EQ(registration_.StandingAt(now_).generation, 61U);
}

TEST_F(RegistrationTest, AKeepAliveThatIsOpenWhileTheNameIsLostChangesNothing) {
  Register(7, 41);
  WaitUntilDue();
  Expect(Call::kKeepAlive);
  registration_.Seen(HeldBy(99, 50), 50, now_);
  registration_.KeptAlive(int64_t{9}, now_, now_);
  EXPECT_EQ(Code(), ErrorCode::FENCED);
  EXPECT_FALSE(registration_.Due(now_).has_value());
}

TEST_F(RegistrationTest, AClaimWhoseAnswerWasLostIsKnownByItsLease) {
  Register(7, 41);
  now_ += seconds(60);
  Expect(Call::kKeepAlive);
  registration_.KeptAlive(int64_t{0}, now_, now_);
  Expect(Call::kGrant);
  registration_.Granted(EtcdLease{8, 9}, now_, now_);
  Expect(Call::kClaim);
  registration_.Claimed(kDown, now_);
  WaitUntilDue();
  Expect(Call::kClaim);
  registration_.Claimed(EtcdClaim{false, 0, HeldBy(8, 70)}, now_);
  EXPECT_EQ(Code(), ErrorCode::OK);
  EXPECT_EQ(registration_.StandingAt(now_).generation, 70U);
}

TEST_F(RegistrationTest, ALeaseThatEndsBeforeTheClaimIsGrantedAnew) {
  Expect(Call::kGrant);
  registration_.Granted(EtcdLease{7, 9}, now_, now_);
  Expect(Call::kClaim);
  registration_.Claimed(Error(ErrorCode::NOT_FOUND, "lease not found"), now_);
  Expect(Call::kGrant);
}

}  // namespace
}  // namespace ckptd::membership
