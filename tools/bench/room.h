// How large a benchmark's state may be on this machine.
#ifndef CKPTD_TOOLS_BENCH_ROOM_H_
#define CKPTD_TOOLS_BENCH_ROOM_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "tools/bench/gpu.h"
#include "tools/bench/options.h"

namespace ckptd::bench {

inline constexpr uint64_t kSlots = 2;  // images in the agent's memory

// Bytes that the kernel can give without swapping.
[[nodiscard]] uint64_t AvailableMemory();

// Why there is no room for two slots of every rank, its state and a reserve, and for `files` states of each on the
// disk;
// "" = there is.
[[nodiscard]] absl::StatusOr<std::string> NoRoom(const Options& options, uint64_t bytes, uint32_t files);

// What a state on the GPU may need, in bytes.
struct GpuRoom {
  uint64_t device = 0;  // free on the GPU
  uint64_t region = 0;  // free on the tmpfs
  uint64_t memory = 0;  // AvailableMemory()
  bool shared = false;  // the device's memory is the host's
};

[[nodiscard]] absl::StatusOr<GpuRoom> FindGpuRoom(const Options& options, const Gpu& gpu);

// Why a state of `bytes` and the limit's blocks beside it do not fit; "" = they do.
[[nodiscard]] std::string NoGpuRoom(const GpuRoom& room, uint64_t bytes);

// The largest state up to `wanted` for which there is room; 0 = not even a small one.
[[nodiscard]] uint64_t FittingState(const GpuRoom& room, uint64_t wanted);

}  // namespace ckptd::bench

#endif  // CKPTD_TOOLS_BENCH_ROOM_H_
