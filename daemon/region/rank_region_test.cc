#include "daemon/region/rank_region.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include <deque>

#include "daemon/base/errors.h"
#include "daemon/os/mapping.h"
#include "daemon/os/testing/files_around.h"
#include "daemon/os/testing/huge_bytes.h"
#include "daemon/os/thread.h"
#include "daemon/region/region_test_util.h"
#include "daemon/region/verify.h"

namespace ckptd::region {
namespace {

using ::testing::HasSubstr;

// Runs nothing by itself.
struct LaterExecutor : Executor {
  bool Run(std::function<void()> work) override {
    queued.push_back(std::move(work));
    return true;
  }
  std::deque<std::function<void()>> queued;  // what runs may queue more
};

TEST(RankRegion, LayoutsStandSideBySide) {
  TempDir dir;
  auto region = OpenRegion(dir.region());
  RankRegion& rank = OpenTestRank(*region);
  LayoutSet& old = AddLayout(rank);
  auto bell = *Bell::Create(old.head());
  Fill(rank, old, *bell, 0, 100);
  LayoutSet& fresh = AddLayout(rank, TestSpec(256 * kKiB, 8));
  EXPECT_EQ(old.Slot(0).state, SlotStateCode::kSealed);
  EXPECT_EQ(fresh.layout(), 2u);
  EXPECT_EQ(rank.FindSame(TestSpec()), &old);
  EXPECT_EQ(rank.FindSame(TestSpec(256 * kKiB, 8)), &fresh);
  EXPECT_EQ(rank.FindSame(TestSpec(256 * kKiB, 9)), nullptr);
  LayoutSpec other_chunks = TestSpec();
  other_chunks.chunk_bytes *= 2;
  EXPECT_EQ(rank.FindSame(other_chunks), nullptr) << "checksums would not fit";
  const Epoch before = rank.NextEpoch();
  ASSERT_TRUE(rank.RemoveLayout(1).ok());
  EXPECT_EQ(rank.FindLayout(1), nullptr);
  EXPECT_GT(rank.NextEpoch(), before);
  EXPECT_EQ(NamesIn(rank.dir()).size(), 3u);
  ASSERT_TRUE(rank.RemoveLayout(2).ok());
  EXPECT_TRUE(NamesIn(rank.dir()).empty());
  EXPECT_EQ(region->quota().used(), 0u);
}

// Processes that a trainer forked keep its descriptors: of what nobody reads or writes, they keep no memory.
TEST(RankRegion, AFreeSlotsMemoryGoesWithItsLayoutThoughADescriptorStays) {
  TempDir dir;
  auto region = OpenRegion(dir.region());
  RankRegion& rank = OpenTestRank(*region);
  LayoutSet& old = AddLayout(rank);
  Fill(rank, old, **Bell::Create(old.head()), 0, 100);
  std::vector<UniqueFd> inherited;
  for (uint32_t slot : {0, 1})
    inherited.emplace_back(open((rank.dir() + "/" + SlotFileName(old.Slot(slot).file_id)).c_str(), O_RDWR | O_CLOEXEC));
  const auto bytes_of = [&](uint32_t slot) {
    struct stat info = {};
    EXPECT_EQ(fstat(inherited[slot].get(), &info), 0);
    return uint64_t{512} * static_cast<uint64_t>(info.st_blocks);
  };
  EXPECT_GE(bytes_of(1), kTestSlotBytes);
  const std::shared_ptr<SlotFile> reader = old.FileOf(0);
  ASSERT_TRUE(rank.RemoveLayout(1).ok());
  EXPECT_EQ(bytes_of(1), 0u);
  std::vector<std::byte> content(kTestSlotBytes);
  ASSERT_TRUE(reader->Read(0, content).ok());
  EXPECT_EQ(content, Content(100)) << "it may still be read";
}

TEST(RankRegion, BadSpecsAreRefused) {
  TempDir dir;
  auto region = OpenRegion(dir.region());
  RankRegion& rank = OpenTestRank(*region);
  auto refused = [&](auto change) {
    LayoutSpec spec = TestSpec();
    change(spec);
    return CodeOf(rank.PlanLayout(spec).status()) == ErrorCode::INVALID_ARGUMENT;
  };
  EXPECT_TRUE(refused([](LayoutSpec& s) { s.images.clear(); }));
  EXPECT_TRUE(refused([](LayoutSpec& s) { s.images[0].bytes = 4097; }));
  EXPECT_TRUE(refused([](LayoutSpec& s) { s.images[0].bytes = ~uint64_t{0} << 12; }));
  EXPECT_TRUE(refused([](LayoutSpec& s) { s.images[0].header_bytes = kTestSlotBytes + 1; }));
  EXPECT_TRUE(refused([](LayoutSpec& s) { s.images.assign(kMaxImages + 1, s.images[0]); }));
  EXPECT_TRUE(refused([](LayoutSpec& s) { s.images.assign(2, {0, uint64_t{1} << 63, 8}); }));
  EXPECT_TRUE(refused([](LayoutSpec& s) { s.chunk_bytes = 0; }));
  EXPECT_TRUE(refused([](LayoutSpec& s) { s.chunk_bytes = 65537; }));
  EXPECT_TRUE(refused([](LayoutSpec& s) { s.chunk_bytes = uint64_t{1} << 63; }));
  EXPECT_TRUE(refused([](LayoutSpec& s) { s.slot_count = 0; }));
  EXPECT_TRUE(refused([](LayoutSpec& s) { s.slot_count = kMaxSlots + 1; }));
  EXPECT_TRUE(refused([](LayoutSpec& s) { s.world = 0; }));
  EXPECT_TRUE(refused([](LayoutSpec& s) { s.job = "../x"; }));
}

TEST(RankRegion, QuotaIsTheLimitAndSaysTheNumbers) {
  TempDir dir;
  RegionOptions options = TestOptions(dir.region());
  options.job_quota = 5 * kMiB;
  auto region = *Region::Open(PosixFiles(), SystemClock(), options);
  RankRegion& rank = OpenTestRank(*region);
  LayoutSet& old = AddLayout(rank);
  Fill(rank, old, **Bell::Create(old.head()), 0, 100);
  auto plan = rank.PlanLayout(TestSpec(kTestSlotBytes, 8));
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->fit, LayoutFit::kRefused);
  EXPECT_EQ(CodeOf(plan->refusal), ErrorCode::QUOTA_EXCEEDED);
  EXPECT_THAT(std::string(plan->refusal.message()), HasSubstr("needs 4"));
  InlineExecutor executor;
  auto started =
      rank.StartLayout(TestSpec(kTestSlotBytes, 8), Preparation::kPopulated, executor, [](const absl::Status&) {});
  EXPECT_EQ(CodeOf(started.status()), ErrorCode::QUOTA_EXCEEDED);
  EXPECT_EQ(NamesIn(rank.dir()).size(), 3u);
}

TEST(RankRegion, OldLayoutShrinksToMakeRoom) {
  TempDir dir;
  RegionOptions options = TestOptions(dir.region());
  options.size_limit = 7 * kMiB;
  auto region = *Region::Open(PosixFiles(), SystemClock(), options);
  RankRegion& rank = OpenTestRank(*region);
  LayoutSet& old = AddLayout(rank);
  auto bell = *Bell::Create(old.head());
  Fill(rank, old, *bell, 1, 100);
  const LayoutSpec next = TestSpec(256 * kKiB, 8);
  EXPECT_EQ(rank.PlanLayout(next)->fit, LayoutFit::kFitsAfterShrinking);
  ASSERT_TRUE(old.DropFile(0).ok());
  EXPECT_EQ(rank.PlanLayout(next)->fit, LayoutFit::kFits);
  AddLayout(rank, next);
  EXPECT_EQ(old.Slot(1).record->id(), (SnapshotId{1, 100}));
}

// The other ranks of the job grow too, and shrink before: no refusal while there is something to give up here.
TEST(RankRegion, WhatOtherRanksCanGiveBackCounts) {
  TempDir dir;
  RegionOptions options = TestOptions(dir.region());
  options.size_limit = 7 * kMiB;
  auto region = *Region::Open(PosixFiles(), SystemClock(), options);
  RankRegion& rank = OpenTestRank(*region);
  LayoutSet& old = AddLayout(rank);
  const LayoutSpec next = TestSpec(3 * kMiB, 8);
  EXPECT_EQ(rank.PlanLayout(next)->fit, LayoutFit::kRefused);
  EXPECT_EQ(rank.PlanLayout(next, {.surely = 0, .perhaps = 2 * kMiB})->fit, LayoutFit::kFitsAfterShrinking);
  ASSERT_TRUE(old.DropFile(0).ok() && old.DropFile(1).ok());
  EXPECT_EQ(rank.PlanLayout(next, {.surely = 0, .perhaps = 2 * kMiB})->fit, LayoutFit::kRefused)
      << "nothing is left to give up";
  EXPECT_EQ(rank.PlanLayout(next, {.surely = 2 * kMiB, .perhaps = 0})->fit, LayoutFit::kFitsAfterShrinking)
      << "another rank has moved on";
}

// A tmpfs that has room for one of them, and of which nothing is taken yet.
TEST(RankRegion, WhatIsBeingMadeForAnotherRankIsNotFree) {
  struct Small : FilesAround {
    using FilesAround::FilesAround;
    absl::StatusOr<SpaceInfo> Space(const std::string&) override {
      return SpaceInfo{.total = 7 * kMiB, .available = 7 * kMiB};
    }
  } files(PosixFiles());
  LaterExecutor idle;
  TempDir dir;
  auto region = *Region::Open(files, SystemClock(), TestOptions(dir.region()));
  RankRegion& rank = OpenTestRank(*region);
  LayoutSpec theirs = TestSpec();
  theirs.world = 2;
  theirs.rank = 1;
  RankRegion& other = **(*region->OpenJob(theirs.job, theirs.uid))->OpenRank(1);
  auto build = rank.StartLayout(TestSpec(), Preparation::kPopulated, idle, [](const absl::Status&) {});
  ASSERT_TRUE(build.ok()) << build.status();
  const auto plan = other.PlanLayout(theirs);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->fit, LayoutFit::kRefused);
  EXPECT_EQ(CodeOf(plan->refusal), ErrorCode::REGION_FULL);
  build->reset();
  idle.queued.clear();
  EXPECT_EQ(other.PlanLayout(theirs)->fit, LayoutFit::kFits);
}

