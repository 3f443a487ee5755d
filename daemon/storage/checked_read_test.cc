// Reading a rank back: every byte checked, over chunks that span two images.
#include "daemon/storage/checked_read.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/os/posix_files.h"
#include "daemon/os/testing/temp_dir.h"
#include "daemon/storage/posix_store.h"
#include "daemon/storage/testing/test_slot.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kChunk = 64 << 10;
// Chunk 1 spans the images; the last chunk is short.
const std::vector<uint64_t> kImages = {kChunk + 9 * 4096, kChunk + 4096};

class CheckedReadTest : public ::testing::Test {
 protected:
  CheckedReadTest() : slot_(kImages, kChunk, 1) {
    PosixStoreOptions options;
    options.root = dir_.path();
    options.make_queue = [] { return MakeInlineIoQueue(4); };
    store_ = *OpenPosixStore(PosixFiles(), options);
    rank_.chunk_bytes = kChunk;
    rank_.chunk_crcs = slot_.ChunkCrcs();
    Write();
  }

  // New files each time: nothing on storage is ever replaced.
  void Write() {
    ++generation_;
    rank_.parts.clear();
    for (size_t i = 0; i < kImages.size(); ++i) {
      std::string name = absl::StrCat("g", generation_, "/part-", i);
      auto writer = *store_->OpenForWrite(name, kImages[i]);
      ASSERT_TRUE(writer->Write(0, slot_.image(i)).ok());
      ASSERT_TRUE(writer->Finish().ok());
      rank_.parts.push_back({name, kImages[i]});
    }
  }

  // All damage that a read which goes on finds: "part offset bytes".
  std::vector<std::string> BadChunks() {
    std::vector<std::string> bad;
    CheckedReadOptions options;
    options.on_bad = [&](const BadChunk& chunk) {
      bad.push_back(absl::StrCat(chunk.part.substr(chunk.part.rfind('/') + 1), " ", chunk.offset, " ", chunk.bytes));
    };
    EXPECT_TRUE(ReadChecked(*store_, rank_, options).ok());
    return bad;
  }

  TempDir dir_;
  TestSlot slot_;
  std::unique_ptr<Store> store_;
  StoredRank rank_;
  int generation_ = 0;
};

TEST_F(CheckedReadTest, ARangeComesInWholeChunks) {
  std::vector<size_t> chunks;
  CheckedReadOptions options;
  options.first_chunk = 1;
  options.chunks = 2;
  const std::span<const std::byte> all = slot_.bytes();
  options.chunk_sink = [&](size_t chunk, std::span<const std::byte> bytes) {
    chunks.push_back(chunk);
    EXPECT_EQ(std::memcmp(bytes.data(), all.data() + chunk * kChunk, bytes.size()), 0);
    EXPECT_EQ(bytes.size(), std::min(kChunk, all.size() - chunk * kChunk));
    return absl::OkStatus();
  };
  uint64_t seen = 0;
  options.progress = [&](uint64_t bytes) { seen = bytes; };
  ASSERT_TRUE(ReadChecked(*store_, rank_, options).ok());
  EXPECT_THAT(chunks, ElementsAre(1, 2));
  EXPECT_EQ(seen, std::min(2 * kChunk, all.size() - kChunk));

  chunks.clear();
  options.chunks = 0;
  ASSERT_TRUE(ReadChecked(*store_, rank_, options).ok());
  EXPECT_EQ(chunks.size(), rank_.chunk_crcs.size() - 1) << "all behind the first";

  options.first_chunk = rank_.chunk_crcs.size();
  EXPECT_EQ(CodeOf(ReadChecked(*store_, rank_, options)), ErrorCode::INVALID_ARGUMENT);
}

TEST_F(CheckedReadTest, AWrongChunkOfARangeIsNotHandedOn) {
  std::vector<size_t> chunks;
  rank_.chunk_crcs[1] ^= 1;
  CheckedReadOptions options;
  options.chunk_sink = [&](size_t chunk, std::span<const std::byte>) {
    chunks.push_back(chunk);
    return absl::OkStatus();
  };
  EXPECT_EQ(CodeOf(ReadChecked(*store_, rank_, options)), ErrorCode::CORRUPT);
  EXPECT_THAT(chunks, ElementsAre(0));
  options.first_chunk = 2;
  EXPECT_TRUE(ReadChecked(*store_, rank_, options).ok());
}

TEST_F(CheckedReadTest, EveryByteComesOnceAtItsPlaceInTheSlot) {
  std::vector<std::byte> got(rank_.bytes());
  std::vector<int> seen(rank_.bytes() / 4096);
  uint64_t progress = 0;
  CheckedReadOptions options;
  options.sink = [&](uint64_t offset, std::span<const std::byte> bytes) {
    std::memcpy(got.data() + offset, bytes.data(), bytes.size());
    for (uint64_t at = offset; at < offset + bytes.size(); at += 4096) ++seen[at / 4096];
    return absl::OkStatus();
  };
  options.progress = [&](uint64_t bytes) { progress = bytes; };
  ASSERT_TRUE(ReadChecked(*store_, rank_, options).ok());
  EXPECT_TRUE(std::equal(got.begin(), got.end(), slot_.bytes().begin()));
  EXPECT_THAT(seen, ::testing::Each(1));
  EXPECT_EQ(progress, rank_.bytes());
}

