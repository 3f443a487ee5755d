// SplitMix64: every run is its seed.
#ifndef CKPTD_TESTS_PROTOCOL_RANDOM_H_
#define CKPTD_TESTS_PROTOCOL_RANDOM_H_

#include <cstddef>
#include <cstdint>

namespace ckptd::sim {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  size_t Below(size_t n) { return static_cast<size_t>((Next() >> 32) * n >> 32); }
  bool Chance(int of_1000) { return Below(1000) < static_cast<size_t>(of_1000); }

 private:
  uint64_t state_;
};

}  // namespace ckptd::sim

#endif  // CKPTD_TESTS_PROTOCOL_RANDOM_H_
