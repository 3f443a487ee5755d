// What the agent makes and looks at on disks before it serves anybody.
#ifndef CKPTD_DAEMON_APP_STORAGE_START_H_
#define CKPTD_DAEMON_APP_STORAGE_START_H_

#include <string>

#include "absl/status/status.h"
#include "daemon/base/executor.h"
#include "daemon/os/files.h"
#include "daemon/storage/store.h"

namespace ckptd {

// All levels of `path` that are missing: ~/.local/share/ckptd on a fresh account.
[[nodiscard]] absl::Status MakePath(Files& files, const std::string& path, uint32_t mode);

// What is wrong with the storage is an error of the start. A storage that does not answer is not: what memory holds is
// served meanwhile, and nothing here joins the worker that hangs. `files` and `store` outlive it.
[[nodiscard]] absl::Status LookAtStorage(Files& files, Store& store, const std::string& root, Executor& workers);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_APP_STORAGE_START_H_
