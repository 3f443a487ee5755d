// Every system call of a life, one run each: killed there, or told an error there; then what is left is looked at.
//
//   kill    SIGKILL at the entry of the call; the death is asked for
//   errors  the call does not run and says EIO, ENOSPC, EDQUOT, EINTR, EAGAIN, ENOMEM, EMFILE, one run each
//   short   a transfer moves half of what it was asked for
//
// After an error the life has to end by itself, without a crash and without a descriptor more than at its beginning,
// and to come as far as without the error: what failed is tried again. Two things may differ. A directory whose fsync
// failed is refused until the next agent. And where reads fail, restore() may give an older step if it says which it
// skipped. After a failed fsync nothing may trust the file: no second fsync, no name.
//
// Everything lies in memory (/dev/shm): a killed process leaves the page cache as it is, and a disk would make each
// fsync slower and nothing truer. What a power failure leaves is the crash simulator's.
#ifndef CKPTD_TESTS_SYSCALLS_SWEEP_H_
#define CKPTD_TESTS_SYSCALLS_SWEEP_H_

#include <cstdint>
#include <string>

#include "tests/crash/crash_explore.h"
#include "tests/syscalls/lives.h"

namespace ckptd::syscalls {

inline constexpr const char* kErrors[] = {"EIO", "ENOSPC", "EDQUOT", "EINTR", "EAGAIN", "ENOMEM", "EMFILE"};

// Of all errors by day every 80th, by night each; $CKPTD_ERROR_STRIDE says another number. No multiple of 7: it would
// always be the same error.
[[nodiscard]] uint64_t ErrorStride();
[[nodiscard]] bool Night();

enum class Harm { kKill, kErrors, kShort };

struct Plan {
  Harm harm = Harm::kKill;
  std::string mutant{};  // "" = the real thing
  uint64_t stride = 1;   // every stride-th point
  std::string call{};    // errors at this one only; "" = at each
  size_t starts = 4;     // of kRecovery: as many storages that a killed agent left
  uint64_t parts = 2;    // processes
};

// `tried` points; ends at the first violation.
[[nodiscard]] crash::Tally Sweep(const Life& life, const Plan& plan);

}  // namespace ckptd::syscalls

#endif  // CKPTD_TESTS_SYSCALLS_SWEEP_H_
