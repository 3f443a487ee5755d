// Every rule of the protocol as something that can be taken away. A mutant that the checker does not catch means that
// either the simulation is blind there or the rule is only a second line of defence.
#ifndef CKPTD_TESTS_PROTOCOL_MUTANTS_H_
#define CKPTD_TESTS_PROTOCOL_MUTANTS_H_

#include <vector>

#include "tests/protocol/world.h"

namespace ckptd::sim {

struct Mutant {
  const char* rule;    // taken away
  const char* breaks;  // invariant that protocol.md names; empty: a defence, nothing need break
  uint64_t steps;      // within which it is caught; 0 = it resists, or takes too long for a test
  void (*apply)(Rules* rules);
};

[[nodiscard]] const std::vector<Mutant>& Mutants();

}  // namespace ckptd::sim

#endif  // CKPTD_TESTS_PROTOCOL_MUTANTS_H_
