// A committed step read back; every kind of damage is found and named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/format/paths.h"
#include "daemon/format/records.h"
#include "daemon/os/posix_files.h"
#include "daemon/os/testing/temp_dir.h"
#include "daemon/persist/testing/saved_step.h"
#include "daemon/recover/step_check.h"
#include "daemon/storage/posix_store.h"
#include "daemon/storage/step_files.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kChunk = 64 << 10;
constexpr char kJob[] = "gpt";
constexpr SnapshotId kId{3, 1000};
constexpr SnapshotId kOlder{3, 900};
constexpr uint64_t kFirst = kChunk + 9 * 4096;  // bytes of the first image: chunk 1 spans the two
constexpr uint64_t kSecond = kChunk + 4096;

class RecoverTest : public ::testing::Test {
 protected:
  RecoverTest() {
    PosixStoreOptions options;
    options.root = dir_.path();
    options.make_queue = [] { return MakeInlineIoQueue(4); };
    store_ = *OpenPosixStore(PosixFiles(), options);
    Save(kOlder, 100);
    Save(kId, 0);
  }

  void Save(const SnapshotId& id, uint32_t seed) {
    slots_.clear();
    for (uint32_t rank = 0; rank < 2; ++rank) {
      slots_.emplace_back(std::vector<uint64_t>{kFirst, kSecond}, kChunk, seed + rank);
    }
    ASSERT_TRUE(SaveStep(*store_, SystemClock(), kJob, id, slots_).ok());
  }

  [[nodiscard]] std::string PathOf(const std::string& name, const SnapshotId& id = kId) const {
    return dir_.path() + "/" + InStep(kJob, id, name);
  }
  static std::string Image(Rank rank, uint32_t image) { return ImageFileName(rank, 2, image); }

  // Behind the agent's back, as a bad disk would.
  static void Patch(const std::string& path, uint64_t offset, const std::string& bytes) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(offset));
    file << bytes;
    ASSERT_TRUE(file.flush().good());
  }
  static std::string Read(const std::string& path, uint64_t offset, size_t bytes) {
    std::ifstream file(path, std::ios::binary);
    file.seekg(static_cast<std::streamoff>(offset));
    std::string out(bytes, '\0');
    file.read(out.data(), static_cast<std::streamsize>(bytes));
    return out;
  }

  // "file offset" of everything found. Without on_bad the same damage is an error that names the file.
  std::vector<std::string> Damage() {
    std::vector<std::string> found;
    CheckedReadOptions options;
    options.on_bad = [&](const BadChunk& bad) {
      found.push_back(absl::StrCat(bad.part.substr(bad.part.rfind('/') + 1), " ", bad.offset));
    };
    absl::Status status = CheckStep(*store_, kJob, kId, options);
    EXPECT_TRUE(status.ok()) << status;
    absl::Status strict = CheckStep(*store_, kJob, kId, {});
    EXPECT_EQ(strict.ok(), found.empty()) << strict;
    if (!found.empty()) {
      EXPECT_THAT(std::string(strict.message()), HasSubstr(found[0].substr(0, found[0].find(' '))));
    }
    return found;
  }

  TempDir dir_;
  std::unique_ptr<Store> store_;
  std::vector<TestSlot> slots_;
};

TEST_F(RecoverTest, AWholeStepIsGood) {
  uint64_t progress = 0;
  CheckedReadOptions options;
  options.progress = [&](uint64_t bytes) {
    EXPECT_GT(bytes, progress);
    progress = bytes;
  };
  EXPECT_TRUE(CheckStep(*store_, kJob, kId, options).ok());
  EXPECT_EQ(progress, 2 * (kFirst + kSecond));
  EXPECT_THAT(Damage(), IsEmpty());
}

