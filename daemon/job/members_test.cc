// Agents come and go while an attempt lives.
#include "daemon/job/machine_test_util.h"

namespace ckptd::job {
namespace {

class MembersTest : public JobTest {
 protected:
  // Rank 0 of 1 has joined at A; the storage is empty. What keeps the attempt from being decided is B, who says
  // nothing.
  void GatherWithoutB() {
    Feed(MembersChanged{{"A", "B"}});
    JoinRankZero();
    Feed(NewestRead{Last<ReadNewest>().op, absl::OkStatus(), false, {}, false, {}});
    Feed(AttemptCreated{Last<CreateAttempt>().op, absl::OkStatus()});
    Feed(Listed{Last<List>().op, absl::OkStatus(), {}, {}});
    Rank(v1::RankReport::WAIT);
    ASSERT_EQ(machine_.view().phase, Phase::kGather);
  }
  size_t ResendTimers() const {
    return static_cast<size_t>(std::count_if(effects_.begin(), effects_.end(), [](const Effect& effect) {
      const auto* timer = std::get_if<StartTimer>(&effect);
      return timer != nullptr && timer->kind == TimerKind::kResend;
    }));
  }
  bool SentTo(const std::string& agent) const {
    return std::any_of(effects_.begin(), effects_.end(), [&](const Effect& effect) {
      const auto* sent = std::get_if<SendState>(&effect);
      return sent != nullptr && sent->agent == agent;
    });
  }
};

TEST_F(MembersTest, WhoLeftIsNotWaitedFor) {
  GatherWithoutB();
  EXPECT_EQ(machine_.view().silent_agents, std::vector<std::string>{"B"});
  Feed(MembersChanged{{"A"}});
  EXPECT_EQ(machine_.view().phase, Phase::kDeciding);
  EXPECT_TRUE(machine_.view().silent_agents.empty());
}

TEST_F(MembersTest, WhoCameIsToldAtOnceAndWaitedFor) {
  GatherWithoutB();
  Feed(MembersChanged{{"A", "C"}});
  EXPECT_TRUE(SentTo("C"));
  EXPECT_FALSE(SentTo("B"));
  EXPECT_EQ(machine_.view().phase, Phase::kGather);
  auto report = std::make_shared<v1::Report>();
  report->set_agent("C");
  report->set_seen(machine_.view().attempt);
  report->set_answers(5);
  Feed(ReportReceived{report});
  EXPECT_EQ(machine_.view().phase, Phase::kDeciding);
}

TEST_F(MembersTest, OneTimerRepeatsMessagesWhileThereIsSomebodyToTell) {
  Feed(MembersChanged{{"A", "B"}});
  EXPECT_EQ(ResendTimers(), 1u);
  Feed(MembersChanged{{"A", "B", "C"}});
  EXPECT_EQ(ResendTimers(), 0u);
  Feed(TimerFired{TimerKind::kResend, 0});
  EXPECT_EQ(ResendTimers(), 1u);
  Feed(MembersChanged{{"A"}});
  Feed(TimerFired{TimerKind::kResend, 0});
  EXPECT_EQ(ResendTimers(), 0u);
  Feed(MembersChanged{{"A", "B"}});
  EXPECT_EQ(ResendTimers(), 1u);
}

// A holder is fed what it has at each STATE, which comes every second: one REPORT answers it, not two.
TEST_F(MembersTest, CopiesThatAreTheSameAreNoNews) {
  const auto copies = [](AttemptId seen, StepId step) {
    v1::HeldCopies held;
    held.set_rank(1);
    SetRef({3, step}, held.add_complete());
    return CopiesChanged{seen, {held}};
  };
  const auto state = [](AttemptId attempt) {
    auto out = std::make_shared<v1::State>();
    out->set_job("gpt");
    out->set_attempt(attempt);
    out->set_coordinator("B");
    out->set_user("1000");
    return StateReceived{out};
  };
  Feed(copies(0, 5));
  Feed(state(3));
  EXPECT_FALSE(Has<SendReport>()) << "what was stated under an older attempt";
  Feed(copies(3, 5));
  EXPECT_TRUE(Has<SendReport>());
  Feed(copies(3, 5));
  EXPECT_FALSE(Has<SendReport>());
  Feed(copies(3, 6));
  EXPECT_TRUE(Has<SendReport>());
  Feed(state(4));
  EXPECT_FALSE(Has<SendReport>());
  Feed(copies(4, 6));
  EXPECT_TRUE(Has<SendReport>());
}

TEST_F(MembersTest, ARefusedCopyIsGivenUpOnlyWhileAllCopyIt) {
  auto state = std::make_shared<v1::State>();
  state->set_attempt(3);
  state->set_coordinator("B");
  state->set_user("1000");
  SetRef({3, 20}, state->mutable_protecting());
  Feed(StateReceived{state});
  Feed(CopyRefused{{3, 10}});
  EXPECT_FALSE(Has<SendReport>()) << "another step is copied now";
  Feed(CopyRefused{{3, 20}});
  EXPECT_EQ(ToId(Last<SendReport>().report->unprotected()), (SnapshotId{3, 20}));
  Feed(CopyRefused{{3, 20}});
  EXPECT_FALSE(Has<SendReport>()) << "once";
}

}  // namespace
}  // namespace ckptd::job
