// A node with one protection taken away. Each must be noticed by a sweep: else the sweep is blind.
#ifndef CKPTD_TESTS_SYSCALLS_MUTANTS_H_
#define CKPTD_TESTS_SYSCALLS_MUTANTS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "daemon/job/machine.h"
#include "daemon/os/files.h"
#include "daemon/storage/store.h"

namespace ckptd::syscalls {

struct Mutant {
  std::string name;
  std::function<std::unique_ptr<Files>(Files&)> files;           // under the store
  std::function<std::unique_ptr<Store>(Store&, Files&)> around;  // above it
  std::function<void(job::Rules&)> rules;
  bool short_transfers = false;  // what shows it; else errors
  std::string call;              // of errors: at this call; "" = at each
};

// Order, which a kill shows. What only a power failure or a second agent shows is the crash simulator's.
[[nodiscard]] const std::vector<Mutant>& KillMutants();
// Errors that are not seen, transfers that are not finished, what an error leaves open.
[[nodiscard]] const std::vector<Mutant>& ErrnoMutants();
// "" = nothing is taken away.
[[nodiscard]] const Mutant* FindMutant(const std::string& name);

}  // namespace ckptd::syscalls

#endif  // CKPTD_TESTS_SYSCALLS_MUTANTS_H_