// As a stray write leaves it that hit the slot before the checksum was taken.
TEST_F(RecoverTest, AHeaderThatNobodyCanReadThoughItsChecksumIsRight) {
  const SnapshotId id{3, 1100};
  slots_.clear();
  slots_.emplace_back(std::vector<uint64_t>{kFirst, kSecond}, kChunk, 7);
  slots_[0].image(1)[9] = std::byte{0xff};
  ASSERT_TRUE(SaveStep(*store_, SystemClock(), kJob, id, slots_).ok());
  absl::Status status = CheckStep(*store_, kJob, id, {});
  EXPECT_EQ(CodeOf(status), ErrorCode::CORRUPT);
  auto sidecar = CommittedSidecar(*store_, kJob, id, 0);
  ASSERT_TRUE(sidecar.ok()) << sidecar.status();
  EXPECT_EQ(CodeOf(ReadHeaders(*store_, kJob, *sidecar, 8192).status()), ErrorCode::CORRUPT) << "nor a restore";
  EXPECT_THAT(std::string(status.message()), HasSubstr("not the one that the trainer registered"));
}

TEST_F(RecoverTest, ABitInEveryFile) {
  for (Rank rank = 0; rank < 2; ++rank) {
    for (uint32_t image = 0; image < 2; ++image) {
      const std::string path = PathOf(Image(rank, image));
      const std::string was = Read(path, 4096, 1);
      Patch(path, 4096, std::string(1, static_cast<char>(was[0] ^ 0x04)));
      // A chunk is named by where it begins: byte 4096 of the second image lies in chunk 1, which begins in the first.
      const std::string name = image == 0 ? absl::StrCat(Image(rank, 0), " 0") : absl::StrCat(Image(rank, 0), " 65536");
      EXPECT_THAT(Damage(), ElementsAre(name));
      Patch(path, 4096, was);
    }
  }
  EXPECT_THAT(Damage(), IsEmpty()) << "repaired";
}

TEST_F(RecoverTest, AByteInTheLastShortChunk) {
  const uint64_t last = kFirst + kSecond - 1;
  const std::string was = Read(PathOf(Image(1, 1)), kSecond - 1, 1);
  Patch(PathOf(Image(1, 1)), kSecond - 1, was == "x" ? "y" : "x");
  EXPECT_THAT(Damage(), ElementsAre(absl::StrCat(Image(1, 1), " ", last / kChunk * kChunk - kFirst)));
}

TEST_F(RecoverTest, Truncation) {
  std::filesystem::resize_file(PathOf(Image(0, 0)), kFirst - 1);
  EXPECT_THAT(Damage(), ElementsAre(absl::StrCat(Image(0, 0), " 0")));
  std::filesystem::resize_file(PathOf(Image(0, 0)), kFirst);  // back in length, a zero in place of the last byte
  const bool was_zero = slots_[0].image(0)[kFirst - 1] == std::byte{0};
  EXPECT_EQ(Damage().empty(), was_zero);
}

TEST_F(RecoverTest, SwappedBlocks) {
  const std::string path = PathOf(Image(0, 0));
  const std::string a = Read(path, 8192, 4096);
  const std::string b = Read(path, 12288, 4096);
  Patch(path, 8192, b);
  Patch(path, 12288, a);
  EXPECT_THAT(Damage(), ElementsAre(absl::StrCat(Image(0, 0), " 0")));
}

TEST_F(RecoverTest, AStaleBlockOfAnotherStep) {
  Patch(PathOf(Image(1, 0)), kChunk, Read(PathOf(Image(1, 0), kOlder), kChunk, 4096));
  EXPECT_THAT(Damage(), ElementsAre(absl::StrCat(Image(1, 0), " ", kChunk)));
}

