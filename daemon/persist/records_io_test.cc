// Races and crashes of attempt, decision, commit and deletion.
#include "daemon/persist/records_io.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/base/errors.h"
#include "daemon/base/log.h"
#include "daemon/format/paths.h"
#include "daemon/format/records.h"
#include "daemon/os/testing/sim_files.h"
#include "daemon/persist/testing/saved_step.h"
#include "daemon/storage/posix_store.h"
#include "daemon/storage/step_files.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint64_t kRecordsChunk = 64 << 10;
constexpr uint64_t kSeeds = 40;
constexpr char kRecordsJob[] = "gpt";
constexpr SnapshotId kRecordsId{3, 1000};

std::unique_ptr<Store> OpenStore(SimFiles& files) {
  PosixStoreOptions options;
  options.root = "/store";
  options.make_queue = [] { return MakeInlineIoQueue(2); };
  return *OpenPosixStore(files, options);
}

class RecordsIoTest : public ::testing::Test {
 protected:
  RecordsIoTest() {
    SetLogLevel(kWarning);  // thousands of deletions
    EXPECT_TRUE(files_.Mkdir("/store", 0755).ok());
    EXPECT_TRUE(files_.SyncDir("/").ok());
    store_ = OpenStore(files_);
    for (uint32_t rank = 0; rank < 2; ++rank)
      slots_.emplace_back(std::vector<uint64_t>{8192, 4096}, kRecordsChunk, rank);
  }
  absl::Status Save() { return SaveStep(*store_, SystemClock(), kRecordsJob, kRecordsId, slots_); }
  absl::Status SaveRankOnly(Rank rank) {
    return SaveRank(*store_, SystemClock(), SourceOf(kRecordsJob, rank, 2, kRecordsId, slots_[rank]), slots_[rank]);
  }

  // A manifest counts, and what it promises is not there.
  static bool Lies(Store& store) {
    auto manifest = ReadManifest(store, kRecordsJob, kRecordsId);
    if (!manifest.ok()) return false;
    for (Rank rank = 0; rank < manifest->world_size(); ++rank) {
      auto sidecar = ReadCommittedSidecar(store, kRecordsJob, *manifest, rank);
      if (!sidecar.ok() || !ReadChecked(store, ToStoredRank(kRecordsJob, *sidecar), {}).ok()) return true;
    }
    return false;
  }
  // Calls `look` with what a crash after any operation from `first` on may leave.
  void Crashes(size_t first, const std::function<void(SimFiles&, Store&)>& look) const {
    for (size_t op = first; op <= files_.OpCount(); ++op) {
      for (uint64_t seed = 0; seed < kSeeds; ++seed) {
        SCOPED_TRACE("after " + (op > 0 ? files_.OpName(op - 1) : "nothing") + ", seed " + std::to_string(seed));
        SimFiles image = files_.CrashImage(op, seed);
        if (!Exists(image, "/store").value()) continue;
        auto store = OpenStore(image);
        look(image, *store);
      }
    }
  }

  SimFiles files_;
  std::unique_ptr<Store> store_;
  std::vector<TestSlot> slots_;
};

v1::AttemptRecord Attempt(const std::string& coordinator) {
  v1::AttemptRecord record;
  record.set_job(kRecordsJob);
  record.set_attempt(3);
  record.set_coordinator(coordinator);
  return record;
}

v1::DecisionRecord Decision(uint64_t step) {
  v1::DecisionRecord record;
  record.set_job(kRecordsJob);
  record.set_attempt(3);
  record.mutable_parent()->set_attempt(2);
  record.mutable_parent()->set_step(step);
  return record;
}

TEST_F(RecordsIoTest, OneAgentWinsTheAttempt) {
  EXPECT_TRUE(CreateAttempt(*store_, Attempt("a")).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(CreateAttempt(*store_, Attempt("b"))));
  EXPECT_EQ(ReadAttempt(*store_, kRecordsJob, 3)->coordinator(), "a");
}

TEST_F(RecordsIoTest, TheFirstDecisionStands) {
  EXPECT_EQ(CreateDecision(*store_, Decision(500))->parent().step(), 500u);
  EXPECT_EQ(CreateDecision(*store_, Decision(600))->parent().step(), 500u);
}

