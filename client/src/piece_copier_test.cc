#include "client/src/piece_copier.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <thread>

#include "client/core/copy/crc32c.h"

namespace ckptd {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kMiB = 1 << 20;

struct Unmap {
  uint64_t bytes;
  void operator()(char* memory) const { munmap(memory, bytes); }
};
using Memory = std::unique_ptr<char, Unmap>;

Memory Map(uint64_t bytes, int file = -1) {
  const int flags = file >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, file, 0);
  EXPECT_NE(memory, MAP_FAILED);
  return {static_cast<char*>(memory), Unmap{bytes}};
}

class PieceCopierTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kBytes = 4 * kMiB;

  void SetUp() override {
    ASSERT_EQ(ftruncate(file_.get(), kBytes), 0);
    slot_ = Map(kBytes, file_.get());
    source_ = Map(kBytes);
    for (uint64_t i = 0; i < kBytes; ++i) source_.get()[i] = static_cast<char>(i * 2654435761u >> 13);
  }

  // All of the source in one piece.
  [[nodiscard]] int CopyAll(uint64_t* failed_at) {
    const std::vector<Piece> pieces = {{source_.get(), 0, kBytes}};
    uint32_t crc = 0;
    PieceCopier copier(pieces, file_.get(), slot_.get());
    return copier.CopyAndSum(kBytes, &crc, failed_at);
  }

  UniqueFd file_{memfd_create("slot", MFD_CLOEXEC)};
  Memory slot_;
  Memory source_;
};

