// What the machine can do without us: plain copies and plain files.
#ifndef CKPTD_TOOLS_BENCH_LIMITS_H_
#define CKPTD_TOOLS_BENCH_LIMITS_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/os/mapping.h"
#include "tools/bench/job.h"
#include "tools/bench/options.h"

namespace ckptd::bench {

// Populated shared memory on the region's tmpfs, as large as the job's state. Gone with the object.
class Mirror {
 public:
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Mirror>> Make(const Job& job, const Options& options);

  // memcpy by one thread a rank, as the ranks do it. Seconds.
  [[nodiscard]] double CopyIn() const;   // from the state
  [[nodiscard]] double CopyOut() const;  // into the state

 private:
  explicit Mirror(const Job& job) : job_(job) {}

  const Job& job_;
  std::vector<Mapping> mappings_;
};

// O_DIRECT where the file system can, sequential, fsync and close included. The file must not exist. Seconds.
[[nodiscard]] absl::StatusOr<double> WritePlainFile(const std::string& path, const Job& job);

// What a save of the job makes durable, done plainly below the folder `root`: an image and a record for each rank, by
// one thread a rank, then one record for all. Each is written, synced and named by a link, and each time the three
// folders above it are synced, as the agent does it. The files of each `number` stay, as the agent's do. Seconds.
inline constexpr int kSyncsOfAFile = 4;
[[nodiscard]] absl::StatusOr<double> PublishPlainly(const std::string& root, uint32_t number, const Job& job);

// Two files for each rank of the job on the region's tmpfs, of its state's size, reserved and populated by one thread
// a rank. Seconds.
[[nodiscard]] absl::StatusOr<double> PreparePlainMemory(const Options& options, const Job& job);

// The text of the safetensors header of one rank's tensors, appended piece by piece. Seconds.
[[nodiscard]] double WritePlainHeader(const Job& job);

// O_DIRECT where the file system can: the page cache holds nothing of it. Seconds.
[[nodiscard]] absl::StatusOr<double> ReadPlainFiles(const std::vector<std::string>& paths);

}  // namespace ckptd::bench

#endif  // CKPTD_TOOLS_BENCH_LIMITS_H_
