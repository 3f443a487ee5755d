// Checking a slot's bytes against its record, on a worker: after a restart of the agent, for `ckptctl verify`, and
// before a slot is offered to anybody else. Reads by descriptor through one small buffer.
#ifndef CKPTD_DAEMON_REGION_VERIFY_H_
#define CKPTD_DAEMON_REGION_VERIFY_H_

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "daemon/base/executor.h"
#include "daemon/region/progress.h"
#include "daemon/region/record.h"
#include "daemon/region/slot_file.h"

namespace ckptd::region {

// CORRUPT naming the first bad chunk, or that the file is short; CANCELLED after progress.Cancel(). `on_read`, if any,
// is told of each piece that was read, and may take its time. Any thread.
[[nodiscard]] absl::Status VerifySlot(const SlotFile& file, const SlotRecord& record, Progress& progress,
                                      const std::function<void(uint64_t bytes)>& on_read = nullptr);

// VerifySlot on `executor`; `done` runs there, once. An error (and no `done`) when the executor takes no work.
[[nodiscard]] absl::StatusOr<std::shared_ptr<Progress>> StartVerify(std::shared_ptr<const SlotFile> file,
                                                                    std::shared_ptr<const SlotRecord> record,
                                                                    Executor& executor,
                                                                    std::function<void(absl::Status)> done);

}  // namespace ckptd::region

#endif  // CKPTD_DAEMON_REGION_VERIFY_H_
