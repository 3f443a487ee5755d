// The ways in which stored bytes go bad, each at a random place, and a sweep of them over one file.
//
// CKPTD_SEED replays a run; CKPTD_CORRUPTIONS changes how many cases there are in all places together: by night
// 100,000, else a fifth.
#ifndef CKPTD_TESTS_CRASH_CORRUPT_H_
#define CKPTD_TESTS_CRASH_CORRUPT_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <string_view>

#include "tests/integration/sanitized.h"

namespace ckptd::harness {

enum class Kind { kBit, kTwoBits, kByte, kZeroBlock, kStaleBlock, kSwap, kTruncate, kExtend, kStale };
inline constexpr std::array<const char*, 9> kKinds = {"bit",  "two bits",   "byte",   "zero block", "stale block",
                                                      "swap", "truncation", "longer", "stale file"};

// Changes a copy of `good` until it differs from it. `stale`: what lay in the same place one step before; not the same.
class Corrupter {
 public:
  explicit Corrupter(uint64_t seed) : random_(seed) {}

  [[nodiscard]] std::string Make(Kind kind, const std::string& good, const std::string& stale) {
    std::string bad = good;
    while (bad == good) Change(kind, stale, bad);
    return bad;
  }

 private:
  static constexpr size_t kBlock = 4096;

  size_t Below(size_t end) { return std::uniform_int_distribution<size_t>(0, end - 1)(random_); }
  void FlipBit(std::string& bytes) {
    char& byte = bytes[Below(bytes.size())];
    byte = static_cast<char>(static_cast<unsigned char>(byte) ^ (1U << Below(8)));
  }
  // Where a block begins; a short file is one block.
  size_t Block(const std::string& bytes) { return Below((bytes.size() + kBlock - 1) / kBlock) * kBlock; }

  void Change(Kind kind, const std::string& stale, std::string& bytes) {
    switch (kind) {
      case Kind::kTwoBits:
        FlipBit(bytes);
        [[fallthrough]];
      case Kind::kBit:
        return FlipBit(bytes);
      case Kind::kByte:
        bytes[Below(bytes.size())] = static_cast<char>(Below(256));
        return;
      case Kind::kZeroBlock:
        return Put(bytes, Block(bytes), std::string(kBlock, '\0'));
      case Kind::kStaleBlock:
        return PutStale(bytes, stale);
      case Kind::kSwap:
        return Swap(bytes);
      case Kind::kTruncate:
        return bytes.resize(Below(bytes.size()));
      case Kind::kExtend:
        bytes.append(1 + Below(2 * kBlock), static_cast<char>(Below(256)));
        return;
      case Kind::kStale:
        bytes = stale;
        return;
    }
  }
  static void Put(std::string& bytes, size_t at, std::string_view block) {
    const size_t length = std::min(block.size(), bytes.size() - at);
    bytes.replace(at, length, block.substr(0, length));
  }
  void PutStale(std::string& bytes, const std::string& stale) {
    const size_t at = Block(bytes);
    if (at < stale.size()) Put(bytes, at, std::string_view(stale).substr(at, kBlock));
  }
  // Two blocks, or two bytes of a file that has no two.
  void Swap(std::string& bytes) {
    const size_t unit = bytes.size() >= 2 * kBlock ? kBlock : 1;
    const size_t count = bytes.size() / unit;
    const size_t a = Below(count) * unit;
    const size_t b = Below(count) * unit;
    const std::string first = bytes.substr(a, unit);
    Put(bytes, a, bytes.substr(b, unit));
    Put(bytes, b, first);
  }

  std::mt19937_64 random_;
};

inline uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = getenv(name);
  return text == nullptr ? otherwise : strtoull(text, nullptr, 10);
}
inline uint64_t Cases() {
  if (kSanitized) return FromEnvironment("CKPTD_CORRUPTIONS", 2'000);
  return FromEnvironment("CKPTD_CORRUPTIONS", FromEnvironment("CKPTD_NIGHTLY", 0) != 0 ? 100'000 : 20'000);
}

inline std::string Content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
inline void Store(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
}

enum class Seen { kNoticed, kHarmless, kWrong };

struct Tally {
  std::map<Kind, uint64_t> noticed;
  uint64_t harmless = 0;  // the right bytes came out: what was changed is not read
  uint64_t wrong = 0;
  uint64_t mended = 0;
  uint64_t not_mended = 0;

  void Take(Kind kind, Seen seen) {
    if (seen == Seen::kNoticed) ++noticed[kind];
    harmless += seen == Seen::kHarmless ? 1 : 0;
    wrong += seen == Seen::kWrong ? 1 : 0;
  }
  void Print(const char* place, uint64_t cases) const {
    printf("%-8s %6lu cases: %lu wrong, %lu harmless, noticed", place, cases, wrong, harmless);
    for (const auto& [kind, count] : noticed) printf(" %s %lu,", kKinds[static_cast<size_t>(kind)], count);
    if (mended + not_mended != 0) printf(" mended %lu, not mended %lu", mended, not_mended);
    printf("\n");
  }
};

inline Seen Judge(bool ok, bool same) { return !ok ? Seen::kNoticed : same ? Seen::kHarmless : Seen::kWrong; }

// Cases over one file: it goes bad, `judge` reads, and `mend`, if any, must make it whole again.
inline Tally Sweep(const char* place, uint64_t cases, const std::string& path, const std::string& stale,
                   const std::function<Seen()>& judge, const std::function<bool()>& mend = nullptr) {
  const uint64_t seed = FromEnvironment("CKPTD_SEED", 20261122);
  const std::string good = Content(path);
  Corrupter corrupter(seed);
  Tally tally;
  EXPECT_EQ(judge(), Seen::kHarmless) << place << ": a false alarm";
  for (uint64_t i = 0; i < cases; ++i) {
    const Kind kind = static_cast<Kind>(i % kKinds.size());
    Store(path, corrupter.Make(kind, good, stale));
    const Seen seen = judge();
    tally.Take(kind, seen);
    EXPECT_NE(seen, Seen::kWrong) << place << " case " << i << ", a " << kKinds[i % kKinds.size()] << ", seed " << seed;
    if (mend && seen == Seen::kNoticed) ++(mend() && Content(path) == good ? tally.mended : tally.not_mended);
    Store(path, good);
  }
  EXPECT_EQ(judge(), Seen::kHarmless) << place << ": a false alarm";
  tally.Print(place, cases);
  return tally;
}

}  // namespace ckptd::harness

#endif  // CKPTD_TESTS_CRASH_CORRUPT_H_
