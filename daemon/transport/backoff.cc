#include "daemon/transport/backoff.h"

#include <algorithm>

namespace ckptd::transport {
namespace {

// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
uint64_t NextRandom(uint64_t* state) {
  *state += 0x9E3779B97F4A7C15;
  uint64_t z = *state;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

}  // namespace

Nanos Backoff::Next() {
  const auto half = static_cast<uint64_t>(whole_.count()) / 2;
  const Nanos pause(static_cast<int64_t>(half + NextRandom(&state_) % (half + 1)));
  whole_ = whole_ > longest_ / 2 ? longest_ : whole_ * 2;
  return std::max(pause, Nanos(1));
}

}  // namespace ckptd::transport
