// One block of one rank's image, as it goes into one parity: v1::ParityPiece with the arithmetic of
// daemon/erasure/rotation.h. Pure; any thread.
#ifndef CKPTD_DAEMON_PROTECT_PARITY_PIECE_H_
#define CKPTD_DAEMON_PROTECT_PARITY_PIECE_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "daemon/base/ids.h"
#include "daemon/erasure/rotation.h"
#include "daemon/region/peer_key.h"
#include "proto/ckptd/v1/copy.pb.h"

namespace ckptd::protect {

// The parity that one holder keeps of one stripe. `stripe`, `row` and all places are in range.
struct ParityPlace {
  std::vector<Rank> ranks;  // the group, in the order of the code
  erasure::Shape shape;
  uint32_t stripe = 0;
  uint32_t row = 0;
  bool operator==(const ParityPlace&) const = default;

  // Of the rank in the group.
  [[nodiscard]] std::optional<uint32_t> PlaceOf(Rank rank) const;
  // Of the rank among the stripe's data, as its code counts them; nothing when it gives no block.
  [[nodiscard]] std::optional<uint32_t> DataIndexOf(Rank rank) const;
  // Ranks that give a block, as the code counts them.
  [[nodiscard]] std::vector<Rank> DataRanks() const;
  // In the holder's peer store. A holder keeps at most one row of a stripe, and there are as many stripes as ranks.
  [[nodiscard]] region::PeerKey key() const { return {region::PeerKind::kParity, ranks[stripe]}; }
};

// Of a message that passed transport::CheckRequest.
[[nodiscard]] ParityPlace PlaceOf(const v1::ParityPiece& piece);
[[nodiscard]] v1::ParityPiece PieceOf(const ParityPlace& place);

// Identity of its layout in the peer store, whose key is the same for every grouping.
[[nodiscard]] uint32_t LayoutCrcOf(const ParityPlace& place);

// Which bytes of the image of `rank`, which gives a block to the stripe: whole chunks, but for the image's last one.
[[nodiscard]] erasure::Extent BlockGivenBy(const ParityPlace& place, Rank rank, uint64_t image_bytes,
                                           uint64_t chunk_bytes);

}  // namespace ckptd::protect

#endif  // CKPTD_DAEMON_PROTECT_PARITY_PIECE_H_
