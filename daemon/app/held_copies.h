// What this node holds for others of a job, and when it may be given up by hand (ckptctl gc JOB). Pure.
#ifndef CKPTD_DAEMON_APP_HELD_COPIES_H_
#define CKPTD_DAEMON_APP_HELD_COPIES_H_

#include <chrono>
#include <string>

#include "daemon/base/clock.h"
#include "daemon/base/ids.h"
#include "daemon/region/peer_store.h"

namespace ckptd {

// The coordinator of a job with a live rank speaks of it twice in that time (room job, kTellAgain).
inline constexpr Nanos kEndedAfter = std::chrono::minutes(10);

struct CopiesFacts {
  region::PeerJob held;
  SnapshotId stored;       // newest committed step on the lineage; or none
  bool in_use = false;     // on this node: a trainer, a flush or a reader
  bool restoring = false;  // a restart counts on what was told of it
};
struct CopiesVerdict {
  bool goes = false;
  std::string reason;  // sentence
};

// `named`: the operator named the job; `force`: and wants it gone, whatever is lost with it.
[[nodiscard]] CopiesVerdict JudgeCopies(const CopiesFacts& facts, bool named, bool force);

// Of what has ended: what gives the memory back. A sentence.
[[nodiscard]] std::string NextStepFor(const region::PeerJob& held);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_APP_HELD_COPIES_H_
