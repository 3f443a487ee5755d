// What one node holds for others, as STATE places it. Pure; any thread.
#ifndef CKPTD_DAEMON_PROTECT_HELD_HERE_H_
#define CKPTD_DAEMON_PROTECT_HELD_HERE_H_

#include <set>
#include <string>

#include "daemon/region/peer_key.h"
#include "proto/ckptd/v1/job.pb.h"

namespace ckptd::protect {

// Copies of ranks, and parity of groups of ranks, that `agent` is to hold. It looks at all ranks of the job.
[[nodiscard]] std::set<region::PeerKey> HeldHere(const std::string& agent, const v1::State& state);

}  // namespace ckptd::protect

#endif  // CKPTD_DAEMON_PROTECT_HELD_HERE_H_
