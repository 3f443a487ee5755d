#include "client/core/threads/slot_sums.h"

#include <algorithm>

#include "client/core/copy/crc32c.h"

namespace ckptd {
namespace {

constexpr uint64_t kBlock = 4 << 20;

}  // namespace

void SlotSums::Add() {
  const uint64_t chunk_end = std::min(slot_bytes_, (added_ / chunk_bytes_ + 1) * chunk_bytes_);
  const uint64_t end = std::min(chunk_end, added_ + kBlock);
  team_.Push(slot_ + added_, end - added_);
  added_ = end;
}

std::optional<uint32_t> SlotSums::Take() {
  const SumTeam::Sum sum = team_.Pop();
  crc_ = Crc32cCombine(crc_, sum.crc, sum.bytes);
  taken_ += sum.bytes;
  if (taken_ < slot_bytes_ && taken_ % chunk_bytes_ != 0) return std::nullopt;
  const uint32_t crc = crc_;
  crc_ = 0;
  return crc;
}

}  // namespace ckptd
