// Who holds which part of what, in a group whose members all have an image: k + m members protect each other with k + m
// stripes, in each of which other m members hold the parity. RAID 5's rotation, REFT's RAIM5 for m = 1 (arXiv
// 2310.12670; design/reference/algorithms.md 7.3), and the same with more parity. Pure functions, any thread.
//
// Group of n = k + m members. Every image is cut into k blocks in a row (BlockOf). Stripe s: members s, s + 1 .. s + m
// - 1 modulo n hold parity 0 .. m - 1; each other gives one block, its blocks going to these stripes in ascending
// order. A stripe's Code counts its data in ascending order of members. A member keeps m parities of at most 1/k of the
// longest image: m / k of the images on top, spread evenly. A member that is lost has lost one place in each stripe, so
// that any m members may be lost.
//
// m = 1 is P_d = XOR over i != d of b(i, d if d < i else d - 1). n = 4, bij = block j of member i:
//
//   member | own image    | parity
//   0      | b00 b01 b02  | b10 ^ b20 ^ b30
//   1      | b10 b11 b12  | b00 ^ b21 ^ b31
//   2      | b20 b21 b22  | b01 ^ b11 ^ b32
//   3      | b30 b31 b32  | b02 ^ b12 ^ b22
#ifndef CKPTD_DAEMON_ERASURE_ROTATION_H_
#define CKPTD_DAEMON_ERASURE_ROTATION_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/erasure/code.h"

namespace ckptd::erasure {

// Stripes, members and blocks below are in range and the shape passed CheckShape(); there are as many stripes as
// members.

// Parity `row` of the stripe.
[[nodiscard]] uint32_t ParityHolder(const Shape& shape, uint32_t stripe, uint32_t row);

[[nodiscard]] bool HoldsParity(const Shape& shape, uint32_t stripe, uint32_t member);

// Which of its blocks the member gives to the stripe. It holds no parity of it.
[[nodiscard]] uint32_t BlockGiven(const Shape& shape, uint32_t stripe, uint32_t member);

// The inverse: the stripe that block number `block` of the member goes to.
[[nodiscard]] uint32_t StripeOf(const Shape& shape, uint32_t member, uint32_t block);

// Group members in the order in which the stripe's Code counts them: k of data, m of parity.
[[nodiscard]] std::vector<uint32_t> StripeMembers(const Shape& shape, uint32_t stripe);

// A run of bytes, or of rows.
struct Extent {
  uint64_t begin = 0;
  uint64_t size = 0;
  bool operator==(const Extent&) const = default;
};

// Block number `block` of an image cut into k: equal blocks, whole multiples of `unit` bytes (> 0), the last ones
// shorter or empty, nothing padded. With chunk_bytes as unit each chunk lies in one block, and its CRC serves the
// rebuilt chunk.
[[nodiscard]] Extent BlockOf(const Shape& shape, uint64_t image_bytes, uint64_t unit, uint32_t block);

// REFT's way to cut a state that all n members of a group hold alike: member i keeps rows [i * D' / n, (i + 1) * D' /
// n) of each tensor, where D' is its first dimension D, rounded up to a multiple of n (n - 1) so that shards and their
// n - 1 blocks have whole rows (algorithms.md 7.2). The rows from D on exist in the arithmetic only.
struct RowShards {
  uint64_t rows = 0;        // D
  uint64_t padded = 0;      // D'
  uint64_t shard_rows = 0;  // D' / n
  uint64_t block_rows = 0;  // D' / (n (n - 1))

  // Rows that are there, of a member's shard and of one of its n - 1 blocks.
  [[nodiscard]] Extent Shard(uint32_t member) const;
  [[nodiscard]] Extent Block(uint32_t member, uint32_t block) const;
};

// INVALID_ARGUMENT for fewer than 2 or more than kMaxMembers members, or rows that cannot be counted when padded.
[[nodiscard]] absl::StatusOr<RowShards> ShardRows(uint64_t rows, uint32_t members);

}  // namespace ckptd::erasure

#endif  // CKPTD_DAEMON_ERASURE_ROTATION_H_
