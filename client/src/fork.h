// A forked child must not use what its parent opened: it has no threads, no mappings, and a mutex may be held for ever.
#ifndef CKPTD_CLIENT_SRC_FORK_H_
#define CKPTD_CLIENT_SRC_FORK_H_

#include <cstdint>

namespace ckptd {

// Grows by one in each forked child. A handle keeps the number it was opened with and is dead when they differ.
[[nodiscard]] uint64_t ForkGeneration();

}  // namespace ckptd

#endif  // CKPTD_CLIENT_SRC_FORK_H_
