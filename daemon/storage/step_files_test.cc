// What a listing of a job says, also of damaged, half-made and foreign things.
#include "daemon/storage/step_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/format/paths.h"
#include "daemon/format/records.h"
#include "daemon/os/posix_files.h"
#include "daemon/os/testing/files_around.h"
#include "daemon/os/testing/sim_files.h"
#include "daemon/os/testing/temp_dir.h"
#include "daemon/storage/posix_store.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr SnapshotId kId{3, 1000};
constexpr uint32_t kWorld = 2;

class StepFilesTest : public ::testing::Test {
 protected:
  StepFilesTest() {
    PosixStoreOptions options;
    options.root = dir_.path();
    options.make_queue = [] { return MakeInlineIoQueue(4); };
    store_ = *OpenPosixStore(PosixFiles(), options);
  }

  static std::string Sidecar(Rank rank, const SnapshotId& id, uint32_t images = 1) {
    v1::Sidecar sidecar;
    sidecar.set_job("gpt");
    sidecar.set_rank(rank);
    sidecar.set_world_size(kWorld);
    sidecar.set_attempt(id.attempt);
    sidecar.set_step(id.step);
    for (uint32_t i = 0; i < images; ++i) {
      v1::SidecarImage* image = sidecar.add_images();
      image->set_name(ImageFileName(rank, kWorld, i));
      image->set_bytes(8192);
      image->set_header_bytes(4096);
    }
    sidecar.set_chunk_bytes(65536);
    sidecar.set_slot_bytes(uint64_t{8192} * images);
    sidecar.add_chunk_crc32c(rank);
    sidecar.set_flushed_unix_ns(77);
    return SidecarText(sidecar);
  }
  void Put(const std::string& name, const std::string& text) { ASSERT_TRUE(store_->CreateExclusive(name, text).ok()); }
  void PutSidecar(Rank rank, const SnapshotId& id) {
    Put(InStep("gpt", id, SidecarFileName(rank, kWorld)), Sidecar(rank, id));
  }
  void Commit(const SnapshotId& id) {
    for (Rank rank = 0; rank < kWorld; ++rank) PutSidecar(rank, id);
    Put(InStep("gpt", id, kManifestName), ManifestText(*MakeManifest({Sidecar(0, id), Sidecar(1, id)})));
  }
  void PutDecision(AttemptId attempt, const SnapshotId& parent = {}) {
    v1::DecisionRecord decision;
    decision.set_job("gpt");
    decision.set_attempt(attempt);
    decision.mutable_parent()->set_attempt(parent.attempt);
    decision.mutable_parent()->set_step(parent.step);
    decision.add_lineage()->set_attempt(attempt - 1);
    Put(DecisionPath("gpt", attempt), DecisionText(decision));
  }
  void Replace(const std::string& name, const std::string& text) {
    ASSERT_TRUE(store_->Delete(name).ok());
    Put(name, text);
  }
  StepListing Only() {
    auto listing = ListJob(*store_, "gpt");
    EXPECT_TRUE(listing.ok() && listing->steps.size() == 1) << listing.status();
    return listing->steps.at(0);
  }

  TempDir dir_;
  std::unique_ptr<Store> store_;
};

TEST_F(StepFilesTest, NothingIsThere) {
  EXPECT_THAT(*ListJobs(*store_), IsEmpty());
  auto listing = ListJob(*store_, "gpt");
  ASSERT_TRUE(listing.ok());
  EXPECT_THAT(listing->steps, IsEmpty());
  EXPECT_EQ(listing->newest_attempt, 0u);
  EXPECT_EQ(*NewestAttempt(*store_, "gpt"), 0u);
  EXPECT_EQ(CodeOf(ReadManifest(*store_, "gpt", kId).status()), ErrorCode::NOT_FOUND);
}

TEST_F(StepFilesTest, JobsAreDirectoriesWithGoodNames) {
  Commit(kId);
  Put("file", "x");
  ASSERT_TRUE(PosixFiles().Mkdir(dir_.path() + "/.hidden", 0700).ok());
  EXPECT_THAT(*ListJobs(*store_), ElementsAre("gpt"));
}

