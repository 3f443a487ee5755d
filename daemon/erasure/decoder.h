// Lost members rebuilt from k others, range by range: of a stripe in which pieces stream by, no more than the range at
// hand is in memory. The matrix is computed once for a set of losses.
//
// k survivors' rows of [I; C] (code.h) form a square matrix S that can be inverted; with s the survivors' pieces, the
// data is S^-1 * s, and what was lost is its own row of [I; C] times that. The product of both is one small matrix, and
// rebuilding is that times the survivors' pieces. Inverting costs k^3: 2 us for 6+2, 0.25 s for 254+1 (measured).
//
// Threads: immutable; const calls on any thread.
#ifndef CKPTD_DAEMON_ERASURE_DECODER_H_
#define CKPTD_DAEMON_ERASURE_DECODER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/erasure/code.h"

namespace ckptd::erasure {

class Decoder {
 public:
  // `lost`: members that cannot be read, in any order. `wanted`: those of them that are to be rebuilt, at least one: a
  // restore wants one image, a repair wants all.
  // CORRUPT, naming `lost`, when they are more than m: no matrix brings them back, only another copy or an older step.
  // INVALID_ARGUMENT for a member that does not exist, stands twice, or is wanted and not lost.
  [[nodiscard]] static absl::StatusOr<Decoder> Make(const Code& code, std::span<const uint32_t> lost,
                                                    std::span<const uint32_t> wanted);

  // The k members to read, ascending: data first, then as little parity as possible.
  [[nodiscard]] const std::vector<uint32_t>& sources() const { return sources_; }
  [[nodiscard]] const std::vector<uint32_t>& wanted() const { return wanted_; }  // ascending

  // One range. pieces[i]: of sources()[i], empty where its image has ended; rebuilt[i]: of wanted()[i], as long as its
  // image has bytes in the range, parity as long as the other parity. INVALID_ARGUMENT as CheckPieces.
  // What came back is checked by CheckCrc() with the owner's CRC before anybody uses it.
  [[nodiscard]] absl::Status Rebuild(std::span<const ConstBytes> pieces, std::span<const Bytes> rebuilt) const;

 private:
  Decoder(const Shape& shape, std::vector<uint32_t> sources, std::vector<uint32_t> wanted, GfProduct product);

  Shape shape_;
  std::vector<uint32_t> sources_;
  std::vector<uint32_t> wanted_;
  GfProduct product_;  // a row for each wanted, a column for each source
};

}  // namespace ckptd::erasure

#endif  // CKPTD_DAEMON_ERASURE_DECODER_H_
