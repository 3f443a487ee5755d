// The sums of a slot's chunks, in their order, by a team. A chunk is summed in blocks of at most 4 MiB, so that many
// threads share a large one, and that whoever helps is soon back.
//
// Threads: as of the team.
#ifndef CKPTD_CLIENT_CORE_THREADS_SLOT_SUMS_H_
#define CKPTD_CLIENT_CORE_THREADS_SLOT_SUMS_H_

#include <cstdint>
#include <optional>

#include "client/core/threads/sum_team.h"

namespace ckptd {

class SlotSums {
 public:
  // `slot` holds slot_bytes > 0; it and the team outlive this.
  SlotSums(SumTeam& team, const char* slot, uint64_t slot_bytes, uint64_t chunk_bytes)
      : team_(team), slot_(slot), slot_bytes_(slot_bytes), chunk_bytes_(chunk_bytes) {}
  SlotSums(const SlotSums&) = delete;
  SlotSums& operator=(const SlotSums&) = delete;
  ~SlotSums() { team_.Drop(); }

  // There is a block to add, and room for it.
  [[nodiscard]] bool CanAdd() { return added_ < slot_bytes_ && !team_.IsFull(); }
  // It begins at this byte of the slot and lies in one chunk, whose bytes must be there.
  [[nodiscard]] uint64_t added() const { return added_; }
  void Add();

  // Take does not wait.
  [[nodiscard]] bool IsReady() { return team_.IsReady(); }
  // The oldest block's sum, waited for; with the last one of a chunk the chunk's. A block was added before.
  [[nodiscard]] std::optional<uint32_t> Take();

  bool Help() { return team_.Help(); }

 private:
  SumTeam& team_;
  const char* const slot_;
  const uint64_t slot_bytes_;
  const uint64_t chunk_bytes_;
  uint64_t added_ = 0;  // up to this byte
  uint64_t taken_ = 0;  // likewise
  uint32_t crc_ = 0;    // of the chunk, up to there
};

}  // namespace ckptd

#endif  // CKPTD_CLIENT_CORE_THREADS_SLOT_SUMS_H_
