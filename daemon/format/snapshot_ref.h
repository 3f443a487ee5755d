// A snapshot's name within its job, as messages and records write it. Any thread.
#ifndef CKPTD_DAEMON_FORMAT_SNAPSHOT_REF_H_
#define CKPTD_DAEMON_FORMAT_SNAPSHOT_REF_H_

#include "daemon/base/ids.h"
#include "proto/ckptd/v1/job.pb.h"

namespace ckptd {

[[nodiscard]] inline SnapshotId ToId(const v1::SnapshotRef& ref) { return {ref.attempt(), ref.step()}; }

inline void SetRef(const SnapshotId& id, v1::SnapshotRef* ref) {
  ref->set_attempt(id.attempt);
  ref->set_step(id.step);
}

}  // namespace ckptd

#endif  // CKPTD_DAEMON_FORMAT_SNAPSHOT_REF_H_
