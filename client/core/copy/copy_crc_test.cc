#include "client/core/copy/copy_crc.h"

#include <gtest/gtest.h>

#include <atomic>
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
  const uint32_t crc = copy(0x1234, &destination[to], &source[from], size);
  ASSERT_EQ(crc, crc32c_internal::ByTable(0x1234, &source[from], size)) << size;
  ASSERT_EQ(std::memcmp(&destination[to], &source[from], size), 0) << size;
  for (size_t i = 0; i < to; ++i) ASSERT_EQ(destination[i], kGuard);
  for (size_t i = to + size; i < destination.size(); ++i) ASSERT_EQ(destination[i], kGuard);
}

constexpr decltype(&CopyCrc32c) kWays[] = {CopyCrc32c, copy_crc_internal::Narrow};

TEST(CopyCrc, EveryLength) {
  for (auto way : kWays) {
    for (size_t size = 0; size <= 1100; ++size) Check(size, size % 16, size % 13, way);
  }
}

// Around whole rows behind a head of every length, from where copies go around the cache.
TEST(CopyCrc, Rows) {
  for (size_t to = 0; to < 70; ++to) {
    for (size_t size = (8 << 10) - 2; size <= (8 << 10) + 600; size += 43) Check(size, to % 7, to, CopyCrc32c);
  }
}

TEST(CopyCrc, EveryAlignment) {
  for (auto way : kWays) {
    for (size_t from = 0; from < 16; ++from) {
      for (size_t to = 0; to < 16; ++to) {
        Check(3072 * 22 + 5, from, to, way);
        Check((64 << 10) - 1, from, to, way);
        Check(64 << 10, from, to, way);
        Check((8 << 10) - 1, from, to, way);
        Check(8 << 10, from, to, way);
      }
    }
    Check(1 << 20, 3, 5, way);
  }
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
    crc = copy_crc_internal::Narrow(0, destination.data(), source.data(), source.size() * 8);
    EXPECT_EQ(crc, Crc32c(0, destination.data(), destination.size() * 8));
  }
  stop = true;
  writer.join();
}

}  // namespace
}  // namespace ckptd