TEST(RankRegion, PreparationShowsProgressAndCanBeCancelled) {
  TempDir dir;
  auto region = OpenRegion(dir.region());
  RankRegion& rank = OpenTestRank(*region);
  LaterExecutor executor;
  absl::Status done;
  auto build =
      *rank.StartLayout(TestSpec(), Preparation::kPopulated, executor, [&](const absl::Status& s) { done = s; });
  EXPECT_EQ(build->progress().done_bytes(), 0u);
  EXPECT_EQ(build->progress().total_bytes(), 4 * kMiB);
  build.reset();
  executor.queued.front()();
  EXPECT_EQ(CodeOf(done), ErrorCode::CANCELLED);
  executor.queued.clear();
  EXPECT_TRUE(NamesIn(rank.dir()).empty());
  EXPECT_EQ(region->quota().used(), 0u);
}

// At the end of the agent, whoever started them. One slot is being populated, the other waits for its turn.
TEST(RankRegion, WhatIsUnderWayEndsTogether) {
  TempDir dir;
  auto region = OpenRegion(dir.region());
  RankRegion& rank = OpenTestRank(*region);
  LayoutSet& set = AddLayout(rank);
  Fill(rank, set, **Bell::Create(set.head()), 0, 100);
  LaterExecutor executor;
  absl::Status made;
  absl::Status checked;
  auto build = *rank.StartLayout(TestSpec(kTestSlotBytes, 8), Preparation::kPopulated, executor,
                                 [&](const absl::Status& status) { made = status; });
  executor.queued.front()();  // queues the other slot, and makes its own
  auto check =
      StartVerify(set.FileOf(0), set.Slot(0).record, executor, [&](const absl::Status& status) { checked = status; });
  ASSERT_TRUE(check.ok()) << check.status();
  region->under_way().Add(build->shared_progress());
  region->under_way().Add(*check);
  region->under_way().CancelAll();
  ASSERT_EQ(executor.queued.size(), 3u);
  executor.queued[1]();
  executor.queued[2]();
  EXPECT_EQ(CodeOf(made), ErrorCode::CANCELLED);
  EXPECT_EQ(CodeOf(checked), ErrorCode::CANCELLED);
  executor.queued.clear();
  build.reset();
  region->under_way().CancelAll();  // they are gone
}

