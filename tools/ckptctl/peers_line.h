// What `ckptctl status` says of the other nodes, in one line.
#ifndef CKPTD_TOOLS_CKPTCTL_PEERS_LINE_H_
#define CKPTD_TOOLS_CKPTCTL_PEERS_LINE_H_

#include <string>

#include "proto/ckptd/v1/status.pb.h"

namespace ckptd {

// "peers    4 nodes by static; this one is n1, linked to 3; copies over tls to 3 nodes, 412.0 MiB/s and more". Nothing
// where this node is alone by its configuration.
[[nodiscard]] std::string PeersLine(const v1::PeersStatus& peers);
// What this node holds for others of jobs that have ended, each with its next step; empty where there is none.
[[nodiscard]] std::string HeldLines(const v1::PeersStatus& peers);

}  // namespace ckptd

#endif  // CKPTD_TOOLS_CKPTCTL_PEERS_LINE_H_
