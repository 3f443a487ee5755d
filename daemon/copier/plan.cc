#include "daemon/copier/plan.h"

#include <fcntl.h>

#include <algorithm>
#include <cinttypes>

#include "client/core/wire/mapping.h"
#include "daemon/copier/memory.h"

namespace ckptd {
namespace {

constexpr int kSealsOfContent = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;

bool Fits(uint64_t offset, uint64_t bytes, uint64_t within) { return offset <= within && bytes <= within - offset; }

}  // namespace

Outcome ReadPlan(int fd, uint64_t count, std::vector<CopierPiece>* out) {
  const uint64_t bytes = count * sizeof(CopierPiece);
  Outcome outcome = CheckFile("plan", fd, kSealsOfContent, bytes);
  if (!outcome.ok()) return outcome;
  out->resize(count);
  int error = ReadExactly(fd, 0, out->data(), bytes);
  return error == 0 ? Outcome() : FileFails("plan", error);
}

Outcome CheckPieces(std::span<const CopierPiece> pieces, std::span<const ImportedAllocation> imports,
                    uint64_t slot_bytes) {
  uint64_t end = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const CopierPiece& piece = pieces[i];
    if (piece.slot_offset < end) return Refuse("PLAN: piece %zu begins before the end of the one before it", i);
    if (!Fits(piece.slot_offset, piece.bytes, slot_bytes)) return Refuse("PLAN: piece %zu lies outside the slot", i);
    if (piece.allocation >= imports.size()) {
      return Refuse("PLAN: piece %zu lies in allocation %u of %zu", i, piece.allocation, imports.size());
    }
    if (!Fits(piece.offset, piece.bytes, imports[piece.allocation].bytes)) {
      return Refuse("PLAN: piece %zu lies outside allocation %u", i, piece.allocation);
    }
    end = piece.slot_offset + piece.bytes;
  }
  return {};
}

Part PartOf(const CopierPiece& piece, uint64_t from, uint64_t stretch_bytes) {
  Part part;
  part.slot_offset = piece.slot_offset + from;
  part.stretch = part.slot_offset / stretch_bytes;
  part.bytes = std::min(piece.bytes - from, stretch_bytes - part.slot_offset % stretch_bytes);
  part.offset = piece.offset + from;
  return part;
}

}  // namespace ckptd
