// What sim_files records, and what a disk may hold of it after a power failure.
#ifndef CKPTD_DAEMON_OS_TESTING_SIM_LOG_H_
#define CKPTD_DAEMON_OS_TESTING_SIM_LOG_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "daemon/os/files.h"

namespace ckptd::sim {

using InodeId = uint64_t;
inline constexpr InodeId kRoot = 1;
inline constexpr uint64_t kBlock = 4096;

struct Inode {
  FileType type = FileType::kRegular;
  uint32_t mode = 0;
  std::string content;                     // of a file
  std::map<std::string, InodeId> entries;  // of a directory
};

using Tree = std::map<InodeId, Inode>;

struct MakeInode {
  FileType type;
  uint32_t mode;
};

struct Op {
  enum Kind { kEntry, kWrite, kSize, kSync, kSyncFailed };
  Kind kind = kEntry;
  InodeId inode = 0;                // the file, or the directory of an entry
  std::string name{};               // kEntry
  std::optional<InodeId> target{};  // kEntry: what the name now names; empty = removed
  std::optional<MakeInode> make{};  // kEntry: `target` is new
  uint64_t offset = 0;              // kWrite
  uint64_t size = 0;                // kSize: the file is at least this long
  std::string data{};               // kWrite
  std::string text{};               // for people
};

// `base` with `log[0, count)` applied as a disk may have it when the power fails then (sim_files.h). Only what can be
// reached from the root is in it.
[[nodiscard]] Tree Crash(const Tree& base, const std::vector<Op>& log, size_t count, uint64_t seed);

// The operation as the living system sees it.
void Apply(Tree& tree, const Op& op);

}  // namespace ckptd::sim

#endif  // CKPTD_DAEMON_OS_TESTING_SIM_LOG_H_
