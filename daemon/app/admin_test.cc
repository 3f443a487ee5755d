// The pure parts of the admin backend, and the gate between its workers and the control thread.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>

#include "client/core/copy/crc32c.h"
#include "daemon/app/admin_catalog.h"
#include "daemon/app/admin_commands.h"
#include "daemon/app/admin_source.h"
#include "daemon/app/control_gate.h"
#include "daemon/os/posix_files.h"
#include "daemon/os/testing/files_around.h"
#include "daemon/os/testing/temp_dir.h"
#include "daemon/os/thread.h"
#include "daemon/storage/posix_store.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

StepListing Stored(AttemptId attempt, StepId step, bool committed = true) {
  StepListing stored;
  stored.id = {attempt, step};
  stored.world = 2;
  stored.committed = committed;
  stored.bytes = 100;
  return stored;
}

RegionCopy Copy(Rank rank, AttemptId attempt, StepId step) {
  RegionCopy copy;
  copy.rank = rank;
  copy.id = {attempt, step};
  copy.world = 2;
  auto record = std::make_shared<region::SlotRecord>();
  record->slot_bytes = 40;
  copy.record = record;
  return copy;
}

// Attempt 2 restored step 20 of attempt 1.
v1::DecisionRecord SecondAttempt() {
  v1::DecisionRecord decision;
  decision.set_attempt(2);
  decision.mutable_parent()->set_attempt(1);
  decision.mutable_parent()->set_step(20);
  v1::LineageEntry* entry = decision.add_lineage();
  entry->set_attempt(1);
  entry->set_last_step(20);
  return decision;
}

// Steps 10, 20 and 30 of attempt 1 (30 was rolled back), 25 and 35 of attempt 2; 35 is in memory on rank 0 only.
Catalog RolledBack() {
  JobListing listing;
  listing.steps = {Stored(1, 10), Stored(1, 20), Stored(1, 30), Stored(2, 25)};
  listing.decisions = {SecondAttempt()};
  JobMemory memory;
  memory.known = true;
  memory.copies = {Copy(0, 2, 25), Copy(1, 2, 25), Copy(0, 2, 35)};
  return MakeCatalog("gpt", memory, listing);
}

v1::Target Target(std::optional<StepId> step = {}, std::optional<AttemptId> attempt = {}) {
  v1::Target target;
  target.set_job("gpt");
  if (step) target.set_step(*step);
  if (attempt) target.set_attempt(*attempt);
  return target;
}

TEST(Catalog, MemoryAndStorageAreOneList) {
  Catalog catalog = RolledBack();
  std::vector<std::string> steps;
  for (const CatalogStep& step : catalog.steps) {
    steps.push_back(ToString(step.id) + (step.in_region() ? " memory" : "") + (step.committed() ? " storage" : "") +
                    (step.on_lineage ? "" : " off"));
  }
  EXPECT_THAT(steps,
              ElementsAre("35.a2", "25.a2 memory storage", "30.a1 storage off", "20.a1 storage", "10.a1 storage"));
  EXPECT_EQ(catalog.steps[0].bytes(), 40);
  EXPECT_EQ(catalog.steps[1].bytes(), 100);
}

TEST(Catalog, NewestIsTheNewestOnTheLineageThatIsWhole) {
  Catalog catalog = RolledBack();
  auto newest = FindStep(catalog, Target());
  ASSERT_TRUE(newest.ok());
  EXPECT_EQ((*newest)->id, (SnapshotId{2, 25}));  // not 35, which rank 1 lacks, nor 30, which was rolled back
  EXPECT_EQ((*FindStep(catalog, Target(30)))->id, (SnapshotId{1, 30}));
  EXPECT_EQ((*FindStep(catalog, Target(20, 1)))->id, (SnapshotId{1, 20}));
  absl::Status missing = FindStep(catalog, Target(20, 2)).status();
  EXPECT_EQ(CodeOf(missing), ErrorCode::NOT_FOUND);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("the newest is 25"));
  EXPECT_EQ(CodeOf(FindStep(Catalog(), Target()).status()), ErrorCode::NOT_FOUND);
}

