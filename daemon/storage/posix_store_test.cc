#include "daemon/storage/posix_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "daemon/base/errors.h"
#include "daemon/os/mapping.h"
#include "daemon/os/memfd.h"
#include "daemon/os/posix_files.h"
#include "daemon/os/testing/sim_files.h"
#include "daemon/os/testing/temp_dir.h"
#include "daemon/storage/io_pool.h"
#include "daemon/storage/publish.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr size_t kStoreChunk = 256 << 10;
constexpr size_t kPart = 4 * kStoreChunk;

struct Variant {
  std::string name;
  IoQueueChoice queue;
  bool direct;
};

class PosixStoreTest : public ::testing::TestWithParam<Variant> {
 protected:
  PosixStoreTest() {
    memory_ = *Mapping::Map(CreateMemfd("slot", kPart)->get(), kPart, MapAccess::kReadWrite);
    for (size_t i = 0; i < kPart; ++i) memory_.data()[i] = static_cast<std::byte>(i * 37 >> 5);
  }

  std::unique_ptr<Store> Open() {
    IoQueueChoice choice = GetParam().queue;
    auto store = OpenPosixStore(PosixFiles(), {.root = dir_.path(),
                                               .make_queue = [choice] { return MakeIoQueue(choice, 3); },
                                               .direct = GetParam().direct,
                                               .io_bytes = 64 << 10});
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }

  std::span<const std::byte> ChunkAt(size_t offset) const { return memory_.bytes().subspan(offset, kStoreChunk); }

  absl::Status WritePart(Store& store, const std::string& name) {
    auto part = store.OpenForWrite(name, kPart);
    if (!part.ok()) return part.status();
    for (size_t offset : {2 * kStoreChunk, size_t{0}, 3 * kStoreChunk, kStoreChunk}) {
      absl::Status status = (*part)->Write(offset, ChunkAt(offset));
      if (!status.ok()) return status;
    }
    return (*part)->Finish();
  }

  std::vector<std::string> FilesIn(const std::string& directory) {
    auto entries = PosixFiles().ReadDir(dir_.path() + "/" + directory, 100);
    std::vector<std::string> names;
    for (const DirEntry& entry : *entries) names.push_back(entry.name);
    return names;
  }

  TempDir dir_;
  Mapping memory_;
};

TEST_P(PosixStoreTest, PartsRoundTrip) {
  auto store = Open();
  ASSERT_TRUE(WritePart(*store, "job/step-1/a.safetensors").ok());
  EXPECT_THAT(FilesIn("job/step-1"), ElementsAre("a.safetensors")) << "no temporary name stays";
  auto reader = store->OpenForRead("job/step-1/a.safetensors");
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ((*reader)->size(), kPart);
  auto target = *Mapping::Map(CreateMemfd("slot", kPart)->get(), kPart, MapAccess::kReadWrite);
  std::vector<uint64_t> arrived;
  auto on_piece = [&](uint64_t offset, std::span<std::byte> bytes) {
    EXPECT_EQ(std::memcmp(bytes.data(), memory_.data() + offset, bytes.size()), 0) << "piece at " << offset;
    arrived.push_back(offset);
    return absl::OkStatus();
  };
  ASSERT_TRUE((*reader)->Read(0, target.bytes(), kStoreChunk, on_piece).ok());
  EXPECT_THAT(arrived, UnorderedElementsAre(0, kStoreChunk, 2 * kStoreChunk, 3 * kStoreChunk));
  EXPECT_EQ(std::memcmp(target.data(), memory_.data(), kPart), 0);
}

TEST_P(PosixStoreTest, UnalignedRangesAreReadToo) {
  auto store = Open();
  ASSERT_TRUE(WritePart(*store, "a").ok());
  std::vector<std::byte> some(1000);
  auto reader = *store->OpenForRead("a");
  ASSERT_TRUE(reader->Read(4097, some, 300, nullptr).ok());
  EXPECT_EQ(std::memcmp(some.data(), memory_.data() + 4097, some.size()), 0);
  EXPECT_EQ(CodeOf(reader->Read(kPart - 999, some, 300, nullptr)), ErrorCode::CORRUPT);
  EXPECT_EQ(CodeOf(reader->Read(UINT64_MAX, some, 300, nullptr)), ErrorCode::CORRUPT) << "no overflow";
}

