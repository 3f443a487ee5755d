// Runs of the simulation: each seed is one world with its own size, faults and losses.
#ifndef CKPTD_TESTS_PROTOCOL_RUN_H_
#define CKPTD_TESTS_PROTOCOL_RUN_H_

#include <cstdint>
#include <string>

#include "tests/protocol/world.h"

namespace ckptd::sim {

struct Outcome {
  std::string violation;  // empty: all invariants held
  uint64_t steps = 0;
  uint64_t seed = 0;  // of the world that broke
  World::Counts counts;
  uint64_t worlds = 0;
};

// Worlds where agents keep copies for each other have another stream: what was found in the others stays where it was.
// kStrikes: small ones of these whose storage has next to nothing, where agents and nodes die at the worst moments.
// kParity: groups of nodes share parity instead. kApart: copies, and agents that hear each other no more for a while.
// In both coordinators are lost.
enum class Worlds : uint8_t { kAlone, kCopies, kStrikes, kParity, kApart };

// The world that `seed` stands for.
[[nodiscard]] Options WorldOf(uint64_t seed, const Rules& rules, Worlds worlds = Worlds::kAlone);

// Worlds seed, seed + 1, … until `steps` were taken or one breaks.
[[nodiscard]] Outcome RunWorlds(uint64_t seed, uint64_t steps, const Rules& rules, Worlds worlds = Worlds::kAlone,
                                bool trace = false);

}  // namespace ckptd::sim

#endif  // CKPTD_TESTS_PROTOCOL_RUN_H_
