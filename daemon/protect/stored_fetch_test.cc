// A restore from one agent's memory with the storage beside it: whatever becomes of either, the other one brings it,
// and nobody waits for a storage that hangs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "daemon/protect/fetch_fixture.h"

namespace ckptd::protect {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr size_t kStoredChunks = 16;

class StoredFetchTest : public FetchTest {
 protected:
  StoredFetchTest() : FetchTest(kStoredChunks * region::kTestChunkBytes) {
    fetch_ = MakeFetch([this](const SnapshotId&) { return std::make_unique<FakeStoredCopy>(storage_); });
    Fetch({"b"});
    auto asked = Take(calls_.describes);
    EXPECT_EQ(asked.request.first_chunk(), 0u);
    EXPECT_EQ(asked.request.chunks(), kStoredChunks) << "whoever is alone brings all";
    asked.answer(Description(1));
    b_ = Take(calls_.received);
  }

  absl::Status FromB(size_t chunk) {
    clock_.Advance(milliseconds(1));
    return FromBAtOnce(chunk);
  }
  absl::Status FromBAtOnce(size_t chunk) {
    const size_t at = chunk * region::kTestChunkBytes;
    std::memcpy(b_.target.bytes.data() + at, content_.data() + at, region::kTestChunkBytes);
    return b_.target.verified(static_cast<uint32_t>(chunk), region::CrcsOf(content_)[chunk]);
  }
  absl::Status FromStorage(const AskedOfStorage::Read& read, size_t chunk) {
    return read.came(chunk, std::span(content_).subspan(chunk * region::kTestChunkBytes, region::kTestChunkBytes));
  }
  void AllFromStorage() {
    while (!storage_.reads.empty()) {
      const auto read = Take(storage_.reads);
      absl::Status goes_on;
      for (size_t i = 0; i < read.count && goes_on.ok(); ++i) goes_on = FromStorage(read, read.first + i);
      read.done(goes_on);
      Settle();
    }
  }
  StoredCopy::Told StorageIsAsked() {
    EXPECT_THAT(storage_.describes, IsEmpty()) << "not within the first second";
    Pass(seconds(1));
    return Take(storage_.describes);
  }
  void StorageTells() { StorageIsAsked()(Description(0).record()); }
  // Another connection, and the question for its token.
  absl::Status BIsSilent() {
    absl::Status told;
    b_.order.renew([&](const absl::StatusOr<transport::TransferToken>& token) { told = token.status(); });
    Take(calls_.describes).answer(Error(ErrorCode::TIMEOUT, "no answer"));
    return told;
  }
  // Until the storage has been asked to read.
  void UntilTaken() {
    for (int i = 0; i < 100 && storage_.reads.empty(); ++i) Pass(milliseconds(200));
    ASSERT_FALSE(storage_.reads.empty());
  }
  void ExpectWhole() {
    Settle();
    EXPECT_THAT(ended_, ElementsAre(absl::OkStatus()));
    EXPECT_EQ(InSlot(), content_);
  }