TEST(RankRegion, PreparedByAPool) {
  TempDir dir;
  auto region = OpenRegion(dir.region());
  RankRegion& rank = OpenTestRank(*region);
  std::unique_ptr<LayoutBuild> build;
  absl::Status done = absl::UnknownError("not called");
  {
    ThreadPool pool("prepare", 2, 4);
    build = *rank.StartLayout(TestSpec(), Preparation::kPopulated, pool, [&](const absl::Status& s) { done = s; });
    pool.Stop();
  }
  ASSERT_TRUE(done.ok()) << done;
  EXPECT_EQ(build->progress().done_bytes(), 4 * kMiB);
  EXPECT_TRUE(rank.FinishLayout(std::move(build)).ok());
}

TEST(RankRegion, SlotsAreOfHugePages) {
  TempDir dir;
  auto region = OpenRegion(dir.region());
  RankRegion& rank = OpenTestRank(*region);
  InlineExecutor executor;
  absl::Status done = absl::UnknownError("not called");
  auto build = *rank.StartLayout(TestSpec(6 * kMiB), Preparation::kPopulated, executor,
                                 [&](const absl::Status& s) { done = s; });
  ASSERT_TRUE(done.ok()) << done;
  LayoutSet& set = **rank.FinishLayout(std::move(build));
  auto slot = set.FileOf(1)->Map(MapAccess::kReadWrite);
  ASSERT_TRUE(slot.ok());
  if (!KernelMakesHugePages()) GTEST_SKIP() << "skipped: this kernel gives none (Linux 6.1 and later do)";
  ASSERT_TRUE(UseHugePages(*slot, 0, 2 * kMiB));
  const uint64_t before = HugeBytesMapped();
  auto others = set.FileOf(0)->Map(MapAccess::kReadOnly);
  for (uint64_t offset = 0; offset < 6 * kMiB; offset += kMiB) EXPECT_EQ(others->bytes()[offset], std::byte{0});
  EXPECT_EQ(HugeBytesMapped(), before + 6 * kMiB);
}

