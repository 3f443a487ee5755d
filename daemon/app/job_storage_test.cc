// The storage operations of the job, where they promise more than those of the rooms below.
#include "daemon/app/job_storage.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "daemon/base/errors.h"
#include "daemon/format/paths.h"
#include "daemon/format/records.h"
#include "daemon/os/testing/files_around.h"
#include "daemon/os/testing/sim_files.h"
#include "daemon/persist/testing/saved_step.h"
#include "daemon/storage/posix_store.h"

namespace ckptd {
namespace {

constexpr char kJob[] = "gpt";
constexpr uint64_t kSeeds = 100;

std::unique_ptr<Store> OpenStore(Files& files) {
  PosixStoreOptions options;
  options.root = "/store";
  options.make_queue = [] { return MakeInlineIoQueue(2); };
  return *OpenPosixStore(files, options);
}

// An agent was killed when it had named its decision, before the fsync of the directory.
void LeaveAVisibleDecision(SimFiles& files) {
  v1::AttemptRecord record;
  record.set_job(kJob);
  record.set_attempt(1);
  ASSERT_TRUE(OpenStore(files)->CreateExclusive(AttemptPath(kJob, 1), AttemptText(record)).ok());
  v1::DecisionRecord decision;
  decision.set_job(kJob);
  decision.set_attempt(1);
  const std::string text = DecisionText(decision);
  auto file = files.Open("/store/gpt/attempts/.tmp-1", {.write = true, .create = true});
  ASSERT_TRUE((*file)->PWrite(0, std::as_bytes(std::span(text.data(), text.size()))).ok());
  ASSERT_TRUE((*file)->Sync().ok());
  ASSERT_TRUE(files.Link("/store/gpt/attempts/.tmp-1", "/store/" + DecisionPath(kJob, 1)).ok());
}

size_t DisksWithoutDecision(const SimFiles& files) {
  size_t without = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    SimFiles disk = files.CrashImage(files.OpCount(), seed);
    without += Exists(disk, "/store/" + DecisionPath(kJob, 1)).value_or(false) ? 0 : 1;
  }
  return without;
}

// The fsync of one directory fails.
class FilesWithoutFsync final : public FilesAround {
 public:
  explicit FilesWithoutFsync(SimFiles& files) : FilesAround(files) {}
  std::string broken;
  absl::Status SyncDir(const std::string& path) override {
    return path == broken ? Error(ErrorCode::STORAGE_IO, "fsync " + path) : FilesAround::SyncDir(path);
  }
};

class JobStorageTest : public ::testing::Test {
 protected:
  JobStorageTest() {
    EXPECT_TRUE(files_.Mkdir("/store", 0755).ok());
    EXPECT_TRUE(files_.SyncDir("/").ok());
  }
  static std::vector<TestSlot> TwoSlots() {
    std::vector<TestSlot> slots;
    for (const uint64_t seed : {1, 2}) slots.emplace_back(std::vector<uint64_t>{8192}, 64 << 10, seed);
    return slots;
  }

  job::NewestRead ReadNewest() {
    auto store = OpenStore(files_);
    return JobStorage(*store, metrics_, kJob)(job::ReadNewest{1});
  }

