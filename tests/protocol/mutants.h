// Every rule of the protocol as something that can be taken away. A mutant that the checker does not catch means that
// the simulation is blind there. Of a second line of defence (D) only its own property breaks, see defences.cc.
#ifndef CKPTD_TESTS_PROTOCOL_MUTANTS_H_
#define CKPTD_TESTS_PROTOCOL_MUTANTS_H_

#include <vector>

#include "tests/protocol/run.h"

namespace ckptd::sim {

struct Mutant {
  const char* rule;    // taken away
  const char* breaks;  // invariant that protocol.md names, or D
  uint64_t steps;      // within which it is caught
  void (*apply)(Rules* rules);
  Worlds worlds = Worlds::kAlone;  // where it is looked for
};

[[nodiscard]] const std::vector<Mutant>& Mutants();

}  // namespace ckptd::sim

#endif  // CKPTD_TESTS_PROTOCOL_MUTANTS_H_