TEST_F(StepFilesTest, ACommittedStep) {
  Commit(kId);
  StepListing step = Only();
  EXPECT_EQ(step.id, kId);
  EXPECT_TRUE(step.committed);
  EXPECT_FALSE(step.pinned);
  EXPECT_EQ(step.world, kWorld);
  EXPECT_THAT(step.sidecars, ElementsAre(0, 1));
  EXPECT_EQ(step.bytes, 16384u);
  EXPECT_EQ(step.created_unix_ns, 77);
  EXPECT_EQ(step.marker, 0u);
  EXPECT_THAT(step.damage, IsEmpty());
}

TEST_F(StepFilesTest, APartOfAStepIsNotCommitted) {
  PutSidecar(1, kId);
  StepListing step = Only();
  EXPECT_FALSE(step.committed);
  EXPECT_EQ(step.world, kWorld);
  EXPECT_THAT(step.sidecars, ElementsAre(1));
}

TEST_F(StepFilesTest, ADamagedManifestIsAFactNotAnError) {
  Commit(kId);
  const std::string name = InStep("gpt", kId, kManifestName);
  std::string text = *store_->ReadSmall(name, kMaxManifestBytes);
  text[text.size() / 2] ^= 1;
  ASSERT_TRUE(store_->Delete(name).ok());
  Put(name, text);
  EXPECT_FALSE(Only().committed);
  EXPECT_THAT(Only().damage, HasSubstr("checksum"));
}

TEST_F(StepFilesTest, AManifestOfAnotherStepDoesNotCount) {
  PutSidecar(0, kId);
  const SnapshotId other{3, 900};
  Put(InStep("gpt", kId, kManifestName), ManifestText(*MakeManifest({Sidecar(0, other), Sidecar(1, other)})));
  EXPECT_FALSE(Only().committed);
  EXPECT_THAT(Only().damage, HasSubstr("another snapshot"));
}

TEST_F(StepFilesTest, MarkersAndPins) {
  Commit(kId);
  Put(InStep("gpt", kId, kDeletingName), MarkerText(5));
  Put(InStep("gpt", kId, kPinnedName), "pinned\n");
  EXPECT_EQ(Only().marker, 5u);
  EXPECT_TRUE(Only().pinned);
}

TEST_F(StepFilesTest, AMarkerThatCannotBeReadIsNeverVoid) {
  Commit(kId);
  Put(InStep("gpt", kId, kDeletingName), "torn");
  EXPECT_EQ(Only().marker, ~AttemptId{0});
}

TEST_F(StepFilesTest, ForeignNamesAreNobodysBusiness) {
  Put("gpt/notes.txt", "x");
  Put("gpt/step-1000.a3/x", "too few digits");
  Put("gpt/attempts/a3.json", "too few digits");
  auto listing = ListJob(*store_, "gpt");
  ASSERT_TRUE(listing.ok());
  EXPECT_THAT(listing->steps, IsEmpty());
  EXPECT_EQ(listing->newest_attempt, 0u);
}

TEST_F(StepFilesTest, DecisionsAreSortedAndBoundToTheirNames) {
  for (AttemptId attempt : {10000, 2, 9999}) {
    v1::AttemptRecord record;
    record.set_job("gpt");
    record.set_attempt(attempt);
    Put(AttemptPath("gpt", attempt), AttemptText(record));
    v1::DecisionRecord decision;
    decision.set_job("gpt");
    decision.set_attempt(attempt);
    Put(DecisionPath("gpt", attempt), DecisionText(decision));
  }
  auto listing = ListJob(*store_, "gpt");
  ASSERT_TRUE(listing.ok()) << listing.status();
  std::vector<AttemptId> order;
  for (const auto& decision : listing->decisions) order.push_back(decision.attempt());
  EXPECT_THAT(order, ElementsAre(2, 9999, 10000));
  EXPECT_EQ(listing->newest_attempt, 10000u);
  EXPECT_EQ(*NewestAttempt(*store_, "gpt"), 10000u);
  EXPECT_EQ(ReadAttempt(*store_, "gpt", 2)->attempt(), 2u);
  EXPECT_FALSE(ReadDecision(*store_, "gpt", 3)->has_value()) << "no decision is no error";

  v1::DecisionRecord foreign;
  foreign.set_job("gpt");
  foreign.set_attempt(2);
  Put(DecisionPath("gpt", 7), DecisionText(foreign));
  EXPECT_EQ(CodeOf(ReadDecision(*store_, "gpt", 7).status()), ErrorCode::CORRUPT);
}

