// What a user may choose on the command line, and what the cases then run with.
#ifndef CKPTD_TOOLS_BENCH_OPTIONS_H_
#define CKPTD_TOOLS_BENCH_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace ckptd::bench {

struct Options {
  uint64_t bytes = 0;               // of one rank's state; 0 = the case's own
  uint64_t tensors = 0;             // of one rank; 0 = the case's own
  uint32_t ranks = 1;               // trainers of the job, all in this process
  uint64_t chunk = 0;               // region.chunk_bytes of the agent; 0 = its own choice
  uint32_t rounds = 0;              // how often ours and the limit are measured, in turn; 0 = the case's own
  std::string dir = "/var/tmp";     // on the disk to measure: the storage lies in a folder of its own below it
  std::string region = "/dev/shm";  // a tmpfs: likewise

  [[nodiscard]] uint32_t RoundsOr(uint32_t own) const { return rounds != 0 ? rounds : own; }
};

inline constexpr uint32_t kRounds = 5;  // of a case that has no number of its own

struct CommandLine {
  std::vector<std::string> cases;
  Options options;
  bool help = false;
};

// `CASE... [--bytes SIZE] [--tensors N] [--ranks N] [--chunk SIZE] [--n N] [--dir DIR] [--region DIR]`.
// INVALID_ARGUMENT that names the word which is wrong.
[[nodiscard]] absl::StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& words);

}  // namespace ckptd::bench

#endif  // CKPTD_TOOLS_BENCH_OPTIONS_H_
