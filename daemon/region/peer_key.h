// Names of what this node keeps for others, beside the ranks of a job that run here:
//
//   peer-00007     copies of the snapshots of rank 7, which runs on another node
//   parity-00002   a block of parity of group 2
//
// Pure functions, any thread.
#ifndef CKPTD_DAEMON_REGION_PEER_KEY_H_
#define CKPTD_DAEMON_REGION_PEER_KEY_H_

#include <compare>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace ckptd::region {

enum class PeerKind : uint8_t { kCopy, kParity };

// Of one job.
struct PeerKey {
  PeerKind kind = PeerKind::kCopy;
  uint32_t number = 0;  // the rank, or the group; below kMaxRanks
  auto operator<=>(const PeerKey&) const = default;
};

[[nodiscard]] std::string PeerDirName(const PeerKey& key);

// Nothing for any name that PeerDirName does not make.
[[nodiscard]] std::optional<PeerKey> ParsePeerDirName(absl::string_view name);

// "rank 7" or "parity of group 2", for messages.
[[nodiscard]] std::string ToString(const PeerKey& key);

}  // namespace ckptd::region

#endif  // CKPTD_DAEMON_REGION_PEER_KEY_H_
