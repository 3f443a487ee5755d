// How snapshots in memory are protected against the loss of nodes, and what that costs.
//
//   none   nothing leaves the node
//   group  Gemini's placement (SOSP'23): groups of `copies` members hold each other's snapshots; `copies` must divide
//          the number of members
//   ring   each member's snapshot is held by itself and the next copies - 1 of one ring of all: for comparison, it is
//          dearer in survival at the same price
//   mixed  Gemini's Algorithm 1: group where `copies` divides the number of members N; else groups, and one ring of the
//          last copies + N mod copies
//   xor    parity groups of `data` + 1 (REFT's RAIM5, SCR's XOR): any one member of a group may be lost
//   rs     parity groups of `data` + `parity` by Reed-Solomon: any `parity` members of a group may be lost
//
// In a parity group of n members with m parity each member keeps its own snapshot, cut into n - m blocks, and holds m
// parity blocks of stripes to which it gives no data (the rotation is room erasure's). Where data + parity does not
// divide N the groups are a little wider, so that their sizes differ by one at most: they then have more data and the
// same parity.
//
// Pure. Any thread.
#ifndef CKPTD_DAEMON_PLACEMENT_SCHEME_H_
#define CKPTD_DAEMON_PLACEMENT_SCHEME_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ckptd::placement {

enum class Kind { kNone, kGroup, kRing, kMixed, kXor, kReedSolomon };

inline constexpr uint32_t kMaxCopies = 16;
// The widest group has 2 (data + parity) - 1 members, and a code over GF(2^8) has at most 255 (room erasure).
inline constexpr uint32_t kMaxCodeWidth = 128;

struct Scheme {
  Kind kind = Kind::kNone;
  uint32_t copies = 1;  // own one included; of group, ring, mixed
  uint32_t data = 0;    // of xor, rs
  uint32_t parity = 0;  // of xor (1), rs
  bool operator==(const Scheme&) const = default;

  [[nodiscard]] static Scheme Copies(Kind kind, uint32_t copies) { return {kind, copies, 0, 0}; }
  [[nodiscard]] static Scheme Xor(uint32_t data) { return {Kind::kXor, 1, data, 1}; }
  [[nodiscard]] static Scheme ReedSolomon(uint32_t data, uint32_t parity) {
    return {Kind::kReedSolomon, 1, data, parity};
  }

  [[nodiscard]] bool is_copies() const { return kind == Kind::kGroup || kind == Kind::kRing || kind == Kind::kMixed; }
  [[nodiscard]] bool is_code() const { return kind == Kind::kXor || kind == Kind::kReedSolomon; }
  // The fewest members that depend on each other.
  [[nodiscard]] uint32_t width() const { return is_copies() ? copies : is_code() ? data + parity : 1; }
  // Of each group, or of each holder set: this many losses are always survived.
  [[nodiscard]] uint32_t tolerated() const { return is_copies() ? copies - 1 : is_code() ? parity : 0; }
};

// "none", "group", "ring", "mixed", "xor", "rs"; INVALID_ARGUMENT listing them.
[[nodiscard]] const char* KindName(Kind kind);
[[nodiscard]] absl::StatusOr<Kind> ParseKind(absl::string_view name);
// "mixed, 2 copies", "rs 6+2".
[[nodiscard]] std::string ToString(const Scheme& scheme);

// INVALID_ARGUMENT with what to choose instead: numbers out of bounds, more width than members, group that does not
// divide.
[[nodiscard]] absl::Status CheckScheme(const Scheme& scheme, size_t members);

// Bytes, of the node that needs most, where each saves `bytes` at a time.
struct Cost {
  uint64_t memory = 0;   // its own snapshot and what it holds for others, in `slots` versions
  uint64_t traffic = 0;  // sent by the node for one save; it receives as much
  uint64_t rebuild = 0;  // read from peers to have the snapshot of one lost node again
};

// Copies (Gemini, its memory with slots = 2): memory slots * copies * bytes, traffic (copies - 1) * bytes. Codes:
// memory slots * (1 + parity / data) * bytes; each of the node's blocks goes to `parity` holders, or passes along its
// stripe as a partial sum, which is as much: traffic parity * bytes
// (REFT sends nothing where all members of a group hold the same state: not here, each node's is its own). `scheme` was
// checked; bytes at most 2^50, slots at most 8, members at least 1.
[[nodiscard]] Cost CostOf(const Scheme& scheme, size_t members, uint64_t bytes, uint32_t slots);

}  // namespace ckptd::placement

#endif  // CKPTD_DAEMON_PLACEMENT_SCHEME_H_
