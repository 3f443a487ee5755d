// rm without a coordinator, against a storage in memory.
#include "daemon/job/removal.h"

#include <algorithm>

#include "daemon/base/errors.h"
#include "daemon/job/lineage.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ckptd::job {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr SnapshotId kTen{1, 10}, kTwenty{1, 20}, kThirty{1, 30};

// Attempt 1, decided, coordinated by agent A: steps 10, 20 and 30 are committed. Nobody trains.
class RemovalTest : public testing::Test {
 protected:
  RemovalTest() {
    newest_.set_attempt(1);
    newest_.set_coordinator("A");
    newest_.set_rank0_ticket(7);
    v1::DecisionRecord& first = decisions_.emplace_back();
    first.set_attempt(1);
    for (const StepId step : {10, 20, 30}) steps_.push_back(Committed({1, step}));
  }

  static StoredStep Committed(const SnapshotId& id) {
    StoredStep step;
    step.id = id;
    step.world_size = step.sidecars = 1;
    step.committed = true;
    return step;
  }

  // The results, when every request was answered.
  std::map<SnapshotId, absl::Status> Remove(std::vector<SnapshotId> wanted, bool take_over = false) {
    Config config;
    config.job = "gpt";
    config.agent = "A";
    Removal removal(config, {std::move(wanted), seen_, take_over});
    Effects requests;
    removal.Begin(requests);
    for (int i = 0; i < 100 && !removal.ended(); ++i) {
      if (requests.size() != 1) ADD_FAILURE() << "one request at a time, not " << requests.size();
      if (requests.empty()) break;
      const Effect request = requests.front();
      requests.clear();
      asked_.push_back(ToString(request));
      removal.Step(std::visit([this](const auto& asked) { return Do(asked); }, request), requests);
    }
    EXPECT_TRUE(removal.ended());
    return removal.results();
  }

  absl::Status RemoveOne(const SnapshotId& id, bool take_over = false) { return Remove({id}, take_over).at(id); }

  Event Do(const List& e) { return Listed{e.op, absl::OkStatus(), decisions_, steps_}; }
  Event Do(const ReadNewest& e) {
    const bool decided = std::any_of(decisions_.begin(), decisions_.end(), [&](const v1::DecisionRecord& decision) {
      return decision.attempt() == newest_.attempt();
    });
    return NewestRead{e.op, absl::OkStatus(), newest_.attempt() != 0, newest_, decided, {}};
  }
  Event Do(const CreateAttempt& e) {
    if (e.record.attempt() <= newest_.attempt()) return AttemptCreated{e.op, absl::AlreadyExistsError("record")};
    if (!create_.ok()) return AttemptCreated{e.op, create_};
    newest_ = e.record;
    if (commits_meanwhile_) steps_.push_back(Committed({1, 40}));
    return AttemptCreated{e.op, absl::OkStatus()};
  }
  Event Do(const VerifyStep& e) {
    verified_.push_back(e.id);
    return StepVerified{e.op, verify_};
  }
  Event Do(const PutMarker& e) {
    EXPECT_EQ(e.attempt, newest_.attempt());
    Find(e.id)->marker = e.attempt;
    if (opened_meanwhile_) newest_.set_attempt(newest_.attempt() + 1);
    return MarkerPut{e.op, absl::OkStatus()};
  }
  Event Do(const CheckNewest& e) { return NewestChecked{e.op, absl::OkStatus(), newest_.attempt()}; }
  Event Do(const DeleteStep& e) {
    if (!delete_.ok()) return StepDeleted{e.op, delete_};
    gone_.push_back(e.id);
    std::erase_if(steps_, [&](const StoredStep& step) { return step.id == e.id; });
    return StepDeleted{e.op, absl::OkStatus()};
  }
  template <typename T>
  Event Do(const T&) {
    ADD_FAILURE() << "not a request to the storage: " << asked_.back();
    return TimerFired{};
  }

  StoredStep* Find(const SnapshotId& id) {
    return &*std::find_if(steps_.begin(), steps_.end(), [&](const StoredStep& step) { return step.id == id; });
  }

  v1::AttemptRecord newest_;
  AttemptId seen_ = 0;
  std::vector<v1::DecisionRecord> decisions_;
  std::vector<StoredStep> steps_;
  absl::Status create_, verify_, delete_;
  bool opened_meanwhile_ = false, commits_meanwhile_ = false;
  std::vector<std::string> asked_;
  std::vector<SnapshotId> verified_, gone_;
};

// Its decision could come late, be the newest, and name what is deleted here.
TEST_F(RemovalTest, AnAttemptThatHasNotDecidedIsNotOvertaken) {
  newest_.set_attempt(2);
  EXPECT_THAT(std::string(RemoveOne(kTen, /*take_over=*/true).message()), HasSubstr("attempt 2 has not decided"));
  EXPECT_EQ(newest_.attempt(), 2u);
  EXPECT_THAT(gone_, IsEmpty());
  newest_.set_rank0_ticket(0);  // opened by an rm: it never decides
  EXPECT_TRUE(RemoveOne(kTen).ok());
}