  SimFiles files_;
  AgentMetrics metrics_{"test", "test"};
};

TEST_F(JobStorageTest, ADecisionThatAnAgentGoesOnFromIsDurable) {
  LeaveAVisibleDecision(files_);
  EXPECT_GT(DisksWithoutDecision(files_), 0u) << "else this test proves nothing";
  const job::NewestRead read = ReadNewest();
  ASSERT_TRUE(read.status.ok()) << read.status;
  EXPECT_TRUE(read.decided);
  EXPECT_EQ(DisksWithoutDecision(files_), 0u);
}

TEST_F(JobStorageTest, ADecisionThatCannotBeMadeDurableIsAnError) {
  LeaveAVisibleDecision(files_);
  auto store = OpenStore(files_);
  const JobStorage storage(*store, metrics_, kJob);
  const size_t before = files_.CallCount();
  ASSERT_TRUE(storage(job::ReadNewest{1}).status.ok());
  files_.FailCall(files_.CallCount() - before - 1, EIO);  // its last call is the fsync
  EXPECT_EQ(CodeOf(storage(job::ReadNewest{1}).status), ErrorCode::STORAGE_IO);
}

// The manifest had its name when the fsync of its folder failed. Nobody knows whether the name is durable.
TEST_F(JobStorageTest, AManifestThatCannotBeMadeDurableIsNoCommit) {
  constexpr SnapshotId kId{1, 10};
  std::vector<TestSlot> slots;
  slots.emplace_back(std::vector<uint64_t>{8192}, 64 << 10, 1);
  FilesWithoutFsync files(files_);
  auto store = OpenStore(files);
  const JobStorage storage(*store, metrics_, kJob);
  ASSERT_TRUE(SaveRank(*store, FakeClock(), SourceOf(kJob, 0, 1, kId, slots[0]), slots[0]).ok());
  files.broken = "/store/" + StepPath(kJob, kId);
  const absl::Status refused = storage(job::CreateManifest{1, kId, 1}).status;
  EXPECT_EQ(CodeOf(refused), ErrorCode::STORAGE_IO) << refused;
  ASSERT_TRUE(*Exists(files_, "/store/" + InStep(kJob, kId, kManifestName))) << "else this test proves nothing";
  EXPECT_EQ(CodeOf(storage(job::CreateManifest{2, kId, 1}).status), ErrorCode::STORAGE_IO);
  auto successor = OpenStore(files);
  EXPECT_EQ(CodeOf(JobStorage(*successor, metrics_, kJob)(job::CreateManifest{3, kId, 1}).status),
            ErrorCode::STORAGE_IO);
  files.broken.clear();
  auto last = OpenStore(files);
  EXPECT_TRUE(JobStorage(*last, metrics_, kJob)(job::CreateManifest{4, kId, 1}).status.ok());
}

// Rank 0 named its files by another number of ranks than its attempt has. Alone it would look whole.
TEST_F(JobStorageTest, PartsOfAnotherWorldSizeThanTheAttemptsAreNoCommit) {
  constexpr SnapshotId kId{1, 10};
  std::vector<TestSlot> slots = TwoSlots();
  auto store = OpenStore(files_);
  const JobStorage storage(*store, metrics_, kJob);
  for (Rank rank = 0; rank < 2; ++rank) {
    const uint32_t world = rank + 1;
    ASSERT_TRUE(SaveRank(*store, FakeClock(), SourceOf(kJob, rank, world, kId, slots[rank]), slots[rank]).ok());
    const absl::Status refused = storage(job::CreateManifest{1, kId, 2}).status;
    EXPECT_EQ(CodeOf(refused), ErrorCode::CORRUPT) << refused;
    EXPECT_NE(refused.message().find("files of 1 ranks"), std::string::npos) << refused;
  }
  EXPECT_FALSE(*Exists(files_, "/store/" + InStep(kJob, kId, kManifestName)));
  ASSERT_TRUE(CreateManifest(*store, kJob, kId, 1).ok());
  EXPECT_EQ(CodeOf(storage(job::CreateManifest{1, kId, 2}).status), ErrorCode::CORRUPT) << "of one rank";
}

TEST_F(JobStorageTest, OnlyWhatIsNotWholeIsMarkedAsRemains) {
  constexpr SnapshotId kId{1, 10};
  std::vector<TestSlot> slots = TwoSlots();
  auto store = OpenStore(files_);
  const JobStorage storage(*store, metrics_, kJob);
  for (Rank rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(SaveRank(*store, FakeClock(), SourceOf(kJob, rank, 2, kId, slots[rank]), slots[rank]).ok());
    const job::MarkerPut put = storage(job::PutMarker{1, kId, 3, /*remains=*/true});
    ASSERT_TRUE(put.status.ok()) << put.status;
    EXPECT_EQ(put.whole, rank == 0 ? 0u : 2u);
    const std::string marker = InStep(kJob, kId, kDeletingName);
    EXPECT_EQ(*Exists(files_, "/store/" + marker), rank == 0);
    ASSERT_TRUE(store->Delete(marker).ok());
  }
  ASSERT_TRUE(CreateManifest(*store, kJob, kId, 2).ok());
  ASSERT_TRUE(store->Delete(InStep(kJob, kId, SidecarFileName(1, 2))).ok());
  EXPECT_EQ(storage(job::PutMarker{1, kId, 3, true}).whole, 2u) << "a damaged step is no remains";
  EXPECT_EQ(storage(job::PutMarker{1, kId, 3, false}).whole, 0u);
}

// Between the listing of the records and the reading of the newest, another agent opens the next attempt, loads, and
// prunes it.
class FilesThatPrune final : public FilesAround {
 public:
  explicit FilesThatPrune(SimFiles& files) : FilesAround(files), files_(files) {}
  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, const OpenOptions& options) override {
    if (path == "/store/" + AttemptPath(kJob, 1) && !std::exchange(pruned_, true)) Prune();
    return FilesAround::Open(path, options);
  }

 private:
  void Prune() {
    v1::AttemptRecord record;
    record.set_job(kJob);
    record.set_attempt(2);
    auto store = OpenStore(files_);
    ASSERT_TRUE(store->CreateExclusive(AttemptPath(kJob, 2), AttemptText(record)).ok());
    AgentMetrics metrics("test", "test");
    const job::RecordsPruned pruned = JobStorage(*store, metrics, kJob)(job::PruneRecords{1, 2, {1}});
    EXPECT_TRUE(pruned.status.ok() && pruned.newest == 2) << pruned.status;
  }

