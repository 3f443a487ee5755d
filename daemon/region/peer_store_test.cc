#include "daemon/region/peer_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "daemon/region/peer_test_util.h"
#include "daemon/region/salvage.h"

namespace ckptd::region {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// ---------------------------------------------------------------------------------------------------------- filling

TEST_F(PeerStoreTest, ACopyIsListedWhenItIsCompleteAndReadBack) {
  ASSERT_TRUE(Prepare(store(), spec_).ok());
  EXPECT_THAT(store().List(), IsEmpty());
  auto fill = store().Begin(spec_, {1, 10}, Marks(1));
  ASSERT_TRUE(fill.ok()) << fill.status();
  ASSERT_EQ(store().List().size(), 1u);
  EXPECT_FALSE(store().List()[0].complete);
  EXPECT_EQ(store().List()[0].missing_chunks, 3u);
  EXPECT_EQ(CodeOf(store().OpenCopy("gpt", spec_.key(), {1, 10}).status()), ErrorCode::NOT_FOUND);
  ASSERT_TRUE(Receive(**fill, ContentOf({1, 10})).ok());
  ASSERT_TRUE(store().Complete(**fill, SealOf({1, 10}, ContentOf({1, 10}))).ok());
  const PeerEntry entry = store().List().at(0);
  EXPECT_TRUE(entry.complete && entry.verified && !entry.durable && entry.held);
  EXPECT_EQ(entry.job, "gpt");
  EXPECT_EQ(entry.key, (PeerKey{PeerKind::kCopy, 7}));
  EXPECT_EQ(entry.id, (SnapshotId{1, 10}));
  EXPECT_EQ(entry.world, 8u);
  EXPECT_EQ(entry.layout_crc, 7u);
  EXPECT_EQ(entry.slot_bytes, kTestSlotBytes);
  EXPECT_TRUE(IsWhole(store(), spec_, {1, 10}));
}

TEST_F(PeerStoreTest, WhatIsMissingOrWrongIsNeverComplete) {
  ASSERT_TRUE(Prepare(store(), spec_).ok());
  auto fill = store().Begin(spec_, {1, 10}, Marks(1));
  const auto content = ContentOf({1, 10});
  EXPECT_EQ(CodeOf((*fill)->CheckChunk(0, CrcsOf(content)[0])), ErrorCode::CORRUPT) << "nothing arrived yet";
  std::memcpy((*fill)->bytes().data(), content.data(), content.size());
  ASSERT_TRUE((*fill)->CheckChunk(0, CrcsOf(content)[0]).ok());
  ASSERT_TRUE((*fill)->ChunkVerified(0, CrcsOf(content)[0]).ok()) << "said twice";
  EXPECT_EQ(CodeOf((*fill)->ChunkVerified(0, 1)), ErrorCode::CORRUPT);
  ASSERT_TRUE((*fill)->ChunkVerified(2, CrcsOf(content)[2]).ok());
  absl::Status missing = store().Complete(**fill, SealOf({1, 10}, content));
  EXPECT_EQ(CodeOf(missing), ErrorCode::REFUSED);
  EXPECT_THAT(missing.message(), HasSubstr("job gpt rank 7 step 10.a1: 1 of 3 chunks are missing, the first is 1"));
  ASSERT_TRUE((*fill)->CheckChunk(1, CrcsOf(content)[1]).ok());
  PeerSeal wrong = SealOf({1, 10}, content);
  wrong.root_crc ^= 1;
  EXPECT_EQ(CodeOf(store().Complete(**fill, wrong)), ErrorCode::CORRUPT);
  EXPECT_EQ(CodeOf(store().Complete(**fill, SealOf({1, 11}, content))), ErrorCode::INVALID_ARGUMENT);
  EXPECT_THAT(CompleteIn(store()), IsEmpty());
  EXPECT_TRUE(store().Complete(**fill, SealOf({1, 10}, content)).ok()) << "none of that ended it";
}

TEST_F(PeerStoreTest, ThePreviousStepStaysUntilTheNextIsComplete) {
  ASSERT_TRUE(Store(store(), spec_, {1, 10}, Marks(1)).ok());
  ASSERT_TRUE(Store(store(), spec_, {1, 20}, Marks(1, 10)).ok());
  auto fill = store().Begin(spec_, {1, 30}, Marks(1, 20));
  ASSERT_TRUE(fill.ok()) << fill.status();
  EXPECT_THAT(CompleteIn(store()), ElementsAre(SnapshotId{1, 20}));
  EXPECT_TRUE(IsWhole(store(), spec_, {1, 20}));
  ASSERT_TRUE(store().Abort(**fill).ok());
  EXPECT_TRUE(IsWhole(store(), spec_, {1, 20}));
}

// Rank 7 has 10 and 20, other ranks only 10: giving up 10 would leave no step that all ranks have.
TEST_F(PeerStoreTest, TheStepThatAllRanksHaveStaysThoughThisRankHasANewer) {
  ASSERT_TRUE(Store(store(), spec_, {1, 10}, Marks(1)).ok());
  ASSERT_TRUE(Store(store(), spec_, {1, 20}, Marks(1, 10, 10)).ok());
  auto waits = store().Begin(spec_, {1, 30}, Marks(1, 20, 10));
  EXPECT_EQ(CodeOf(waits.status()), ErrorCode::BUSY);
  EXPECT_THAT(waits.status().message(), HasSubstr("job gpt rank 7: no slot is free yet: step 10.a1 is still needed"));
  EXPECT_TRUE(store().Begin(spec_, {1, 30}, Marks(1, 20, 20)).ok());
  EXPECT_THAT(CompleteIn(store()), ElementsAre(SnapshotId{1, 20}));
}

TEST_F(PeerStoreTest, ALateWriterNeverTouchesTheNextCopy) {
  ASSERT_TRUE(Store(store(), spec_, {1, 10}, Marks(1)).ok());
  auto late = *store().Begin(spec_, {1, 20}, Marks(1, 10, 10));
  auto next = store().Begin(spec_, {1, 30}, Marks(1, 10, 10));
  EXPECT_EQ(CodeOf(next.status()), ErrorCode::BUSY) << "it may still write";
  EXPECT_TRUE(late->fenced());
  EXPECT_EQ(CodeOf(late->ChunkVerified(0, 1)), ErrorCode::FENCED);
  EXPECT_EQ(CodeOf(store().Complete(*late, SealOf({1, 20}, ContentOf({1, 20})))), ErrorCode::FENCED);
  late->bytes()[0] = std::byte{1};
  EXPECT_TRUE(IsWhole(store(), spec_, {1, 10}));
  late.reset();
  EXPECT_TRUE(Store(store(), spec_, {1, 30}, Marks(1, 10, 10)).ok());
}

// One thread for each chunk, as from a network, while the control thread looks and every other time fences.
TEST_F(PeerStoreTest, ChunksArriveOnManyThreads) {
  ASSERT_TRUE(Prepare(store(), spec_).ok());
  for (AttemptId attempt = 1; attempt <= 40; attempt += 2) {
    const SnapshotId id{attempt, 10};
    const auto content = ContentOf(id);
    const std::vector<uint32_t> crcs = CrcsOf(content);
    auto fill = *store().Begin(spec_, id, Marks(attempt));
    std::vector<std::thread> writers;
    for (size_t chunk = 0; chunk < fill->chunk_count(); ++chunk)
      writers.emplace_back([&content, &crcs, chunk, writes = fill] {
        std::memcpy(writes->Chunk(chunk)->data(), content.data() + chunk * kTestChunkBytes,
                    writes->Chunk(chunk)->size());
        EXPECT_TRUE(writes->CheckChunk(chunk, crcs[chunk]).ok() || writes->fenced());
      });
    const bool fence = attempt % 4 == 3;
    EXPECT_LE(store().List().back().missing_chunks, fill->chunk_count());
    if (fence) {
      EXPECT_TRUE(store().Tell("gpt", Marks(attempt + 1)).ok());
    }
    for (std::thread& writer : writers) writer.join();
    const absl::Status done = store().Complete(*fill, SealOf(id, content));
    EXPECT_EQ(CodeOf(done), fence ? ErrorCode::FENCED : ErrorCode::OK) << done;
    EXPECT_EQ(IsWhole(store(), spec_, id), !fence);
  }
}

TEST_F(PeerStoreTest, AnOlderAttemptIsShutOutAlsoAfterARestart) {
  ASSERT_TRUE(Store(store(), spec_, {1, 10}, Marks(1)).ok());
  auto old = *store().Begin(spec_, {1, 20}, Marks(1, 10));
  ASSERT_TRUE(store().Tell("gpt", Marks(2)).ok());
  EXPECT_TRUE(old->fenced());
  EXPECT_EQ(CodeOf(store().Begin(spec_, {1, 30}, Marks(1, 10)).status()), ErrorCode::FENCED);
  old.reset();
  Restart();
  EXPECT_EQ(CodeOf(store().Begin(spec_, {1, 30}, Marks(1, 10)).status()), ErrorCode::FENCED);
  EXPECT_EQ(CodeOf(store().Begin(spec_, {3, 30}, Marks(2)).status()), ErrorCode::INVALID_ARGUMENT);
  EXPECT_TRUE(Store(store(), spec_, {2, 5}, Marks(2)).ok());
}

TEST_F(PeerStoreTest, ANewLayoutKnowsTheAttemptThatTheOldOneKnew) {
  const PeerSpec larger = CopySpec(7, 3 * kSlotFile, 8);
  ASSERT_TRUE(Store(store(), spec_, {1, 10}, Marks(1)).ok());
  ASSERT_TRUE(store().Tell("gpt", Marks(2)).ok());
  ASSERT_TRUE(Prepare(store(), larger).ok());
  fs::remove(PeerDir() + "/ctl.1");
  Restart();
  EXPECT_EQ(CodeOf(store().Begin(larger, {1, 30}, Marks(1)).status()), ErrorCode::FENCED);
}

TEST_F(PeerStoreTest, WhatAllRanksCopyNowIsNotHeldUpByANewerOne) {
  ASSERT_TRUE(Prepare(store(), spec_).ok());
  auto early = *store().Begin(spec_, {1, 20}, Marks(1));
  const PeerMarks turn = Marks(1, 10);
  auto now = store().Begin(spec_, {1, 10}, turn);
  ASSERT_TRUE(now.ok()) << now.status();
  EXPECT_TRUE(early->fenced());
  early.reset();
  EXPECT_EQ(store().MarksOf("gpt").captured, (SnapshotId{1, 10}));
  EXPECT_EQ(store().MarksOf("other"), PeerMarks());
  ASSERT_TRUE(Receive(**now, ContentOf({1, 10})).ok());
  ASSERT_TRUE(store().Complete(**now, SealOf({1, 10}, ContentOf({1, 10}))).ok());
  EXPECT_TRUE(store().Begin(spec_, {1, 20}, turn).ok());
}

TEST_F(PeerStoreTest, AnOlderStepIsSupersededANewerOneWins) {
  ASSERT_TRUE(Prepare(store(), spec_).ok());
  auto newer = *store().Begin(spec_, {1, 20}, Marks(1));
  EXPECT_EQ(CodeOf(store().Begin(spec_, {1, 10}, Marks(1)).status()), ErrorCode::SUPERSEDED);
  EXPECT_FALSE(newer->fenced());
  ASSERT_TRUE(Receive(*newer, ContentOf({1, 20})).ok());
  ASSERT_TRUE(store().Complete(*newer, SealOf({1, 20}, ContentOf({1, 20}))).ok());
  EXPECT_EQ(CodeOf(store().Begin(spec_, {1, 10}, Marks(1)).status()), ErrorCode::SUPERSEDED);
  EXPECT_EQ(CodeOf(store().Begin(spec_, {1, 20}, Marks(1)).status()), ErrorCode::REFUSED);
}

TEST_F(PeerStoreTest, AfterARollBackTheStepRolledBackToIsCopied) {
  ASSERT_TRUE(Store(store(), spec_, {1, 40}, Marks(1)).ok());
  ASSERT_TRUE(Store(store(), spec_, {1, 100}, Marks(1, 40)).ok());
  PeerMarks back = Marks(2);
  back.captured = {1, 50};
  EXPECT_TRUE(Store(store(), spec_, {1, 50}, back).ok());
  EXPECT_THAT(CompleteIn(store()), ElementsAre(SnapshotId{1, 50}, SnapshotId{1, 100}));
  EXPECT_TRUE(Store(store(), spec_, {2, 60}, back).ok());
  EXPECT_THAT(CompleteIn(store()), ElementsAre(SnapshotId{1, 50}, SnapshotId{2, 60}));
}

TEST_F(PeerStoreTest, AnotherLayoutTakesOverOnlyWhenItIsComplete) {
  const PeerSpec larger = CopySpec(7, 3 * kSlotFile, 8);
  ASSERT_TRUE(Store(store(), spec_, {1, 10}, Marks(1)).ok());
  ASSERT_TRUE(Prepare(store(), larger).ok());
  EXPECT_FALSE(store().Ready(CopySpec(7, kTestSlotBytes, 9)));
  EXPECT_TRUE(IsWhole(store(), spec_, {1, 10}));
  ASSERT_TRUE(Store(store(), larger, {1, 20}, Marks(1, 10, 10)).ok());
  EXPECT_THAT(CompleteIn(store()), ElementsAre(SnapshotId{1, 10}, SnapshotId{1, 20})) << "10 is all that others have";
  ASSERT_TRUE(Store(store(), larger, {1, 30}, Marks(1, 20, 20)).ok());
  EXPECT_THAT(CompleteIn(store()), ElementsAre(SnapshotId{1, 20}, SnapshotId{1, 30}));
  EXPECT_FALSE(fs::exists(PeerDir() + "/ctl.1"));
  EXPECT_TRUE(IsWhole(store(), larger, {1, 30}));
}

// ---------------------------------------------------------------------------------------------------------- reading

TEST_F(PeerStoreTest, APinnedCopyIsNotGivenUp) {
  ASSERT_TRUE(Store(store(), spec_, {1, 10}, Marks(1)).ok());
  ASSERT_TRUE(Store(store(), spec_, {1, 20}, Marks(1, 10)).ok());
  {
    auto copy = store().OpenCopy("gpt", spec_.key(), {1, 10});
    ASSERT_TRUE(copy.ok());
    EXPECT_EQ(copy->head.images.size(), 1u);
    EXPECT_EQ(CodeOf(store().Begin(spec_, {1, 30}, Marks(1, 20)).status()), ErrorCode::BUSY);
  }
  EXPECT_TRUE(store().Begin(spec_, {1, 30}, Marks(1, 20)).ok());
}

TEST_F(PeerStoreTest, WhoReadsKeepsTheBytesOfWhatWasRemoved) {
  ASSERT_TRUE(Store(store(), spec_, {1, 10}, Marks(1)).ok());
  auto copy = store().OpenCopy("gpt", spec_.key(), {1, 10});
  ASSERT_TRUE(store().RemoveJob("gpt").ok());
  EXPECT_THAT(store().List(), IsEmpty());
  EXPECT_FALSE(fs::exists(dir_.region() + "/gpt"));
  std::vector<std::byte> bytes(kTestSlotBytes);
  ASSERT_TRUE(copy->file->Read(0, bytes).ok());
  EXPECT_EQ(bytes, ContentOf({1, 10}));
}

// Its slot is FREE then, and still read.
TEST_F(PeerStoreTest, WhoReadsKeepsTheBytesOfWhatWasDeletedBefore) {
  ASSERT_TRUE(Store(store(), spec_, {1, 10}, Marks(1)).ok());
  auto copy = store().OpenCopy("gpt", spec_.key(), {1, 10});
  ASSERT_TRUE(copy.ok()) << copy.status();
  ASSERT_TRUE(store().Delete("gpt", spec_.key(), {1, 10}).ok());
  ASSERT_TRUE(store().Remove("gpt", spec_.key()).ok());
  std::vector<std::byte> bytes(kTestSlotBytes);
  ASSERT_TRUE(copy->file->Read(0, bytes).ok());
  EXPECT_EQ(bytes, ContentOf({1, 10}));
}

TEST_F(PeerStoreTest, ADamagedCopyIsQuarantinedAndItsSlotUsedAgain) {
  ASSERT_TRUE(Store(store(), spec_, {1, 10}, Marks(1)).ok());
  ASSERT_TRUE(store().Quarantine("gpt", spec_.key(), {1, 10}).ok());
  EXPECT_THAT(store().List(), IsEmpty());
  Restart();
  EXPECT_THAT(store().List(), IsEmpty());
  EXPECT_TRUE(Store(store(), spec_, {1, 20}, Marks(1, 20)).ok());
  EXPECT_TRUE(Store(store(), spec_, {1, 30}, Marks(1, 20)).ok()) << "both slots are of use";
}

TEST_F(PeerStoreTest, OneCopyOneRankOneJobIsDeleted) {
  for (Rank rank : {6, 7}) ASSERT_TRUE(Store(store(), CopySpec(rank), {1, 10}, Marks(1)).ok());
  ASSERT_TRUE(Store(store(), spec_, {1, 20}, Marks(1, 10)).ok());
  ASSERT_TRUE(store().Delete("gpt", spec_.key(), {1, 10}).ok());
  EXPECT_EQ(CodeOf(store().Delete("gpt", spec_.key(), {1, 10})), ErrorCode::NOT_FOUND);
  EXPECT_EQ(store().List().size(), 2u);
  ASSERT_TRUE(store().Remove("gpt", spec_.key()).ok());
  EXPECT_EQ(store().List().size(), 1u);
  EXPECT_FALSE(fs::exists(PeerDir()));
  ASSERT_TRUE(store().RemoveJob("gpt").ok());
  EXPECT_EQ(CodeOf(store().RemoveJob("gpt")), ErrorCode::NOT_FOUND);
  EXPECT_EQ(NamesIn(dir_.region()), (std::set<std::string>{".id", ".lock"}));
  EXPECT_EQ(region_->quota().used(), 0u);
}

// ----------------------------------------------------------------------------------------------------------- parity

TEST_F(PeerStoreTest, ParityIsKeptWithWhatItWasMadeOf) {
  const PeerSpec parity = ParitySpec();
  ASSERT_TRUE(Store(store(), parity, {1, 10}, Marks(1)).ok());
  auto check = [&](bool verified) {
    const PeerEntry entry = store().List().at(0);
    EXPECT_EQ(entry.key, (PeerKey{PeerKind::kParity, 2}));
    EXPECT_EQ(entry.verified, verified);
    ASSERT_NE(entry.parity, nullptr);
    EXPECT_EQ(entry.parity->members.size(), 2u);
    EXPECT_EQ(entry.parity->members[1].rank, 5u);
    EXPECT_EQ(entry.parity->members[1].step, 10u);
    EXPECT_EQ(entry.parity->index, 2u);
    EXPECT_TRUE(IsWhole(store(), parity, {1, 10}));
  };
  check(true);
  Restart();
  check(false);
}

TEST_F(PeerStoreTest, ParityOfAnotherGroupingStaysUntilANewerStepIsProtected) {
  const PeerSpec old = ParitySpec();
  PeerSpec regrouped = old;
  regrouped.layout.header_crc = 8;
  ASSERT_TRUE(Store(store(), old, {1, 10}, Marks(1, 10)).ok());
  ASSERT_TRUE(Store(store(), regrouped, {1, 10}, Marks(1, 10)).ok());
  for (const uint32_t crc : {7, 8})
    EXPECT_EQ(store().OpenCopy("gpt", old.key(), {1, 10}, crc)->head.block.header_crc, crc);
  EXPECT_EQ(store().OpenCopy("gpt", old.key(), {1, 10})->head.block.header_crc, 8u) << "the newer one";
  EXPECT_EQ(CodeOf(store().OpenCopy("gpt", old.key(), {1, 10}, 9).status()), ErrorCode::NOT_FOUND);
  EXPECT_EQ(CodeOf(store().Begin(regrouped, {1, 10}, Marks(1, 10)).status()), ErrorCode::REFUSED) << "it is complete";
  Restart();
  EXPECT_THAT(CompleteIn(store()), ElementsAre(SnapshotId{1, 10}, SnapshotId{1, 10})) << "also for a successor";

  ASSERT_TRUE(Store(store(), regrouped, {1, 20}, Marks(1, 20, 10)).ok());
  EXPECT_TRUE(store().OpenCopy("gpt", old.key(), {1, 10}, 7).ok()) << "others may not have the newer one";
  ASSERT_TRUE(Store(store(), regrouped, {1, 30}, Marks(1, 30, 20)).ok());
  EXPECT_THAT(CompleteIn(store()), ElementsAre(SnapshotId{1, 20}, SnapshotId{1, 30}));
}

// There is one of each step: who offers another has changed what it was.
TEST_F(PeerStoreTest, ACopyOfAnotherLayoutIsNotMadeBeside) {
  ASSERT_TRUE(Store(store(), spec_, {1, 10}, Marks(1, 10)).ok());
  const PeerSpec other = CopySpec(7, kTestSlotBytes, 8);
  ASSERT_TRUE(Prepare(store(), other).ok());
  EXPECT_EQ(CodeOf(store().Begin(other, {1, 10}, Marks(1, 10)).status()), ErrorCode::REFUSED);
}

TEST_F(PeerStoreTest, ParityNeedsItsRecordAndACopyHasNone) {
  for (const PeerSpec& spec : {spec_, ParitySpec()}) {
    ASSERT_TRUE(Prepare(store(), spec).ok());
    auto fill = *store().Begin(spec, {1, 10}, Marks(1));
    ASSERT_TRUE(Receive(*fill, ContentOf({1, 10})).ok());
    PeerSeal seal = SealOf({1, 10}, ContentOf({1, 10}));
    if (spec.kind == PeerKind::kCopy) seal.parity = TestParity(10);
    EXPECT_EQ(CodeOf(store().Complete(*fill, seal)), ErrorCode::INVALID_ARGUMENT);
    seal.parity = TestParity(11);
    EXPECT_EQ(CodeOf(store().Complete(*fill, seal)), ErrorCode::INVALID_ARGUMENT);
  }
  EXPECT_THAT(CompleteIn(store()), IsEmpty());
}

// ---------------------------------------------------------------------------------------------------- the neighbours

TEST_F(PeerStoreTest, AJobsOwnRanksAndCopiesDoNotMeet) {
  ASSERT_TRUE(Store(store(), spec_, {9, 10}, Marks(9)).ok());
  SealOne(*region_);
  Restart();
  ASSERT_EQ(region_->adopted().jobs.size(), 1u);
  const AdoptedJob& job = region_->adopted().jobs[0];
  EXPECT_EQ(job.seen, 1u) << "what copies say is not what this agent has seen";
  EXPECT_EQ(job.lost, 0u);
  EXPECT_EQ(job.ranks.size(), 1u);
  EXPECT_THAT(region_->adopted().notes, IsEmpty());
  EXPECT_THAT(CompleteIn(store()), ElementsAre(SnapshotId{9, 10}));
  ASSERT_TRUE(region_->RemoveJob("gpt").ok());
  EXPECT_TRUE(IsWhole(store(), spec_, {9, 10})) << "rm of what ran here is not rm of what is kept for others";
  SealOne(*region_);
  ASSERT_TRUE(store().RemoveJob("gpt").ok());
  EXPECT_EQ(NamesIn(dir_.region() + "/gpt"), (std::set<std::string>{"job", "rank-00000"}));
}

TEST_F(PeerStoreTest, CopiesAloneMakeNoJob) {
  ASSERT_TRUE(Store(store(), spec_, {1, 10}, Marks(1)).ok());
  Restart();
  EXPECT_THAT(region_->adopted().jobs, IsEmpty());
  EXPECT_THAT(region_->jobs(), IsEmpty());
  EXPECT_THAT(region_->adopted().notes, IsEmpty());
  EXPECT_THAT(CompleteIn(store()), ElementsAre(SnapshotId{1, 10}));
  EXPECT_FALSE(store().List()[0].verified);
  ASSERT_TRUE(store().MarkVerified("gpt", spec_.key(), {1, 10}).ok());
  EXPECT_TRUE(store().List()[0].verified);
  EXPECT_EQ(store().Usage().held, region_->quota().used());
  EXPECT_GT(store().Usage().held, 2 * kSlotFile);
}

TEST_F(PeerStoreTest, SalvageReadsCopiesAndTakesTheRanksOwnFirst) {
  ASSERT_TRUE(Store(store(), CopySpec(0), {1, 100}, Marks(1)).ok());
  ASSERT_TRUE(Store(store(), spec_, {1, 100}, Marks(1)).ok());
  ASSERT_TRUE(Store(store(), ParitySpec(), {1, 100}, Marks(1)).ok());
  SealOne(*region_);
  auto found = ListSalvage(PosixFiles(), dir_.region());
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_EQ(found->size(), 3u) << "parity is no snapshot";
  EXPECT_FALSE(found->at(0).copy);
  EXPECT_TRUE(found->at(1).copy);
  EXPECT_EQ(found->at(1).rank, 0u);
  EXPECT_EQ(found->at(2).rank, 7u);
  std::vector<std::byte> bytes;
  ASSERT_TRUE(ReadSalvage(PosixFiles(), found->at(2), 0, [&](std::span<const std::byte> piece) {
                bytes.insert(bytes.end(), piece.begin(), piece.end());
                return absl::OkStatus();
              }).ok());
  EXPECT_EQ(bytes, ContentOf({1, 100}));
}

}  // namespace
}  // namespace ckptd::region