TEST(Catalog, AStepThatIsBeingDeletedIsNotChosenByItself) {
  JobListing listing;
  listing.steps = {Stored(2, 25), Stored(1, 20)};
  listing.steps[0].marker = 2;
  listing.decisions = {SecondAttempt()};
  Catalog catalog = MakeCatalog("gpt", {}, listing);
  EXPECT_EQ((*FindStep(catalog, Target()))->id, (SnapshotId{1, 20}));
  listing.steps[0].marker = 0;
  listing.steps[1].marker = 1;  // attempt 2 chose that step afterwards: the marker is void
  EXPECT_FALSE(MakeCatalog("gpt", {}, listing).steps[1].deleting);
}

// A storage whose disk fails, or whose server says nothing.
class UnreadFiles final : public FilesAround {
 public:
  UnreadFiles() : FilesAround(PosixFiles()) {}
  absl::StatusOr<std::vector<DirEntry>> ReadDir(const std::string& path, size_t max_entries) override {
    while (silent) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (fails) return ErrnoError(EIO, "readdir", path);
    return FilesAround::ReadDir(path, max_entries);
  }
  std::atomic<bool> silent = false;
  std::atomic<bool> fails = true;
};

class UnreadTest : public ::testing::Test {
 protected:
  UnreadTest() {
    PosixStoreOptions options;
    options.root = dir_.path();
    store_ = *MakePosixStore(files_, options);
    reads_ = std::make_unique<AdminReads>(SystemClock(), *store_, dir_.path(), readers_);
  }
  ~UnreadTest() override {
    files_.silent = false;
    readers_.Stop();
  }
  absl::StatusOr<Catalog> Read(Nanos patience = std::chrono::minutes(1)) {
    return ReadCatalog(*reads_, patience, "gpt", memory_);
  }

  TempDir dir_;
  UnreadFiles files_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<AdminReads> reads_;
  ThreadPool readers_{"readers", 1, 4};
  JobMemory memory_;
};

TEST_F(UnreadTest, WhatMemoryHoldsIsThereAndWhatIsMissingIsSaid) {
  memory_.known = true;
  memory_.copies = {Copy(0, 2, 25), Copy(1, 2, 25)};
  auto catalog = Read();
  ASSERT_TRUE(catalog.ok()) << catalog.status();
  EXPECT_TRUE((*FindStep(*catalog, Target()))->in_region());
  EXPECT_EQ(WhyIncomplete("gpt", catalog), "job gpt: what storage has of it cannot be read: readdir " + dir_.path() +
                                               "/gpt/attempts: Input/output error; " +
                                               InfoOf(ErrorCode::STORAGE_IO).next_step);
}

TEST_F(UnreadTest, WithNothingInMemoryThereIsNoCatalog) {
  memory_.known = true;
  auto catalog = Read();
  EXPECT_EQ(CodeOf(catalog.status()), ErrorCode::STORAGE_IO);
  EXPECT_THAT(WhyIncomplete("gpt", catalog), HasSubstr("job gpt: what storage has of it cannot be read: "));
}

TEST_F(UnreadTest, WhatMemoryHoldsIsThereAlsoWhenTheStorageSaysNothing) {
  files_.silent = true;
  memory_.known = true;
  memory_.copies = {Copy(0, 2, 25), Copy(1, 2, 25)};
  auto catalog = Read(std::chrono::milliseconds(50));
  ASSERT_TRUE(catalog.ok()) << catalog.status();
  EXPECT_TRUE((*FindStep(*catalog, Target()))->in_region());
  EXPECT_EQ(CodeOf(catalog->storage), ErrorCode::STORAGE_HUNG);
  EXPECT_THAT(WhyIncomplete("gpt", catalog), HasSubstr("hung: list " + dir_.path() + "/gpt/attempts for "));
}

