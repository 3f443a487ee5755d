// A matrix over GF(2^8) times runs of bytes, at the speed of ISA-L: output i = XOR over j of a(i, j) * source j.
//
// Runs have any length and any alignment. A source counts as zeros beyond its end, and costs no work there: the run is
// cut where one of them ends, and each cut is the product of the part of the matrix that still has bytes. An output is
// written to its end, and no byte beyond. Outputs overlap neither sources nor each other.
//
// Each source is fetched from memory once, its last vector perhaps twice, in blocks that stay in the cache while ISA-L
// goes over them for every 4 to 6 outputs. A source that another process changes meanwhile gives outputs that stand for
// no state of it; nothing else is harmed. One that is cut meanwhile is SIGBUS: the caller's guard, or bytes that were
// read out before.
//
// Threads: const calls on any thread.
#ifndef CKPTD_DAEMON_ERASURE_GF_PRODUCT_H_
#define CKPTD_DAEMON_ERASURE_GF_PRODUCT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "daemon/erasure/gf_matrix.h"

namespace ckptd::erasure {

using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;

class GfProduct {
 public:
  using Indices = absl::InlinedVector<uint32_t, 16>;

  explicit GfProduct(GfMatrix matrix);  // has rows and columns

  [[nodiscard]] const GfMatrix& matrix() const { return matrix_; }

  // As many sources as columns, as many outputs as rows; what stood in the outputs is gone.
  void Multiply(std::span<const ConstBytes> sources, std::span<const Bytes> outputs) const;

  // The same where all sources but this one are zeros.
  void MultiplyColumn(uint32_t column, ConstBytes source, std::span<const Bytes> outputs) const;

  // Adds to the outputs, none of which is shorter than the source, what MultiplyColumn would write.
  void AddColumn(uint32_t column, ConstBytes source, std::span<const Bytes> outputs) const;

 private:
  // The stretch [begin, end) of the outputs `rows`, where only the sources `columns` have bytes.
  void MultiplyStretch(std::span<const ConstBytes> sources, std::span<const Bytes> outputs, const Indices& rows,
                       const Indices& columns, size_t begin, size_t end) const;

  GfMatrix matrix_;
  std::vector<unsigned char> tables_;  // ISA-L's, opaque
};

}  // namespace ckptd::erasure

#endif  // CKPTD_DAEMON_ERASURE_GF_PRODUCT_H_