TEST_F(RemovalTest, OpensAnAttemptWithoutATicketAndDeletes) {
  EXPECT_TRUE(RemoveOne(kTen).ok());
  EXPECT_EQ(newest_.attempt(), 2u);
  EXPECT_EQ(newest_.rank0_ticket(), 0u);
  EXPECT_EQ(newest_.coordinator(), "A");
  EXPECT_THAT(verified_, ElementsAre(kThirty));
  EXPECT_THAT(gone_, ElementsAre(kTen));
}

TEST_F(RemovalTest, TheLastGoodStepIsRefusedAndNoAttemptIsOpened) {
  const absl::Status refused = RemoveOne(kThirty);
  EXPECT_EQ(CodeOf(refused), ErrorCode::REFUSED);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("can go when there is one"));
  EXPECT_EQ(newest_.attempt(), 1u);
  EXPECT_THAT(gone_, IsEmpty());
}

TEST_F(RemovalTest, SeveralStepsEachWithItsAnswer) {
  auto results = Remove({{1, 10}, {1, 20}, {1, 30}, {1, 99}, {1, 10}});
  EXPECT_TRUE(results[kTen].ok());
  EXPECT_TRUE(results[kTwenty].ok());
  EXPECT_EQ(CodeOf(results[kThirty]), ErrorCode::REFUSED);
  EXPECT_EQ((CodeOf(results[{1, 99}])), ErrorCode::NOT_FOUND);
  EXPECT_THAT(gone_, ElementsAre(kTen, kTwenty));
  EXPECT_EQ(verified_.size(), 1u);
}

// No run stands on what the last one restored.
TEST_F(RemovalTest, TheParentOfAnEndedRunMayGo) {
  v1::DecisionRecord& second = decisions_.emplace_back();
  second.set_attempt(2);
  SetParent(decisions_[0], {1, 20}, &second);
  newest_.set_attempt(2);
  steps_.push_back(Committed({2, 25}));
  auto results = Remove({{1, 20}, {1, 30}, {2, 25}});
  EXPECT_TRUE(results[kTwenty].ok());
  EXPECT_TRUE(results[kThirty].ok()) << "a roll-back left it behind";
  EXPECT_EQ((CodeOf(results[{2, 25}])), ErrorCode::REFUSED) << "30 is a higher number, on a history that was left";
  EXPECT_THAT(verified_, ElementsAre(SnapshotId{2, 25}));
}

TEST_F(RemovalTest, ADamagedSuccessorProvesNothing) {
  verify_ = Error(ErrorCode::CORRUPT, "chunk 1");
  EXPECT_EQ(CodeOf(RemoveOne(kTen)), ErrorCode::REFUSED);
  EXPECT_THAT(verified_, ElementsAre(kThirty, kTwenty));
  EXPECT_THAT(gone_, IsEmpty());
}

TEST_F(RemovalTest, AnotherAgentsAttemptIsNotCutOffUnlessAskedTo) {
  newest_.set_coordinator("B");
  const absl::Status refused = RemoveOne(kTen);
  EXPECT_EQ(CodeOf(refused), ErrorCode::REFUSED);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("agent B"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--force"));
  EXPECT_EQ(newest_.attempt(), 1u);
  EXPECT_TRUE(RemoveOne(kTen, /*take_over=*/true).ok());
}

TEST_F(RemovalTest, ARunThatIsFasterWins) {
  create_ = absl::AlreadyExistsError("record");
  EXPECT_EQ(CodeOf(RemoveOne(kTen)), ErrorCode::REFUSED);
  create_ = Error(ErrorCode::REFUSED, "a trainer is here");
  EXPECT_THAT(std::string(RemoveOne(kTen).message()), HasSubstr("a trainer is here"));
  EXPECT_THAT(gone_, IsEmpty());
}

TEST_F(RemovalTest, ARunThatBeginsMeanwhileKeepsTheStep) {
  opened_meanwhile_ = true;
  EXPECT_EQ(CodeOf(RemoveOne(kTen)), ErrorCode::REFUSED);
  EXPECT_NE(Find(kTen)->marker, 0u) << "taking it away could take away the marker of the run that began";
  EXPECT_THAT(gone_, IsEmpty());
}

// The old coordinator committed between our look and our record: the listing after the record is what counts.
TEST_F(RemovalTest, ListsAfterItsRecord) {
  commits_meanwhile_ = true;
  EXPECT_TRUE(RemoveOne(kTen).ok());
  EXPECT_THAT(verified_, ElementsAre(SnapshotId{1, 40}));
}

TEST_F(RemovalTest, TheNumberIsAboveAllThatTheAgentHasSeen) {
  seen_ = 8;
  EXPECT_TRUE(RemoveOne(kTen).ok());
  EXPECT_EQ(newest_.attempt(), 9u);
}

TEST_F(RemovalTest, AStorageThatFailsEndsIt) {
  delete_ = Error(ErrorCode::STORAGE_READ_ONLY, "unlink");
  EXPECT_EQ((CodeOf(Remove({kTen, kTwenty}).at(kTwenty))), ErrorCode::STORAGE_READ_ONLY);
  EXPECT_NE(Find(kTen)->marker, 0u) << "the next attempt finishes it";
}

TEST_F(RemovalTest, WithoutADecisionNothingIsKnownToBeGood) {
  decisions_.clear();
  EXPECT_EQ(CodeOf(RemoveOne(kTen)), ErrorCode::REFUSED);
}

}  // namespace
}  // namespace ckptd::job
