// Erasure codes: k data members, each with an image, and m parity members; any m members may be lost.
//
// Byte i of all images is one codeword: parity p holds at i the XOR over all data members j of C(p, j) * image j [i],
// over GF(2^8) (gf_matrix.h). A code is therefore made and undone range by range, in any order, and of as many bytes
// at a time as the caller likes. An image that is shorter than the others counts as zeros beyond its end; parity is as
// long as the longest.
//
// m = 1: C is a row of ones: plain XOR, as in RAID 5.
// m > 1: Reed-Solomon with the Cauchy matrix C(p, j) = 1 / ((k + p) ^ j). The code recovers from every loss of m
// members exactly if every square part of C can be inverted, and of a Cauchy matrix every part can (J. Bloemer et al.:
// "An XOR-Based Erasure-Resilient Coding Scheme", ICSI TR-95-048). Powers of 2 below an identity, the Vandermonde
// construction of ISA-L's gf_gen_rs_matrix, do not have this: isa-l/erasure_code.h says for which small sizes they do,
// and gf_matrix_test.cc finds a loss of 5 + 6 members that they cannot undo.
//
// Members are numbered 0 to k - 1 (data), k to k + m - 1 (parity).
//
// Threads: immutable; const calls on any thread.
#ifndef CKPTD_DAEMON_ERASURE_CODE_H_
#define CKPTD_DAEMON_ERASURE_CODE_H_

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/erasure/gf_product.h"

namespace ckptd::erasure {

struct Shape {
  uint32_t data = 0;    // k
  uint32_t parity = 0;  // m
  [[nodiscard]] uint32_t members() const { return data + parity; }
  bool operator==(const Shape&) const = default;
};

// The Cauchy matrix takes a byte of its own for each member, of which there are 256; one is left to mean none.
inline constexpr uint32_t kMaxMembers = 255;

[[nodiscard]] std::string ToString(const Shape& shape);  // "4+2"

// INVALID_ARGUMENT unless there is a data and a parity member, and at most kMaxMembers together.
[[nodiscard]] absl::Status CheckShape(const Shape& shape);

// What a member has of one range. A data member whose image ends before has none, or less than the others.
struct Piece {
  uint32_t member = 0;
  uint64_t bytes = 0;
};

// Pieces of one range fit together: all of parity are equally long, none of data is longer. INVALID_ARGUMENT that names
// the member: else bytes would be left out, or made of nothing.
[[nodiscard]] absl::Status CheckPieces(const Shape& shape, std::span<const Piece> pieces);

// Bytes that an image has in [offset, offset + range_bytes).
[[nodiscard]] uint64_t PieceBytes(uint64_t image_bytes, uint64_t offset, uint64_t range_bytes);

// CORRUPT, naming `what`, unless the CRC32C of the piece is `expected`. A code corrects members that are known to be
// lost; of one that is silently wrong it makes others wrong, too. So whoever rebuilds checks each survivor before and
// each rebuilt piece behind, by the CRCs of their owners.
[[nodiscard]] absl::Status CheckCrc(ConstBytes piece, uint32_t expected, absl::string_view what);

class Code {
 public:
  // INVALID_ARGUMENT as CheckShape.
  [[nodiscard]] static absl::StatusOr<Code> Make(const Shape& shape);

  // One row of it, for who makes one parity of a stripe: a code of as much data and one parity, equal to member k +
  // row. row < shape.parity.
  [[nodiscard]] static absl::StatusOr<Code> MakeRow(const Shape& shape, uint32_t row);

  [[nodiscard]] const Shape& shape() const { return shape_; }
  [[nodiscard]] const GfProduct& parity() const { return parity_; }  // m rows, k columns: C

  // One range of all images into the same range of all parity. data[j]: the piece of member j, parity[p]: of member
  // k + p, overwritten, zeros beyond the longest of data. INVALID_ARGUMENT as CheckPieces.
  [[nodiscard]] absl::Status Encode(std::span<const ConstBytes> data, std::span<const Bytes> parity) const;

 private:
  Code(const Shape& shape, GfProduct parity) : shape_(shape), parity_(std::move(parity)) {}

  Shape shape_;
  GfProduct parity_;
};

}  // namespace ckptd::erasure

#endif  // CKPTD_DAEMON_ERASURE_CODE_H_
