#include "daemon/job/reports.h"

#include "daemon/job/machine_test_util.h"

namespace ckptd::job {
namespace {

ReportPtr MakeReport(const std::string& agent, uint64_t seq, const std::vector<Rank>& ranks, uint64_t heard = 0,
                     uint64_t incarnation = 1) {
  auto report = std::make_shared<v1::Report>();
  report->set_agent(agent);
  report->set_incarnation(incarnation);
  report->set_seq(seq);
  report->set_heard(heard);
  for (const Rank rank : ranks) {
    v1::RankReport* facts = report->add_ranks();
    facts->set_rank(rank);
    facts->set_pos(seq);
  }
  return report;
}

std::map<Rank, v1::RankClaim> Claims(const std::vector<std::string>& agents) {
  std::map<Rank, v1::RankClaim> claims;
  for (Rank rank = 0; rank < agents.size(); ++rank) claims[rank].set_agent(agents[rank]);
  return claims;
}

TEST(Reports, FactsAreTheNewestOfTheAgentThatHasTheRank) {
  Reports reports;
  reports.Assign(Claims({"A", "B", "A"}));
  ASSERT_EQ(reports.Facts().size(), 3u);
  EXPECT_EQ(reports.Facts(0), nullptr);
  EXPECT_TRUE(reports.Take(MakeReport("A", 1, {0, 1, 2})));
  EXPECT_EQ(reports.Facts()[0]->pos(), 1u);
  EXPECT_EQ(reports.Facts()[1], nullptr) << "rank 1 is B's";
  EXPECT_TRUE(reports.Take(MakeReport("A", 2, {2})));
  EXPECT_EQ(reports.Facts(0), nullptr) << "A names it no more";
  EXPECT_EQ(reports.Facts(2)->pos(), 2u);
  EXPECT_TRUE(reports.Take(MakeReport("B", 7, {1, 1, 9})));
  EXPECT_EQ(reports.Facts(1)->pos(), 7u);
  EXPECT_EQ(reports.Facts(9), nullptr);
  reports.Clear();
  EXPECT_FALSE(reports.Has("A"));
  EXPECT_TRUE(reports.Facts().empty());
}

TEST(Reports, AnOlderOneOfTheSameLifeIsNotTaken) {
  Reports reports;
  reports.Assign(Claims({"A"}));
  EXPECT_TRUE(reports.Take(MakeReport("A", 5, {0})));
  EXPECT_FALSE(reports.Take(MakeReport("A", 5, {0})));
  EXPECT_FALSE(reports.Take(MakeReport("A", 4, {0})));
  EXPECT_EQ(reports.Facts(0)->pos(), 5u);
  EXPECT_TRUE(reports.Take(MakeReport("A", 1, {0}, 0, 2))) << "it has begun again";
  EXPECT_EQ(reports.Facts(0)->pos(), 1u);
}

TEST(Reports, KnowHowLongAnAgentIsSilent) {
  Reports reports;
  uint64_t heard = 0;
  EXPECT_EQ(reports.Silent("A", &heard), UINT64_MAX);
  EXPECT_TRUE(reports.Take(MakeReport("A", 1, {}, 33)));
  reports.Tick();
  reports.Tick();
  EXPECT_EQ(reports.Silent("A", &heard), 2u);
  EXPECT_EQ(heard, 33u);
}

// Rank 0 of 1 runs at A; B is a member that has nothing.
class ManyTest : public JobTest {
 protected:
  void RunWithB() {
    Run();
    Feed(MembersChanged{{"A", "B"}});
    AnswerOfB();
  }
  void AnswerOfB() {
    auto report = MakeReport("B", ++seq_, {}, state_->version());
    v1::Report copy = *report;
    copy.set_seen(machine_.view().seen);
    copy.set_answers(5);
    Feed(ReportReceived{std::make_shared<v1::Report>(copy)});
  }
  bool RepeatsToB() {
    Feed(TimerFired{TimerKind::kResend, 0});
    return std::any_of(effects_.begin(), effects_.end(), [](const Effect& effect) {
      const auto* sent = std::get_if<SendState>(&effect);
      return sent != nullptr && sent->agent == "B";
    });
  }
  uint64_t seq_ = 0;
};

TEST_F(ManyTest, WhoHeardItIsNotToldAgainUnlessItIsSilent) {
  RunWithB();
  for (int tick = 0; tick < 20; ++tick) {
    EXPECT_FALSE(RepeatsToB()) << tick;
    AnswerOfB();
  }
  for (int tick = 0; tick < 3; ++tick) EXPECT_FALSE(RepeatsToB()) << tick;
  EXPECT_TRUE(RepeatsToB()) << "it may have lost what it heard";
}

TEST_F(ManyTest, WhoHasNotHeardTheNewestIsToldAgain) {
  RunWithB();
  Rank(v1::RankReport::RUN, {{1, 4}});  // captured: a new State, which B has not answered
  EXPECT_TRUE(RepeatsToB());
  EXPECT_TRUE(RepeatsToB());
  AnswerOfB();
  EXPECT_FALSE(RepeatsToB());
}

TEST(ManyAgents, AreActedOnTogether) {
  Config config;
  config.job = "gpt";
  config.agent = "A";
  config.members = {"A", "B", "C"};
  config.incarnation = 5;
  config.at_once = 2;
  Machine machine(config);
  const auto step = [&](const Event& event) {
    Effects effects;
    machine.Step(event, effects);
    return effects;
  };
  const auto settles = [](const Effects& effects) {
    return std::count_if(effects.begin(), effects.end(), [](const Effect& effect) {
      const auto* timer = std::get_if<StartTimer>(&effect);
      return timer != nullptr && timer->kind == TimerKind::kSettle;
    });
  };
  step(Started{0, 1});
  EXPECT_EQ(settles(step(ReportReceived{MakeReport("B", 1, {})})), 1);
  EXPECT_EQ(settles(step(ReportReceived{MakeReport("C", 1, {})})), 0) << "one timer for both";
  step(TimerFired{TimerKind::kSettle, 0});
  EXPECT_EQ(settles(step(ReportReceived{MakeReport("C", 2, {})})), 1);
}

}  // namespace
}  // namespace ckptd::job
