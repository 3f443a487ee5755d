// The control file of one rank's region, `<region.dir>/<job>/rank-00000/ctl.<layout>`: a tmpfs file that the agent maps
// read-write and the trainer read-only. It is the journal from which a restarted agent takes over.
//
//   offset 0        Superblock      immutable, complete (and CRC-protected) before the file's name is linked
//   images_offset   ImageExtent[image_count]              immutable, under the Superblock's tables_crc
//   states_offset   Grant, then SlotState[slot_count]     single atomics, under no CRC
//   records_offset  slot_count records of record_stride bytes: RecordHead, then uint32 chunk CRC32C[chunk_count]
//
// A record is written whole, with its own CRC, before the slot's state word says SEALED, and never changed while it
// does. Flags live outside every CRC: a kill between two updates never makes a sealed slot look torn.
//
// Slot files `<rank dir>/slot-<file_id in 16 hex digits>` hold bytes only: the rank's safetensors images back to back,
// each a multiple of 4096, cut into chunks of chunk_bytes (a power of two) from byte 0, the last one short. file_id is
// random, so it never repeats, also not over a restart of the agent; SlotState.file_id says which file is slot i today
// (0: the slot has none).
//
// What this agent keeps for other nodes stands beside a job's own ranks, in the same two kinds of files:
//
//   <job>/peer-00007/     copies of the snapshots of rank 7, which runs on another node
//   <job>/parity-00002/   a block of parity of group 2: `rank` and `world` of its Superblock are then the number of the
//                         group and of all groups; a block has no header, so the ImageExtent's header_bytes is 8
//
// No trainer sees them. A slot is filled in state LOADING, sealed with the record of the owner's snapshot, in the
// epochs of this directory. There are no grants: Grant.word is 0, Grant.attempt the highest attempt that this
// agent was told of, so that an older one stays shut out over a restart of the agent. Both directories may stand where
// there is no journal, as no rank of the job may run on this node.
//
// In a parity directory each record area has room for a ParityHead and its ParityMembers, at the next multiple of 8
// behind the record. They are written before the record's head and hold its CRC, so that neither counts without the
// other.
//
// `<job>/job` is one JobJournal: the highest attempt this agent has seen, stored before it is answered, up to which
// attempt parts of snapshots may have been destroyed in this region, and the marks of protection (job.proto, State)
// that it told or heard last. Of those there are two: the one that does not count is written, then made the one that
// counts.
#ifndef CKPTD_PROTO_LOCAL_REGION_H_
#define CKPTD_PROTO_LOCAL_REGION_H_

#include <atomic>
#include <cstdint>
#include <type_traits>

#include "proto/local/version.h"

