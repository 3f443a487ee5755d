// Agents come and go while an attempt lives.
#include <chrono>

#include "daemon/job/coordinator.h"
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

// Rank 1 of 2 waits at B, and then at C too. Rank 0 is at A.
class TwoClaimsTest : public MembersTest {
 protected:
  TwoClaimsTest() {
    Feed(MembersChanged{{"A", "B", "C"}});
    Join join;
    join.ticket = 7;
    join.process = 70;
    join.world_size = 2;
    Feed(join);
    Feed(NewestRead{Last<ReadNewest>().op, absl::OkStatus(), false, {}, false, {}});
    Feed(AttemptCreated{Last<CreateAttempt>().op, absl::OkStatus()});
    Feed(Listed{Last<List>().op, absl::OkStatus(), {}, {}});
  }
  void Waits(const std::string& agent, Ticket ticket) {
    auto report = std::make_shared<v1::Report>();
    report->set_agent(agent);
    report->set_seen(machine_.view().attempt);
    report->set_answers(5);
    report->set_seq(++seq_);
    v1::RankReport* rank = report->add_ranks();
    rank->set_rank(1);
    rank->set_ticket(ticket);
    rank->set_load(v1::RankReport::WAIT);
    rank->set_world_size(2);
    Feed(ReportReceived{report});
  }
  void Ticks() { Feed(TimerFired{TimerKind::kResend, 0}); }
  std::vector<Ticket> Refused() const {
    std::vector<Ticket> tickets;
    for (const v1::Refusal& refusal : state_->refusals()) {
      EXPECT_EQ(static_cast<ErrorCode>(refusal.code()), ErrorCode::RANK_TAKEN);
      tickets.insert(tickets.end(), refusal.tickets().begin(), refusal.tickets().end());
    }
    return tickets;
  }
  uint64_t seq_ = 0;
};

TEST_F(TwoClaimsTest, TheSecondIsRefusedWhenTheFirstIsSeenToLive) {
  Waits("B", 8);
  Waits("C", 9);
  Ticks();
  EXPECT_TRUE(Refused().empty()) << "B may be gone, and the rank with it";
  Waits("B", 8);
  EXPECT_EQ(Refused(), std::vector<Ticket>{9});
}

// It would name a rank that is dead, or one whose double opens the next attempt, and so on.
TEST_F(TwoClaimsTest, NothingIsDecidedBeforeOneOfThemHasTheRank) {
  Waits("B", 8);
  Waits("C", 9);
  auto own = std::make_shared<v1::RankReport>();
  own->set_seen(machine_.view().seen);
  own->set_ticket(7);
  own->set_load(v1::RankReport::WAIT);
  own->set_world_size(2);
  Feed(RankChanged{own});
  EXPECT_EQ(machine_.view().phase, Phase::kGather);
  Waits("B", 8);
  EXPECT_EQ(machine_.view().phase, Phase::kDeciding);
}

