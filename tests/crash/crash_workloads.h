// The lives of a job that the crash simulator looks at, each with one protection taken away where a mutant says so.
#ifndef CKPTD_TESTS_CRASH_CRASH_WORKLOADS_H_
#define CKPTD_TESTS_CRASH_CRASH_WORKLOADS_H_

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/crash/crash_explore.h"

namespace ckptd::crash {

struct Mutant {
  std::string name;
  std::string sync;  // class of fsyncs (SyncClasses) that say OK and do nothing
  std::function<std::unique_ptr<Store>(Store&, Files&)> around;
  std::function<void(job::Rules&)> rules;
  bool replace = false;  // exclusive creation is none
  std::string where;     // the workload that shows it; empty = to be found out
};

[[nodiscard]] std::vector<Workload> Workloads(const Mutant& mutant = {});

// What each fsync after `first_op` is for, by its number: "image", "directory of a new manifest" …
[[nodiscard]] std::map<std::string, std::set<size_t>> SyncClasses(const SimFiles& files, size_t first_op);

}  // namespace ckptd::crash

#endif  // CKPTD_TESTS_CRASH_CRASH_WORKLOADS_H_