// A layout that is being prepared.
struct Preparing {
  explicit Preparing(size_t room) : executor(room) {
    build = *rank.StartLayout(TestSpec(), Preparation::kPopulated, executor,
                              [this](const absl::Status& status) { done.push_back(status); });
  }
  TempDir dir;
  std::unique_ptr<Region> region = OpenRegion(dir.region());
  RankRegion& rank = OpenTestRank(*region);
  QueueExecutor executor;
  std::vector<absl::Status> done;
  std::unique_ptr<LayoutBuild> build;
};

TEST(RankRegion, EachFileIsAPieceOfWork) {
  Preparing p(100);
  const uint64_t total = p.build->progress().total_bytes();
  p.executor.RunNext();
  EXPECT_EQ(p.executor.size(), TestSpec().slot_count - 1) << "all others, for other workers";
  EXPECT_EQ(p.build->progress().done_bytes(), total / TestSpec().slot_count);
  EXPECT_TRUE(p.done.empty());
  p.executor.RunAll();
  ASSERT_EQ(p.done.size(), 1u) << "told once";
  EXPECT_TRUE(p.done[0].ok()) << p.done[0];
  EXPECT_EQ(p.build->progress().done_bytes(), total);
  EXPECT_TRUE(p.rank.FinishLayout(std::move(p.build)).ok());
}

TEST(RankRegion, WhereTheQueueIsFullOneWorkerPreparesAll) {
  Preparing p(1);
  p.executor.RunNext();
  p.executor.RunAll();
  ASSERT_EQ(p.done.size(), 1u);
  EXPECT_TRUE(p.done[0].ok()) << p.done[0];
  EXPECT_EQ(p.build->progress().done_bytes(), p.build->progress().total_bytes());
}

TEST(RankRegion, CancelledBetweenFilesItIsToldOnce) {
  Preparing p(100);
  p.executor.RunNext();
  p.build->progress().Cancel();
  p.executor.RunAll();
  ASSERT_EQ(p.done.size(), 1u);
  EXPECT_EQ(CodeOf(p.done[0]), ErrorCode::CANCELLED) << p.done[0];
}

// As on a kernel that has none to give.
class WithoutHugePages {
 public:
  WithoutHugePages() { EXPECT_EQ(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), 0); }
  ~WithoutHugePages() { EXPECT_EQ(prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0), 0); }
  WithoutHugePages(const WithoutHugePages&) = delete;
  WithoutHugePages& operator=(const WithoutHugePages&) = delete;
};

