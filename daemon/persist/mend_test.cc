#include "daemon/persist/mend.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "daemon/base/errors.h"
#include "daemon/format/paths.h"
#include "daemon/os/posix_files.h"
#include "daemon/os/testing/files_around.h"
#include "daemon/os/testing/temp_dir.h"
#include "daemon/persist/testing/saved_step.h"
#include "daemon/storage/checked_read.h"
#include "daemon/storage/posix_store.h"
#include "daemon/storage/step_files.h"

namespace ckptd {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMendChunk = 64 << 10;
constexpr char kMendJob[] = "gpt";
constexpr SnapshotId kMendId{3, 1000};

class UnsyncedFile final : public FileAround {
 public:
  using FileAround::FileAround;
  absl::Status Sync() override { return Error(ErrorCode::STORAGE_IO, "fsync: Input/output error"); }
};

class UnsyncedFiles final : public FilesAround {
 public:
  UnsyncedFiles() : FilesAround(PosixFiles()) {}
  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, const OpenOptions& options) override {
    CKPTD_ASSIGN_OR_RETURN(auto file, FilesAround::Open(path, options));
    return std::make_unique<UnsyncedFile>(std::move(file));
  }
};

class MendTest : public ::testing::Test {
 protected:
  MendTest() : store_(Open(PosixFiles())) {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      // Chunk 1 spans the two images.
      slots_.emplace_back(std::vector<uint64_t>{kMendChunk + 9 * 4096, kMendChunk + 4096}, kMendChunk, rank);
    }
    EXPECT_TRUE(SaveStep(*store_, SystemClock(), kMendJob, kMendId, slots_).ok());
  }
  std::unique_ptr<Store> Open(Files& files) {
    PosixStoreOptions options;
    options.root = dir_.path();
    options.make_queue = [] { return MakeInlineIoQueue(4); };
    return *OpenPosixStore(files, options);
  }
  [[nodiscard]] std::string Path(Rank rank, uint32_t image) const {
    return dir_.path() + "/" + InStep(kMendJob, kMendId, ImageFileName(rank, 2, image));
  }
  [[nodiscard]] absl::Status Check() const {
    CKPTD_ASSIGN_OR_RETURN(auto manifest, ReadManifest(*store_, kMendJob, kMendId));
    for (Rank rank = 0; rank < 2; ++rank) {
      CKPTD_ASSIGN_OR_RETURN(auto sidecar, ReadCommittedSidecar(*store_, kMendJob, manifest, rank));
      CKPTD_RETURN_IF_ERROR(ReadChecked(*store_, ToStoredRank(kMendJob, sidecar), {}));
    }
    return absl::OkStatus();
  }
  [[nodiscard]] absl::Status Mend(Rank rank) {
    return MendImages(*store_, SourceOf(kMendJob, rank, 2, kMendId, slots_[rank]), slots_[rank].ChunkCrcs());
  }

  TempDir dir_;
  std::unique_ptr<Store> store_;
  std::vector<TestSlot> slots_;
};

TEST_F(MendTest, ImagesAreWholeAgainUnderTheOldCommit) {
  fs::resize_file(Path(1, 0), 100);
  fs::remove(Path(1, 1));
  ASSERT_EQ(CodeOf(Check()), ErrorCode::CORRUPT);
  absl::Status mended = Mend(1);
  EXPECT_TRUE(mended.ok()) << mended;
  absl::Status good = Check();
  EXPECT_TRUE(good.ok()) << good;
}

TEST_F(MendTest, OtherRanksStayAsTheyAre) {
  fs::resize_file(Path(0, 1), 100);
  EXPECT_TRUE(Mend(1).ok());
  EXPECT_EQ(fs::file_size(Path(0, 1)), 100u);
}

TEST_F(MendTest, AnotherContentIsNotTakenForTheOldOne) {
  slots_[1] = TestSlot({kMendChunk + 9 * 4096, kMendChunk + 4096}, kMendChunk, 77);
  EXPECT_EQ(CodeOf(Mend(1)), ErrorCode::CORRUPT);
  EXPECT_TRUE(Check().ok()) << "nothing was touched";
}

// Who mends may have been told of damage by a storage that did not answer reads for a while.
TEST_F(MendTest, NothingIsDeletedBeforeItsLikeIsDurable) {
  UnsyncedFiles files;
  std::unique_ptr<Store> failing = Open(files);
  const absl::Status mended = MendImages(*failing, SourceOf(kMendJob, 1, 2, kMendId, slots_[1]), slots_[1].ChunkCrcs());
  EXPECT_EQ(CodeOf(mended), ErrorCode::STORAGE_IO);
  const absl::Status good = Check();
  EXPECT_TRUE(good.ok()) << good;
}

TEST_F(MendTest, AStepThatIsBeingDeletedDoesNotComeBack) {
  ASSERT_TRUE(PutMarker(*store_, kMendJob, kMendId, 4).ok());
  fs::remove(Path(1, 0));
  EXPECT_EQ(CodeOf(Mend(1)), ErrorCode::CANCELLED);
  EXPECT_FALSE(fs::exists(Path(1, 0)));
  ASSERT_TRUE(DeleteStep(*store_, kMendJob, kMendId).ok());
  EXPECT_FALSE(Mend(1).ok());
  EXPECT_EQ(ListJob(*store_, kMendJob)->steps.size(), 0u);
}

}  // namespace
}  // namespace ckptd
