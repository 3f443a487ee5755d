// Memory for a while: private, zero, taken page by page as it is touched, and given back piece by piece. Of huge pages
// where the kernel has some: restores from other nodes are 1.5 to 2.6 times as fast as with small ones.
#ifndef CKPTD_DAEMON_OS_SCRATCH_H_
#define CKPTD_DAEMON_OS_SCRATCH_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"

namespace ckptd {

// Unmapped on destruction. Any thread, for different ranges at the same time.
class Scratch {
 public:
  // bytes > 0. REGION_FULL when the kernel has no room for it.
  [[nodiscard]] static absl::StatusOr<Scratch> Make(uint64_t bytes);
  Scratch(Scratch&& other) noexcept;
  Scratch& operator=(Scratch&& other) noexcept;
  ~Scratch();

  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }
  // Whole pages of [offset, offset + length) are zeros again, and take no memory.
  void Discard(uint64_t offset, uint64_t length);

 private:
  explicit Scratch(std::span<std::byte> bytes) : bytes_(bytes) {}
  std::span<std::byte> bytes_;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_OS_SCRATCH_H_
