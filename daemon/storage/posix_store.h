// Store over a directory of a POSIX file system, local or shared (NFS, Lustre, GPFS).
//
// Parts go through one IoQueue each, with O_DIRECT straight from the caller's memory where the file system can (asked
// at Open, and again with each part to be written until it says yes or no), else buffered with early write-back. The
// protocol of publishing is in publish.h.
#ifndef CKPTD_DAEMON_STORAGE_POSIX_STORE_H_
#define CKPTD_DAEMON_STORAGE_POSIX_STORE_H_

#include <memory>
#include <string>

#include "daemon/os/files.h"
#include "daemon/os/io_queue.h"
#include "daemon/storage/store.h"

namespace ckptd {

struct PosixStoreOptions {
  std::string root;        // absolute; must exist
  std::string owner = "";  // stable name of this agent, the only one with that name (Publisher)
  IoQueueFactory make_queue;
  bool direct = true;                 // use O_DIRECT where the probe says it works
  size_t io_bytes = size_t{8} << 20;  // largest single transfer; a multiple of kDirectAlignment
};

// `files` outlives the store. Does not touch the storage yet.
[[nodiscard]] absl::StatusOr<std::unique_ptr<Store>> MakePosixStore(Files& files, const PosixStoreOptions& options);
// The same, and Probe(). A root that cannot be written opens (it can still be read); one that is
// missing or is no directory does not. Blocks as long as the storage does.
[[nodiscard]] absl::StatusOr<std::unique_ptr<Store>> OpenPosixStore(Files& files, const PosixStoreOptions& options);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_STORAGE_POSIX_STORE_H_