TEST_F(StepFilesTest, OnlyTheDecisionThatIsAskedForKeepsItsLineage) {
  for (AttemptId attempt = 2; attempt <= 5; ++attempt) {
    v1::DecisionRecord decision;
    decision.set_job("gpt");
    decision.set_attempt(attempt);
    decision.mutable_parent()->set_step(attempt);
    decision.add_lineage()->set_attempt(attempt - 1);
    Put(DecisionPath("gpt", attempt), DecisionText(decision));
  }
  const auto with_lineage = [&](AttemptId before) {
    std::vector<AttemptId> found;
    const auto listing = ListJob(*store_, "gpt", before);
    for (const auto& decision : listing->decisions) {
      EXPECT_EQ(decision.parent().step(), decision.attempt());
      if (decision.lineage_size() > 0) found.push_back(decision.attempt());
    }
    EXPECT_EQ(listing->decisions.size(), 4u);
    return found;
  };
  EXPECT_THAT(with_lineage(UINT64_MAX), ElementsAre(5));
  EXPECT_THAT(with_lineage(4), ElementsAre(3));
  EXPECT_THAT(with_lineage(2), IsEmpty());
}

TEST_F(StepFilesTest, AnOldDecisionThatIsDamagedIsLeftOutAndNamed) {
  for (AttemptId attempt = 2; attempt <= 5; ++attempt) PutDecision(attempt);
  Replace(DecisionPath("gpt", 2), "{");
  Replace(DecisionPath("gpt", 3), "");
  Commit(kId);
  const auto listing = ListJob(*store_, "gpt");
  ASSERT_TRUE(listing.ok()) << listing.status();
  std::vector<AttemptId> order;
  for (const auto& decision : listing->decisions) order.push_back(decision.attempt());
  EXPECT_THAT(order, ElementsAre(4, 5));
  EXPECT_THAT(listing->unreadable, ElementsAre(3, 2));
  EXPECT_EQ(listing->decisions.back().lineage_size(), 1);
  EXPECT_EQ(listing->steps.size(), 1u);
}

// It is the history: what goes on from an older one leaves it.
TEST_F(StepFilesTest, TheNewestDecisionIsNeverLeftOut) {
  for (AttemptId attempt = 2; attempt <= 5; ++attempt) PutDecision(attempt);
  Replace(DecisionPath("gpt", 3), "{");
  EXPECT_TRUE(ListJob(*store_, "gpt", 5).ok());
  const absl::Status asked_for = ListJob(*store_, "gpt", 4).status();
  EXPECT_EQ(CodeOf(asked_for), ErrorCode::CORRUPT);
  EXPECT_THAT(std::string(asked_for.message()), HasSubstr("a0003.decided.json"));
  Replace(DecisionPath("gpt", 5), "{");
  EXPECT_EQ(CodeOf(ListJob(*store_, "gpt").status()), ErrorCode::CORRUPT);
}

// Whichever call it is that fails: what the storage does not give is not damaged.
TEST_F(StepFilesTest, AnOldDecisionThatTheStorageDoesNotGiveIsAnError) {
  SimFiles files;
  ASSERT_TRUE(files.Mkdir("/store", 0755).ok());
  PosixStoreOptions options;
  options.root = "/store";
  options.make_queue = [] { return MakeInlineIoQueue(4); };
  store_ = *OpenPosixStore(files, options);
  for (AttemptId attempt = 3; attempt <= 5; ++attempt) PutDecision(attempt);
  const size_t before = files.CallCount();
  ASSERT_TRUE(ListJob(*store_, "gpt").ok());
  const size_t calls = files.CallCount() - before;
  EXPECT_GT(calls, 5u);
  for (size_t call = 0; call < calls; ++call) {
    files.FailCall(call, EIO);
    EXPECT_EQ(CodeOf(ListJob(*store_, "gpt").status()), ErrorCode::STORAGE_IO) << call;
  }
}

