// Hands this process's allocations of the host device to others of the same user, as a driver does: by a socket and a
// thread that end with the process, because opening another process's descriptors would take its capabilities too.
#ifndef CKPTD_CLIENT_CORE_DEVICE_TESTING_FAKE_HANDLES_H_
#define CKPTD_CLIENT_CORE_DEVICE_TESTING_FAKE_HANDLES_H_

#include <cstdint>

namespace ckptd::fake {

// The address of this process's server, started at the first call; 0: there is none.
[[nodiscard]] uint64_t HandleAddress();

// A descriptor of the allocation that the server at `address` knows as `id`; -1: it is gone, or another user's.
[[nodiscard]] int FetchHandle(uint64_t address, uint64_t id);

}  // namespace ckptd::fake

#endif  // CKPTD_CLIENT_CORE_DEVICE_TESTING_FAKE_HANDLES_H_
