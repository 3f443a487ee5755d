// A slot's pages are made present before its first save. In pieces of 16 MiB: the kernel keeps the process's address
// space locked during each, and a trainer that maps memory meanwhile waits for it. By several threads: one makes 2 GB/s
// of pages present that exist already, eight 7 (H200 host, pages of 4 KiB).
#ifndef CKPTD_CLIENT_SRC_POPULATE_H_
#define CKPTD_CLIENT_SRC_POPULATE_H_

#include "client/core/wire/mapping.h"

namespace ckptd {

// For writing. 0 or an errno.
[[nodiscard]] int PopulateTogether(SharedMapping& mapping);

}  // namespace ckptd

#endif  // CKPTD_CLIENT_SRC_POPULATE_H_