TEST_P(PosixStoreTest, AnErrorOfTheReceiverStopsTheRead) {
  auto store = Open();
  ASSERT_TRUE(WritePart(*store, "a").ok());
  std::vector<std::byte> all(kPart);
  int pieces = 0;
  auto refuse = [&](uint64_t, std::span<std::byte>) {
    ++pieces;
    return Error(ErrorCode::CORRUPT, "crc");
  };
  EXPECT_EQ(CodeOf((*store->OpenForRead("a"))->Read(0, all, kStoreChunk, refuse)), ErrorCode::CORRUPT);
  EXPECT_EQ(pieces, 1);
}

// Longer than the store's buffer, so that each place of it is read into several times.
TEST_P(PosixStoreTest, AScanGivesEveryByteInOrder) {
  auto store = Open();
  const size_t size = 2 * IoPool::kBufferBytes + (1 << 20) + 3 * 4096;
  std::unique_ptr<std::byte, IoPool::FreeMemory> bytes(static_cast<std::byte*>(std::aligned_alloc(4096, size)));
  for (size_t i = 0; i < size; ++i) bytes.get()[i] = static_cast<std::byte>(i * 37 >> 9);
  auto part = *store->OpenForWrite("a", size);
  ASSERT_TRUE(part->Write(0, {bytes.get(), size}).ok());
  ASSERT_TRUE(part->Finish().ok());
  auto reader = *store->OpenForRead("a");
  for (uint64_t begin : {uint64_t{0}, uint64_t{4096}, uint64_t{4097}}) {
    uint64_t next = begin;
    auto on_piece = [&](uint64_t offset, std::span<std::byte> piece) {
      EXPECT_EQ(offset, next);
      EXPECT_EQ(std::memcmp(piece.data(), bytes.get() + offset, piece.size()), 0) << "piece at " << offset;
      std::memset(piece.data(), 0, piece.size());  // what is left in the buffer counts for nothing
      next += piece.size();
      return absl::OkStatus();
    };
    ASSERT_TRUE(reader->Scan(begin, size - begin, on_piece).ok());
    EXPECT_EQ(next, size);
  }
  EXPECT_EQ(CodeOf(reader->Scan(4096, size, nullptr)), ErrorCode::CORRUPT) << "beyond the end";
}

TEST_P(PosixStoreTest, AnErrorOfTheReceiverStopsTheScan) {
  auto store = Open();
  ASSERT_TRUE(WritePart(*store, "a").ok());
  auto refuse = [](uint64_t, std::span<std::byte>) { return Error(ErrorCode::CANCELLED, "enough"); };
  auto reader = *store->OpenForRead("a");
  EXPECT_EQ(CodeOf(reader->Scan(0, kPart, refuse)), ErrorCode::CANCELLED);
  int pieces = 0;
  auto take = [&](uint64_t, std::span<std::byte>) { return ++pieces, absl::OkStatus(); };
  EXPECT_TRUE(reader->Scan(0, kPart, take).ok()) << "queue and buffer are as new";
  EXPECT_EQ(pieces, 1);
}

TEST_P(PosixStoreTest, ALostRaceIsDistinctAndKeepsTheWinner) {
  auto store = Open();
  ASSERT_TRUE(WritePart(*store, "a").ok());
  memory_.data()[0] ^= std::byte{1};
  absl::Status lost = WritePart(*store, "a");
  EXPECT_TRUE(absl::IsAlreadyExists(lost)) << lost;
  std::byte first{};
  ASSERT_TRUE((*store->OpenForRead("a"))->Read(0, {&first, 1}, 1, nullptr).ok());
  EXPECT_NE(first, memory_.data()[0]);
  EXPECT_THAT(FilesIn(""), ElementsAre("a"));
}

TEST_P(PosixStoreTest, AWriterThatIsDroppedLeavesNothing) {
  auto store = Open();
  {
    auto part = *store->OpenForWrite("job/a", kPart);
    ASSERT_TRUE(part->Write(0, ChunkAt(0)).ok());
    EXPECT_EQ(FilesIn("job").size(), 1u);
    EXPECT_THAT(*store->List("job"), IsEmpty()) << "temporary names are not listed";
  }
  EXPECT_THAT(FilesIn("job"), IsEmpty());
}

TEST_P(PosixStoreTest, MemoryThatVanishesIsAnErrorAndNothingIsPublished) {
  auto store = Open();
  UniqueFd fd = *CreateMemfd("slot", kPart);
  Mapping slot = *Mapping::Map(fd.get(), kPart, MapAccess::kReadWrite);
  auto part = *store->OpenForWrite("job/a", kPart);
  ASSERT_EQ(ftruncate(fd.get(), kStoreChunk), 0);
  absl::Status status = part->Write(0, slot.bytes());
  if (status.ok()) status = part->Finish();
  EXPECT_EQ(CodeOf(status), ErrorCode::CORRUPT) << status;
  EXPECT_EQ(part->Finish(), status) << "it stays dead";
  part.reset();
  EXPECT_THAT(FilesIn("job"), IsEmpty());
}