  SimFiles& files_;
  bool pruned_ = false;
};

TEST_F(JobStorageTest, ANewestRecordThatIsPrunedMeanwhileIsNotTheNewest) {
  LeaveAVisibleDecision(files_);
  FilesThatPrune files(files_);
  auto store = OpenStore(files);
  const job::NewestRead read = JobStorage(*store, metrics_, kJob)(job::ReadNewest{1});
  ASSERT_TRUE(read.status.ok()) << read.status;
  EXPECT_EQ(read.record.attempt(), 2u);
  EXPECT_FALSE(read.decided);
  const job::Listed listed = JobStorage(*store, metrics_, kJob)(job::List{1});
  EXPECT_EQ(listed.newest, 2u);
  EXPECT_TRUE(listed.decisions.empty());
}

TEST_F(JobStorageTest, APinIsLookedAt) {
  auto store = OpenStore(files_);
  const JobStorage storage(*store, metrics_, kJob);
  const job::LookAtPin look{1, {1, 10}};
  ASSERT_TRUE(store->CreateExclusive(InStep(kJob, look.id, kPinnedName), "pinned\n").ok());
  EXPECT_TRUE(storage(look).pinned);
  ASSERT_TRUE(store->Delete(InStep(kJob, look.id, kPinnedName)).ok());
  EXPECT_TRUE(storage(look).status.ok());
  EXPECT_FALSE(storage(look).pinned);
  files_.FailCall(0, EIO);
  EXPECT_EQ(CodeOf(storage(look).status), ErrorCode::STORAGE_IO);
}

TEST_F(JobStorageTest, WhatNobodyWaitsForIsNotReadBack) {
  auto store = OpenStore(files_);
  const std::atomic<bool> ended = true;
  const size_t before = files_.CallCount();
  const JobStorage storage(*store, metrics_, kJob, &ended);
  EXPECT_EQ(CodeOf(storage(job::VerifyStep{1, {1, 10}}).status), ErrorCode::CANCELLED);
  EXPECT_EQ(CodeOf(storage(job::VerifyRank{1, {1, 10}, 0, 1}).status), ErrorCode::CANCELLED);
  EXPECT_EQ(files_.CallCount(), before);
}

TEST_F(JobStorageTest, OnePartIsReadBackWithoutTheOthers) {
  auto store = OpenStore(files_);
  std::vector<TestSlot> slots;
  for (const uint64_t seed : {1, 2}) slots.emplace_back(std::vector<uint64_t>{3 << 16}, 1 << 16, seed);
  ASSERT_TRUE(SaveStep(*store, SystemClock(), kJob, {1, 10}, slots).ok());
  auto part = files_.Open("/store/" + InStep(kJob, {1, 10}, ImageFileName(1, 2, 0)), {.write = true});
  ASSERT_TRUE(part.ok()) << part.status();
  ASSERT_TRUE((*part)->PWrite(5000, std::as_bytes(std::span("damaged", 7))).ok());
  const JobStorage storage(*store, metrics_, kJob);
  EXPECT_TRUE(storage(job::VerifyRank{1, {1, 10}, 0, 2}).status.ok());
  EXPECT_EQ(metrics_.proven_bytes.With({}).value(), slots[0].bytes().size());
  EXPECT_EQ(CodeOf(storage(job::VerifyRank{1, {1, 10}, 1, 2}).status), ErrorCode::CORRUPT);
  EXPECT_EQ(metrics_.verify_failures.With({"storage"}).value(), 1);
  EXPECT_EQ(CodeOf(storage(job::VerifyRank{1, {1, 10}, 0, 3}).status), ErrorCode::CORRUPT) << "a step of two ranks";
}

TEST_F(JobStorageTest, AListingNamesTheDecisionsThatAreDamaged) {
  auto store = OpenStore(files_);
  v1::DecisionRecord decision;
  decision.set_job(kJob);
  decision.set_attempt(2);
  ASSERT_TRUE(store->CreateExclusive(DecisionPath(kJob, 1), "{").ok());
  ASSERT_TRUE(store->CreateExclusive(DecisionPath(kJob, 2), DecisionText(decision)).ok());
  const job::Listed listed = JobStorage(*store, metrics_, kJob)(job::List{1});
  ASSERT_TRUE(listed.status.ok()) << listed.status;
  EXPECT_EQ(listed.unreadable, std::vector<AttemptId>{1});
}

TEST_F(JobStorageTest, AJobWithoutAnAttemptHasNothingToMakeDurable) {
  const job::NewestRead read = ReadNewest();
  EXPECT_TRUE(read.status.ok()) << read.status;
  EXPECT_FALSE(read.found);
}

}  // namespace
}  // namespace ckptd