// One read that hangs is enough to know it: the next ones find no thread, and need none.
TEST_F(UnreadTest, NobodyElseWaitsForAStorageThatSaysNothing) {
  files_.silent = true;
  memory_.known = true;
  EXPECT_EQ(CodeOf(Read(std::chrono::milliseconds(50)).status()), ErrorCode::STORAGE_HUNG);
  for (int i = 0; i < 100; ++i)
    EXPECT_EQ(CodeOf(Read(std::chrono::milliseconds(50)).status()), ErrorCode::STORAGE_HUNG);
  files_.silent = false;
  files_.fails = false;
  EXPECT_TRUE(Read().ok()) << "it answers again";
}

TEST_F(UnreadTest, WhoWaitsIsLetGoWhenTheAgentStops) {
  files_.silent = true;
  memory_.copies = {Copy(0, 2, 25), Copy(1, 2, 25)};
  std::thread waiter([&] { EXPECT_EQ(CodeOf(Read().status()), ErrorCode::CANCELLED); });
  reads_->Close();
  waiter.join();
}

TEST_F(UnreadTest, NothingIsSaidOfAStorageThatAnswers) {
  files_.fails = false;
  EXPECT_EQ(CodeOf(Read().status()), ErrorCode::NOT_FOUND);
  EXPECT_EQ(WhyIncomplete("gpt", Read()), "") << "a folder that is no job";
  memory_.known = true;
  EXPECT_TRUE(Read().ok());
  EXPECT_EQ(WhyIncomplete("gpt", Read()), "");
}

TEST(Retention, NewestLastEveryPinnedAndLeftBehind) {
  Catalog catalog;
  for (StepId step = 60; step >= 10; step -= 10) {
    CatalogStep each;
    each.id = {1, step};
    each.stored = Stored(1, step);
    each.on_lineage = step != 50;
    catalog.steps.push_back(each);
  }
  catalog.steps[5].stored->pinned = true;  // 10
  RetentionConfig retention;
  retention.keep_last = 2;
  retention.keep_every = 30;
  std::vector<std::string> goes;
  for (const RetentionVerdict& verdict : ApplyRetention(catalog, retention)) {
    EXPECT_NE(verdict.reason, "");
    if (verdict.goes) goes.push_back(ToString(verdict.step->id));
  }
  EXPECT_THAT(goes, ElementsAre("50.a1", "20.a1"));  // 60 and 40 are the last two, 30 is divisible, 10 is pinned
}

TEST(Retention, NothingGoesWithoutACommittedSuccessor) {
  Catalog catalog;
  for (StepId step : {30, 20}) {
    CatalogStep each;
    each.id = {1, step};
    each.stored = Stored(1, step, /*committed=*/false);
    each.on_lineage = true;
    catalog.steps.push_back(each);
  }
  for (const RetentionVerdict& verdict : ApplyRetention(catalog, RetentionConfig())) EXPECT_FALSE(verdict.goes);
}

// A source in memory: two images, chunks across their border.
class SourceTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kBytes = 5 * 4096;
  static constexpr uint64_t kChunk = 2 * 4096;

  SourceTest() : bytes_(kBytes) {
    for (size_t i = 0; i < bytes_.size(); ++i) bytes_[i] = static_cast<std::byte>(i * 31);
    source_.bytes = kBytes;
    source_.chunk_bytes = kChunk;
    source_.where = "here";
    for (uint64_t at = 0; at < kBytes; at += kChunk) {
      source_.chunk_crcs.push_back(Crc32c(0, &bytes_[at], std::min(kChunk, kBytes - at)));
    }
    source_.read = [this](uint64_t offset, std::span<std::byte> into) {
      std::copy_n(bytes_.begin() + static_cast<ptrdiff_t>(offset), into.size(), into.begin());
      return absl::OkStatus();
    };
  }

  std::vector<std::byte> bytes_;
  RankSource source_;
};