namespace ckptd {

inline constexpr uint64_t kSuperblockMagic = 0x314c544354504b43;  // "CKPTCTL1"
inline constexpr uint64_t kRecordMagic = 0x31434552544b50;        // "PKTREC1"
inline constexpr uint64_t kJobJournalMagic = 0x31424f4a54504b43;  // "CKPTJOB1"
inline constexpr uint64_t kParityMagic = 0x31524150544b50;        // "PKTPAR1"
inline constexpr uint32_t kMaxSlots = 8;
inline constexpr uint32_t kMaxParityMembers = 255;  // k + m: each has a byte of its own in the code
inline constexpr uint32_t kMaxImages = 1024;
inline constexpr uint32_t kMaxChunks = 1u << 20;
inline constexpr uint64_t kSlotAlignment = 2u << 20;
inline constexpr uint64_t kImageAlignment = 4096;
inline constexpr uint64_t kMinChunkBytes = 64u << 10;
inline constexpr uint64_t kMaxChunkBytes = 64u << 20;
inline constexpr uint32_t kJobNameBytes = 136;  // 128 characters, zero-filled

struct Superblock {
  uint64_t magic;
  uint16_t major;
  uint16_t minor;
  uint32_t head_bytes;  // sizeof(Superblock) of the writer
  uint32_t head_crc;    // CRC32C of the Superblock with this field 0
  uint32_t tables_crc;  // CRC32C of the ImageExtent table
  uint64_t region_id;   // of the agent's region directory; a new directory has a new id
  uint64_t bell_id;     // random; every bell that belongs to this file carries the same
  char job[kJobNameBytes];
  uint32_t uid;  // owner of the job
  uint32_t rank;
  uint32_t world;
  uint32_t layout;  // 1, 2, … per rank directory
  uint32_t slot_count;
  uint32_t image_count;
  uint32_t chunk_count;
  uint32_t header_crc;   // CRC32C over all image headers, one after the other: the identity of the layout's content
  uint64_t chunk_bytes;  // power of two
  uint64_t slot_bytes;   // sum of the images
  uint64_t images_offset;
  uint64_t states_offset;
  uint64_t records_offset;
  uint64_t record_stride;
  uint64_t file_bytes;
  uint64_t created_unix_ns;  // shown, never compared
};
static_assert(sizeof(Superblock) == 272 && std::is_trivially_copyable_v<Superblock>);

struct ImageExtent {
  uint64_t offset;        // in the slot
  uint64_t bytes;         // header and data
  uint64_t header_bytes;  // 8 + N of the safetensors header
};
static_assert(sizeof(ImageExtent) == 24);

// What the next save may use. `word` is 0 (no grant) or (epoch << 8 | slot + 1). `floor` is G: a save below it is
// dropped. Reading an old value is harmless: the capture word in the bell decides. The parent is what a successor agent
// seals this attempt's fills with: their trainer may be back before the attempt's decision was read again.
struct Grant {
  std::atomic<uint64_t> word;
  std::atomic<uint64_t> floor;
  std::atomic<uint64_t> attempt;         // of the granted fill
  std::atomic<uint64_t> parent_attempt;  // the snapshot the attempt restored from; 0 = none, or an older agent's
  std::atomic<uint64_t> parent_step;
  uint64_t reserved[3];
};
static_assert(sizeof(Grant) == 64 && std::atomic<uint64_t>::is_always_lock_free);

enum class SlotStateCode : uint8_t {
  kFree = 0,
  kFilling = 1,
  kSealed = 2,
  kQuarantined = 3,  // its bytes failed a check; kept for nobody, freed by the ordinary rule
  kRetired = 4,      // a writer that may still wake up has it mapped; the file is unlinked, the slot has a new one
  kLoading = 5,      // the agent reads a snapshot from storage into it; free after a crash
  kPreparing = 6,    // being populated; not yet usable
};

inline constexpr uint64_t kSlotPersisted = 1;   // on storage, fsynced
inline constexpr uint64_t kSlotReplicated = 2;  // reserved for peers
inline constexpr uint64_t kSlotParity = 4;      // reserved for peers
inline constexpr uint64_t kSlotVerified = 8;    // CRCs were made, or matched, since the agent started
inline constexpr uint64_t kSlotRescued = 16;    // no save: taken from its trainer after its death (rescue.h)

struct SlotState {
  std::atomic<uint64_t> word;   // epoch << 8 | SlotStateCode
  std::atomic<uint64_t> flags;  // kSlot…
  std::atomic<uint64_t> file_id;
  std::atomic<uint64_t> owner_ticket;   // of the fill, for a successor agent
  std::atomic<uint64_t> owner_attempt;  // of the fill
  std::atomic<uint64_t> owner_pid;
  std::atomic<uint64_t> owner_start;  // process start time in clock ticks after boot: pids are reused
  uint64_t reserved;
};
static_assert(sizeof(SlotState) == 64);

struct RecordHead {
  uint64_t magic;
  uint32_t bytes;  // RecordHead and CRC list
  uint32_t crc;    // CRC32C over both with this field 0
  uint64_t epoch;  // of the slot when it was sealed
  uint64_t attempt;
  uint64_t step;
  uint64_t parent_attempt;  // the snapshot the attempt restored from; 0 = none
  uint64_t parent_step;
  uint64_t ticket;
  uint64_t trace;  // 64-bit id of this save
  uint64_t begin_unix_ns;
  uint64_t captured_unix_ns;
  uint64_t blocked_ns;  // the trainer was held up by this save
  uint32_t layout;
  uint32_t chunk_count;
};
static_assert(sizeof(RecordHead) == 104 && std::is_trivially_copyable_v<RecordHead>);

// Says what a block of parity was made of; `member_count` ParityMembers follow, in the order of the code.
struct ParityHead {
  uint64_t magic;
  uint32_t bytes;       // ParityHead and members
  uint32_t crc;         // CRC32C over both with this field 0
  uint32_t record_crc;  // RecordHead.crc of the record before it
  uint32_t group;
  uint32_t data;    // k of the code
  uint32_t parity;  // m of the code
  uint32_t index;   // of this block's holder in the group, below k + m
  uint32_t member_count;
};
static_assert(sizeof(ParityHead) == 40 && std::is_trivially_copyable_v<ParityHead>);

struct ParityMember {
  uint32_t rank;
  uint32_t crc;    // CRC32C of the member's list of chunk CRCs
  uint64_t step;   // the record's own
  uint64_t bytes;  // of its slot, of which this parity has a block; 0 = it gave none, as who keeps parity of the stripe
};
static_assert(sizeof(ParityMember) == 24 && std::is_trivially_copyable_v<ParityMember>);

struct JournalMarks {
  uint64_t attempt;  // of which they are; 0 = none
  uint64_t complete_attempt;
  uint64_t complete_step;
  uint64_t target_attempt;
  uint64_t target_step;
  uint64_t given_up_attempt;
  uint64_t given_up_step;
  uint64_t turns;
  uint32_t reserved;
  uint32_t crc;  // CRC32C of what is before it
};
static_assert(sizeof(JournalMarks) == 72 && std::is_trivially_copyable_v<JournalMarks>);

struct JobJournal {
  uint64_t magic;
  uint16_t major;
  uint16_t minor;
  uint32_t uid;
  uint64_t region_id;
  char job[kJobNameBytes];
  std::atomic<uint64_t> seen;      // highest attempt; only grows
  std::atomic<uint64_t> lost;      // since minor 1: up to this attempt a snapshot may have been destroyed; only grows
  std::atomic<uint64_t> marks_at;  // since minor 2: marks[marks_at % 2] count; only grows. 0 = none yet
  JournalMarks marks[2];
};
static_assert(sizeof(JobJournal) == 328);

}  // namespace ckptd

#endif  // CKPTD_PROTO_LOCAL_REGION_H_
