// What the bus between host and GPU can do without us: the driver's own copies, in this process.
#ifndef CKPTD_TOOLS_BENCH_GPU_LIMITS_H_
#define CKPTD_TOOLS_BENCH_GPU_LIMITS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/bench/gpu.h"

namespace ckptd::bench {

inline constexpr uint64_t kLimitBlocks = 12;
inline constexpr uint64_t kLimitBlockBytes = uint64_t{1} << 30;  // less beside a state of less than 12 GiB

// Memory of cuMemHostAlloc in kLimitBlocks blocks, and one block of the GPU's. On the memory node where most pages of
// the region lie that this process has mapped.
class PinnedBlocks {
 public:
  // region: the agent's folder; state_bytes: of what the limit is compared with.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<PinnedBlocks>> Make(const Gpu& gpu, const std::string& region,
                                                                          uint64_t state_bytes);
  PinnedBlocks(const PinnedBlocks&) = delete;
  PinnedBlocks& operator=(const PinnedBlocks&) = delete;
  ~PinnedBlocks();

  // Every block once, then a synchronization. Seconds.
  [[nodiscard]] absl::StatusOr<double> CopyOut() const;
  [[nodiscard]] absl::StatusOr<double> CopyIn() const;

  [[nodiscard]] uint64_t bytes() const { return block_bytes_ * kLimitBlocks; }
  [[nodiscard]] std::string Describe() const;  // "12 x 1 GiB, node 0"

 private:
  PinnedBlocks(const Gpu& gpu, uint64_t block_bytes) : gpu_(gpu), block_bytes_(block_bytes) {}
  [[nodiscard]] absl::Status Allocate();
  [[nodiscard]] absl::StatusOr<double> CopyAll(bool out) const;

  const Gpu& gpu_;
  const uint64_t block_bytes_;
  int node_ = -1;  // -1: the kernel does not say
  DeviceStream stream_;
  DeviceAddress on_device_ = 0;
  std::vector<void*> blocks_;
};

}  // namespace ckptd::bench

#endif  // CKPTD_TOOLS_BENCH_GPU_LIMITS_H_
