// How long a restore() waits: `timeout` for the decision, and then as long as its ranks go on to load.
#include <memory>

#include "daemon/job/machine_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ckptd::job {
namespace {

using testing::HasSubstr;

class PatienceTest : public JobTest {
 protected:
  // The decision names rank 0, which has not loaded.
  void Decide() {
    Join join;
    join.ticket = 7;
    join.process = 70;
    join.world_size = 1;
    join.timeout = std::chrono::seconds(2);
    Feed(join);
    Feed(NewestRead{Last<ReadNewest>().op, absl::OkStatus(), false, {}, false, {}});
    Feed(AttemptCreated{Last<CreateAttempt>().op, absl::OkStatus()});
    Feed(Listed{Last<List>().op, absl::OkStatus(), {}, {}});
    Rank(v1::RankReport::WAIT);
    const CreateDecision create = Last<CreateDecision>();
    Feed(DecisionCreated{create.op, absl::OkStatus(), create.decision});
    Feed(NewestChecked{Last<CheckNewest>().op, absl::OkStatus(), 1});
    ASSERT_EQ(machine_.view().phase, Phase::kLoad);
  }

  // Rank 0 says that what it loads is still being read.
  void Read(uint64_t turns) {
    auto report = std::make_shared<v1::RankReport>();
    report->set_seen(machine_.view().seen);
    report->set_ticket(7);
    report->set_load(v1::RankReport::WAIT);
    report->set_load_turns(turns);
    Feed(RankChanged{report});
  }

  void ExpectWaitsOn() {
    Feed(TimerFired{TimerKind::kJoin, 7});
    EXPECT_FALSE(Has<Refuse>());
    EXPECT_EQ(Last<StartTimer>().kind, TimerKind::kJoin);
    EXPECT_EQ(Last<StartTimer>().key, 7u);
    EXPECT_EQ(Last<StartTimer>().after, std::chrono::seconds(2));
    EXPECT_EQ(Last<KeepWaiting>().ticket, 7u);
    EXPECT_EQ(Last<KeepWaiting>().patience, std::chrono::seconds(4))
        << "longer than the timer that the agent waits for";
  }
};

TEST_F(PatienceTest, TheTimeoutIsForTheDecision) {
  Decide();
  EXPECT_EQ(Last<KeepWaiting>().ticket, 7u) << "told before the timer fires: the trainer has one too";
  ExpectWaitsOn();
}

TEST_F(PatienceTest, ARestoreWaitsAsLongAsItsRanksGoOn) {
  Decide();
  for (uint64_t turns = 1; turns < 100; ++turns) {
    Read(turns);
    ExpectWaitsOn();
  }
}

TEST_F(PatienceTest, WhoStandsStillIsNamed) {
  Decide();
  Read(3);
  ExpectWaitsOn();
  Read(3);
  Feed(TimerFired{TimerKind::kJoin, 7});
  EXPECT_EQ(Last<Refuse>().code, ErrorCode::TIMEOUT);
  EXPECT_THAT(Last<Refuse>().message, HasSubstr("job gpt rank 0: what was decided is not loaded"));
  EXPECT_THAT(Last<Refuse>().message, HasSubstr("for ranks 0;"));
  EXPECT_FALSE(Has<StartTimer>());
}

// A storage that is slow for a moment just when the timer fires is no reason; one that hangs is, at any time.
TEST_F(PatienceTest, AStorageThatHangsEndsIt) {
  Decide();
  Feed(StorageHangs{7, "read /data for 2s"});
  EXPECT_FALSE(Has<Refuse>());
  ExpectWaitsOn();
  Feed(StorageHangs{7, "read /data for 4s"});
  EXPECT_EQ(Last<Refuse>().code, ErrorCode::STORAGE_HUNG) << "nothing went on since";

  machine_ = Machine(MakeConfig());
  Feed(Started{});
  Decide();
  Feed(StorageHangs{0, "read /data for 1m01s"});
  EXPECT_EQ(Last<Refuse>().code, ErrorCode::STORAGE_HUNG);
}

// The decision was for the ranks that were there. Who joins for the next attempt has its own.
TEST_F(PatienceTest, BeforeTheDecisionNothingGoesOn) {
  Decide();
  Join join;
  join.rank = 3;
  join.ticket = 33;
  join.process = 1;
  join.world_size = 4;
  join.timeout = std::chrono::seconds(2);
  Feed(join);
  Feed(TimerFired{TimerKind::kJoin, 33});
  EXPECT_EQ(Last<Refuse>().code, ErrorCode::RANKS_MISSING);
  EXPECT_EQ(Last<Refuse>().ticket, 33u);
}

// What its trainer was told last may be lost with the connection.
TEST_F(PatienceTest, WhoConnectsAgainIsToldAgain) {
  Decide();
  Join join;
  join.ticket = 7;
  join.process = 70;
  join.world_size = 1;
  join.timeout = std::chrono::seconds(1);
  Feed(join);
  EXPECT_EQ(Last<KeepWaiting>().ticket, 7u);
  EXPECT_FALSE(Has<StartTimer>()) << "the first one still runs";
}

// An older coordinator counts nothing: the decision is news once, and the timeout runs anew from it.
TEST_F(PatienceTest, AnOlderCoordinatorIsWaitedForOnceMore) {
  Feed(MembersChanged{{"A", "B"}});
  Join join;
  join.rank = 1;
  join.ticket = 9;
  join.process = 1;
  join.world_size = 2;
  join.timeout = std::chrono::seconds(2);
  Feed(join);
  v1::State state;
  state.set_job("gpt");
  state.set_user("1000");
  state.set_attempt(1);
  state.set_coordinator("B");
  state.set_incarnation(77);
  state.set_version(5);
  state.set_world_size(2);
  state.set_phase(v1::State::LOAD);
  for (const uint32_t rank : {0u, 1u}) {
    v1::RankClaim& claim = *state.mutable_decision()->add_ranks();
    claim.set_rank(rank);
    claim.set_ticket(8 + rank);
  }
  Feed(StateReceived{std::make_shared<const v1::State>(state)});
  Feed(TimerFired{TimerKind::kJoin, 9});
  EXPECT_FALSE(Has<Refuse>());
  state.set_version(6);
  Feed(StateReceived{std::make_shared<const v1::State>(state)});
  Feed(TimerFired{TimerKind::kJoin, 9});
  EXPECT_THAT(Last<Refuse>().message, HasSubstr("not every rank has loaded in time"));
}

}  // namespace
}  // namespace ckptd::job
