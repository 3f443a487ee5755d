// memfds: memory without a name, passed by descriptor. Seals (F_SEAL_*) make their size a fact that nobody can change.
// They stop a SIGBUS, not tampering: without F_SEAL_WRITE copy out first, then check the copy.
#ifndef CKPTD_DAEMON_OS_MEMFD_H_
#define CKPTD_DAEMON_OS_MEMFD_H_

#include <fcntl.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/os/fd.h"

namespace ckptd {

inline constexpr int kSealsOfSize = F_SEAL_SHRINK | F_SEAL_GROW;
inline constexpr int kSealsOfContent = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;

// `size` bytes of zeros, reserved, not yet sealed. `name` shows in /proc only.
[[nodiscard]] absl::StatusOr<UniqueFd> CreateMemfd(const std::string& name, uint64_t size);
[[nodiscard]] absl::Status AddSeals(int fd, int seals);

// For a descriptor received from outside: a regular file on memory (not on a file system that could block), all of
// `seals` set, 0 < size <= max_size. Returns the size. Anything else is INVALID_ARGUMENT.
[[nodiscard]] absl::StatusOr<uint64_t> CheckMemfd(int fd, int seals, uint64_t max_size);

// CheckMemfd with kSealsOfContent, then a copy of the content.
[[nodiscard]] absl::StatusOr<std::string> ReadSealedMemfd(int fd, size_t max_size);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_OS_MEMFD_H_
