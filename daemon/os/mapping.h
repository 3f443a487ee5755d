// Shared memory mappings over a descriptor (boost::interprocess::mapped_region inside).
//
// No lock, pointer or list lives in shared memory. Memory of another process's file is touched by descriptor or by
// direct I/O only (a truncated file is then an error, not a SIGBUS); map what only this agent can truncate, or as the
// source and target of I/O.
#ifndef CKPTD_DAEMON_OS_MAPPING_H_
#define CKPTD_DAEMON_OS_MAPPING_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace boost::interprocess {
class mapped_region;
}  // namespace boost::interprocess

namespace ckptd {

enum class MapAccess { kReadOnly, kReadWrite };

// Unmapped on destruction. Not inherited by fork (MADV_DONTFORK). The descriptor may be closed after Map.
class Mapping {
 public:
  // [0, size) of `fd`, shared. A file shorter than `size` is refused: its tail would be a SIGBUS.
  [[nodiscard]] static absl::StatusOr<Mapping> Map(int fd, uint64_t size, MapAccess access);
  Mapping();
  Mapping(Mapping&&) noexcept;
  Mapping& operator=(Mapping&&) noexcept;
  ~Mapping();

  [[nodiscard]] std::byte* data() const;
  [[nodiscard]] uint64_t size() const;
  [[nodiscard]] std::span<std::byte> bytes() const { return {data(), static_cast<size_t>(size())}; }

 private:
  explicit Mapping(std::unique_ptr<boost::interprocess::mapped_region> region);
  std::unique_ptr<boost::interprocess::mapped_region> region_;
};

// Makes the pages of [offset, offset + length) present and writable now (MADV_POPULATE_WRITE; where the kernel has
// none, by touching each page without changing it). Slow (0.3 to 0.7 GB/s): cut into pieces and call from a worker.
// Full memory is REGION_FULL, never a SIGBUS with MADV_POPULATE_WRITE. offset: a multiple of the page size.
[[nodiscard]] absl::Status Populate(const Mapping& mapping, uint64_t offset, uint64_t length);

// Makes huge pages of [offset, offset + length), whatever its tmpfs was mounted with (MADV_COLLAPSE, Linux 6.1): those
// who map it later get them too. What the file has there stays; where it has nothing they are zeros, made ten times as
// fast as small pages. False where it cannot be, and nothing is lost: call Populate in any case. offset: a multiple of
// 2 MiB; what is left of `length` after whole huge pages stays as it is.
bool UseHugePages(const Mapping& mapping, uint64_t offset, uint64_t length);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_OS_MAPPING_H_
