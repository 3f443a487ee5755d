// What an agent reads back of its own ranks, and what it says of it.
#include "daemon/job/prover.h"

#include <algorithm>
#include <utility>

#include "daemon/base/errors.h"
#include "daemon/format/snapshot_ref.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ckptd::job {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr SnapshotId kFirst{3, 10}, kSecond{3, 20};

// Agent B has ranks 1 and 2 of four; A coordinates.
class ProverTest : public testing::Test {
 protected:
  ProverTest() {
    context_.config.agent = "B";
    context_.effects = &effects_;
  }

  static v1::State Asks(const SnapshotId& id, AttemptId attempt = 3) {
    v1::State state;
    state.set_attempt(attempt);
    state.set_coordinator("A");
    SetRef(id, state.mutable_to_prove()->mutable_step());
    state.mutable_to_prove()->set_world_size(4);
    for (const Rank rank : {0, 1, 2, 3}) {
      v1::RankClaim& claim = *state.mutable_decision()->add_ranks();
      claim.set_rank(rank);
      claim.set_agent(rank == 1 || rank == 2 ? "B" : "A");
    }
    return state;
  }
  static v1::State AsksNothing(AttemptId attempt = 3) {
    v1::State state = Asks(kFirst, attempt);
    state.clear_to_prove();
    return state;
  }

  // What has been asked of the storage since the last call.
  std::vector<std::pair<SnapshotId, Rank>> Read() {
    std::vector<std::pair<SnapshotId, Rank>> read;
    for (const Effect& effect : effects_) {
      const auto* verify = std::get_if<VerifyRank>(&effect);
      if (verify == nullptr) continue;
      EXPECT_EQ(verify->world_size, 4u);
      read.emplace_back(verify->id, verify->rank);
      op_ = verify->op;
    }
    ended_ = std::any_of(effects_.begin(), effects_.end(),
                         [](const Effect& effect) { return std::holds_alternative<EndVerification>(effect); });
    timers_ = std::count_if(effects_.begin(), effects_.end(),
                            [](const Effect& effect) { return std::holds_alternative<StartTimer>(effect); });
    effects_.clear();
    return read;
  }
  bool Answer(const absl::Status& status = absl::OkStatus()) { return prover_.On(RankVerified{op_, status}); }
  v1::Proof Said() const { return prover_.Proof(); }

  Effects effects_;
  Context context_;
  Prover prover_{&context_};
  OpId op_ = 0;
  bool ended_ = false;
  int64_t timers_ = 0;
};

TEST_F(ProverTest, ReadsItsOwnRanksOneAfterTheOther) {
  prover_.Follow(Asks(kFirst));
  EXPECT_THAT(Read(), ElementsAre(std::pair(kFirst, 1)));
  prover_.Follow(Asks(kFirst));
  EXPECT_THAT(Read(), IsEmpty()) << "asked again, and at it";
  EXPECT_TRUE(Answer());
  EXPECT_THAT(Said().ranks(), ElementsAre(1));
  EXPECT_THAT(Read(), ElementsAre(std::pair(kFirst, 2)));
  EXPECT_TRUE(Answer());
  EXPECT_FALSE(Answer()) << "twice";
  EXPECT_THAT(Said().ranks(), ElementsAre(1, 2));
  EXPECT_THAT(Read(), IsEmpty());
}

TEST_F(ProverTest, WhatIsRightIsNotReadAgainInALaterAttempt) {
  prover_.Follow(Asks(kFirst));
  Read();
  Answer();
  Read();
  prover_.Follow(AsksNothing(4));
  EXPECT_THAT(Read(), IsEmpty());
  EXPECT_TRUE(ended_) << "the new attempt waits for nothing of the one before";
  EXPECT_FALSE(Answer());
  prover_.Follow(Asks(kFirst, 4));
  EXPECT_THAT(Read(), ElementsAre(std::pair(kFirst, 2)));
  EXPECT_THAT(Said().ranks(), ElementsAre(1));
}

TEST_F(ProverTest, AnotherStepIsReadFromTheBeginning) {
  prover_.Follow(Asks(kFirst));
  Read();
  Answer();
  prover_.Follow(Asks(kSecond));
  EXPECT_THAT(Read(), ElementsAre(std::pair(kFirst, 2), std::pair(kSecond, 1)));
  EXPECT_TRUE(ended_);
  EXPECT_THAT(Said().ranks(), IsEmpty());
}

TEST_F(ProverTest, WhatIsDamagedIsToldUntilTheNextAttempt) {
  prover_.Follow(Asks(kFirst));
  Read();
  Answer(Error(ErrorCode::CORRUPT, "chunk 1"));
  EXPECT_THAT(Read(), ElementsAre(std::pair(kFirst, 2)));
  EXPECT_EQ(timers_, 0);
  Answer();
  ASSERT_EQ(Said().bad_size(), 1);
  EXPECT_EQ(Said().bad(0).rank(), 1u);
  EXPECT_EQ(Said().bad(0).error(), "chunk 1");
  prover_.Rested();
  prover_.Follow(Asks(kFirst));
  EXPECT_THAT(Read(), IsEmpty());
  prover_.Follow(Asks(kFirst, 4));
  EXPECT_THAT(Read(), ElementsAre(std::pair(kFirst, 1))) << "it may have been mended";
  EXPECT_EQ(Said().bad_size(), 0);
}

TEST_F(ProverTest, WhatCannotBeReadIsReadAgainLater) {
  prover_.Follow(Asks(kFirst));
  Read();
  Answer(Error(ErrorCode::STORAGE_IO, "EIO"));
  Read();
  EXPECT_EQ(timers_, 1);
  Answer(Error(ErrorCode::STORAGE_IO, "EIO"));
  EXPECT_THAT(Read(), IsEmpty());
  EXPECT_EQ(timers_, 0) << "one for all";
  EXPECT_EQ(Said().bad_size(), 2);
  prover_.Rested();
  EXPECT_THAT(Read(), ElementsAre(std::pair(kFirst, 1)));
  EXPECT_EQ(Said().bad_size(), 0);
}

TEST_F(ProverTest, OnlyTheCoordinatorsAgentReadsForOthers) {
  v1::State state = Asks(kFirst);
  for (const Rank rank : {1, 3, 9}) state.mutable_to_prove()->add_others(rank);
  prover_.Follow(state);
  EXPECT_THAT(Read(), ElementsAre(std::pair(kFirst, 2))) << "1 is read elsewhere";
  state.set_coordinator("B");
  prover_.Follow(state);
  EXPECT_THAT(Read(), IsEmpty());
  for (; Answer(); Read()) {
  }
  EXPECT_THAT(Said().ranks(), ElementsAre(1, 2, 3)) << "there is no rank 9";
}

TEST_F(ProverTest, WhatIsNotAskedForIsNotToldEither) {
  prover_.Follow(Asks(kFirst));
  Read();
  Answer();
  prover_.Follow(AsksNothing());
  EXPECT_TRUE(Said().ranks().empty());
}

}  // namespace
}  // namespace ckptd::job
