#include "daemon/erasure/decoder.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"

namespace ckptd::erasure {
namespace {

absl::Status Bad(const Code& code, absl::string_view what) {
  return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat("erasure code ", ToString(code.shape()), ": ", what));
}

// Ascending, each once, each a member.
absl::StatusOr<std::vector<uint32_t>> Sorted(const Code& code, std::span<const uint32_t> members) {
  std::vector<uint32_t> sorted(members.begin(), members.end());
  std::sort(sorted.begin(), sorted.end());
  if (auto twice = std::adjacent_find(sorted.begin(), sorted.end()); twice != sorted.end())
    return Bad(code, absl::StrCat("member ", *twice, " is named twice"));
  if (!sorted.empty() && sorted.back() >= code.shape().members())
    return Bad(code, absl::StrCat("there is no member ", sorted.back()));
  return sorted;
}

absl::Status CheckLosses(const Code& code, const std::vector<uint32_t>& lost, const std::vector<uint32_t>& wanted) {
  if (wanted.empty()) return Bad(code, "nothing is to be rebuilt: name a lost member");
  for (uint32_t member : wanted) {
    if (!std::binary_search(lost.begin(), lost.end(), member))
      return Bad(code, absl::StrCat("member ", member, " is to be rebuilt and is not lost: read it"));
  }
  if (lost.size() <= code.shape().parity) return absl::OkStatus();
  return Error(ErrorCode::CORRUPT,
               absl::StrCat("erasure code ", ToString(code.shape()), ": members ", absl::StrJoin(lost, ", "),
                            " are lost, ", lost.size(), " where ", code.shape().parity,
                            " can be rebuilt: bring one of them back, or "
                            "restore from another copy or an older step"));
}

// The first k that are not lost.
std::vector<uint32_t> Survivors(const Shape& shape, const std::vector<uint32_t>& lost) {
  std::vector<uint32_t> survivors;
  for (uint32_t member = 0; survivors.size() < shape.data; ++member) {
    if (!std::binary_search(lost.begin(), lost.end(), member)) survivors.push_back(member);
  }
  return survivors;
}

// Rows of [I; C].
GfMatrix RowsOf(const Code& code, const std::vector<uint32_t>& members) {
  const uint32_t data = code.shape().data;
  GfMatrix rows(static_cast<uint32_t>(members.size()), data);
  for (uint32_t i = 0; i < rows.rows; ++i) {
    if (members[i] < data) {
      rows.at(i, members[i]) = 1;
    } else {
      rows.SetRow(i, code.parity().matrix().row(members[i] - data));
    }
  }
  return rows;
}

}  // namespace

Decoder::Decoder(const Shape& shape, std::vector<uint32_t> sources, std::vector<uint32_t> wanted, GfProduct product)
    : shape_(shape), sources_(std::move(sources)), wanted_(std::move(wanted)), product_(std::move(product)) {}

absl::StatusOr<Decoder> Decoder::Make(const Code& code, std::span<const uint32_t> lost,
                                      std::span<const uint32_t> wanted) {
  CKPTD_ASSIGN_OR_RETURN(std::vector<uint32_t> all_lost, Sorted(code, lost));
  CKPTD_ASSIGN_OR_RETURN(std::vector<uint32_t> all_wanted, Sorted(code, wanted));
  CKPTD_RETURN_IF_ERROR(CheckLosses(code, all_lost, all_wanted));
  std::vector<uint32_t> sources = Survivors(code.shape(), all_lost);
  const std::optional<GfMatrix> inverse = Inverse(RowsOf(code, sources));
  if (!inverse.has_value())
    return Error(ErrorCode::INTERNAL, absl::StrCat("erasure code ", ToString(code.shape()), ": the rows of members ",
                                                   absl::StrJoin(sources, ", "), " cannot be inverted"));
  GfProduct product(Times(RowsOf(code, all_wanted), *inverse));
  return Decoder(code.shape(), std::move(sources), std::move(all_wanted), std::move(product));
}

absl::Status Decoder::Rebuild(std::span<const ConstBytes> pieces, std::span<const Bytes> rebuilt) const {
  if (pieces.size() != sources_.size() || rebuilt.size() != wanted_.size())
    return Error(ErrorCode::INVALID_ARGUMENT,
                 absl::StrCat("erasure code ", ToString(shape_), ": given ", pieces.size(), " pieces to read and ",
                              rebuilt.size(), " to rebuild, wants ", sources_.size(), " and ", wanted_.size()));
  absl::InlinedVector<Piece, 16> all;
  for (size_t i = 0; i < pieces.size(); ++i) all.push_back({sources_[i], pieces[i].size()});
  for (size_t i = 0; i < rebuilt.size(); ++i) all.push_back({wanted_[i], rebuilt[i].size()});
  CKPTD_RETURN_IF_ERROR(CheckPieces(shape_, all));
  product_.Multiply(pieces, rebuilt);
  return absl::OkStatus();
}

}  // namespace ckptd::erasure