TEST_F(CheckedReadTest, AFlippedBitIsFoundInEveryChunkAndNamed) {
  for (uint64_t at = 17; at < rank_.bytes(); at += 4096) {
    slot_.bytes()[at] ^= std::byte{0x10};
    Write();
    absl::Status status = ReadChecked(*store_, rank_, {});
    EXPECT_EQ(CodeOf(status), ErrorCode::CORRUPT) << at;
    const uint64_t chunk = at / kChunk * kChunk;
    const bool first = chunk < kImages[0];
    std::string where = absl::StrCat(rank_.parts[first ? 0 : 1].name, " at ", first ? chunk : chunk - kImages[0]);
    EXPECT_THAT(std::string(status.message()), HasSubstr(where)) << at;
    slot_.bytes()[at] ^= std::byte{0x10};
  }
}

TEST_F(CheckedReadTest, ItGoesOnWhenAskedAndNamesAllDamage) {
  EXPECT_THAT(BadChunks(), IsEmpty());
  slot_.bytes()[0] ^= std::byte{1};
  slot_.bytes()[rank_.bytes() - 1] ^= std::byte{1};
  Write();
  EXPECT_THAT(BadChunks(), ElementsAre("part-0 0 65536", absl::StrCat("part-1 ", 2 * kChunk - kImages[0], " ",
                                                                      rank_.bytes() - 2 * kChunk)));
}

TEST_F(CheckedReadTest, SwappedBlocksAreFound) {
  std::swap_ranges(slot_.bytes().begin(), slot_.bytes().begin() + 4096, slot_.bytes().begin() + 4096);
  Write();
  EXPECT_THAT(BadChunks(), ElementsAre("part-0 0 65536"));
}

TEST_F(CheckedReadTest, AFileOfAnotherLengthIsDamage) {
  rank_.parts[0].bytes -= 4096;
  rank_.parts[1].bytes += 4096;
  absl::Status status = ReadChecked(*store_, rank_, {});
  EXPECT_EQ(CodeOf(status), ErrorCode::CORRUPT);
  EXPECT_THAT(std::string(status.message()), HasSubstr(rank_.parts[0].name));
}

TEST_F(CheckedReadTest, AMissingFileIsToldAndTheRestIsStillRead) {
  ASSERT_TRUE(store_->Delete(rank_.parts[0].name).ok());
  EXPECT_EQ(CodeOf(ReadChecked(*store_, rank_, {})), ErrorCode::NOT_FOUND);
  EXPECT_THAT(BadChunks(), ElementsAre(absl::StrCat("part-0 0 ", kImages[0])));
}

TEST_F(CheckedReadTest, BehindAMissingFileDamageIsStillNamed) {
  slot_.bytes()[rank_.bytes() - 1] ^= std::byte{1};
  Write();
  ASSERT_TRUE(store_->Delete(rank_.parts[0].name).ok());
  EXPECT_THAT(BadChunks(),
              ElementsAre(absl::StrCat("part-0 0 ", kImages[0]),
                          absl::StrCat("part-1 ", 2 * kChunk - kImages[0], " ", rank_.bytes() - 2 * kChunk)));
}

TEST_F(CheckedReadTest, ASidecarThatDoesNotCoverTheFilesIsRefused) {
  StoredRank bad = rank_;
  bad.chunk_crcs.pop_back();
  EXPECT_EQ(CodeOf(ReadChecked(*store_, bad, {})), ErrorCode::CORRUPT);
  bad = rank_;
  bad.chunk_bytes = 0;
  EXPECT_EQ(CodeOf(ReadChecked(*store_, bad, {})), ErrorCode::CORRUPT);
}

TEST_F(CheckedReadTest, AnErrorOfTheSinkEndsTheRead) {
  CheckedReadOptions options;
  int pieces = 0;
  options.sink = [&](uint64_t, std::span<const std::byte>) {
    ++pieces;
    return Error(ErrorCode::REGION_FULL, "full");
  };
  EXPECT_EQ(CodeOf(ReadChecked(*store_, rank_, options)), ErrorCode::REGION_FULL);
  EXPECT_EQ(pieces, 1);
}

TEST_F(CheckedReadTest, CancelledBetweenTwoPieces) {
  std::atomic<bool> cancel{false};
  uint64_t bytes = 0;
  CheckedReadOptions options;
  options.on_bad = [](const BadChunk& bad) { FAIL() << bad.reason; };  // a cancelled read has found nothing
  options.cancel = &cancel;
  options.progress = [&](uint64_t done) {
    bytes = done;
    cancel = true;
  };
  EXPECT_EQ(CodeOf(ReadChecked(*store_, rank_, options)), ErrorCode::CANCELLED);
  EXPECT_LT(bytes, rank_.bytes());
}

}  // namespace
}  // namespace ckptd