TEST_F(StepFilesTest, ADamagedDecisionThatMayHaveVoidedAMarkerIsAnError) {
  for (AttemptId attempt = 3; attempt <= 6; ++attempt) PutDecision(attempt);
  Commit(kId);
  const std::string marker = InStep("gpt", kId, kDeletingName);
  Put(marker, MarkerText(4));
  EXPECT_TRUE(ListJob(*store_, "gpt").ok());
  Replace(DecisionPath("gpt", 5), "{");
  const absl::Status status = ListJob(*store_, "gpt").status();
  EXPECT_EQ(CodeOf(status), ErrorCode::CORRUPT);
  for (const std::string& named : {DecisionPath("gpt", 5), marker, std::string("step 1000 ")}) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(named));
  }
  Replace(marker, MarkerText(5));
  EXPECT_TRUE(ListJob(*store_, "gpt").ok()) << "only a decision above the marker voids it";
  Replace(marker, "torn");
  EXPECT_TRUE(ListJob(*store_, "gpt").ok()) << "never void";
  Replace(marker, MarkerText(4));
  PutDecision(7, kId);
  EXPECT_TRUE(ListJob(*store_, "gpt").ok()) << "void by another one";
}

// Another agent does something when `path` is about to be read for the first time.
class FilesWithAnother final : public FilesAround {
 public:
  FilesWithAnother(Files& inner, std::string path, std::function<void()> other)
      : FilesAround(inner), path_(std::move(path)), other_(std::move(other)) {}
  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, const OpenOptions& options) override {
    if (path == path_ && other_) std::exchange(other_, nullptr)();
    return FilesAround::Open(path, options);
  }

 private:
  const std::string path_;
  std::function<void()> other_;
};

// The history of who lists would be of an older decision, or of none.
TEST_F(StepFilesTest, AListingWhoseHistoryIsPrunedMeanwhileBeginsAnew) {
  for (AttemptId attempt = 2; attempt <= 3; ++attempt) PutDecision(attempt);
  FilesWithAnother files(PosixFiles(), absl::StrCat(dir_.path(), "/", DecisionPath("gpt", 3)), [&] {
    v1::AttemptRecord record;
    record.set_job("gpt");
    record.set_attempt(5);
    Put(AttemptPath("gpt", 5), AttemptText(record));
    PutDecision(5);
    ASSERT_TRUE(store_->Delete(DecisionPath("gpt", 3)).ok());
  });
  PosixStoreOptions options;
  options.root = dir_.path();
  options.make_queue = [] { return MakeInlineIoQueue(4); };
  const auto listing = ListJob(**OpenPosixStore(files, options), "gpt", 4);
  ASSERT_TRUE(listing.ok()) << listing.status();
  EXPECT_EQ(listing->newest_attempt, 5u) << "so that attempt 4 knows that it is not the newest";
  EXPECT_EQ(listing->decisions.size(), 2u);
}

TEST_F(StepFilesTest, OnlyTheSidecarThatWasCommittedCounts) {
  Commit(kId);
  auto manifest = ReadManifest(*store_, "gpt", kId);
  ASSERT_TRUE(manifest.ok());
  EXPECT_EQ(ReadCommittedSidecar(*store_, "gpt", *manifest, 1)->rank(), 1u);
  EXPECT_EQ(CodeOf(ReadCommittedSidecar(*store_, "gpt", *manifest, 2).status()), ErrorCode::NOT_FOUND);
  const std::string name = InStep("gpt", kId, SidecarFileName(1, kWorld));
  ASSERT_TRUE(store_->Delete(name).ok());
  EXPECT_EQ(CodeOf(ReadCommittedSidecar(*store_, "gpt", *manifest, 1).status()), ErrorCode::NOT_FOUND);
  Put(name, Sidecar(1, kId, /*images=*/2));
  EXPECT_TRUE(ReadSidecar(*store_, "gpt", kId, 1, kWorld).ok()) << "whole in itself";
  EXPECT_EQ(CodeOf(ReadCommittedSidecar(*store_, "gpt", *manifest, 1).status()), ErrorCode::CORRUPT);
}

TEST_F(StepFilesTest, ASidecarUnderAnotherRanksNameIsRefused) {
  Put(InStep("gpt", kId, SidecarFileName(1, kWorld)), Sidecar(0, kId));
  EXPECT_EQ(CodeOf(ReadSidecar(*store_, "gpt", kId, 1, kWorld).status()), ErrorCode::CORRUPT);
}

}  // namespace
}  // namespace ckptd
