#include "daemon/protect/parity_piece.h"

#include <algorithm>
#include <string>

#include "client/core/copy/crc32c.h"

namespace ckptd::protect {

std::optional<uint32_t> ParityPlace::PlaceOf(Rank rank) const {
  const auto at = std::find(ranks.begin(), ranks.end(), rank);
  if (at == ranks.end()) return std::nullopt;
  return static_cast<uint32_t>(at - ranks.begin());
}

std::vector<Rank> ParityPlace::DataRanks() const {
  std::vector<uint32_t> members = erasure::StripeMembers(shape, stripe);
  std::vector<Rank> out;
  for (uint32_t i = 0; i < shape.data; ++i) out.push_back(ranks[members[i]]);
  return out;
}

std::optional<uint32_t> ParityPlace::DataIndexOf(Rank rank) const {
  const std::vector<Rank> data = DataRanks();
  const auto at = std::find(data.begin(), data.end(), rank);
  if (at == data.end()) return std::nullopt;
  return static_cast<uint32_t>(at - data.begin());
}

ParityPlace PlaceOf(const v1::ParityPiece& piece) {
  ParityPlace place;
  place.ranks.assign(piece.ranks().begin(), piece.ranks().end());
  place.shape = {static_cast<uint32_t>(piece.ranks_size()) - piece.parity(), piece.parity()};
  place.stripe = piece.stripe();
  place.row = piece.row();
  return place;
}

v1::ParityPiece PieceOf(const ParityPlace& place) {
  v1::ParityPiece piece;
  piece.mutable_ranks()->Assign(place.ranks.begin(), place.ranks.end());
  piece.set_parity(place.shape.parity);
  piece.set_stripe(place.stripe);
  piece.set_row(place.row);
  return piece;
}

uint32_t LayoutCrcOf(const ParityPlace& place) {
  const std::string identity = PieceOf(place).SerializeAsString();
  return Crc32c(0, identity.data(), identity.size());
}

erasure::Extent BlockGivenBy(const ParityPlace& place, Rank rank, uint64_t image_bytes, uint64_t chunk_bytes) {
  const uint32_t block = erasure::BlockGiven(place.shape, place.stripe, *place.PlaceOf(rank));
  return erasure::BlockOf(place.shape, image_bytes, chunk_bytes, block);
}

}  // namespace ckptd::protect
