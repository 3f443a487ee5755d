// Calls of libckpt's C ABI that every benchmark of saves makes the same way.
#ifndef CKPTD_TOOLS_BENCH_SESSION_H_
#define CKPTD_TOOLS_BENCH_SESSION_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/include/ckpt/ckpt.h"

namespace ckptd::bench {

inline constexpr std::chrono::seconds kPatience(120);
inline constexpr uint32_t kFromRegion = 1;  // ckpt_restored.source
inline constexpr uint32_t kFromReplica = 2;
inline constexpr uint32_t kFromParity = 3;
inline constexpr uint32_t kFromStorage = 5;
inline constexpr uint64_t kPatienceNs = std::chrono::nanoseconds(kPatience).count();

// With the sentence of the calling thread's last failure.
[[nodiscard]] absl::Status StatusOf(ckpt_status status);

struct Place {
  std::string socket;
  uint32_t rank = 0;
  uint32_t world = 1;
  uint32_t gpu_path = CKPT_PUSH;
};
[[nodiscard]] absl::StatusOr<ckpt*> Open(const Place& place);

// Tensors of one size, each after the one before: memory and image hold them in the same order. What does not fill
// `bytes_each` of 64-bit words is not there.
struct Tensors {
  std::vector<const void*> addresses;
  uint64_t bytes_each = 0;
  uint8_t flags = 0;  // of each: CKPT_DEVICE, CKPT_STAYS
};
// Of one registration.
struct Registered {
  double call_seconds = 0;   // inside ckpt_register
  double ready_seconds = 0;  // from that call until saves work, looked at every millisecond
};
// Returns when the agent has made the memory for them.
[[nodiscard]] absl::StatusOr<Registered> Register(ckpt* handle, const Tensors& tensors);
// "layer.0000007": of one width, so that their order is that of the numbers.
[[nodiscard]] std::string TensorName(uint64_t number);

// Reads what ckpt_restore_begin found into the same tensors.
[[nodiscard]] absl::Status Read(ckpt* handle, const ckpt_restored& from, const Tensors& tensors);

// Asks every millisecond, for kPatience, until `done`. TIMEOUT: `waited_for` did not come.
[[nodiscard]] absl::Status AwaitInfo(ckpt* handle, const std::string& waited_for,
                                     const std::function<absl::StatusOr<bool>(const ckpt_info_view&)>& done);

// Until `save` starts: a slot that is not free yet, or memory that is still being prepared, costs another try.
[[nodiscard]] absl::Status KeepTrying(const std::function<absl::Status()>& save);

}  // namespace ckptd::bench

#endif  // CKPTD_TOOLS_BENCH_SESSION_H_