// Small and large, promised to stay and not, with what is in the slot already between them, in ranges of any length.
TEST_F(PieceCopierTest, EveryKindOfPiece) {
  const uint64_t lengths[] = {1, 63, 4096, 5, 200'000, 8191, 777'777, 64, 300'001};
  std::vector<Piece> pieces;
  std::string expected;
  for (size_t i = 0; i < 60; ++i) {
    const uint64_t at = expected.size(), bytes = lengths[i % 9] / (1 + i / 9);
    if (bytes == 0) continue;
    const bool there = i % 5 == 4;
    memset(slot_.get() + at, 0x5a, bytes);
    pieces.push_back({there ? nullptr : source_.get() + i * 7, at, bytes, DeviceTensors::kHost, i % 3 == 1});
    expected += there ? std::string(bytes, 0x5a) : std::string(source_.get() + i * 7, bytes);
  }
  ASSERT_LT(expected.size(), kBytes);
  for (const bool mapped : {true, false}) {
    PieceCopier copier(pieces, file_.get(), mapped ? slot_.get() : nullptr);
    uint64_t failed_at = 0;
    uint32_t crc = 0;
    for (uint64_t end = 0; end < expected.size();) {
      end = std::min<uint64_t>(expected.size(), end + 99'999);
      ASSERT_EQ(mapped ? copier.CopyAndSum(end, &crc, &failed_at) : copier.CopyUntil(end, &failed_at), 0);
    }
    EXPECT_EQ(std::string(slot_.get(), expected.size()), expected) << mapped;
    EXPECT_EQ(crc, mapped ? Crc32c(0, expected.data(), expected.size()) : 0U);
    for (const Piece& piece : pieces) {
      if (piece.source != nullptr) memset(slot_.get() + piece.slot_offset, 0, piece.bytes);
    }
  }
}

TEST_F(PieceCopierTest, FreedMemoryIsAnErrorNotASignal) {
  for (const uint64_t hole : {uint64_t{0}, kBytes / 2, kBytes - kPage}) {
    ASSERT_EQ(munmap(source_.get() + hole, kPage), 0);
    uint64_t failed_at = 1;
    EXPECT_EQ(CopyAll(&failed_at), EFAULT);
    EXPECT_EQ(failed_at, hole);
    ASSERT_NE(mmap(source_.get() + hole, kPage, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0), MAP_FAILED);
    EXPECT_EQ(CopyAll(&failed_at), 0);
  }
  ASSERT_EQ(mprotect(source_.get() + 8192, kPage, PROT_NONE), 0);
  uint64_t failed_at = 0;
  EXPECT_EQ(CopyAll(&failed_at), EFAULT);
  EXPECT_EQ(failed_at, 8192U);
}

// Where the copier writes instead of reading.
TEST_F(PieceCopierTest, IntoHugePages) {
  char dir[] = "/tmp/ckptd-huge-XXXXXX";
  ASSERT_NE(mkdtemp(dir), nullptr);
  const bool mounted = mount("tmpfs", dir, "tmpfs", 0, "size=16m,huge=within_size") == 0;
  const std::string why = std::strerror(errno);
  if (mounted) {
    file_ = UniqueFd(open((std::string(dir) + "/slot").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    umount2(dir, MNT_DETACH);
  }
  rmdir(dir);
  if (!mounted) GTEST_SKIP() << "skipped: cannot mount a tmpfs with huge= here: " << why;
  ASSERT_EQ(ftruncate(file_.get(), kBytes), 0);
  struct stat slot = {};
  ASSERT_EQ(fstat(file_.get(), &slot), 0);
  EXPECT_GE(slot.st_blksize, 2 << 20) << "the copier cannot know";
  slot_ = Map(kBytes, file_.get());
  uint64_t failed_at = 0;
  EXPECT_EQ(CopyAll(&failed_at), 0);
  EXPECT_EQ(memcmp(slot_.get(), source_.get(), kBytes), 0);
  ASSERT_EQ(munmap(source_.get() + kMiB, kPage), 0);
  EXPECT_EQ(CopyAll(&failed_at), EFAULT);
  EXPECT_EQ(failed_at, kMiB);
}

// Truncating the file under a mapping is how shared tensors vanish; a plain read is SIGBUS.
TEST_F(PieceCopierTest, TruncatedFilesToo) {
  const UniqueFd file(memfd_create("source", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(file.get(), kBytes), 0);
  source_ = Map(kBytes, file.get());
  ASSERT_EQ(ftruncate(file.get(), 8192), 0);
  uint64_t failed_at = 0;
  EXPECT_EQ(CopyAll(&failed_at), EFAULT);
  EXPECT_EQ(failed_at, 8192U);
}

// Another thread takes the memory away and gives it back meanwhile: each copy is whole or EFAULT.
TEST_F(PieceCopierTest, RaceWithFreeing) {
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop) {
      mprotect(source_.get() + kBytes / 2, kBytes / 4, PROT_NONE);
      mprotect(source_.get() + kBytes / 2, kBytes / 4, PROT_READ | PROT_WRITE);
    }
  });
  for (int i = 0; i < 100; ++i) {
    uint64_t failed_at = 0;
    const int error = CopyAll(&failed_at);
    EXPECT_TRUE(error == EFAULT || (error == 0 && memcmp(slot_.get(), source_.get(), kMiB) == 0)) << error;
  }
  stop = true;
  other.join();
}

// Pages that the kernel reads and does not lend, as memory of a driver: those of the clock.
TEST_F(PieceCopierTest, MemoryThatIsNotLent) {
  uint64_t begin = 0;
  char line[256];
  const std::unique_ptr<FILE, int (*)(FILE*)> maps(fopen("/proc/self/maps", "r"), fclose);
  while (fgets(line, sizeof line, maps.get()) != nullptr) {
    if (strstr(line, "[vvar]") != nullptr) begin = strtoull(line, nullptr, 16);
  }
  char page[kPage];
  const iovec to = {page, kPage}, from = {reinterpret_cast<void*>(begin), kPage};
  const bool lent = process_vm_readv(getpid(), &to, 1, &from, 1, 0) == static_cast<ssize_t>(kPage);
  if (begin == 0 || lent) GTEST_SKIP() << "skipped: no such memory here";
  const std::vector<Piece> pieces = {{static_cast<const char*>(from.iov_base), 0, kPage}};
  PieceCopier copier(pieces, file_.get(), slot_.get());
  uint64_t failed_at = 0;
  uint32_t crc = 0;
  EXPECT_EQ(copier.CopyAndSum(kPage, &crc, &failed_at), 0);
  EXPECT_EQ(crc, Crc32c(0, slot_.get(), kPage));
}

}  // namespace
}  // namespace ckptd
