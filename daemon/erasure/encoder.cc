#include "daemon/erasure/encoder.h"

#include <algorithm>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"

namespace ckptd::erasure {
namespace {

absl::Status Bad(const Shape& shape, absl::string_view what) {
  return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat("erasure code ", ToString(shape), ": ", what));
}

absl::Status CheckLayout(const Shape& shape, const Encoder::Layout& layout, std::span<const Bytes> parity) {
  if (layout.image_bytes.size() != shape.data || parity.size() != shape.parity)
    return Bad(shape, absl::StrCat("given ", layout.image_bytes.size(), " images and ", parity.size(), " of parity"));
  const uint64_t longest = std::ranges::max(layout.image_bytes);
  for (uint32_t p = 0; p < shape.parity; ++p) {
    if (parity[p].size() != longest)
      return Bad(shape, absl::StrCat("parity of member ", shape.data + p, " has ", parity[p].size(),
                                     " bytes, must have ", longest, " like the longest image"));
  }
  if (layout.chunk_bytes == 0 || longest / layout.chunk_bytes >= kMaxEncoderChunks)
    return Bad(shape, absl::StrCat("chunks of ", layout.chunk_bytes, " bytes in an image of ", longest,
                                   ": must be at most ", kMaxEncoderChunks));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Encoder> Encoder::Make(const Code& code, Layout layout, std::vector<Bytes> parity) {
  CKPTD_RETURN_IF_ERROR(CheckLayout(code.shape(), layout, parity));
  const uint64_t longest = std::ranges::max(layout.image_bytes);
  const uint64_t chunks = longest / layout.chunk_bytes + (longest % layout.chunk_bytes != 0 ? 1 : 0);
  return Encoder(code, std::move(layout), std::move(parity), chunks);
}

// The longest image has bytes in every chunk, so that none begins complete.
Encoder::Encoder(const Code& code, Layout layout, std::vector<Bytes> parity, uint64_t chunks)
    : code_(&code),
      layout_(std::move(layout)),
      parity_(std::move(parity)),
      folded_(chunks * code.shape().data),
      missing_(chunks),
      incomplete_(chunks) {
  for (uint64_t chunk = 0; chunk < chunks; ++chunk) missing_[chunk] = Expected(chunk);
}

uint64_t Encoder::ChunkBytes(uint32_t member, uint64_t chunk) const {
  return PieceBytes(layout_.image_bytes[member], chunk * layout_.chunk_bytes, layout_.chunk_bytes);
}

uint32_t Encoder::Expected(uint64_t chunk) const {
  uint32_t expected = 0;
  for (uint32_t member = 0; member < code_->shape().data; ++member) expected += ChunkBytes(member, chunk) != 0 ? 1 : 0;
  return expected;
}

std::vector<bool>::reference Encoder::Folded(uint32_t member, uint64_t chunk) {
  return folded_[chunk * code_->shape().data + member];
}

absl::Status Encoder::CheckFold(uint32_t member, uint64_t chunk, uint64_t bytes) {
  const Shape& shape = code_->shape();
  if (member >= shape.data) return Bad(shape, absl::StrCat("member ", member, " has no image to fold in"));
  const uint64_t must = chunk < chunks() ? ChunkBytes(member, chunk) : 0;
  if (must == 0)
    return Bad(shape,
               absl::StrCat("the image of member ", member, " ends before chunk ", chunk, ": nothing to fold in"));
  if (bytes != must)
    return Bad(shape, absl::StrCat("chunk ", chunk, " of member ", member, " came with ", bytes, " bytes, has ", must));
  if (Folded(member, chunk))
    return Error(
        ErrorCode::REFUSED,
        absl::StrCat("erasure code ", ToString(shape), ": chunk ", chunk, " of member ", member,
                     " is in already: a second time would take it out again; if it changed, restart the chunk"));
  return absl::OkStatus();
}

absl::Status Encoder::Fold(uint32_t member, uint64_t chunk, ConstBytes bytes) {
  CKPTD_RETURN_IF_ERROR(CheckFold(member, chunk, bytes.size()));
  const bool first = missing_[chunk] == Expected(chunk);
  // Before the bytes are touched: a reading that is broken off must not look as if it had not begun.
  Folded(member, chunk) = true;
  if (--missing_[chunk] == 0) --incomplete_;
  absl::InlinedVector<Bytes, 16> places;
  const uint64_t offset = chunk * layout_.chunk_bytes;
  for (Bytes parity : parity_)
    places.push_back(parity.subspan(offset, PieceBytes(parity.size(), offset, layout_.chunk_bytes)));
  if (first) {
    code_->parity().MultiplyColumn(member, bytes, places);
  } else {
    code_->parity().AddColumn(member, bytes, places);
  }
  return absl::OkStatus();
}

void Encoder::Restart(uint64_t chunk) {
  if (missing_[chunk] == 0) ++incomplete_;
  missing_[chunk] = Expected(chunk);
  for (uint32_t member = 0; member < code_->shape().data; ++member) Folded(member, chunk) = false;
}

}  // namespace ckptd::erasure
