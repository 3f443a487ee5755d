#include "daemon/erasure/code.h"

#include <algorithm>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/core/copy/crc32c.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"

namespace ckptd::erasure {
namespace {

GfMatrix ParityRows(const Shape& shape) {
  if (shape.parity > 1) return CauchyRows(shape.parity, shape.data);
  GfMatrix ones(1, shape.data);
  std::fill(ones.values.begin(), ones.values.end(), uint8_t{1});
  return ones;
}

absl::Status BadPiece(const Shape& shape, const Piece& piece, absl::string_view must, uint64_t bytes) {
  return Error(ErrorCode::INVALID_ARGUMENT,
               absl::StrCat("erasure code ", ToString(shape), ": the piece of member ", piece.member, " has ",
                            piece.bytes, " bytes, must have ", must, bytes, " like the parity of this range"));
}

}  // namespace

std::string ToString(const Shape& shape) { return absl::StrCat(shape.data, "+", shape.parity); }

absl::Status CheckShape(const Shape& shape) {
  if (shape.data >= 1 && shape.parity >= 1 && shape.data < kMaxMembers && shape.parity <= kMaxMembers - shape.data)
    return absl::OkStatus();
  return Error(ErrorCode::INVALID_ARGUMENT,
               absl::StrCat("erasure code ", ToString(shape),
                            ": give one or more members of data and of parity, at most ", kMaxMembers, " together"));
}

absl::Status CheckPieces(const Shape& shape, std::span<const Piece> pieces) {
  auto is_parity = [&](const Piece& piece) { return piece.member >= shape.data; };
  auto parity = std::find_if(pieces.begin(), pieces.end(), is_parity);
  if (parity == pieces.end()) return absl::OkStatus();
  for (const Piece& piece : pieces) {
    if (is_parity(piece) && piece.bytes != parity->bytes) return BadPiece(shape, piece, "", parity->bytes);
    if (piece.bytes > parity->bytes) return BadPiece(shape, piece, "at most ", parity->bytes);
  }
  return absl::OkStatus();
}

uint64_t PieceBytes(uint64_t image_bytes, uint64_t offset, uint64_t range_bytes) {
  return offset < image_bytes ? std::min(image_bytes - offset, range_bytes) : 0;
}

absl::Status CheckCrc(ConstBytes piece, uint32_t expected, absl::string_view what) {
  const uint32_t found = Crc32c(0, piece.data(), piece.size());
  if (found == expected) return absl::OkStatus();
  return Error(ErrorCode::CORRUPT,
               absl::StrFormat("%s: CRC32C of %d bytes is %08x, its owner's record says %08x: count it "
                               "as lost and rebuild from other members",
                               what, piece.size(), found, expected));
}

absl::StatusOr<Code> Code::Make(const Shape& shape) {
  CKPTD_RETURN_IF_ERROR(CheckShape(shape));
  return Code(shape, GfProduct(ParityRows(shape)));
}

absl::StatusOr<Code> Code::MakeRow(const Shape& shape, uint32_t row) {
  CKPTD_RETURN_IF_ERROR(CheckShape(shape));
  GfMatrix one(1, shape.data);
  one.SetRow(0, ParityRows(shape).row(row));
  return Code({shape.data, 1}, GfProduct(std::move(one)));
}

absl::Status Code::Encode(std::span<const ConstBytes> data, std::span<const Bytes> parity) const {
  if (data.size() != shape_.data || parity.size() != shape_.parity)
    return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat("erasure code ", ToString(shape_), ": given ", data.size(),
                                                           " pieces of data and ", parity.size(), " of parity"));
  absl::InlinedVector<Piece, 16> pieces;
  for (uint32_t j = 0; j < shape_.data; ++j) pieces.push_back({j, data[j].size()});
  for (uint32_t p = 0; p < shape_.parity; ++p) pieces.push_back({shape_.data + p, parity[p].size()});
  CKPTD_RETURN_IF_ERROR(CheckPieces(shape_, pieces));
  parity_.Multiply(data, parity);
  return absl::OkStatus();
}

}  // namespace ckptd::erasure