TEST_F(RecordsIoTest, ADecisionThatWasToldSurvives) {
  ASSERT_TRUE(CreateDecision(*store_, Decision(500)).ok());
  const size_t told = files_.OpCount();
  Crashes(told, [](SimFiles&, Store& store) {
    auto read = ReadDecision(store, kRecordsJob, 3);
    ASSERT_TRUE(read.ok() && read->has_value()) << read.status();
    EXPECT_EQ((*read)->parent().step(), 500u);
  });
}

TEST_F(RecordsIoTest, ADecisionThatCannotBeReadIsAnErrorNotANewDecision) {
  ASSERT_TRUE(store_->CreateExclusive(DecisionPath(kRecordsJob, 3), "torn").ok());
  EXPECT_EQ(CodeOf(CreateDecision(*store_, Decision(600)).status()), ErrorCode::CORRUPT);
}

std::vector<std::string> NamesIn(Store& store, const std::string& directory) {
  std::vector<std::string> names;
  const std::vector<DirEntry> entries = *store.List(directory);
  names.reserve(entries.size());
  for (const DirEntry& entry : entries) names.push_back(entry.name);
  return names;
}

void PutRecords(Store& store, AttemptId attempts) {
  for (AttemptId attempt = 1; attempt <= attempts; ++attempt) {
    v1::AttemptRecord record = Attempt("a");
    record.set_attempt(attempt);
    ASSERT_TRUE(CreateAttempt(store, record).ok());
    v1::DecisionRecord decision = Decision(attempt);
    decision.set_attempt(attempt);
    ASSERT_TRUE(CreateDecision(store, decision).ok());
  }
}

TEST_F(RecordsIoTest, WhatIsNeedlessIsPruned) {
  PutRecords(*store_, 4);
  ASSERT_TRUE(store_->CreateExclusive(AttemptsPath(kRecordsJob) + "/notes.txt", "mine").ok());
  EXPECT_EQ(*PruneRecords(*store_, kRecordsJob, 4, {1, 3}), 4u);
  EXPECT_THAT(NamesIn(*store_, AttemptsPath(kRecordsJob)),
              ElementsAre("a0002.decided.json", "a0004.decided.json", "a0004.json", "notes.txt"));
}

TEST_F(RecordsIoTest, OnlyTheNewestAttemptPrunes) {
  PutRecords(*store_, 4);
  const auto before = NamesIn(*store_, AttemptsPath(kRecordsJob));
  EXPECT_EQ(*PruneRecords(*store_, kRecordsJob, 3, {1, 2}), 4u);
  EXPECT_EQ(*PruneRecords(*store_, kRecordsJob, 5, {1, 2}), 4u) << "it has no record";
  EXPECT_EQ(NamesIn(*store_, AttemptsPath(kRecordsJob)), before);
}

// Each is durably gone before the next goes, so that much at a time would hold up other work for long.
TEST_F(RecordsIoTest, WhatManyYearsLeftGoesInParts) {
  PutRecords(*store_, 400);
  std::vector<AttemptId> needless;
  for (AttemptId attempt = 1; attempt < 400; ++attempt) needless.push_back(attempt);
  ASSERT_TRUE(PruneRecords(*store_, kRecordsJob, 400, needless).ok());
  EXPECT_THAT(NamesIn(*store_, AttemptsPath(kRecordsJob)), ::testing::SizeIs(300));
  ASSERT_TRUE(PruneRecords(*store_, kRecordsJob, 400, needless).ok());
  EXPECT_THAT(NamesIn(*store_, AttemptsPath(kRecordsJob)), ElementsAre("a0400.decided.json", "a0400.json"));
}

TEST_F(RecordsIoTest, ACrashWhilePruningLeavesTheNewest) {
  PutRecords(*store_, 4);
  const size_t first = files_.OpCount();
  ASSERT_TRUE(PruneRecords(*store_, kRecordsJob, 4, {1, 2}).ok());
  Crashes(first, [](SimFiles&, Store& store) {
    EXPECT_EQ(*NewestAttempt(store, kRecordsJob), 4u);
    const auto listing = ListJob(store, kRecordsJob);
    ASSERT_TRUE(listing.ok()) << listing.status();
    EXPECT_EQ(listing->decisions.back().attempt(), 4u);
    EXPECT_TRUE(PruneRecords(store, kRecordsJob, 4, {1, 2}).ok());
    EXPECT_EQ(ListJob(store, kRecordsJob)->decisions.size(), 2u);
  });
}

