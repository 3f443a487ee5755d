// Every disk that a power failure may leave behind a workload, recovered by the real code and held against what had
// been told.
//
// At each operation of the log the uncertain pieces (sim_files.h) are kept or lost: every subset where they are few,
// random ones where they are many. A disk counts once for a workload, however often it comes up: what is distinct is
// the hash of all names and contents (HashOfDisk). For each distinct disk a new agent starts, all ranks call restore()
// and what is left to do is done; then the power fails again, with everything lost that can be, and once more. Many
// disks come to the same one there: that is recovered once, as its answer is a function of the disk.
//
//   names  what the store acknowledged is there, and nothing is torn or unfounded    (crash_disk.h)
//   R1     every byte that restore() gives was saved under this step by this rank; committed steps are whole
//   R2     restore() gives what was durable or newer, never what was rolled back, never an error
//   R7     the second recovery gives what the first gave
#ifndef CKPTD_TESTS_CRASH_CRASH_EXPLORE_H_
#define CKPTD_TESTS_CRASH_CRASH_EXPLORE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/crash/crash_disk.h"
#include "tests/crash/crash_ledger.h"
#include "tests/crash/crash_node.h"

namespace ckptd::crash {

// One life of a node, done and logged.
struct Run {
  Run(SimFiles start, const Promise& promise, NodeOptions options)
      : files(std::move(start)), ledger(promise), recovery(std::move(options)) {}
  SimFiles files;
  Ledger ledger;
  SimWitness witness{files, ledger};
  NodeOptions recovery;  // how the agent after it is configured
  size_t first_op = 0;   // earlier operations are another run's
  std::string spared;    // a file that the workload damaged itself
  size_t number = 0;     // of the workload
};

struct Workload {
  std::string name;
  size_t runs = 1;
  std::function<std::unique_ptr<Run>(size_t)> make;
};

// What restore() gave.
struct Answer {
  absl::Status status;
  SnapshotId id;
  std::string wrong;  // R1, R7
};
// How that contradicts the promise; empty: it does not.
[[nodiscard]] std::string WrongAnswer(const Answer& answer, const Promise& promise);

// By the hash of a disk that one recovery left.
using SecondAnswers = std::unordered_map<uint64_t, Answer>;

[[nodiscard]] Answer Recover(sim::Tree disk, const NodeOptions& options, const std::string& spared,
                             SecondAnswers& seconds);

// What one of several processes does: of a workload's runs each `parts`-th, or where they are few, of all runs the
// disks whose hash is `part` modulo `parts`, which every process has to build.
struct Share {
  uint64_t part = 0;
  uint64_t parts = 1;
  size_t states = 1000;  // distinct ones
  bool names = true;     // check the names before the recovery
};

struct Tally {
  uint64_t tried = 0;     // disks built
  uint64_t distinct = 0;  // disks recovered
  uint64_t violations = 0;
  std::string first;              // violation
  uint64_t left = 0;              // distinct disks that a recovery left, recovered again
  std::vector<uint64_t> disks{};  // hashes of those recovered: what two processes found counts once
};

// Ends when the share is done, or when new disks have become rare.
[[nodiscard]] Tally Explore(const Workload& workload, const Share& share);

}  // namespace ckptd::crash

#endif  // CKPTD_TESTS_CRASH_CRASH_EXPLORE_H_