  AskedOfStorage storage_;
  FakeCopyCalls::Moved b_;
};

TEST_F(StoredFetchTest, AnAgentThatIsFastBringsAll) {
  for (size_t chunk = 0; chunk < kStoredChunks; ++chunk) ASSERT_TRUE(FromB(chunk).ok());
  b_.done(absl::OkStatus());
  ExpectWhole();
  Pass(seconds(10));
  EXPECT_THAT(storage_.describes, IsEmpty());
  EXPECT_EQ(from_storage_, 0u);
}

TEST_F(StoredFetchTest, OfAnAgentThatStandsStillTheStorageTakesAll) {
  ASSERT_TRUE(FromB(0).ok());
  StorageTells();
  UntilTaken();
  for (int i = 0; i < 100 && !b_.move->cancelled; ++i) {
    AllFromStorage();
    Pass(milliseconds(200));
  }
  ASSERT_TRUE(b_.move->cancelled) << "all has come";
  b_.done(Error(ErrorCode::CANCELLED, "cancelled here"));
  ExpectWhole();
  EXPECT_EQ(from_storage_, (kStoredChunks - 1) * region::kTestChunkBytes);
}

// The storage alone is a fetch of another kind: it is tried twice, and a restore hears when it hangs.
TEST_F(StoredFetchTest, WhereNoAgentIsLeftItEnds) {
  StorageTells();
  UntilTaken();
  b_.done(Error(ErrorCode::AGENT_UNREACHABLE, "its node is gone"));
  Settle();
  ASSERT_EQ(ended_.size(), 1u);
  EXPECT_EQ(ended_[0].message(), "job gpt rank 0 step 10: agent b: its node is gone");
  const auto late = Take(storage_.reads);
  EXPECT_EQ(CodeOf(FromStorage(late, late.first)), ErrorCode::FENCED);
  late.done(absl::OkStatus());
}

// It may come back, and the storage may hang.
TEST_F(StoredFetchTest, ALoneAgentIsNotGivenUpForTheStorage) {
  StorageTells();
  EXPECT_EQ(CodeOf(BIsSilent()), ErrorCode::TIMEOUT) << "the transport goes on";
  UntilTaken();
  for (size_t chunk = 0; chunk < kStoredChunks; ++chunk) (void)FromB(chunk);
  b_.done(absl::OkStatus());
  ExpectWhole();
}

TEST_F(StoredFetchTest, AnAgentIsLeftAloneWhenItIsNotOnStorage) {
  StorageIsAsked()(Error(ErrorCode::NOT_FOUND, "not committed"));
  Pass(seconds(10));
  EXPECT_THAT(storage_.reads, IsEmpty());
  for (size_t chunk = 0; chunk < kStoredChunks; ++chunk) ASSERT_TRUE(FromB(chunk).ok());
  b_.done(absl::OkStatus());
  ExpectWhole();
}

TEST_F(StoredFetchTest, AnotherRecordOnStorageIsLeftOut) {
  v1::CopyRecord other = Description(0).record();
  other.set_chunk_crc(3, 999);
  StorageIsAsked()(other);
  Pass(seconds(10));
  EXPECT_THAT(storage_.reads, IsEmpty());
}

TEST_F(StoredFetchTest, OtherChunksOnStorageAreLeftOut) {
  v1::CopyRecord shorter = Description(0).record();
  shorter.mutable_chunk_crc()->RemoveLast();
  StorageIsAsked()(shorter);
  Pass(seconds(10));
  EXPECT_THAT(storage_.reads, IsEmpty());
}

TEST_F(StoredFetchTest, NobodyWaitsForAStorageThatHangs) {
  const auto told = StorageIsAsked();
  b_.done(Error(ErrorCode::AGENT_UNREACHABLE, "its node is gone"));
  Settle();
  ASSERT_EQ(ended_.size(), 1u);
  told(Description(0).record());
  EXPECT_THAT(storage_.reads, IsEmpty());
}

TEST_F(StoredFetchTest, AReadThatHangsWritesNothingAfterwards) {
  StorageTells();
  UntilTaken();
  const auto hangs = Take(storage_.reads);
  for (size_t chunk = 0; chunk < kStoredChunks; ++chunk) (void)FromB(chunk);
  b_.done(absl::OkStatus());
  for (int i = 0; i < 100 && ended_.empty(); ++i) {
    Pass(milliseconds(200));
    if (calls_.describes.empty()) continue;
    const auto asked = Take(calls_.describes);
    asked.answer(Description(2));
    const auto moved = Take(calls_.received);
    for (size_t i = 0; i < asked.request.chunks(); ++i) {
      const size_t chunk = asked.request.first_chunk() + i;
      std::memcpy(moved.target.bytes.data() + i * region::kTestChunkBytes,
                  content_.data() + chunk * region::kTestChunkBytes, region::kTestChunkBytes);
      (void)moved.target.verified(static_cast<uint32_t>(i), region::CrcsOf(content_)[chunk]);
    }
    moved.done(absl::OkStatus());
  }
  ExpectWhole();
  EXPECT_EQ(from_storage_, 0u);
  EXPECT_EQ(CodeOf(FromStorage(hangs, hangs.first)), ErrorCode::FENCED);
}

TEST_F(StoredFetchTest, ADamagedStorageIsLeftToTheAgent) {
  StorageTells();
  UntilTaken();
  const auto read = Take(storage_.reads);
  ASSERT_TRUE(FromStorage(read, read.first).ok());
  read.done(Error(ErrorCode::CORRUPT, "checksum does not match"));
  Settle();
  for (size_t chunk = 0; chunk < kStoredChunks; ++chunk) (void)FromB(chunk);
  b_.done(absl::OkStatus());
  ExpectWhole();
  EXPECT_EQ(from_storage_, region::kTestChunkBytes);
}

TEST_F(StoredFetchTest, ACutChunkIsRefused) {
  StorageTells();
  UntilTaken();
  const auto read = Take(storage_.reads);
  const absl::Status cut = read.came(read.first, std::span(content_).first(4096));
  EXPECT_EQ(CodeOf(cut), ErrorCode::CORRUPT);
}

// A chunk of the storage is on its way into the slot when all has come: the slot is used when it is there.
TEST_F(StoredFetchTest, NothingIsWrittenAfterTheEnd) {
  StorageTells();
  UntilTaken();
  const auto read = Take(storage_.reads);
  std::thread storage([&] {  // time stands still meanwhile
    const std::vector<std::byte> other(region::kTestChunkBytes);
    for (size_t i = 0; i < 1000 && read.came(read.first, other).ok(); ++i) continue;
  });
  for (size_t chunk = 0; chunk < kStoredChunks; ++chunk) (void)FromBAtOnce(chunk);
  b_.done(absl::OkStatus());
  // Not before the storage's thread has written what it writes, whenever that gets a core.
  const auto latest = std::chrono::steady_clock::now() + seconds(20);
  while (ended_.empty() && std::chrono::steady_clock::now() < latest) {
    Settle();
    std::this_thread::yield();
  }
  const std::vector<std::byte> at_the_end = InSlot();
  storage.join();
  EXPECT_THAT(ended_, ElementsAre(absl::OkStatus()));
  EXPECT_EQ(InSlot(), at_the_end);
}

// What it keeps for ever is not the memory of the slot.
TEST_F(StoredFetchTest, AReadThatHangsKeepsNoFile) {
  StorageTells();
  UntilTaken();
  const auto hangs = Take(storage_.reads);
  const long others = into_.file.use_count();
  b_.done(Error(ErrorCode::AGENT_UNREACHABLE, "its node is gone"));
  Settle();
  EXPECT_LT(into_.file.use_count(), others);
  EXPECT_EQ(into_.file.use_count(), 2) << "the fixture's and the layout's";
}

}  // namespace
}  // namespace ckptd::protect