TEST_F(RecordsIoTest, NoManifestWithoutAllSidecars) {
  ASSERT_TRUE(SaveRankOnly(0).ok());
  EXPECT_EQ(CodeOf(CreateManifest(*store_, kRecordsJob, kRecordsId, 2)), ErrorCode::NOT_FOUND);
  EXPECT_FALSE(store_->Stat(InStep(kRecordsJob, kRecordsId, kManifestName)).ok());
  ASSERT_TRUE(SaveRankOnly(1).ok());
  EXPECT_TRUE(CreateManifest(*store_, kRecordsJob, kRecordsId, 2).ok());
  EXPECT_TRUE(CreateManifest(*store_, kRecordsJob, kRecordsId, 2).ok())
      << "another one was faster, with the same content";
}

TEST_F(RecordsIoTest, SidecarsOfAnotherSnapshotAreNotCommitted) {
  const SnapshotId other{2, 1000};
  ASSERT_TRUE(SaveStep(*store_, SystemClock(), kRecordsJob, other, slots_).ok());
  for (Rank rank = 0; rank < 2; ++rank) {
    std::string text = *store_->ReadSmall(InStep(kRecordsJob, other, SidecarFileName(rank, 2)), kMaxSidecarBytes);
    ASSERT_TRUE(store_->CreateExclusive(InStep(kRecordsJob, kRecordsId, SidecarFileName(rank, 2)), text).ok());
  }
  EXPECT_EQ(CodeOf(CreateManifest(*store_, kRecordsJob, kRecordsId, 2)), ErrorCode::CORRUPT);
}

TEST_F(RecordsIoTest, ACommitNeverLies) {
  ASSERT_TRUE(Save().ok());
  size_t committed = 0;
  Crashes(0, [&](SimFiles&, Store& store) {
    EXPECT_FALSE(Lies(store));
    committed += ReadManifest(store, kRecordsJob, kRecordsId).ok() ? 1 : 0;
  });
  EXPECT_GT(committed, 0u);
}

TEST_F(RecordsIoTest, MarkersOfLowerAttemptsAreTakenOver) {
  ASSERT_TRUE(Save().ok());
  ASSERT_TRUE(PutMarker(*store_, kRecordsJob, kRecordsId, 4).ok());
  EXPECT_TRUE(PutMarker(*store_, kRecordsJob, kRecordsId, 4).ok()) << "mine already";
  EXPECT_TRUE(PutMarker(*store_, kRecordsJob, kRecordsId, 6).ok());
  EXPECT_EQ(ListStep(*store_, kRecordsJob, kRecordsId)->marker, 6u);
  EXPECT_EQ(CodeOf(PutMarker(*store_, kRecordsJob, kRecordsId, 5).status()), ErrorCode::FENCED);
  EXPECT_EQ(ListStep(*store_, kRecordsJob, kRecordsId)->marker, 6u);
}

// Pinned on a node whose agent does not coordinate the job: the coordinator hears of it here.
TEST_F(RecordsIoTest, APinnedStepIsNotMarked) {
  ASSERT_TRUE(Save().ok());
  ASSERT_TRUE(SetPinned(*store_, kRecordsJob, kRecordsId, true).ok());
  const absl::StatusOr<bool> put = PutMarker(*store_, kRecordsJob, kRecordsId, 4);
  ASSERT_TRUE(put.ok()) << put.status();
  EXPECT_FALSE(*put);
  EXPECT_EQ(ListStep(*store_, kRecordsJob, kRecordsId)->marker, 0u);
  ASSERT_TRUE(SetPinned(*store_, kRecordsJob, kRecordsId, false).ok());
  EXPECT_TRUE(*PutMarker(*store_, kRecordsJob, kRecordsId, 4));
}

TEST_F(RecordsIoTest, AStepThatIsBeingDeletedCannotBePinned) {
  ASSERT_TRUE(Save().ok());
  ASSERT_TRUE(PutMarker(*store_, kRecordsJob, kRecordsId, 4).ok());
  EXPECT_EQ(CodeOf(SetPinned(*store_, kRecordsJob, kRecordsId, true)), ErrorCode::REFUSED);
  EXPECT_FALSE(ListStep(*store_, kRecordsJob, kRecordsId)->pinned);
  EXPECT_TRUE(DeleteStep(*store_, kRecordsJob, kRecordsId).ok());
}

