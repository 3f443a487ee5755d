// A flush that is done again after one that failed: what the storage holds is not written twice.
#include "daemon/persist/rank_flush.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "absl/strings/match.h"
#include "daemon/base/errors.h"
#include "daemon/format/paths.h"
#include "daemon/os/testing/sim_files.h"
#include "daemon/persist/testing/saved_step.h"
#include "daemon/storage/posix_store.h"
#include "daemon/storage/step_files.h"
#include "daemon/storage/testing/hooked_store.h"

namespace ckptd {
namespace {

constexpr uint64_t kChunkOfFlush = 64 << 10;
constexpr char kJobOfFlush[] = "gpt";
constexpr SnapshotId kFlushed{3, 1000};
constexpr uint64_t kRoomForSidecar = 32 << 10;  // and for no image

class RankFlushAgain : public testing::Test {
 protected:
  RankFlushAgain() {
    EXPECT_TRUE(files_.Mkdir("/store", 0755).ok());
    EXPECT_TRUE(files_.SyncDir("/").ok());
    OpenAgain();
  }

  static std::unique_ptr<Store> StoreOver(Files& files) {
    PosixStoreOptions options;
    options.root = "/store";
    options.make_queue = [] { return MakeInlineIoQueue(2); };
    return *OpenPosixStore(files, options);
  }

  // As the next agent does.
  void OpenAgain() {
    hooked_.reset();
    store_ = StoreOver(files_);
    hooked_ = std::make_unique<HookedStore>(*store_, [this](absl::string_view call, const std::string& name) {
      ++calls_[std::string(call)];
      return call == "create" && !fails_.empty() && absl::EndsWith(name, fails_)
                 ? Error(ErrorCode::STORAGE_FULL, "no room for it")
                 : absl::OkStatus();
    });
  }

  absl::Status Flush(TestSlot& slot, bool again) {
    calls_.clear();
    FlushSource source = SourceOf(kJobOfFlush, 0, 1, kFlushed, slot);
    source.again = again;
    return SaveRank(*hooked_, SystemClock(), source, slot);
  }
  absl::Status First(TestSlot& slot) { return Flush(slot, false); }
  absl::Status Again(TestSlot& slot) { return Flush(slot, true); }

  static std::string NameOf(const std::string& file) { return InStep(kJobOfFlush, kFlushed, file); }
  static bool Whole(Store& store) {
    auto sidecar = ReadSidecar(store, kJobOfFlush, kFlushed, 0, 1);
    return sidecar.ok() && ReadChecked(store, ToStoredRank(kJobOfFlush, *sidecar), {}).ok();
  }
  // Disks whose sidecar stands without its images, when the power fails after any operation from `first_op` on.
  size_t Unfounded(size_t first_op) const {
    size_t unfounded = 0;
    for (size_t op = first_op; op <= files_.OpCount(); ++op) {
      for (uint64_t seed = 0; seed < 16; ++seed) {
        SimFiles image = files_.CrashImage(op, seed);
        if (!image.Stat("/store").ok()) continue;
        const auto store = StoreOver(image);
        unfounded += store->Stat(NameOf(SidecarFileName(0, 1))).ok() && !Whole(*store) ? 1 : 0;
      }
    }
    return unfounded;
  }

  SimFiles files_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<HookedStore> hooked_;
  std::string fails_;  // how the name of a record ends that cannot be created
  std::map<std::string, size_t> calls_;
  TestSlot slot_{{kChunkOfFlush + 9 * 4096, kChunkOfFlush + 4096}, kChunkOfFlush, 1};
};

TEST_F(RankFlushAgain, ARetryForTheSidecarNeedsRoomForTheSidecarOnly) {
  fails_ = ".json";
  EXPECT_EQ(CodeOf(First(slot_)), ErrorCode::STORAGE_FULL);
  EXPECT_EQ(calls_["finish"], 2u) << "both images have their names";
  files_.SetFree(kRoomForSidecar);
  EXPECT_EQ(CodeOf(Again(slot_)), ErrorCode::STORAGE_FULL) << "still";
  fails_.clear();
  const absl::Status again = Again(slot_);
  EXPECT_TRUE(again.ok()) << again;
  EXPECT_EQ(calls_["open"] + calls_["write"] + calls_["finish"], 0u) << "no image byte";
  EXPECT_EQ(calls_["read"], 2u) << "and each is checked";
  EXPECT_TRUE(Whole(*store_));
  EXPECT_EQ(files_.OpenFiles(), 0u);
  EXPECT_EQ(Unfounded(0), 0u);
}

// Looking costs each flush something, and finds nothing where none failed.
TEST_F(RankFlushAgain, AFirstTryIsWrittenWhateverIsThere) {
  ASSERT_TRUE(First(slot_).ok());
  ASSERT_TRUE(First(slot_).ok());
  EXPECT_EQ(calls_["open"], 2u);
  EXPECT_EQ(calls_["finish"], 2u);
}

TEST_F(RankFlushAgain, OnlyTheImageThatIsMissingIsWritten) {
  ASSERT_TRUE(First(slot_).ok());
  for (const std::string& gone : {ImageFileName(0, 1, 1), SidecarFileName(0, 1)}) {
    ASSERT_TRUE(store_->Delete(NameOf(gone)).ok());
  }
  OpenAgain();
  const absl::Status again = Again(slot_);
  EXPECT_TRUE(again.ok()) << again;
  EXPECT_EQ(calls_["open"], 1u);
  EXPECT_EQ(calls_["write"], 2u) << "its part of chunk 1, and chunk 2";
  EXPECT_TRUE(Whole(*store_));
}

TEST_F(RankFlushAgain, AnotherContentIsToldWithoutRoomForOurs) {
  TestSlot other({kChunkOfFlush + 9 * 4096, kChunkOfFlush + 4096}, kChunkOfFlush, 2);
  TestSlot shorter({kChunkOfFlush + 9 * 4096, kChunkOfFlush}, kChunkOfFlush, 1);
  ASSERT_TRUE(First(slot_).ok());
  files_.SetFree(kRoomForSidecar);
  for (TestSlot* wrong : {&other, &shorter}) EXPECT_EQ(CodeOf(Again(*wrong)), ErrorCode::CORRUPT);
  EXPECT_TRUE(Whole(*store_));
}

// A name that a killed agent gave may not be durable yet.
TEST_F(RankFlushAgain, AfterAKillAtAnyOperationTheSidecarHasItsImages) {
  TestSlot small({3 * 4096, 2 * 4096}, kChunkOfFlush, 1);
  const size_t first = files_.OpCount();
  ASSERT_TRUE(First(small).ok());
  const size_t last = files_.OpCount();
  for (size_t op = first; op <= last; ++op) {
    store_.reset();
    files_ = SimFiles();
    ASSERT_TRUE(files_.Mkdir("/store", 0755).ok());
    ASSERT_TRUE(files_.SyncDir("/").ok());
    OpenAgain();
    files_.KillAt(op);
    (void)First(small);
    files_.Revive();
    OpenAgain();
    const absl::Status again = Again(small);
    EXPECT_TRUE(again.ok()) << "killed at " << op << ": " << again;
    EXPECT_TRUE(Whole(*store_)) << "killed at " << op;
    EXPECT_EQ(Unfounded(op), 0u) << "killed at " << op;
  }
}

}  // namespace
}  // namespace ckptd
