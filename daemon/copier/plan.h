// What a COPY copies: pieces of the trainer's allocations, in the order of the slot. Pure but for ReadPlan.
#ifndef CKPTD_DAEMON_COPIER_PLAN_H_
#define CKPTD_DAEMON_COPIER_PLAN_H_

#include <cstdint>
#include <span>
#include <vector>

#include "client/core/device/allocation.h"
#include "daemon/copier/outcome.h"
#include "proto/local/copier.h"

namespace ckptd {

// Out of the trainer's memfd. Nothing of the pieces is checked yet.
Outcome ReadPlan(int fd, uint64_t count, std::vector<CopierPiece>* out);

// Every piece lies in the slot behind the one before, and in its allocation.
Outcome CheckPieces(std::span<const CopierPiece> pieces, std::span<const ImportedAllocation> imports,
                    uint64_t slot_bytes);

// The bytes of a piece that lie in the same stretch as its byte `from`: a copy never crosses the mark behind one.
struct Part {
  uint64_t stretch = 0;
  uint64_t slot_offset = 0;
  uint64_t bytes = 0;
  uint64_t offset = 0;  // in the allocation
};
[[nodiscard]] Part PartOf(const CopierPiece& piece, uint64_t from, uint64_t stretch_bytes);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_COPIER_PLAN_H_
