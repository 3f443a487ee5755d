#include "client/core/copy/crc32c.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "client/core/copy/crc32c_polynomial.h"

namespace ckptd {
namespace {

std::vector<uint8_t> RandomBytes(size_t size) {
  std::mt19937_64 random(5);
  std::vector<uint8_t> bytes(size);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

// One bit at a time, from the definition: what the tables are checked against.
uint32_t ByDefinition(const uint8_t* data, size_t size) {
  uint32_t crc = ~uint32_t{0};
  for (size_t i = 0; i < size; ++i) {
    crc ^= data[i];
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78U : 0U);
  }
  return ~crc;
}

// RFC 3720, B.4, and the check value of the catalogue of CRCs.
TEST(Crc32c, KnownValues) {
  std::string rising, falling;
  for (int i = 0; i < 32; ++i) {
    rising.push_back(static_cast<char>(i));
    falling.push_back(static_cast<char>(31 - i));
  }
  const std::pair<std::string, uint32_t> known[] = {{std::string(32, '\0'), 0x8A9136AA},
                                                    {std::string(32, '\xff'), 0x62A8AB43},
                                                    {rising, 0x46DD794E},
                                                    {falling, 0x113FDB5C},
                                                    {"123456789", 0xE3069283},
                                                    {"", 0}};
  for (const auto& [text, crc] : known) {
    EXPECT_EQ(Crc32c(0, text.data(), text.size()), crc);
    EXPECT_EQ(crc32c_internal::ByTable(0, text.data(), text.size()), crc);
  }
}

TEST(Crc32c, TableIsTheDefinition) {
  std::vector<uint8_t> bytes = RandomBytes(1200);
  for (size_t size = 0; size <= 1100; ++size) {
    EXPECT_EQ(crc32c_internal::ByTable(0, &bytes[size % 16], size), ByDefinition(&bytes[size % 16], size));
  }
}

TEST(Crc32c, HardwareIsTheTable) {
  if (!crc32c_internal::HasHardware()) GTEST_SKIP() << "skipped: this CPU has no CRC32C instruction";
  std::vector<uint8_t> bytes = RandomBytes(1200);
  for (size_t size = 0; size <= 1100; ++size) {
    for (size_t start = 0; start < 16; ++start) {
      ASSERT_EQ(crc32c_internal::ByHardware(start, &bytes[start], size),
                crc32c_internal::ByTable(start, &bytes[start], size))
          << size << " at " << start;
    }
  }
}

// Around the blocks of three lanes and their multiples.
TEST(Crc32c, HardwareLanes) {
  if (!crc32c_internal::HasHardware()) GTEST_SKIP() << "skipped: this CPU has no CRC32C instruction";
  std::vector<uint8_t> bytes = RandomBytes(100000);
  for (size_t blocks : {1, 2, 4, 5, 32}) {
    for (size_t size = blocks * 3072 - 20; size <= blocks * 3072 + 20; ++size) {
      ASSERT_EQ(crc32c_internal::ByHardware(7, &bytes[size % 8], size),
                crc32c_internal::ByTable(7, &bytes[size % 8], size));
    }
  }
}

// Rows of 256 bytes, and what is left of them.
TEST(Crc32c, WideIsTheTable) {
  if (!crc32c_internal::HasWide()) GTEST_SKIP() << "skipped: this CPU has no AVX-512 with VPCLMULQDQ";
  std::vector<uint8_t> bytes = RandomBytes(100000);
  for (size_t size = 0; size <= 2100; ++size) {
    ASSERT_EQ(crc32c_internal::ByWide(size, &bytes[size % 65], size),
              crc32c_internal::ByTable(size, &bytes[size % 65], size));
  }
  for (size_t size = 50000; size < 99000; size += 997) {
    ASSERT_EQ(crc32c_internal::ByWide(7, &bytes[1], size), crc32c_internal::ByTable(7, &bytes[1], size));
  }
}

TEST(Crc32c, Extends) {
  std::vector<uint8_t> bytes = RandomBytes(10000);
  uint32_t whole = Crc32c(0, bytes.data(), bytes.size());
  for (size_t cut = 0; cut <= bytes.size(); cut += 97) {
    EXPECT_EQ(Crc32c(Crc32c(0, bytes.data(), cut), &bytes[cut], bytes.size() - cut), whole);
  }
}

TEST(Crc32c, Combines) {
  std::vector<uint8_t> bytes = RandomBytes(10000);
  uint32_t whole = Crc32c(0, bytes.data(), bytes.size());
  for (size_t cut = 0; cut <= bytes.size(); cut += 97) {
    uint32_t first = Crc32c(0, bytes.data(), cut), second = Crc32c(0, bytes.data() + cut, bytes.size() - cut);
    EXPECT_EQ(Crc32cCombine(first, second, bytes.size() - cut), whole);
  }
}

// A length whose bits do not fit: 2^62 zero bytes twice are 2^63 of them, combined in either way.
TEST(Crc32c, CombinesHugeLengths) {
  uint32_t zeros = 0;  // of 2^k zero bytes
  uint8_t zero = 0;
  zeros = Crc32c(0, &zero, 1);
  for (int k = 0; k < 62; ++k) zeros = Crc32cCombine(zeros, zeros, uint64_t{1} << k);
  uint32_t twice = Crc32cCombine(zeros, zeros, uint64_t{1} << 62);
  EXPECT_EQ(Crc32cCombine(Crc32cCombine(0x12345678, zeros, uint64_t{1} << 62), zeros, uint64_t{1} << 62),
            Crc32cCombine(0x12345678, twice, uint64_t{1} << 63));
}

// A zero bit more is one power of x more: what lanes of a checksum are put together by.
TEST(Crc32c, ZerosAfterAMessageArePowersOfX) {
  using crc32c_polynomial::Multiply, crc32c_polynomial::PowerOfX, crc32c_polynomial::FactorOver;
  EXPECT_EQ(PowerOfX(0), uint32_t{1} << 31);
  EXPECT_EQ(PowerOfX(32), crc32c_polynomial::kPolynomial);
  for (const size_t zeros : {1, 7, 64, 4096, 100'001}) {
    std::vector<uint8_t> bytes = RandomBytes(333);
    const uint32_t before = ~Crc32c(0, bytes.data(), bytes.size());
    bytes.resize(bytes.size() + zeros);
    EXPECT_EQ(Multiply(before, PowerOfX(8 * zeros)), ~Crc32c(0, bytes.data(), bytes.size())) << zeros;
  }
  EXPECT_EQ(Multiply(static_cast<uint32_t>(FactorOver(512)), PowerOfX(33)), PowerOfX(512));
}

}  // namespace
}  // namespace ckptd
