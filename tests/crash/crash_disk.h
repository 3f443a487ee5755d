// What is wrong on a disk after a power failure, seen from its names alone, before anybody recovers.
#ifndef CKPTD_TESTS_CRASH_CRASH_DISK_H_
#define CKPTD_TESTS_CRASH_CRASH_DISK_H_

#include <cstdint>
#include <map>
#include <string>

#include "daemon/os/testing/sim_log.h"
#include "tests/crash/crash_ledger.h"

namespace ckptd::crash {

// 0 = not there.
[[nodiscard]] uint64_t HashOfFile(const sim::Tree& tree, const std::string& path);
// The same for two disks that differ in temporary names only.
[[nodiscard]] uint64_t HashOfDisk(const sim::Tree& tree);

// Final content of every inode that the workload ever made. A name of ours is given to whole files only and none is
// written afterwards, so an inode that has one holds this or is torn.
using Finals = std::map<sim::InodeId, uint64_t>;
[[nodiscard]] Finals FinalsOf(const sim::Tree& tree);

// Empty, or the first thing that is wrong:
//   what the store said is there is there, what it said is gone is gone
//   a name that is not temporary shows whole bytes
//   a sidecar's images are there, and a manifest's sidecars and images
[[nodiscard]] std::string WrongNames(const sim::Tree& tree, const Finals& finals, const Promise& promise);

// Every committed step holds what its ranks saved. `spared`: a file that the workload damaged itself.
[[nodiscard]] std::string WrongSteps(const sim::Tree& tree, const std::string& spared);
// Every image that has its name holds what its rank saved, committed or not.
[[nodiscard]] std::string WrongImages(const sim::Tree& tree);

}  // namespace ckptd::crash

#endif  // CKPTD_TESTS_CRASH_CRASH_DISK_H_