TEST_F(RecoverTest, AStaleImageOfAnotherStep) {
  std::filesystem::copy_file(PathOf(Image(1, 1), kOlder), PathOf(Image(1, 1)),
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_FALSE(Damage().empty());
}

TEST_F(RecoverTest, AMissingImage) {
  std::filesystem::remove(PathOf(Image(0, 1)));
  EXPECT_THAT(Damage(), ElementsAre(absl::StrCat(Image(0, 1), " 0")));
}

TEST_F(RecoverTest, AMissingSidecar) {
  std::filesystem::remove(PathOf(SidecarFileName(1, 2)));
  EXPECT_THAT(Damage(), ElementsAre(absl::StrCat(SidecarFileName(1, 2), " 0")));
}

TEST_F(RecoverTest, ASidecarOfAnotherCommit) {
  // Whole in itself, and even of this snapshot: only the manifest knows that it is not the one.
  auto sidecar = CommittedSidecar(*store_, kJob, kId, 1);
  ASSERT_TRUE(sidecar.ok());
  sidecar->set_chunk_crc32c(0, sidecar->chunk_crc32c(0) ^ 1);
  std::ofstream(PathOf(SidecarFileName(1, 2))) << SidecarText(*sidecar);
  EXPECT_THAT(Damage(), ElementsAre(absl::StrCat(SidecarFileName(1, 2), " 0")));
  EXPECT_EQ(CodeOf(CommittedSidecar(*store_, kJob, kId, 1).status()), ErrorCode::CORRUPT);
}

TEST_F(RecoverTest, DamageInSeveralRanksIsAllNamed) {
  std::filesystem::remove(PathOf(SidecarFileName(0, 2)));
  std::filesystem::remove(PathOf(Image(1, 0)));
  EXPECT_THAT(Damage(), ElementsAre(absl::StrCat(SidecarFileName(0, 2), " 0"), absl::StrCat(Image(1, 0), " 0")));
}

TEST_F(RecoverTest, WithoutAManifestThereIsNothingToCheck) {
  std::filesystem::remove(PathOf(kManifestName));
  CheckedReadOptions options;
  options.on_bad = [](const BadChunk&) { FAIL() << "the step is not committed"; };
  EXPECT_EQ(CodeOf(CheckStep(*store_, kJob, kId, options)), ErrorCode::NOT_FOUND);
  EXPECT_EQ(CodeOf(CommittedSidecar(*store_, kJob, kId, 0).status()), ErrorCode::NOT_FOUND);
}

TEST_F(RecoverTest, ADamagedManifestIsAnErrorNotDamageOfTheParts) {
  Patch(PathOf(kManifestName), 30, "?");
  EXPECT_EQ(CodeOf(CheckStep(*store_, kJob, kId, {})), ErrorCode::CORRUPT);
}

TEST_F(RecoverTest, HeadersComeOneAfterTheOther) {
  auto sidecar = CommittedSidecar(*store_, kJob, kId, 1);
  ASSERT_TRUE(sidecar.ok()) << sidecar.status();
  auto headers = ReadHeaders(*store_, kJob, *sidecar, 8192);
  ASSERT_TRUE(headers.ok()) << headers.status();
  EXPECT_EQ(*headers, Read(PathOf(Image(1, 0)), 0, 4096) + Read(PathOf(Image(1, 1)), 0, 4096));
}

TEST_F(RecoverTest, HeadersAreBounded) {
  auto sidecar = CommittedSidecar(*store_, kJob, kId, 1);
  ASSERT_TRUE(sidecar.ok());
  EXPECT_EQ(CodeOf(ReadHeaders(*store_, kJob, *sidecar, 8191).status()), ErrorCode::CORRUPT);
  std::filesystem::resize_file(PathOf(Image(1, 1)), 4095);
  EXPECT_EQ(CodeOf(ReadHeaders(*store_, kJob, *sidecar, 8192).status()), ErrorCode::CORRUPT);
  sidecar->mutable_images(0)->set_header_bytes(0);
  EXPECT_EQ(CodeOf(ReadHeaders(*store_, kJob, *sidecar, 8192).status()), ErrorCode::CORRUPT);
}

}  // namespace
}  // namespace ckptd
