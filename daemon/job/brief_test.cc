// States that leave out what their member has: what it has heard, it is not told again, and what it has not, it asks
// for.
#include "daemon/job/brief.h"

#include "daemon/job/bystander.h"
#include "daemon/job/job_test_util.h"
#include "daemon/job/machine_test_util.h"
#include "daemon/job/reports.h"

namespace ckptd::job {
namespace {

constexpr uint64_t kTheirs = 9;  // B's incarnation

v1::State Decided(uint64_t version, v1::State::Phase phase = v1::State::LOAD) {
  v1::State state;
  state.set_job("gpt");
  state.set_attempt(3);
  state.set_coordinator("B");
  state.set_user("1000");
  state.set_incarnation(kTheirs);
  state.set_version(version);
  state.set_phase(phase);
  *state.mutable_decision() = Decision(3, {{2, 20}}, 4);
  state.add_groups()->add_agents("A");
  if (phase == v1::State::LOAD) state.add_sources()->set_rank(1);
  return state;
}
StatePtr Shared(const v1::State& state) { return std::make_shared<v1::State>(state); }

TEST(Brief, IsFilledInFromWhatIsKnown) {
  const v1::State next = Decided(6);
  const StatePtr brief = Brief(next, 5);
  EXPECT_FALSE(brief->has_decision());
  EXPECT_LT(brief->ByteSizeLong(), next.ByteSizeLong() / 3);
  const StatePtr whole = Whole(brief, Shared(Decided(5)));
  ASSERT_NE(whole, nullptr);
  EXPECT_EQ(whole->SerializeAsString(), next.SerializeAsString());
  const v1::State run = Decided(7, v1::State::RUN);
  EXPECT_EQ(Whole(Brief(run, 5), whole)->SerializeAsString(), run.SerializeAsString()) << "sources are of LOAD";
}

TEST(Brief, IsFilledInFromNothingElse) {
  const StatePtr brief = Brief(Decided(6), 5);
  v1::State older = Decided(4);
  v1::State other_attempt = Decided(5);
  other_attempt.set_attempt(2);
  v1::State other_life = Decided(5);
  other_life.set_incarnation(kTheirs + 1);
  v1::State undecided = Decided(5, v1::State::GATHER);
  undecided.clear_decision();
  EXPECT_EQ(Whole(brief, nullptr), nullptr);
  for (const v1::State& known : {older, other_attempt, other_life, undecided}) {
    EXPECT_EQ(Whole(brief, Shared(known)), nullptr) << known.ShortDebugString();
  }
}

TEST(Brief, ABystanderAsksForTheWhole) {
  Bystander bystander({"A", 5, 77}, std::make_shared<ReportNumbers>());
  ReportPtr report = bystander.Heard(Brief(Decided(6), 5));
  EXPECT_EQ(report->lacks(), 5u);
  EXPECT_EQ(report->answers(), kTheirs);
  EXPECT_EQ(bystander.Take("gpt"), nullptr);
  report = bystander.Heard(Shared(Decided(6)));
  EXPECT_EQ(report->lacks(), 0u);
  EXPECT_TRUE(report->completes());
  report = bystander.Heard(Brief(Decided(7), 5));
  EXPECT_EQ(report->heard(), 7u);
  EXPECT_TRUE(bystander.Take("gpt")->has_decision());
}

// A is a member of B's attempt.
class BriefMember : public JobTest {};

TEST_F(BriefMember, AsksForTheWholeAndLearnsNothingBefore) {
  Feed(StateReceived{Brief(Decided(6), 5)});
  EXPECT_EQ(Last<SendReport>().agent, "B");
  EXPECT_EQ(Last<SendReport>().report->lacks(), 5u);
  EXPECT_FALSE(Has<PersistSeen>());
  EXPECT_FALSE(Has<ForwardState>());
  Feed(StateReceived{Shared(Decided(6))});
  EXPECT_TRUE(Last<SendReport>().report->completes());
  Feed(StateReceived{Brief(Decided(7, v1::State::RUN), 5)});
  EXPECT_EQ(Last<SendReport>().report->heard(), 7u);
  EXPECT_EQ(state_->SerializeAsString(), Decided(7, v1::State::RUN).SerializeAsString());
}

// A coordinates, and B, a member without ranks, is played by hand.
class BriefCoordinator : public JobTest {
 protected:
  BriefCoordinator() {
    Feed(MembersChanged{{"A", "B"}});
    JoinRankZero();
    Feed(NewestRead{Last<ReadNewest>().op, absl::OkStatus(), false, {}, false, {}});
    Feed(AttemptCreated{Last<CreateAttempt>().op, absl::OkStatus()});
    Feed(Listed{Last<List>().op, absl::OkStatus(), {}, {}});
    FromB(1);
    Rank(v1::RankReport::WAIT);
    const CreateDecision create = Last<CreateDecision>();
    Feed(DecisionCreated{create.op, absl::OkStatus(), create.decision});
    Feed(NewestChecked{Last<CheckNewest>().op, absl::OkStatus(), 1});
  }