TEST_F(SourceTest, BytesComeInOrder) {
  std::vector<std::byte> got;
  OrderedRead read;
  read.sink = [&](uint64_t offset, std::span<const std::byte> bytes) {
    EXPECT_EQ(offset, got.size());
    got.insert(got.end(), bytes.begin(), bytes.end());
    return absl::OkStatus();
  };
  ASSERT_TRUE(ReadInOrder(source_, read).ok());
  EXPECT_EQ(got, bytes_);
}

TEST_F(SourceTest, ABadChunkIsNeverHandedOn) {
  bytes_[kChunk + 1] ^= std::byte{1};
  uint64_t got = 0;
  OrderedRead read;
  read.sink = [&](uint64_t, std::span<const std::byte> bytes) {
    got += bytes.size();
    return absl::OkStatus();
  };
  EXPECT_EQ(CodeOf(ReadInOrder(source_, read)), ErrorCode::CORRUPT);
  EXPECT_EQ(got, kChunk);
  std::vector<uint64_t> bad;
  read.on_bad = [&](uint64_t offset, uint64_t, const std::string&) { bad.push_back(offset); };
  got = 0;
  EXPECT_TRUE(ReadInOrder(source_, read).ok());
  EXPECT_THAT(bad, ElementsAre(kChunk));
  EXPECT_EQ(got, kBytes - kChunk);
}

TEST_F(SourceTest, CancelledAndImpossible) {
  std::atomic<bool> cancel = true;
  OrderedRead read;
  read.cancel = &cancel;
  EXPECT_EQ(CodeOf(ReadInOrder(source_, read)), ErrorCode::CANCELLED);
  source_.chunk_crcs.pop_back();
  EXPECT_EQ(CodeOf(ReadInOrder(source_, {})), ErrorCode::CORRUPT);
}

class GateTest : public ::testing::Test {
 protected:
  GateTest() : loop_(*Loop::Create(SystemClock(), 64)), gate_(*loop_) {}
  std::thread RunLoop() {
    return std::thread([this] { EXPECT_TRUE(loop_->Run().ok()); });
  }
  std::unique_ptr<Loop> loop_;
  ControlGate gate_;
};

TEST_F(GateTest, CallsRunOnTheControlThread) {
  std::thread control = RunLoop();
  auto id = gate_.Call<std::thread::id>([] { return std::this_thread::get_id(); });
  ASSERT_TRUE(id.ok());
  EXPECT_EQ(*id, control.get_id());
  EXPECT_TRUE(
      gate_.RunAsync([](const ControlGate::Done& done) { done(absl::OkStatus()); }, std::chrono::seconds(30)).ok());
  EXPECT_EQ(CodeOf(gate_.RunAsync([](const ControlGate::Done&) {}, std::chrono::milliseconds(1))), ErrorCode::TIMEOUT);
  loop_->Stop();
  control.join();
}

// The loop never runs: whoever waits, or was only posted, is told so when the gate closes.
TEST_F(GateTest, CloseLetsEverybodyGo) {
  std::atomic<int> refused = 0;
  std::atomic<bool> ran = false;
  gate_.Post([&] { ran = true; }, [&] { ++refused; });
  std::thread waiter([&] {
    EXPECT_EQ(CodeOf(gate_.Run([&] { ran = true; })), ErrorCode::CANCELLED);
    ++refused;
  });
  gate_.Close();
  waiter.join();
  EXPECT_EQ(refused, 2);
  gate_.Post([&] { ran = true; }, [&] { ++refused; });
  EXPECT_EQ(refused, 3);
  EXPECT_TRUE(loop_->RunOnce(Nanos(0)).ok());  // what was posted before finds that it was given up
  EXPECT_FALSE(ran);
}

}  // namespace
}  // namespace ckptd
