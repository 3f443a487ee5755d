// Who may say what of a job. That a message comes from the agent that it names, the links have checked; which jobs and
// attempts that agent may speak of, is checked here.
#include "daemon/job/bystander.h"
#include "daemon/job/job_test_util.h"
#include "daemon/job/machine_test_util.h"

namespace ckptd::job {
namespace {

StatePtr StateOf(const std::string& coordinator, AttemptId attempt, const std::string& user) {
  auto state = std::make_shared<v1::State>();
  state->set_job("gpt");
  state->set_attempt(attempt);
  state->set_coordinator(coordinator);
  state->set_incarnation(coordinator[0]);
  state->set_version(1);
  state->set_user(user);
  return state;
}

enum class Then {
  kTaken,     // its ranks hear it
  kLearned,   // and the attempt is new
  kOutdated,  // answered with the attempt that is known
  kStaysOut,  // answered with "nothing here", and nothing follows from it
  kOwned,     // and whoever waits here is refused
  kIgnored,
};

struct Row {
  const char* what;
  AttemptId known;  // of B, user 1000; 0 = none
  const char* from;
  AttemptId attempt;
  const char* user;
  Then then;
};

constexpr Row kStates[] = {
    {"its coordinator goes on", 3, "B", 3, "1000", Then::kTaken},
    {"another member, in the attempt of B", 3, "C", 3, "1000", Then::kIgnored},
    {"another member, in an attempt of its own", 3, "C", 4, "1000", Then::kLearned},
    {"a coordinator that was cut off", 3, "C", 2, "1000", Then::kOutdated},
    {"another user's job of this name", 3, "C", 9, "1001", Then::kStaysOut},
    {"its coordinator, for another user", 3, "B", 9, "1001", Then::kStaysOut},
    {"nobody's job of this name", 3, "C", 9, "", Then::kStaysOut},
    {"the first that is heard", 0, "C", 1, "1000", Then::kLearned},
    {"the first that is heard is another user's", 0, "C", 1, "1001", Then::kOwned},
    {"the first that is heard is nobody's", 0, "C", 1, "", Then::kOwned},
};

// A process of user 1000 waits in A for rank 1.
class TrustTest : public JobTest {
 protected:
  Then WhatFollows(const Row& row) {
    machine_ = Machine(MakeConfig());
    Feed(Started{0, 7});
    Join join;
    join.rank = 1;
    join.ticket = 8;
    join.process = 80;
    join.world_size = 2;
    Feed(join);
    auto facts = std::make_shared<v1::RankReport>();
    facts->set_rank(1);
    if (row.known != 0) Feed(StateReceived{StateOf("B", row.known, "1000")});
    facts->set_seen(row.attempt > row.known && std::string(row.user) == "1000" ? row.attempt : row.known);
    Feed(RankChanged{facts});
    Feed(StateReceived{StateOf(row.from, row.attempt, row.user)});
    const bool nothing = Has<SendReport>() && Last<SendReport>().report->ranks_size() == 0;
    if (Has<PersistSeen>()) return Then::kLearned;
    if (Has<ForwardState>()) return Then::kTaken;
    if (Has<Refuse>()) return nothing && Last<Refuse>().code == ErrorCode::JOB_OWNED ? Then::kOwned : Then::kIgnored;
    if (nothing) return Then::kStaysOut;
    return Has<SendReport>() ? Then::kOutdated : Then::kIgnored;
  }
};

TEST_F(TrustTest, WhoseStateIsTaken) {
  for (const Row& row : kStates) EXPECT_EQ(WhatFollows(row), row.then) << row.what;
}

TEST_F(TrustTest, AnOutdatedCoordinatorHearsOfTheAttemptThatIsKnown) {
  ASSERT_EQ(WhatFollows(kStates[3]), Then::kOutdated);
  EXPECT_EQ(Last<SendReport>().agent, "B") << "it is the coordinator of that attempt who is told";
  EXPECT_EQ(Last<SendReport>().report->seen(), 3u);
}

TEST(Trust, ABystanderKeepsTheCoordinatorOfAnAttempt) {
  Bystander bystander({"A", 5, 77}, std::make_shared<ReportNumbers>());
  (void)bystander.Heard(StateOf("B", 3, "1000"));
  EXPECT_EQ(bystander.Heard(StateOf("C", 3, "1000"))->answers(), uint64_t{'B'});
  EXPECT_EQ(bystander.Take("gpt")->coordinator(), "B");
}

// A coordinates a job whose only rank is its own; B is a member.
class TrustOfReports : public JobTest {
 protected:
  TrustOfReports() {
    Run();
    Feed(MembersChanged{{"A", "B"}});
  }
  v1::Report FromB() {
    v1::Report report;
    report.set_agent("B");
    report.set_incarnation(9);
    report.set_seq(++seq_);
    report.set_seen(machine_.view().attempt);
    report.set_answers(5);
    return report;
  }
  void Hear(const v1::Report& report) { Feed(ReportReceived{std::make_shared<v1::Report>(report)}); }
  size_t SentToB() const {
    return static_cast<size_t>(std::count_if(effects_.begin(), effects_.end(), [](const Effect& effect) {
      const auto* sent = std::get_if<SendState>(&effect);
      return sent != nullptr && sent->agent == "B";
    }));
  }
  uint64_t seq_ = 0;
};

TEST_F(TrustOfReports, NobodyHasTheRanksOfOthers) {
  v1::Report report = FromB();
  v1::RankReport* rank = report.add_ranks();
  rank->set_load(v1::RankReport::FAILED);
  rank->set_ticket(7);
  SetRef({1, 10}, rank->add_sealed());
  SetRef({1, 10}, rank->add_persisted());
  Hear(report);
  EXPECT_EQ(machine_.view().phase, Phase::kRun) << "rank 0 is A's, and has not failed";
  EXPECT_TRUE(machine_.view().watermark.none());
  EXPECT_FALSE(Has<CreateManifest>());
}

TEST_F(TrustOfReports, OfAnotherAttemptOrLifeTheyAreNotTaken) {
  v1::Report report = FromB();
  report.set_answers(6);
  Hear(report);
  report = FromB();
  report.set_seen(0);
  Hear(report);
  EXPECT_EQ(machine_.view().silent_agents, std::vector<std::string>{"B"});
  Hear(FromB());
  EXPECT_TRUE(machine_.view().silent_agents.empty());
}

TEST_F(TrustOfReports, AQuestionIsAnsweredOnceAndThenByTheTimer) {
  v1::Report asks = FromB();
  asks.set_lacks(1);
  Hear(asks);
  EXPECT_EQ(SentToB(), 1u);
  Hear(asks);
  EXPECT_EQ(SentToB(), 0u);
  Feed(TimerFired{TimerKind::kResend, 0});
  EXPECT_EQ(SentToB(), 1u);
  asks.set_answers(6);
  Hear(FromB());
  Hear(asks);
  EXPECT_EQ(SentToB(), 0u) << "of another life of this coordinator";
}

}  // namespace
}  // namespace ckptd::job