TEST_F(TwoClaimsTest, OfANodeThatSaysNoMoreTheRankGoesToTheSecond) {
  Waits("B", 8);
  Waits("C", 9);
  for (uint64_t tick = 0; tick <= kSilent; ++tick) {
    Ticks();
    Waits("C", 9);
  }
  EXPECT_TRUE(Refused().empty());
  Waits("B", 8);
  Waits("C", 9);
  EXPECT_EQ(Refused(), std::vector<Ticket>{8}) << "it was away, and another has its place";
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

// The storage was put back, or is another one: it lists no attempt, and B is of a later one.
TEST_F(MembersTest, AnAttemptThatOnlyMembersKnowIsPassed) {
  Feed(MembersChanged{{"A", "B"}});
  JoinRankZero();
  Feed(NewestRead{Last<ReadNewest>().op, absl::OkStatus(), false, {}, false, {}});
  EXPECT_EQ(Last<CreateAttempt>().record.attempt(), 1u);
  Feed(AttemptCreated{Last<CreateAttempt>().op, absl::OkStatus()});
  Feed(Listed{Last<List>().op, absl::OkStatus(), {}, {}});
  auto report = std::make_shared<v1::Report>();
  report->set_agent("B");
  report->set_seq(1);
  report->set_seen(UINT64_MAX);
  Feed(ReportReceived{report});
  Feed(Reaped{0, 70});
  JoinRankZero(7, 69);
  Feed(NewestRead{Last<ReadNewest>().op, absl::OkStatus(), false, {}, false, {}});
  EXPECT_EQ(Last<CreateAttempt>().record.attempt(), 2u) << "no job restarts so often";
  Feed(AttemptCreated{Last<CreateAttempt>().op, absl::OkStatus()});
  Feed(Listed{Last<List>().op, absl::OkStatus(), {}, {}});
  report = std::make_shared<v1::Report>(*report);
  report->set_seq(2);
  report->set_seen(40);
  Feed(ReportReceived{report});
  EXPECT_EQ(Last<Refuse>().code, ErrorCode::FENCED);
  Feed(Reaped{0, 69});
  JoinRankZero(8, 71);
  Feed(NewestRead{Last<ReadNewest>().op, absl::OkStatus(), false, {}, false, {}});
  EXPECT_EQ(Last<CreateAttempt>().record.attempt(), 41u);
}

TEST_F(MembersTest, WhoSawALaterAttemptSaysSoThoughItHasNoStateOfIt) {
  Feed(Started{40, 1});
  v1::State state;
  state.set_job("gpt");
  state.set_user("1000");
  state.set_attempt(1);
  state.set_coordinator("B");
  Feed(StateReceived{std::make_shared<const v1::State>(state)});
  const SendReport sent = Last<SendReport>();
  EXPECT_EQ(sent.agent, "B");
  EXPECT_EQ(sent.report->seen(), 40u);
  EXPECT_FALSE(Has<ForwardState>());
}

// Rank 0 of 1 runs at A; B is a member without ranks, which answers every STATE and reports by its own timer.
class QuietTest : public JobTest {
 protected:
  QuietTest() {
    Config config = MakeConfig();
    config.resend = std::chrono::seconds(1);
    machine_ = Machine(config);
    Feed(Started{});
    Run();
    Feed(MembersChanged{{"A", "B"}});
  }
  void AnswerOfB() {
    auto report = std::make_shared<v1::Report>();
    report->set_agent("B");
    report->set_seq(++seq_);
    report->set_seen(machine_.view().seen);
    report->set_answers(5);
    report->set_heard(state_->version());
    Feed(ReportReceived{report});
  }
  // How long until the timer that is set last fires.
  Nanos Tick() {
    Feed(TimerFired{TimerKind::kResend, key_});
    told_ += static_cast<size_t>(std::count_if(effects_.begin(), effects_.end(), [](const Effect& effect) {
      const auto* sent = std::get_if<SendState>(&effect);
      return sent != nullptr && sent->agent == "B";
    }));
    const StartTimer timer = Last<StartTimer>();
    key_ = timer.key;
    return timer.after;
  }
  void TrainerEnds() {
    Feed(Reaped{0, 70});
    auto gone = std::make_shared<v1::RankReport>();
    gone->set_seen(machine_.view().seen);
    gone->set_gone(true);
    Feed(RankChanged{gone});
  }

  static constexpr Nanos kFast = std::chrono::seconds(1);
  static constexpr Nanos kSlow = kFast * kQuietFactor;
  uint64_t seq_ = 0;
  uint64_t key_ = 0;
  size_t told_ = 0;
};

TEST_F(QuietTest, AJobThatRunsIsNeverQuiet) {
  for (uint64_t tick = 0; tick < 2 * kUnheardForLong; ++tick) {
    AnswerOfB();
    ASSERT_EQ(Tick(), kFast) << tick;
  }
  EXPECT_GE(told_, 3u) << "by that B knows that it lives";
  EXPECT_LE(told_, 5u);
}

TEST_F(QuietTest, AJobThatEndedIsQuietAndBeginsAtOnce) {
  TrainerEnds();
  Nanos after = kFast;
  uint64_t ticks = 0;
  for (; after == kFast && ticks < 2 * kUnheardForLong; ++ticks) {
    AnswerOfB();
    after = Tick();
  }
  EXPECT_EQ(after, kSlow);
  EXPECT_LE(ticks, kUnheardForLong + 2);
  EXPECT_EQ(Tick(), kSlow);
  const uint64_t slow = key_;
  JoinRankZero(8, 80);
  EXPECT_EQ(Last<StartTimer>().after, kFast);
  key_ = Last<StartTimer>().key;
  EXPECT_EQ(Tick(), kFast);
  Feed(TimerFired{TimerKind::kResend, slow});
  EXPECT_FALSE(Has<StartTimer>()) << "one goes on, not two";
}

// Another rank joined there: the others, which were asked for nothing for a minute, are not taken for dead.
TEST_F(QuietTest, WhatAnotherAgentReportsWakesTheCoordinator) {
  TrainerEnds();
  for (uint64_t tick = 0; tick <= kUnheardForLong + 1; ++tick) {
    AnswerOfB();
    (void)Tick();
  }
  EXPECT_EQ(Tick(), kSlow);
  auto report = std::make_shared<v1::Report>();
  report->set_agent("B");
  report->set_seq(++seq_);
  report->set_seen(machine_.view().seen);
  report->set_answers(5);
  report->add_ranks()->set_rank(1);
  report->mutable_ranks(0)->set_load(v1::RankReport::WAIT);
  Feed(ReportReceived{report});
  EXPECT_EQ(Last<StartTimer>().after, kFast);
  EXPECT_EQ(Last<SendState>().agent, "B");
}

// A member of B's attempt, which B has forgotten since, or B is gone.
TEST_F(MembersTest, AMemberThatHearsNothingMoreIsQuiet) {
  Config config = MakeConfig();
  config.resend = std::chrono::seconds(1);
  machine_ = Machine(config);
  Feed(Started{});
  Feed(MembersChanged{{"A", "B"}});
  const auto state = [] {
    auto told = std::make_shared<v1::State>();
    told->set_attempt(3);
    told->set_coordinator("B");
    told->set_user("1000");
    return StateReceived{told};
  };
  Feed(state());
  for (uint64_t tick = 0; tick < kUnheardForLong; ++tick) Feed(TimerFired{TimerKind::kResend, 0});
  Feed(TimerFired{TimerKind::kResend, 0});
  EXPECT_EQ(Last<StartTimer>().after, config.resend * kQuietFactor);
  EXPECT_TRUE(Has<SendReport>());
  Feed(state());
  EXPECT_EQ(Last<StartTimer>().after, config.resend) << "it is heard again";
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

// Of both attempts this agent hears from the same process, which would take it for what is in memory here.
TEST_F(MembersTest, AnOlderStateThatIsLateIsNotAnsweredWithNothing) {
  const auto state = [](AttemptId attempt) {
    auto out = std::make_shared<v1::State>();
    out->set_job("gpt");
    out->set_attempt(attempt);
    out->set_coordinator("B");
    out->set_incarnation(9);
    out->set_user("1000");
    return StateReceived{out};
  };
  Feed(state(4));
  Rank(v1::RankReport::NONE, {{3, 20}});
  EXPECT_EQ(Last<SendReport>().report->answers(), 9u);
  Feed(state(3));
  for (const Effect& effect : effects_) {
    const auto* sent = std::get_if<SendReport>(&effect);
    if (sent == nullptr) continue;
    EXPECT_EQ(sent->report->seen(), 4u);
    EXPECT_EQ(sent->report->answers(), sent->report->ranks_size() == 0 ? 0u : 9u);
  }
  EXPECT_EQ(Last<SendReport>().report->ranks_size(), 1);
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
