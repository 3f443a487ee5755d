// How many threads are worth starting.
#ifndef CKPTD_CLIENT_CORE_THREADS_CORES_H_
#define CKPTD_CLIENT_CORE_THREADS_CORES_H_

#include <cstdint>
#include <string>

namespace ckptd {

// Cores of this thread's affinity, and no more than the CPU time that its control groups grant, as containers with a
// limit have it: who spends more stands still until the period is over, and the training with it. At least 1.
[[nodiscard]] uint32_t UsableCores();

// CPU time, in cores and rounded up, that the control groups in `groups` (the text of /proc/self/cgroup) and those
// above them grant, of version 1 or 2, mounted at `mounts`. A container that sees the machine's names of its groups,
// and at `mounts` its own only, is found there too. 0: there is no limit.
[[nodiscard]] uint32_t QuotaCores(const std::string& groups, const std::string& mounts);

}  // namespace ckptd

#endif  // CKPTD_CLIENT_CORE_THREADS_CORES_H_
