// The protocol of publish, commit and delete with one of its fsyncs or one step of its order taken away. Each must
// break what was told in some workload: else the step is superfluous, or the checks are blind.
#ifndef CKPTD_TESTS_CRASH_CRASH_MUTANTS_H_
#define CKPTD_TESTS_CRASH_CRASH_MUTANTS_H_

#include <vector>

#include "tests/crash/crash_workloads.h"

namespace ckptd::crash {

// Every class of fsyncs that any workload has.
[[nodiscard]] std::vector<Mutant> SyncMutants();
// Order and exclusiveness.
[[nodiscard]] std::vector<Mutant> OrderMutants();

struct Caught {
  std::string workload;  // empty: none
  Tally tally;
};
// Some hundred disks of each workload, or thousands of the one where it shows. Without `names` only by what restore()
// gives (R1, R2, R7).
[[nodiscard]] Caught Hunt(const Mutant& mutant, bool names);

}  // namespace ckptd::crash

#endif  // CKPTD_TESTS_CRASH_CRASH_MUTANTS_H_