// How much of two slots was populated; all of both is reserved.
uint64_t PopulatedBytes(Preparation preparation) {
  TempDir dir;
  auto region = OpenRegion(dir.region());
  RankRegion& rank = OpenTestRank(*region);
  InlineExecutor executor;
  absl::Status done = absl::UnknownError("not called");
  auto build = *rank.StartLayout(TestSpec(), preparation, executor, [&](const absl::Status& s) { done = s; });
  EXPECT_TRUE(done.ok()) << done;
  const uint64_t populated = build->progress().done_bytes();
  auto set = rank.FinishLayout(std::move(build));
  EXPECT_TRUE(set.ok()) << set.status();
  for (uint32_t slot = 0; set.ok() && slot < (*set)->slot_count(); ++slot) {
    struct stat file = {};
    EXPECT_EQ(stat((*set)->FileOf(slot)->path().c_str(), &file), 0);
    EXPECT_GE(file.st_blocks * 512, file.st_size) << "not reserved";
  }
  return populated;
}

// What a snapshot from storage will fill, and the trainer populates.
TEST(RankRegion, SmallPagesAreReservedOnlyWhereThatIsEnough) {
  EXPECT_EQ(PopulatedBytes(Preparation::kPopulated), 4 * kMiB);
  const WithoutHugePages without;
  EXPECT_EQ(PopulatedBytes(Preparation::kPopulated), 4 * kMiB);
  EXPECT_EQ(PopulatedBytes(Preparation::kReserved), 0u);
}

class SmallTmpfs : public ::testing::Test {
 protected:
  void SetUp() override {
    if (mount("tmpfs", dir_.path().c_str(), "tmpfs", 0, "size=16m") != 0)
      GTEST_SKIP() << "cannot mount a tmpfs here: " << std::strerror(errno);
    mounted_ = true;
  }
  void TearDown() override {
    if (mounted_) umount2(dir_.path().c_str(), MNT_DETACH);
  }
  TempDir dir_;
  bool mounted_ = false;
};

TEST_F(SmallTmpfs, TooLargeALayoutIsRefusedWithTheNumbers) {
  auto region = OpenRegion(dir_.region());
  RankRegion& rank = OpenTestRank(*region);
  auto plan = rank.PlanLayout(TestSpec(16 * kMiB));
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(CodeOf(plan->refusal), ErrorCode::REGION_FULL);
  EXPECT_THAT(std::string(plan->refusal.message()), HasSubstr("needs 32"));
}

// Between plan and reservation somebody else takes the memory: an error of the preparation, never a SIGBUS.
TEST_F(SmallTmpfs, FullTmpfsIsAnErrorOfThePreparation) {
  auto region = OpenRegion(dir_.region());
  RankRegion& rank = OpenTestRank(*region);
  QueueExecutor executor(2);
  absl::Status done;
  auto build =
      rank.StartLayout(TestSpec(4 * kMiB), Preparation::kPopulated, executor, [&](const absl::Status& s) { done = s; });
  ASSERT_TRUE(build.ok()) << build.status();
  auto other = *PosixFiles().Open(dir_.path() + "/other", {.write = true, .create = true});
  ASSERT_TRUE(other->Fallocate(10 * kMiB).ok());
  executor.RunAll();
  EXPECT_EQ(CodeOf(done), ErrorCode::REGION_FULL) << done;
  build->reset();
  EXPECT_TRUE(NamesIn(rank.dir()).empty());
}

TEST_F(SmallTmpfs, NoRoomForAReplacementLeavesTheSlotRetired) {
  auto region = OpenRegion(dir_.region());
  RankRegion& rank = OpenTestRank(*region);
  LayoutSet& set = AddLayout(rank, TestSpec(6 * kMiB));
  ASSERT_TRUE(set.RetireSlot(0).ok());
  InlineExecutor executor;
  absl::Status done;
  (void)set.StartReplace(0, executor, [&](const absl::Status& s) { done = s; });
  EXPECT_EQ(CodeOf(done), ErrorCode::REGION_FULL);
  EXPECT_EQ(set.Slot(0).state, SlotStateCode::kRetired);
  EXPECT_EQ(NamesIn(rank.dir()).size(), 3u);
}

}  // namespace
}  // namespace ckptd::region
