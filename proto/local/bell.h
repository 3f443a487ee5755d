// The bell: shared memory that the trainer writes and the agent believes only after copying it out. One per trainer
// process and layout; an anonymous memfd made by the agent, sealed against shrinking and growing. The trainer keeps the
// descriptor and hands it back to a restarted agent; when both died, fills that were not sealed are lost, and none had
// been reported.
//
//   offset 0        BellHead
//   slots_offset    BellSlot[slot_count]
//   chunks_offset   atomic u64 [slot_count][chunk_count + 1]:  (low 32 bits of the epoch) << 32 | CRC32C of the chunk;
//                   the last entry of a row is the check of the fill: CRC32C of epoch, step, attempt and all chunk
//                   checksums (client/core/copy/fill_check.h). A stray write of the trainer that hits step or checksums
//                   then seals nothing; without it a wrong step number would be captured, restored and made durable.
//
// The capture word of a slot, (epoch << 2) | state, moves only by compare-and-swap on the whole word:
//
//   agent opens the grant:    any         -> (e, OPEN)        e is new and the largest; step = ack = 0
//   trainer, last chunk done: (e, OPEN)   -> (e, COMPLETE)    from now on no thread of the trainer writes the slot
//   whoever gives up:         (e, OPEN)   -> (e, ABANDONED)   agent, or the trainer at its deadline
//   trainer, after ABANDONED: ack = e                         its threads have stopped writing
//
// A word of another epoch in a slot that is lent was written by mistake: to the agent it is ABANDONED without an ack.
//
// A chunk's entry counts only while its epoch half equals the word's epoch. (No epoch has 32 low bits of 0: the entries
// of a fresh bell are 0.) Entries may appear in any order, the check before COMPLETE; the trainer stores them with
// release order, then writes the hint eventfd. The hint may be lost; the bell is the truth.
//
// `pos` is the last step passed to save(), whether it was captured or dropped. `wanted` is the step that somebody in
// the trainer waits to see on storage: it is flushed also where not every step is.
#ifndef CKPTD_PROTO_LOCAL_BELL_H_
#define CKPTD_PROTO_LOCAL_BELL_H_

#include <atomic>
#include <cstdint>

#include "proto/local/version.h"

namespace ckptd {

inline constexpr uint64_t kBellMagic = 0x314c4c4542504b43;  // "CKPBELL1"

enum class CaptureState : uint8_t { kNone = 0, kOpen = 1, kComplete = 2, kAbandoned = 3 };

[[nodiscard]] constexpr uint64_t CaptureWord(uint64_t epoch, CaptureState state) {
  return epoch << 2 | static_cast<uint64_t>(state);
}
[[nodiscard]] constexpr uint64_t CaptureEpoch(uint64_t word) { return word >> 2; }
[[nodiscard]] constexpr CaptureState CaptureStateOf(uint64_t word) { return static_cast<CaptureState>(word & 3); }

// Entries of a slot: its chunks, then the check.
[[nodiscard]] constexpr uint64_t BellRow(uint64_t chunk_count) { return chunk_count + 1; }
[[nodiscard]] constexpr uint64_t ChunkEntry(uint64_t epoch, uint32_t crc) { return epoch << 32 | crc; }
[[nodiscard]] constexpr bool ChunkDone(uint64_t entry, uint64_t epoch) { return entry >> 32 == (epoch & 0xffffffffu); }

struct BellHead {
  uint64_t magic;
  uint16_t major;
  uint16_t minor;
  uint32_t head_bytes;
  uint64_t bell_id;  // equal to Superblock.bell_id
  uint64_t region_id;
  uint32_t layout;
  uint32_t slot_count;
  uint32_t chunk_count;
  uint32_t reserved0;
  uint64_t slots_offset;
  uint64_t chunks_offset;
  uint64_t file_bytes;
  std::atomic<uint64_t> pos;
  std::atomic<uint64_t> pos_attempt;  // the attempt `pos` was passed in
  std::atomic<uint64_t> dropped;      // saves dropped since the session began
  std::atomic<uint64_t> drop_code;    // ErrorCode of the last drop
  std::atomic<uint64_t> wanted;       // this step, or a newer one, shall become durable; 0 = none in particular
  std::atomic<uint64_t> wanted_attempt;
};
static_assert(sizeof(BellHead) == 120);

struct BellSlot {
  std::atomic<uint64_t> word;
  std::atomic<uint64_t> ack;   // last epoch acknowledged after ABANDONED
  std::atomic<uint64_t> step;  // of this fill; stored before the first chunk entry
  std::atomic<uint64_t> attempt;
  std::atomic<uint64_t> trace;
  std::atomic<uint64_t> begin_ns;  // CLOCK_MONOTONIC
  std::atomic<uint64_t> end_ns;
  std::atomic<uint64_t> blocked_ns;
};
static_assert(sizeof(BellSlot) == 64);

// Epochs start at 1 and stay below 2^54, so that they fit both words.
inline constexpr uint64_t kMaxEpoch = (uint64_t{1} << 54) - 1;

}  // namespace ckptd

#endif  // CKPTD_PROTO_LOCAL_BELL_H_