// Whatever a killed `pin` left does not bring back what was being deleted.
TEST_F(RecordsIoTest, APinOnWhatIsLeftOfADeletionDoesNotHoldIt) {
  ASSERT_TRUE(Save().ok());
  ASSERT_TRUE(PutMarker(*store_, kRecordsJob, kRecordsId, 4).ok());
  ASSERT_TRUE(store_->Delete(InStep(kRecordsJob, kRecordsId, kManifestName)).ok());
  ASSERT_TRUE(store_->CreateExclusive(InStep(kRecordsJob, kRecordsId, kPinnedName), "").ok());
  EXPECT_TRUE(*PutMarker(*store_, kRecordsJob, kRecordsId, 4));
}

TEST_F(RecordsIoTest, ATornMarkerIsTakenOver) {
  ASSERT_TRUE(Save().ok());
  ASSERT_TRUE(store_->CreateExclusive(InStep(kRecordsJob, kRecordsId, kDeletingName), "?").ok());
  EXPECT_TRUE(PutMarker(*store_, kRecordsJob, kRecordsId, 4).ok());
  EXPECT_EQ(ListStep(*store_, kRecordsJob, kRecordsId)->marker, 4u);
}

// A crash anywhere in a deletion, then the deletion again.
TEST_F(RecordsIoTest, ADeletionNeverLeavesAManifestWithoutItsFilesAndCanBeRepeated) {
  ASSERT_TRUE(Save().ok());
  const size_t first = files_.OpCount();
  ASSERT_TRUE(PutMarker(*store_, kRecordsJob, kRecordsId, 4).ok());
  ASSERT_TRUE(DeleteStep(*store_, kRecordsJob, kRecordsId).ok());
  size_t gone = 0;
  Crashes(first, [&](SimFiles& image, Store& store) {
    EXPECT_FALSE(Lies(store));
    gone += Exists(image, "/store/" + StepPath(kRecordsJob, kRecordsId)).value() ? 0 : 1;
    ASSERT_TRUE(PutMarker(store, kRecordsJob, kRecordsId, 4).ok());
    ASSERT_TRUE(DeleteStep(store, kRecordsJob, kRecordsId).ok());
    EXPECT_FALSE(Exists(image, "/store/" + StepPath(kRecordsJob, kRecordsId)).value());
  });
  EXPECT_GT(gone, 0u);
}

// The check of the check: without the fsync after the manifest's removal, files vanish below a manifest that stays.
TEST_F(RecordsIoTest, TheManifestIsDurablyGoneBeforeTheFirstFileGoes) {
  ASSERT_TRUE(Save().ok());
  const size_t first = files_.OpCount();
  files_.DropSync(0);
  ASSERT_TRUE(DeleteStep(*store_, kRecordsJob, kRecordsId).ok());
  size_t lies = 0;
  Crashes(first, [&](SimFiles&, Store& store) { lies += Lies(store) ? 1 : 0; });
  EXPECT_GT(lies, 0u);
}

TEST_F(RecordsIoTest, DeletionLeavesForeignNames) {
  ASSERT_TRUE(Save().ok());
  ASSERT_TRUE(SetPinned(*store_, kRecordsJob, kRecordsId, true).ok());
  const std::string foreign = InStep(kRecordsJob, kRecordsId, "notes.txt");
  ASSERT_TRUE(store_->CreateExclusive(foreign, "mine").ok());
  ASSERT_TRUE(DeleteStep(*store_, kRecordsJob, kRecordsId).ok());
  auto left = *store_->List(StepPath(kRecordsJob, kRecordsId));
  EXPECT_THAT(left, ElementsAre(::testing::Field(&DirEntry::name, "notes.txt")));
  EXPECT_TRUE(DeleteStep(*store_, kRecordsJob, kRecordsId).ok());
  ASSERT_TRUE(store_->Delete(foreign).ok());
  EXPECT_TRUE(DeleteStep(*store_, kRecordsJob, kRecordsId).ok());
  EXPECT_FALSE(Exists(files_, "/store/" + StepPath(kRecordsJob, kRecordsId)).value());
}

TEST_F(RecordsIoTest, DeletionOfWhatIsNotThereIsDone) {
  EXPECT_TRUE(DeleteStep(*store_, kRecordsJob, kRecordsId).ok());
  EXPECT_THAT(*store_->List(""), IsEmpty());
}

TEST_F(RecordsIoTest, Pins) {
  ASSERT_TRUE(Save().ok());
  for (bool pinned : {true, true, false, false}) {
    ASSERT_TRUE(SetPinned(*store_, kRecordsJob, kRecordsId, pinned).ok());
    EXPECT_EQ(ListStep(*store_, kRecordsJob, kRecordsId)->pinned, pinned);
  }
}

}  // namespace
}  // namespace ckptd
