#include "client/core/copy/copy_crc.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "client/core/copy/crc32c.h"

namespace ckptd {
namespace {

constexpr uint8_t kGuard = 0xA5;

std::vector<uint8_t> RandomBytes(size_t size) {
  std::mt19937_64 random(9);
  std::vector<uint8_t> bytes(size);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

// Copies `size` bytes between these two offsets and checks bytes, CRC and the bytes around them.
template <typename Copy>
void Check(size_t size, size_t from, size_t to, Copy copy) {
  static const std::vector<uint8_t> source = RandomBytes((1 << 20) + 64);
  std::vector<uint8_t> destination(to + size + 64, kGuard);
  uint32_t crc = 0x1234;
  ASSERT_EQ(copy(&crc, &destination[to], &source[from], size), 0);
  ASSERT_EQ(crc, crc32c_internal::ByTable(0x1234, &source[from], size)) << size;
  ASSERT_EQ(std::memcmp(&destination[to], &source[from], size), 0) << size;
  for (size_t i = 0; i < to; ++i) ASSERT_EQ(destination[i], kGuard);
  for (size_t i = to + size; i < destination.size(); ++i) ASSERT_EQ(destination[i], kGuard);
}

int Plain(uint32_t* crc, void* to, const void* from, size_t size) {
  *crc = CopyCrc32c(*crc, to, from, size);
  return 0;
}

TEST(CopyCrc, EveryLength) {
  for (size_t size = 0; size <= 1100; ++size) Check(size, size % 16, size % 13, Plain);
}

TEST(CopyCrc, EveryAlignment) {
  for (size_t from = 0; from < 16; ++from) {
    for (size_t to = 0; to < 16; ++to) {
      Check(3072 * 22 + 5, from, to, Plain);
      Check((64 << 10) - 1, from, to, Plain);
      Check(64 << 10, from, to, Plain);
      Check((8 << 10) - 1, from, to, Plain);
      Check(8 << 10, from, to, Plain);
    }
  }
  Check(1 << 20, 3, 5, Plain);
}

TEST(CopyCrc, KernelWays) {
  for (auto way : {copy_crc_internal::ByVmRead, copy_crc_internal::ByPipe, CopyCrc32cFrom}) {
    for (size_t size : {0, 1, 4095, 4096, 65535, 65536, 65537, 262143, 262144, 262145, 1 << 20}) Check(size, 3, 5, way);
  }
}

class Freed : public ::testing::Test {
 protected:
  static constexpr size_t kSize = 4 << 20;
  void SetUp() override {
    source_ = static_cast<uint8_t*>(mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ASSERT_NE(source_, MAP_FAILED);
    std::memset(source_, 7, kSize);
  }
  void TearDown() override { munmap(source_, kSize); }
  uint8_t* source_ = nullptr;
  std::vector<uint8_t> destination_ = std::vector<uint8_t>(kSize);
};

TEST_F(Freed, IsAnErrorNotASignal) {
  for (auto way : {copy_crc_internal::ByVmRead, copy_crc_internal::ByPipe, CopyCrc32cFrom}) {
    for (size_t hole : {size_t{0}, kSize / 2, kSize - 4096}) {
      ASSERT_EQ(munmap(source_ + hole, 4096), 0);
      uint32_t crc = 42;
      EXPECT_EQ(way(&crc, destination_.data(), source_, kSize), EFAULT) << hole;
      EXPECT_EQ(crc, 42U);
      ASSERT_EQ(mmap(source_ + hole, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0), source_ + hole);
      EXPECT_EQ(way(&crc, destination_.data(), source_, kSize), 0) << hole;
    }
  }
}

TEST_F(Freed, UnreadablePagesToo) {
  ASSERT_EQ(mprotect(source_ + 8192, 4096, PROT_NONE), 0);
  uint32_t crc = 0;
  EXPECT_EQ(CopyCrc32cFrom(&crc, destination_.data(), source_, kSize), EFAULT);
  EXPECT_EQ(copy_crc_internal::ByPipe(&crc, destination_.data(), source_, kSize), EFAULT);
}

// Truncating the file under a mapping is how shared tensors vanish; a plain read is SIGBUS.
TEST_F(Freed, TruncatedFileToo) {
  int file = memfd_create("source", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(file, kSize), 0);
  void* mapped = mmap(nullptr, kSize, PROT_READ, MAP_SHARED, file, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  ASSERT_EQ(ftruncate(file, 8192), 0);
  uint32_t crc = 0;
  EXPECT_EQ(CopyCrc32cFrom(&crc, destination_.data(), mapped, kSize), EFAULT);
  EXPECT_EQ(CopyCrc32cFrom(&crc, destination_.data(), mapped, 8192), 0);
  munmap(mapped, kSize);
  close(file);
}

// Another thread takes the memory away and gives it back while we copy: each copy is whole or EFAULT.
TEST_F(Freed, RaceWithUnmapping) {
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop) {
      mprotect(source_ + kSize / 2, kSize / 4, PROT_NONE);
      mprotect(source_ + kSize / 2, kSize / 4, PROT_READ | PROT_WRITE);
    }
  });
  const uint32_t whole = Crc32c(0, source_, 1 << 20);
  for (int i = 0; i < 200; ++i) {
    uint32_t crc = 0;
    int error = CopyCrc32cFrom(&crc, destination_.data(), source_ + kSize / 2, 1 << 20);
    EXPECT_TRUE(error == EFAULT || (error == 0 && crc == whole)) << error;
  }
  stop = true;
  other.join();
}

// The source changes while it is copied: the CRC still belongs to what was stored.
TEST(CopyCrc, ChecksumIsOfTheStoredBytes) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "skipped: the race is the point";
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
  GTEST_SKIP() << "skipped: the race is the point";
#endif
#endif
  std::vector<uint64_t> source(64 << 10);
  std::vector<uint64_t> destination(source.size());
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (uint64_t value = 0; !stop; ++value) {
      for (size_t i = 0; i < source.size(); i += 7) __atomic_store_n(&source[i], value, __ATOMIC_RELAXED);
    }
  });
  for (int i = 0; i < 200; ++i) {
    uint32_t crc = CopyCrc32c(0, destination.data(), source.data(), source.size() * 8);
    EXPECT_EQ(crc, Crc32c(0, destination.data(), destination.size() * 8));
    crc = 0;
    ASSERT_EQ(CopyCrc32cFrom(&crc, destination.data(), source.data(), source.size() * 8), 0);
    EXPECT_EQ(crc, Crc32c(0, destination.data(), destination.size() * 8));
  }
  stop = true;
  writer.join();
}

}  // namespace
}  // namespace ckptd
