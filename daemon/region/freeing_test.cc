// What is let go: who frees it, and what is promised until it is free.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/os/testing/files_around.h"
#include "daemon/os/thread.h"
#include "daemon/region/region_test_util.h"

namespace ckptd::region {
namespace {

using ::testing::HasSubstr;

// Who gave memory back: by a hole, or by the last close.
class WatchedFiles final : public FilesAround {
 public:
  WatchedFiles() : FilesAround(PosixFiles()) {}
  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, const OpenOptions& options) override {
    CKPTD_ASSIGN_OR_RETURN(auto file, FilesAround::Open(path, options));
    return std::unique_ptr<File>(new Watched(std::move(file), path.find("/slot-") != path.npos ? this : nullptr));
  }
  // Of this test's thread, since Reset.
  void Reset() { here_ = punched_ = closed_ = 0; }
  [[nodiscard]] int here() const { return here_; }
  [[nodiscard]] int punched() const { return punched_; }
  [[nodiscard]] int closed() const { return closed_; }

 private:
  struct Watched final : FileAround {
    Watched(std::unique_ptr<File> inner, WatchedFiles* by) : FileAround(std::move(inner)), by_(by) {}
    ~Watched() override { Note(by_ == nullptr ? nullptr : &by_->closed_); }
    absl::Status PunchHole(uint64_t size) override {
      Note(by_ == nullptr ? nullptr : &by_->punched_);
      return FileAround::PunchHole(size);
    }
    void Note(std::atomic<int>* what) const {
      if (what == nullptr) return;
      ++*what;
      if (std::this_thread::get_id() == by_->test_) ++by_->here_;
    }
    WatchedFiles* by_;
  };
  const std::thread::id test_ = std::this_thread::get_id();
  std::atomic<int> here_ = 0, punched_ = 0, closed_ = 0;
};

TEST(Freeing, NeverOnTheThreadThatLetsGo) {
  TempDir dir;
  WatchedFiles files;
  ThreadPool pool("free", 1, 64);
  RegionOptions options = TestOptions(dir.region());
  options.freeing = &pool;
  auto region = *Region::Open(files, SystemClock(), options);
  RankRegion& rank = OpenTestRank(*region);
  LayoutSet& removed = AddLayout(rank);
  Fill(rank, removed, **Bell::Create(removed.head()), 0, 100);
  LayoutSet& dropped = AddLayout(rank, TestSpec(256 * kKiB, 8));
  ASSERT_TRUE(removed.FileOf(0)->ReadOnlyBytes().ok()) << "mapped, as by a flush";
  files.Reset();
  ASSERT_TRUE(dropped.DropFile(0).ok());
  ASSERT_TRUE(rank.RemoveLayout(removed.layout()).ok());
  EXPECT_EQ(NamesIn(rank.dir()).size(), 2u) << "the names go at once";
  ASSERT_TRUE(region->RemoveJob("gpt").ok());
  pool.Stop();
  EXPECT_EQ(files.here(), 0);
  EXPECT_EQ(files.punched(), 3) << "all but the sealed one";
  EXPECT_EQ(files.closed(), 8);
  EXPECT_EQ(region->quota().used(), 0u);
}

// A region of 7 MiB whose memory is freed when the test says so. Layouts take 4 MiB and a little.
class FreedLater : public ::testing::Test {
 protected:
  explicit FreedLater(size_t room = 100) : freeing_(room) {
    RegionOptions options = TestOptions(dir_.region());
    options.size_limit = 7 * kMiB;
    options.freeing = &freeing_;
    region_ = *Region::Open(PosixFiles(), SystemClock(), options);
    rank_ = &OpenTestRank(*region_);
    old_ = &AddLayout(*rank_);
  }
  LayoutFit Fit() { return rank_->PlanLayout(next_)->fit; }

  TempDir dir_;
  QueueExecutor freeing_;
  std::unique_ptr<Region> region_;
  RankRegion* rank_;
  LayoutSet* old_;
  const LayoutSpec next_ = TestSpec(256 * kKiB, 8);
};

TEST_F(FreedLater, TheQuotaHoldsItAndNobodyIsPromisedIt) {
  const uint64_t held = region_->quota().used();
  ASSERT_TRUE(old_->DropFile(0).ok());
  EXPECT_EQ(region_->quota().used(), held);
  EXPECT_EQ(Fit(), LayoutFit::kFitsOnceFreed);
  EXPECT_EQ(rank_->PlanLayout(next_)->freeing, 2 * kMiB);
  InlineExecutor executor;
  auto started = rank_->StartLayout(next_, Preparation::kPopulated, executor, [](const absl::Status&) {});
  EXPECT_EQ(CodeOf(started.status()), ErrorCode::QUOTA_EXCEEDED);
  freeing_.RunAll();
  EXPECT_EQ(region_->quota().used(), held - 2 * kMiB);
  EXPECT_EQ(rank_->PlanLayout(next_)->freeing, 0u);
  EXPECT_EQ(Fit(), LayoutFit::kFits);
  AddLayout(*rank_, next_);
}

TEST_F(FreedLater, WhatIsFreedIsNoReasonToGiveUpMoreOrToRefuse) {
  LayoutSpec large = TestSpec(3 * kMiB, 8);
  large.slot_count = 1;
  const auto fit = [&] { return rank_->PlanLayout(large)->fit; };
  ASSERT_EQ(fit(), LayoutFit::kFitsAfterShrinking);
  ASSERT_TRUE(old_->DropFile(0).ok());
  EXPECT_EQ(fit(), LayoutFit::kFitsOnceFreed) << "the other slot stays";
  large.slot_count = 2;
  EXPECT_EQ(fit(), LayoutFit::kRefused) << "all of it would not do";
  EXPECT_THAT(std::string(rank_->PlanLayout(large)->refusal.message()), HasSubstr("being freed 2.0 MiB"));
}

TEST_F(FreedLater, WhatAReaderHasIsFreedAfterIt) {
  Fill(*rank_, *old_, **Bell::Create(old_->head()), 0, 100);
  std::shared_ptr<SlotFile> reader = old_->FileOf(0);
  ASSERT_TRUE(rank_->RemoveLayout(1).ok());
  freeing_.RunAll();
  EXPECT_EQ(region_->quota().used(), 2 * kMiB);
  EXPECT_EQ(Fit(), LayoutFit::kFits);
  reader.reset();
  EXPECT_EQ(region_->quota().used(), 2 * kMiB);
  EXPECT_EQ(rank_->PlanLayout(next_)->freeing, 2 * kMiB);
  freeing_.RunAll();
  EXPECT_EQ(region_->quota().used(), 0u);
}

// As at the end of the agent.
struct FreedByNobody : FreedLater {
  FreedByNobody() : FreedLater(0) {}
};

TEST_F(FreedByNobody, ItIsFreedAtOnce) {
  Fill(*rank_, *old_, **Bell::Create(old_->head()), 0, 100);
  ASSERT_TRUE(rank_->RemoveLayout(1).ok());
  EXPECT_EQ(region_->quota().used(), 0u);
}

}  // namespace
}  // namespace ckptd::region
