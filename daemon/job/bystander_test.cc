#include "daemon/job/bystander.h"

#include "daemon/job/machine_test_util.h"

namespace ckptd::job {
namespace {

StatePtr MakeState(const std::string& job, AttemptId attempt, const std::string& user = "1000",
                   const std::string& refusal = "") {
  auto state = std::make_shared<v1::State>();
  state->set_job(job);
  state->set_attempt(attempt);
  state->set_coordinator("B");
  state->set_incarnation(9);
  state->set_user(user);
  state->set_world_size(2);
  if (!refusal.empty()) state->add_refusals()->set_message(refusal);
  return state;
}

Bystander MakeBystander() { return {{"A", 5, 77}, std::make_shared<ReportNumbers>()}; }

TEST(Bystander, SaysThatItHasNothing) {
  Bystander bystander = MakeBystander();
  for (uint64_t i = 1; i <= 2; ++i) {
    const ReportPtr report = bystander.Heard(MakeState("gpt", 3));
    EXPECT_EQ(report->job(), "gpt");
    EXPECT_EQ(report->agent(), "A");
    EXPECT_EQ(report->seen(), 3u);
    EXPECT_EQ(report->answers(), 9u);
    EXPECT_EQ(report->incarnation(), 5u);
    EXPECT_EQ(report->region_id(), 77u);
    EXPECT_EQ(report->seq(), i);
    EXPECT_EQ(report->ranks_size(), 0);
  }
}

TEST(Bystander, TellsAnOlderCoordinatorOfTheHigherAttempt) {
  Bystander bystander = MakeBystander();
  (void)bystander.Heard(MakeState("gpt", 4));
  EXPECT_EQ(bystander.Heard(MakeState("gpt", 3))->seen(), 4u);
  EXPECT_EQ(bystander.Heard(MakeState("gpt", 3, "1001"))->seen(), 3u) << "another user's job has numbers of its own";
}

TEST(Bystander, GivesTheNewestStateOnce) {
  Bystander bystander = MakeBystander();
  EXPECT_EQ(bystander.Take("gpt"), nullptr);
  (void)bystander.Heard(MakeState("gpt", 3));
  (void)bystander.Heard(MakeState("gpt", 4));
  EXPECT_EQ(bystander.Take("gpt")->attempt(), 4u);
  EXPECT_EQ(bystander.Take("gpt"), nullptr);
}

TEST(Bystander, ForgetsWhatWasHeardOfLongestAgo) {
  Bystander few({"A", 5, 77}, std::make_shared<ReportNumbers>(), 1 << 20, 2);
  for (const char* job : {"a", "b", "a", "c"}) (void)few.Heard(MakeState(job, 1));
  EXPECT_EQ(few.jobs(), 2u);
  EXPECT_EQ(few.Take("b"), nullptr);
  Bystander small({"A", 5, 77}, std::make_shared<ReportNumbers>(), 1000, 100);
  (void)small.Heard(MakeState("a", 1, "1000", std::string(600, 'x')));
  (void)small.Heard(MakeState("b", 1, "1000", std::string(600, 'x')));
  EXPECT_EQ(small.Take("a"), nullptr);
  EXPECT_EQ(small.Take("b")->attempt(), 1u);
  EXPECT_EQ(small.Heard(MakeState("c", 1, "1000", std::string(2000, 'x')))->seen(), 1u) << "answered, not kept";
  EXPECT_EQ(small.jobs(), 0u);
}

// A rank joins where the agent has answered for a while.
TEST(Bystander, AMemberGoesOnWithItsNumbers) {
  const auto numbers = std::make_shared<ReportNumbers>();
  Bystander bystander({"A", 5, 77}, numbers);
  uint64_t answered = 0;
  for (int i = 0; i < 300; ++i) answered = bystander.Heard(MakeState("gpt", 3))->seq();
  Config config;
  config.job = "gpt";
  config.agent = "A";
  config.numbers = numbers;
  Machine member(config);
  Effects effects;
  member.Step(Started{}, effects);
  member.Step(StateReceived{bystander.Take("gpt")}, effects);
  const auto* sent = std::get_if<SendReport>(&effects.back());
  ASSERT_NE(sent, nullptr);
  EXPECT_GT(sent->report->seq(), answered);
}

// Two users chose one name, on two nodes.
class OwnerTest : public JobTest {
 protected:
  void JoinRankOne() {
    Join join;
    join.rank = 1;
    join.ticket = 8;
    join.process = 80;
    join.world_size = 2;
    Feed(join);
  }
};

TEST_F(OwnerTest, AJobOfAnotherUserHasNothingOfOurs) {
  JoinRankOne();
  Feed(StateReceived{MakeState("gpt", 3, "1001")});
  const Refuse refused = Last<Refuse>();
  EXPECT_EQ(refused.code, ErrorCode::JOB_OWNED);
  EXPECT_EQ(refused.ticket, 8u);
  EXPECT_NE(refused.message.find("uid 1001 on agent B"), std::string::npos) << refused.message;
  const SendReport sent = Last<SendReport>();
  EXPECT_EQ(sent.agent, "B");
  EXPECT_EQ(sent.report->seen(), 3u);
  EXPECT_EQ(sent.report->ranks_size(), 0);
  EXPECT_FALSE(Has<PersistSeen>());
  EXPECT_FALSE(Has<ForwardState>());
  EXPECT_EQ(machine_.view().seen, 0u);
}

TEST_F(OwnerTest, AJobOfAnotherUserStopsNoAttemptOfOurs) {
  Run();
  Feed(StateReceived{MakeState("gpt", 30, "1001")});
  EXPECT_EQ(machine_.view().phase, Phase::kRun);
  EXPECT_EQ(machine_.view().attempt, 1u);
  Feed(StateReceived{MakeState("gpt", 30)});
  EXPECT_EQ(machine_.view().phase, Phase::kStopped);
}

TEST_F(OwnerTest, WhoseJobItIsIsSaid) {
  Run();
  EXPECT_EQ(state_->user(), "1000");
}

}  // namespace
}  // namespace ckptd::job
