// Which step is committed next, where some cannot be. The storage answers by hand.
#include "daemon/job/commit.h"

#include <map>
#include <vector>

#include "daemon/base/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ckptd::job {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class CommitTest : public testing::Test {
 protected:
  CommitTest() {
    context_.config.job = "gpt";
    context_.effects = &effects_;
    committer_.Reset(1, 1, {});
  }

  // Until nothing is tried any more; the steps that were, in order.
  std::vector<StepId> Work() {
    std::vector<StepId> tried;
    for (committer_.Work(context_); !effects_.empty(); committer_.Work(context_)) {
      const Effect effect = effects_.back();
      effects_.clear();
      if (const auto* create = std::get_if<CreateManifest>(&effect)) {
        tried.push_back(create->id.step);
        const auto failed = failing_.find(create->id.step);
        committer_.On(ManifestCreated{create->op, failed == failing_.end() ? absl::OkStatus() : failed->second},
                      context_);
        if (failed != failing_.end()) effects_.clear();  // the timer
      } else if (const auto* check = std::get_if<CheckNewest>(&effect)) {
        committer_.On(NewestChecked{check->op, absl::OkStatus(), 1}, context_);
      }
    }
    return tried;
  }
  std::vector<StepId> Retry() {
    committer_.Retry();
    return Work();
  }
  void Offer(StepId step) { committer_.Offer({1, step}, false); }

  const absl::Status io_ = Error(ErrorCode::STORAGE_IO, "rank-1.json: Input/output error");
  std::map<StepId, absl::Status> failing_;
  Effects effects_;
  Context context_;
  Committer committer_;
};

TEST_F(CommitTest, OldestFirst) {
  for (const StepId step : {20, 10, 30}) Offer(step);
  EXPECT_THAT(Work(), ElementsAre(10, 20, 30));
  EXPECT_EQ(committer_.durable(), (SnapshotId{1, 30}));
  Offer(20);
  EXPECT_TRUE(Work().empty()) << "it is committed";
}

TEST_F(CommitTest, WhatWasNotTriedComesBeforeWhatFailed) {
  failing_[10] = io_;
  Offer(10);
  EXPECT_THAT(Work(), ElementsAre(10));
  Offer(20);
  Offer(10);
  EXPECT_TRUE(Work().empty()) << "a moment's rest";
  EXPECT_THAT(Retry(), ElementsAre(20, 10));
  EXPECT_EQ(committer_.durable(), (SnapshotId{1, 20}));
  EXPECT_THAT(std::string(committer_.failure().message()), HasSubstr("job gpt: step 10 cannot be committed: rank-1"));
  failing_.clear();
  EXPECT_THAT(Retry(), ElementsAre(10));
  EXPECT_EQ(committer_.durable(), (SnapshotId{1, 20})) << "it never goes back";
  EXPECT_TRUE(committer_.failure().ok());
  EXPECT_TRUE(committer_.idle());
}

// 10 alone must not take all turns.
TEST_F(CommitTest, WhatFailedTakesTurns) {
  failing_[10] = failing_[20] = failing_[30] = io_;
  for (const StepId step : {10, 20, 30}) Offer(step);
  EXPECT_THAT(Work(), ElementsAre(10));
  EXPECT_THAT(Retry(), ElementsAre(20));
  EXPECT_THAT(Retry(), ElementsAre(30));
  EXPECT_THAT(Retry(), ElementsAre(10));
  failing_.erase(20);
  EXPECT_THAT(Retry(), ElementsAre(20, 30));
  EXPECT_EQ(committer_.durable(), (SnapshotId{1, 20}));
}

TEST_F(CommitTest, WhatNeverCommitsIsToldUntilOneDoes) {
  failing_[10] = Error(ErrorCode::CORRUPT, "rank-1.json");
  failing_[20] = Error(ErrorCode::NOT_FOUND, "rank-1.json");
  Offer(10);
  Offer(20);
  EXPECT_THAT(Work(), ElementsAre(10, 20)) << "no rest between them";
  EXPECT_EQ(CodeOf(committer_.failure()), ErrorCode::NOT_FOUND);
  Offer(10);
  Offer(30);
  EXPECT_THAT(Work(), ElementsAre(30));
  EXPECT_TRUE(committer_.failure().ok());
}

}  // namespace
}  // namespace ckptd::job