  v1::Report ReportOfB(uint64_t heard) {
    v1::Report report;
    report.set_agent("B");
    report.set_incarnation(kTheirs);
    report.set_seq(++seq_);
    report.set_seen(machine_.view().attempt);
    report.set_answers(5);
    report.set_heard(heard);
    report.set_completes(true);
    return report;
  }
  void FromB(uint64_t heard) { Feed(ReportReceived{std::make_shared<v1::Report>(ReportOfB(heard))}); }
  StatePtr ToB() const {
    for (auto it = effects_.rbegin(); it != effects_.rend(); ++it) {
      const auto* sent = std::get_if<SendState>(&*it);
      if (sent != nullptr && sent->agent == "B") return sent->state;
    }
    return nullptr;
  }
  // Something changes: all are told.
  void Change() {
    const bool loaded = machine_.view().phase != Phase::kLoad;
    Rank(loaded ? v1::RankReport::RUN : v1::RankReport::LOADED,
         loaded ? std::vector<SnapshotId>{{1, ++step_}} : std::vector<SnapshotId>{});
  }

  uint64_t seq_ = 0;
  StepId step_ = 0;
};

TEST_F(BriefCoordinator, TellsTheWholeUntilItWasHeard) {
  ASSERT_NE(ToB(), nullptr);
  const uint64_t first = ToB()->version();
  EXPECT_TRUE(ToB()->has_decision());
  Change();
  EXPECT_TRUE(ToB()->has_decision()) << "it may not have heard the first";
  FromB(first - 1);
  Change();
  EXPECT_TRUE(ToB()->has_decision()) << "it has heard of GATHER only";
  FromB(first);
  Change();
  EXPECT_FALSE(ToB()->has_decision());
  EXPECT_EQ(ToB()->as_in(), first);
  EXPECT_TRUE(state_->has_decision()) << "its own ranks read it";
}

TEST_F(BriefCoordinator, TellsTheWholeToWhomAsks) {
  const uint64_t first = ToB()->version();
  FromB(first);
  Change();
  v1::Report asks = ReportOfB(0);
  asks.set_seen(0);
  asks.set_lacks(first);
  Feed(ReportReceived{std::make_shared<v1::Report>(asks)});
  ASSERT_NE(ToB(), nullptr) << "at once";
  EXPECT_TRUE(ToB()->has_decision());
  Change();
  EXPECT_TRUE(ToB()->has_decision()) << "it has not said that it heard it";
  FromB(ToB()->version());
  Change();
  EXPECT_FALSE(ToB()->has_decision());
}

TEST_F(BriefCoordinator, TellsTheWholeToOlderAgentsAndToWhoIsSilent) {
  v1::Report older = ReportOfB(ToB()->version());
  older.set_completes(false);
  Feed(ReportReceived{std::make_shared<v1::Report>(older)});
  Change();
  EXPECT_TRUE(ToB()->has_decision());
  FromB(ToB()->version());
  Change();
  EXPECT_FALSE(ToB()->has_decision());
  for (uint64_t tick = 0; tick <= kSilent; ++tick) Feed(TimerFired{TimerKind::kResend, 0});
  ASSERT_NE(ToB(), nullptr);
  EXPECT_TRUE(ToB()->has_decision()) << "it may have started anew";
}

}  // namespace
}  // namespace ckptd::job
