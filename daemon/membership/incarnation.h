// The number of this process of this node's agent: higher than that of every one before it, also after a reboot, so
// that a peer that heard of it refuses an older one (fence.h) where the source of members knows no generations.
//
// The numbers are names in a folder of the node's own: incarnation-00000000000000000042. The next one is claimed by
// creating its name exclusively, so two processes that start at once get two numbers, and is durable before it is used.
// Older names are removed afterwards; a crash at any point leaves the highest. A clock may push the numbers up, and is
// never needed to keep them rising: so that a node whose disk was replaced does not begin with 1 again.
#ifndef CKPTD_DAEMON_MEMBERSHIP_INCARNATION_H_
#define CKPTD_DAEMON_MEMBERSHIP_INCARNATION_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/os/files.h"

namespace ckptd::membership {

// From `at_least` (1 or more), which is the time in seconds where the folder may get lost. `folder` exists; other names
// in it are left alone. Blocks as long as the storage does. Errors: those of the storage; REFUSED when a thousand
// others claimed numbers meanwhile, or the numbers are used up.
[[nodiscard]] absl::StatusOr<uint64_t> ClaimIncarnation(Files& files, const std::string& folder, uint64_t at_least = 1);

}  // namespace ckptd::membership

#endif  // CKPTD_DAEMON_MEMBERSHIP_INCARNATION_H_