TEST_P(PosixStoreTest, APartIsWhole) {
  auto store = Open();
  auto part = *store->OpenForWrite("a", kPart);
  ASSERT_TRUE(part->Write(0, ChunkAt(0)).ok());
  EXPECT_FALSE(part->Finish().ok());
  auto other = *store->OpenForWrite("b", kStoreChunk);
  EXPECT_FALSE(other->Write(4096, ChunkAt(0)).ok()) << "beyond its size";
  part.reset();
  other.reset();
  EXPECT_THAT(FilesIn(""), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Ways, PosixStoreTest,
                         ::testing::Values(Variant{"auto_direct", IoQueueChoice::kAuto, true},
                                           Variant{"auto_buffered", IoQueueChoice::kAuto, false},
                                           Variant{"threads_direct", IoQueueChoice::kThreads, true},
                                           Variant{"threads_buffered", IoQueueChoice::kThreads, false}),
                         [](const auto& info) { return info.param.name; });

class RecordsTest : public ::testing::Test {
 protected:
  RecordsTest() : store_(OpenStore(dir_.path())) {}
  std::unique_ptr<Store> OpenStore(const std::string& root) {
    return *OpenPosixStore(PosixFiles(), {.root = root, .make_queue = [] { return MakeInlineIoQueue(1); }});
  }

  TempDir dir_;
  std::unique_ptr<Store> store_;
};

TEST_F(RecordsTest, CreatedOnceReadListedDeleted) {
  ASSERT_TRUE(store_->CreateExclusive("job/attempts/a0001.json", "{}").ok());
  EXPECT_TRUE(absl::IsAlreadyExists(store_->CreateExclusive("job/attempts/a0001.json", "other")));
  EXPECT_EQ(*store_->ReadSmall("job/attempts/a0001.json", 10), "{}");
  EXPECT_EQ(CodeOf(store_->ReadSmall("job/attempts/a0001.json", 1).status()), ErrorCode::CORRUPT);
  EXPECT_THAT(*store_->List("job/attempts"), ElementsAre(Field(&DirEntry::name, "a0001.json")));
  EXPECT_THAT(*store_->List(""), ElementsAre(Field(&DirEntry::name, "job")));
  EXPECT_THAT(*store_->List("nothing"), IsEmpty());
  EXPECT_FALSE(store_->DeleteDirectory("job/attempts").ok()) << "not empty";
  EXPECT_EQ(store_->Stat("job/attempts/a0001.json")->size, 2u);
  for (int twice = 0; twice < 2; ++twice) {
    EXPECT_TRUE(store_->Delete("job/attempts/a0001.json").ok());
    EXPECT_TRUE(store_->DeleteDirectory("job/attempts").ok());
  }
  EXPECT_EQ(CodeOf(store_->Stat("job/attempts").status()), ErrorCode::NOT_FOUND);
  EXPECT_TRUE(store_->Delete("never/was").ok());
}

TEST_F(RecordsTest, NamesStayInsideTheRoot) {
  for (const char* bad : {"", "/etc/x", "../x", "a/../x", "a//x", "a/", "./x", ".tmp-0123456789abcdef"}) {
    EXPECT_EQ(CodeOf(store_->CreateExclusive(bad, "x")), ErrorCode::INVALID_ARGUMENT) << bad;
    EXPECT_EQ(CodeOf(store_->Delete(bad)), ErrorCode::INVALID_ARGUMENT) << bad;
    EXPECT_EQ(CodeOf(store_->OpenForRead(bad).status()), ErrorCode::INVALID_ARGUMENT) << bad;
  }
  EXPECT_FALSE(store_->List("..").ok());
}

TEST_F(RecordsTest, LeftoversAreThoseOfEarlierProcessesOfTheSameOwner) {
  auto open = [this](const std::string& owner) {
    PosixStoreOptions options;
    options.root = dir_.path();
    options.owner = owner;
    options.make_queue = [] { return MakeInlineIoQueue(1); };
    return *OpenPosixStore(PosixFiles(), options);
  };
  auto killed = open("node-a");
  auto writer = *killed->OpenForWrite("job/step/part", 4096);
  EXPECT_EQ(*killed->RemoveLeftovers("job/step"), 0u) << "its own, still being written";
  EXPECT_EQ(*open("node-b")->RemoveLeftovers("job/step"), 0u) << "another agent's";
  EXPECT_EQ(*open("node-a")->RemoveLeftovers("job/step"), 1u);
}

// No descriptor is free: nothing was asked of the directory, so nothing is lost. A failed fsync is refused for ever.
TEST(Publisher, ADirectoryThatCouldNotBeOpenedIsSyncedLater) {
  TempDir dir;
  Publisher publisher(PosixFiles(), "node-a");
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none{0, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const absl::Status status = publisher.SyncDirectory(dir.path());
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(CodeOf(status), ErrorCode::STORAGE_IO) << status;
  EXPECT_TRUE(publisher.SyncDirectory(dir.path()).ok());
  SimFiles files;
  Publisher failing(files, "node-a");
  files.FailCall(0, EIO);
  EXPECT_FALSE(failing.SyncDirectory("/").ok());
  EXPECT_FALSE(failing.SyncDirectory("/").ok());
}

TEST(PosixStore, TheProbeOfAKilledProcessIsALeftoverOfItsOwner) {
  SimFiles files;
  ASSERT_TRUE(files.Mkdir("/store", 0700).ok());
  PosixStoreOptions options;
  options.root = "/store";
  options.owner = "node-a";
  options.make_queue = [] { return MakeInlineIoQueue(1); };
  files.KillAt(files.OpCount() + 1);  // the file is made, and not removed
  (void)OpenPosixStore(files, options);
  files.Revive();
  ASSERT_EQ(files.ReadDir("/store", 10)->size(), 1u);
  EXPECT_EQ(*(*OpenPosixStore(files, options))->RemoveLeftovers(""), 1u);
}

// What the store says it does after its first look failed with `error`, and then after a part was opened.
std::pair<std::string, std::string> DescribedAfter(int error, size_t call) {
  SimFiles files;
  EXPECT_TRUE(files.Mkdir("/store", 0700).ok());
  PosixStoreOptions options;
  options.root = "/store";
  options.make_queue = [] { return MakeInlineIoQueue(1); };
  files.FailCall(call, error);
  auto store = *OpenPosixStore(files, options);
  std::string first = store->Describe();
  EXPECT_TRUE(store->OpenForWrite("probe", kDirectAlignment).ok());
  return {first, store->Describe()};
}

// A full or read-only storage says nothing of O_DIRECT. One that cannot do it is not asked again.
TEST(PosixStore, WhetherItCanGoPastThePageCacheIsAskedUntilItIsAnswered) {
  for (size_t call : {1, 2}) {  // after stat: open, write
    for (int error : {ENOSPC, EDQUOT, EROFS, EIO, EMFILE}) {
      const auto [first, then] = DescribedAfter(error, call);
      EXPECT_EQ(first, "inline, buffered") << error;
      EXPECT_EQ(then, "inline, direct") << error;
    }
    for (int error : {EINVAL, EOPNOTSUPP}) {
      const auto [first, then] = DescribedAfter(error, call);
      EXPECT_EQ(first, "inline, buffered") << error;
      EXPECT_EQ(then, "inline, buffered") << error;
    }
  }
}

TEST_F(RecordsTest, RemovesOldTemporaryFilesAndNothingElse) {
  ASSERT_TRUE(store_->CreateExclusive("job/keep", "x").ok());
  for (const char* name : {".tmp-0123456789abcdef", ".hidden", "tmp-x"}) {
    ASSERT_TRUE(PosixFiles().Open(dir_.path() + "/job/" + name, {.write = true, .create = true}).ok());
  }
  ASSERT_TRUE(PosixFiles().Mkdir(dir_.path() + "/job/.tmp-directory", 0700).ok());
  EXPECT_EQ(*store_->RemoveTemporary("job", std::chrono::hours(1)), 0u) << "its writer may live";
  const std::filesystem::path written = dir_.path() + "/job/.tmp-0123456789abcdef";
  last_write_time(written, last_write_time(written) - std::chrono::hours(2));
  EXPECT_EQ(*store_->RemoveTemporary("job", std::chrono::hours(1)), 1u);
  EXPECT_EQ(PosixFiles().ReadDir(dir_.path() + "/job", 10)->size(), 4u);
}

TEST_F(RecordsTest, AMissingRootIsSaid) {
  PosixStoreOptions options{.root = dir_.path() + "/none", .make_queue = [] { return MakeInlineIoQueue(1); }};
  EXPECT_EQ(CodeOf(OpenPosixStore(PosixFiles(), options).status()), ErrorCode::NOT_FOUND);
  options.root = "relative";
  EXPECT_EQ(CodeOf(OpenPosixStore(PosixFiles(), options).status()), ErrorCode::INVALID_ARGUMENT);
}

}  // namespace
}  // namespace ckptd
