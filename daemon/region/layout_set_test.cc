#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "daemon/base/errors.h"
#include "daemon/region/region_test_util.h"
#include "daemon/region/verify.h"

namespace ckptd::region {
namespace {

class LayoutSetTest : public ::testing::Test {
 protected:
  std::string RankDir() const { return dir_.region() + "/gpt/rank-00000"; }

  TempDir dir_;
  std::unique_ptr<Region> region_ = OpenRegion(dir_.region());
  RankRegion& rank_ = OpenTestRank(*region_);
  LayoutSet& set_ = AddLayout(rank_);
  std::unique_ptr<Bell> bell_ = *Bell::Create(set_.head());
  InlineExecutor executor_;
};

TEST_F(LayoutSetTest, FreshSlotsAreFreeWholeAndZero) {
  for (uint32_t slot = 0; slot < 2; ++slot) {
    EXPECT_EQ(set_.Slot(slot).state, SlotStateCode::kFree);
    std::vector<std::byte> bytes(set_.FileOf(slot)->size(), std::byte{1});
    ASSERT_TRUE(set_.FileOf(slot)->Read(0, bytes).ok());
    EXPECT_EQ(std::count(bytes.begin(), bytes.end(), std::byte{0}), static_cast<long>(2 * kMiB));
  }
}

TEST_F(LayoutSetTest, TrainerGetsCtlReadOnlyAndSlotsWritable) {
  auto fds = set_.DescriptorsForSaving();
  ASSERT_TRUE(fds.ok());
  EXPECT_EQ(fcntl(fds->ctl, F_GETFL) & O_ACCMODE, O_RDONLY);
  for (int fd : fds->slots) EXPECT_EQ(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDWR);
  EXPECT_EQ(fcntl(set_.DescriptorsForRestore(0)->slot, F_GETFL) & O_ACCMODE, O_RDONLY);
}

TEST_F(LayoutSetTest, GrantShowsInCtlAndBell) {
  ASSERT_TRUE(set_.OpenGrant(*bell_, OrderFor(1, 5)).ok());
  EXPECT_EQ(set_.Slot(1).state, SlotStateCode::kFilling);
  EXPECT_EQ(set_.grant().word, uint64_t{5} << 8 | 2);
  BellSlotView view = bell_->ReadSlot(1);
  EXPECT_EQ(view.state, CaptureState::kOpen);
  EXPECT_EQ(view.epoch, 5u);
  set_.RevokeGrant();
  EXPECT_EQ(set_.grant().word, 0u);
}

TEST_F(LayoutSetTest, EpochsOnlyGrow) {
  ASSERT_TRUE(set_.OpenGrant(*bell_, OrderFor(0, 5)).ok());
  EXPECT_EQ(CodeOf(set_.OpenGrant(*bell_, OrderFor(1, 5))), ErrorCode::INTERNAL);
  EXPECT_FALSE(set_.OpenGrant(*bell_, OrderFor(0, 6)).ok()) << "not free";
  EXPECT_FALSE(set_.SetState(0, SlotStateCode::kFree, 4).ok());
  EXPECT_GT(rank_.NextEpoch(), 5u);
}

TEST_F(LayoutSetTest, NoEpochHasLowHalfZero) {
  ASSERT_TRUE(set_.SetState(0, SlotStateCode::kFree, 0xffffffffu).ok());
  EXPECT_EQ(rank_.NextEpoch(), 0x100000001u);
}

TEST_F(LayoutSetTest, SealedSlotIsImmutableAndVerifies) {
  Epoch epoch = Fill(rank_, set_, *bell_, 0, 100);
  EXPECT_EQ(set_.Slot(0).record->id(), (SnapshotId{1, 100}));
  EXPECT_FALSE(set_.WriteRecord(0, HeadOf(101, epoch), CrcsOf(Content(101))).ok());
  absl::Status verified = absl::UnknownError("not called");
  ASSERT_TRUE(
      StartVerify(set_.FileOf(0), set_.Slot(0).record, executor_, [&](const absl::Status& s) { verified = s; }).ok());
  EXPECT_TRUE(verified.ok()) << verified;
}

TEST_F(LayoutSetTest, VerifyNamesTheBadChunk) {
  Fill(rank_, set_, *bell_, 0, 100);
  const std::byte bad{0xee};
  ASSERT_TRUE(set_.FileOf(0)->Write(2 * kTestChunkBytes + 5, std::span(&bad, 1)).ok());
  Progress progress(kTestSlotBytes);
  absl::Status verified = VerifySlot(*set_.FileOf(0), *set_.Slot(0).record, progress);
  EXPECT_EQ(CodeOf(verified), ErrorCode::CORRUPT);
  EXPECT_THAT(std::string(verified.message()), ::testing::HasSubstr("chunk 2"));
}

TEST_F(LayoutSetTest, VerifyCanBeCancelled) {
  Fill(rank_, set_, *bell_, 0, 100);
  Progress progress(kTestSlotBytes);
  progress.Cancel();
  EXPECT_EQ(CodeOf(VerifySlot(*set_.FileOf(0), *set_.Slot(0).record, progress)), ErrorCode::CANCELLED);
}

TEST_F(LayoutSetTest, WrongNumberOfChecksumsIsRefused) {
  ASSERT_TRUE(set_.OpenGrant(*bell_, OrderFor(0, 5)).ok());
  EXPECT_EQ(CodeOf(set_.WriteRecord(0, HeadOf(1, 5), {1, 2})), ErrorCode::INVALID_ARGUMENT);
  EXPECT_EQ(set_.Slot(0).state, SlotStateCode::kFilling);
}

TEST_F(LayoutSetTest, FreeClearsOwnerFlagsAndRecord) {
  Fill(rank_, set_, *bell_, 0, 100);
  set_.SetFlags(0, kSlotPersisted);
  ASSERT_TRUE(set_.FreeSlot(0).ok());
  EXPECT_EQ(set_.Slot(0).owner, SlotOwner{});
  EXPECT_EQ(set_.Slot(0).flags, 0u);
  EXPECT_EQ(set_.Slot(0).record, nullptr);
  EXPECT_EQ(NamesIn(RankDir()).size(), 3u) << "one ctl and two slot files";
}

TEST_F(LayoutSetTest, AgentSurvivesATruncatedSlot) {
  Fill(rank_, set_, *bell_, 0, 100);
  ASSERT_EQ(ftruncate(set_.FileOf(0)->write_fd(), 4096), 0);
  Progress progress(kTestSlotBytes);
  EXPECT_EQ(CodeOf(VerifySlot(*set_.FileOf(0), *set_.Slot(0).record, progress)), ErrorCode::CORRUPT);
  EXPECT_EQ(CodeOf(set_.DescriptorsForSaving().status()), ErrorCode::CORRUPT);
  EXPECT_EQ(CodeOf(set_.FreeSlot(0)), ErrorCode::CORRUPT);
  EXPECT_EQ(set_.Slot(0).state, SlotStateCode::kRetired);
}

TEST_F(LayoutSetTest, DirectWriteFromATruncatedMappingIsAnError) {
  Fill(rank_, set_, *bell_, 0, 100);
  auto mapping = set_.FileOf(0)->Map(MapAccess::kReadOnly);
  ASSERT_TRUE(mapping.ok());
  ASSERT_EQ(ftruncate(set_.FileOf(0)->write_fd(), 0), 0);
  auto out = PosixFiles().Open(dir_.path() + "/out", {.write = true, .create = true});
  EXPECT_EQ(CodeOf((*out)->PWrite(0, mapping->bytes().first(4096))), ErrorCode::CORRUPT);
}

TEST_F(LayoutSetTest, RetiredSlotGetsAFreshFileAndOldBytesLiveOn) {
  ASSERT_TRUE(set_.OpenGrant(*bell_, OrderFor(0, 5)).ok());
  const std::vector<std::byte> content = Content(3);
  ASSERT_TRUE(set_.FileOf(0)->Write(0, content).ok());
  const uint64_t old_id = set_.Slot(0).file_id;
  const uint64_t held = region_->quota().used();
  ASSERT_TRUE(set_.RetireSlot(0).ok());
  absl::Status done = absl::UnknownError("not called");
  auto build = set_.StartReplace(0, executor_, [&](const absl::Status& s) { done = s; });
  ASSERT_TRUE(build.ok()) << build.status();
  ASSERT_TRUE(done.ok()) << done;
  auto old = set_.FinishReplace(0, **build);
  ASSERT_TRUE(old.ok());
  EXPECT_NE(set_.Slot(0).file_id, old_id);
  EXPECT_EQ(set_.Slot(0).owner.pid, 42);
  EXPECT_EQ(region_->quota().used(), held + 2 * kMiB) << "retired bytes still count";
  std::vector<std::byte> read(content.size());
  ASSERT_TRUE((*old)->Read(0, read).ok());
  EXPECT_EQ(read, content);
  EXPECT_EQ(NamesIn(RankDir()).size(), 3u);
  old->reset();
  EXPECT_EQ(region_->quota().used(), held);
  EXPECT_TRUE(set_.SetState(0, SlotStateCode::kFree, 5).ok());
}

TEST_F(LayoutSetTest, AnUnfinishedReplacementLeavesNothing) {
  ASSERT_TRUE(set_.RetireSlot(0).ok());
  set_.StartReplace(0, executor_, [](const absl::Status&) {}).value().reset();
  EXPECT_EQ(NamesIn(RankDir()).size(), 3u);
}

TEST_F(LayoutSetTest, ASlotToBeWrittenIsNotReplaced) {
  auto start = [&] { return CodeOf(set_.StartReplace(0, executor_, [](const absl::Status&) {}).status()); };
  EXPECT_EQ(start(), ErrorCode::INTERNAL);
  ASSERT_TRUE(set_.OpenGrant(*bell_, OrderFor(0, 5)).ok());
  EXPECT_EQ(start(), ErrorCode::INTERNAL);
}

// A reader keeps the bytes of a snapshot that nobody needs any more, the slot goes on.
TEST_F(LayoutSetTest, SealedSlotIsReplacedUnderItsReader) {
  Fill(rank_, set_, *bell_, 0, 100);
  auto record = set_.Slot(0).record;
  std::shared_ptr<SlotFile> reader = set_.FileOf(0);
  auto build = *set_.StartReplace(0, executor_, [](const absl::Status&) {});
  ASSERT_TRUE(set_.FinishReplace(0, *build).ok());
  EXPECT_EQ(set_.Slot(0).state, SlotStateCode::kRetired);
  ASSERT_TRUE(set_.FreeSlot(0).ok());
  Fill(rank_, set_, *bell_, 0, 102);
  Progress progress(kTestSlotBytes);
  EXPECT_TRUE(VerifySlot(*reader, *record, progress).ok());
}

TEST_F(LayoutSetTest, AReplacementThatComesTooLateDestroysNothing) {
  Fill(rank_, set_, *bell_, 0, 100);
  auto build = *set_.StartReplace(0, executor_, [](const absl::Status&) {});
  ASSERT_TRUE(set_.FreeSlot(0).ok());
  Fill(rank_, set_, *bell_, 0, 101);
  EXPECT_EQ(CodeOf(set_.FinishReplace(0, *build).status()), ErrorCode::INTERNAL);
  ASSERT_NE(set_.Slot(0).record, nullptr);
  Progress progress(kTestSlotBytes);
  EXPECT_TRUE(VerifySlot(*set_.FileOf(0), *set_.Slot(0).record, progress).ok());
  EXPECT_EQ(NamesIn(RankDir()).size(), 3u);
}

TEST_F(LayoutSetTest, GrantOfACutSlotRetiresIt) {
  ASSERT_EQ(ftruncate(set_.FileOf(0)->write_fd(), 4096), 0);
  EXPECT_EQ(CodeOf(set_.OpenGrant(*bell_, OrderFor(0, 5))), ErrorCode::CORRUPT);
  EXPECT_EQ(set_.Slot(0).state, SlotStateCode::kRetired);
  EXPECT_EQ(bell_->ReadSlot(0).state, CaptureState::kNone);
  EXPECT_EQ(rank_.FindSame(TestSpec()), nullptr) << "cannot be handed out";
}

TEST_F(LayoutSetTest, GrantInABellOfAnotherLayoutIsRefused) {
  auto other = *Bell::Create(AddLayout(rank_, TestSpec(kTestSlotBytes, 8)).head());
  EXPECT_EQ(CodeOf(set_.OpenGrant(*other, OrderFor(0, 5))), ErrorCode::INTERNAL);
}

TEST_F(LayoutSetTest, ADroppedFileGivesItsMemoryBackUnderAMapping) {
  Fill(rank_, set_, *bell_, 0, 100);
  ASSERT_TRUE(set_.FreeSlot(0).ok());
  auto mapping = set_.FileOf(0)->Map(MapAccess::kReadOnly);  // as the trainer's
  ASSERT_TRUE(mapping.ok());
  const std::shared_ptr<SlotFile> file = set_.FileOf(0);
  struct stat before {};
  ASSERT_EQ(fstat(file->read_fd(), &before), 0);
  ASSERT_GT(before.st_blocks, 0);
  ASSERT_TRUE(set_.DropFile(0).ok());
  EXPECT_EQ(set_.FileOf(0), nullptr);
  EXPECT_EQ(set_.Slot(0).state, SlotStateCode::kRetired);
  EXPECT_EQ(set_.Slot(0).file_id, 0u);
  EXPECT_EQ(NamesIn(RankDir()).size(), 2u);
  struct stat after {};
  ASSERT_EQ(fstat(file->read_fd(), &after), 0);
  EXPECT_EQ(after.st_blocks, 0) << "the memory does not wait for the mapping";
  EXPECT_EQ(mapping->bytes()[0], std::byte{0}) << "and touching it is no SIGBUS";
}

TEST_F(LayoutSetTest, WhatIsInUseIsNotDropped) {
  ASSERT_TRUE(set_.OpenGrant(*bell_, OrderFor(0, 5)).ok());
  EXPECT_EQ(CodeOf(set_.DropFile(0)), ErrorCode::INTERNAL);
  Fill(rank_, set_, *bell_, 1, 101);
  EXPECT_EQ(CodeOf(set_.DropFile(1)), ErrorCode::INTERNAL);
  EXPECT_NE(set_.FileOf(1), nullptr);
}

TEST_F(LayoutSetTest, AllButTheNewestSealedSlotCanBeGivenBack) {
  EXPECT_EQ(set_.shrinkable_bytes(), 4 * kMiB) << "nothing sealed";
  Fill(rank_, set_, *bell_, 1, 101);
  EXPECT_EQ(set_.shrinkable_bytes(), 2 * kMiB);
  ASSERT_TRUE(set_.DropFile(0).ok());
  EXPECT_EQ(set_.shrinkable_bytes(), 0u);
  EXPECT_EQ(set_.bytes(), 2 * kMiB);
  EXPECT_EQ(CodeOf(set_.DescriptorsForSaving().status()), ErrorCode::REFUSED);
}

}  // namespace
}  // namespace ckptd::region
