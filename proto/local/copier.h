// The socket between trainer (T) and its copier (C), and the memory they share. The agent starts the copier and hands
// T one end of a SOCK_SEQPACKET pair (COPIER in messages.h); after that it only watches the process. C runs as T's user
// without any capability: what it breaks is T's.
//
// Packets as in messages.h: one struct each, MessageHead first. C answers every request once, in order, with
// COPIER_ANSWER; `serial` is the request's. When one side closes, the other ends what it does: C by exiting.
//
//   T START (gate page)       C answers when it has a context on that GPU; once. Refused: exclusive mode, no such GPU
//   T SLOTS (bell, slots)     C answers when they are mapped and pinned; takes the place of the slots before
//   T IMPORT (descriptors)    C answers when all of the batch are open; else none of it is
//   T PLAN (memfd)            C answers when every piece lies in its allocation and in the slot; else there is no plan
//   T COPY … T HOST_DONE      C COPYING when `ready` was seen and behind some chunks, then the answer
//   T WATCH (rescue page, …)  C answers when they are mapped; takes the place of the one before: see rescue.h
//   T RELEASE                 C answers when every import is closed and the plan forgotten: T may free its memory
//
// Behind the answer to COPY nothing of C writes to that slot any more. A plan outlives SLOTS of the same slot_bytes.
// What is sent during a COPY waits for its answer; HOST_DONE may come at any time, also before `ready`. A packet that
// is too short for a serial is refused with serial 0.
//
// COPY: C waits until the gate line's `ready` equals the serial (T's stream writes it, behind everything that the save
// captures), copies every piece into the slot, stores the serial in `released` when the last copy is done, sums and
// publishes each chunk in the bell once HOST_DONE said that T's own bytes are in the slot, and moves the capture word
// to COMPLETE where COPY asked for it. When the word is not (epoch, OPEN) any more it stops, and answers when no copy
// is under way; so it does after an error of the GPU, which moves the word to ABANDONED first. Before each of these
// answers `released` is stored too. T never waits for it: T's deadline moves the word to ABANDONED and then stores
// `released` itself.
//
// C's exit status: 0, T has closed; 2, wrong arguments; 3, the context is broken; 4, the socket is. Where C cannot tell
// whether copies are under way it ends without an answer to the COPY: its end is the answer.
//
// The gate page has one line per attempt, taken in turn: T's streams wait until `released` equals the serial, which is
// never used twice. A line comes round again only after the answer to its COPY, so C cannot write an old serial over a
// new one; a copier that died, or hangs, takes its page with it.
#ifndef CKPTD_PROTO_LOCAL_COPIER_H_
#define CKPTD_PROTO_LOCAL_COPIER_H_

#include <atomic>
#include <cstdint>

#include "proto/local/messages.h"

namespace ckptd {

inline constexpr uint32_t kCopierVersion = 1;
inline constexpr uint32_t kGateLines = 256;
inline constexpr uint32_t kImportBatch = 16;          // allocations in one packet: kMaxPacketFds descriptors
inline constexpr uint32_t kMaxImports = 1u << 20;     // of a plan
inline constexpr uint64_t kMaxPlanPieces = 1u << 24;  // of a plan

struct alignas(64) GateLine {
  alignas(64) std::atomic<uint64_t> ready;
  alignas(64) std::atomic<uint64_t> released;
};

// The page: this head, then the lines.
struct GatePage {
  alignas(64) std::atomic<uint64_t> progress;  // chunks that C has published: T's watch over it
  GateLine lines[kGateLines];
};
static_assert(sizeof(GateLine) == 128 && sizeof(GatePage) == 64 + kGateLines * 128);

enum class CopierMessageType : uint16_t {
  kStart = 100,
  kSlots = 101,
  kImport = 102,
  kPlan = 103,
  kCopy = 104,
  kHostDone = 105,
  kRelease = 106,
  kCopying = 107,
  kAnswer = 108,
  kWatch = 109,
};

// One descriptor: the gate page, a memfd sealed SHRINK|GROW.
struct CopierStart {
  MessageHead head;
  uint64_t serial;
  uint32_t version;  // kCopierVersion
  uint32_t reserved0;
  uint8_t gpu[16];  // UUID: another process may count its GPUs differently
};

// Descriptors: the bell, then slot_count slot files.
struct CopierSlots {
  MessageHead head;
  uint64_t serial;
  uint64_t slot_bytes;
  uint64_t chunk_bytes;
  uint32_t slot_count;
  uint32_t chunk_count;
};

struct CopierAllocation {
  uint64_t bytes;
  uint32_t kind;  // HandleKind of client/core/device/allocation.h
  uint32_t reserved0;
  uint8_t handle[64];  // legacy and fabric
};

// As many descriptors as entries of kind kPosixFd, in their order. Allocations are numbered as they come, from 0.
struct CopierImport {
  MessageHead head;
  uint64_t serial;
  uint32_t first;  // number of the first of this batch: a lost batch is noticed
  uint32_t count;
  CopierAllocation allocations[kImportBatch];
};

// One descriptor: a memfd, sealed against change, with `count` times CopierPiece in slot order, none overlapping.
struct CopierPlan {
  MessageHead head;
  uint64_t serial;
  uint64_t count;
};

struct CopierPiece {
  uint64_t slot_offset;
  uint64_t bytes;
  uint64_t offset;  // in the allocation
  uint32_t allocation;
  uint32_t reserved0;
};

struct CopierCopy {
  MessageHead head;
  uint64_t serial;  // also the value of `ready` and `released`: larger than that of every COPY before
  uint64_t epoch;
  uint64_t step;
  uint64_t attempt;
  uint32_t slot;
  uint32_t line;
  uint32_t complete;  // 1: the word is C's to move to COMPLETE; 0: T looks at the bytes first
  uint32_t reserved0;
};

// Descriptors: the rescue page (a memfd sealed SHRINK|GROW), the files of its areas, T's pidfd. Of the slots and the
// plan that C has now: what changes either ends the watch.
struct CopierWatch {
  MessageHead head;
  uint64_t serial;
  uint64_t hold_ns;  // at most kMostHoldNs
};

// RELEASE; HOST_DONE and COPYING, whose serial is the COPY's and which have no answer.
struct CopierSerial {
  MessageHead head;
  uint64_t serial;
};

enum class CopierOutcome : uint32_t {
  kDone = 0,
  kStopped = 1,  // COPY: the word was not OPEN any more
  kRefused = 2,  // `sentence`; C goes on. Also what the driver refused in START and IMPORT
  kDevice = 3,   // `sentence`, an error of the GPU; C exits after this answer when its context is broken
};

struct CopierAnswer {
  MessageHead head;
  uint64_t serial;
  uint32_t outcome;  // CopierOutcome
  uint32_t reserved0;
  uint64_t pinned_bytes;  // SLOTS: 0 when pinning was refused, with its sentence
  char sentence[256];
};

static_assert(sizeof(CopierStart) == 24 + 32);
static_assert(sizeof(CopierSlots) == 24 + 32);
static_assert(sizeof(CopierAllocation) == 80);
static_assert(sizeof(CopierImport) == 24 + 16 + kImportBatch * 80);
static_assert(sizeof(CopierPlan) == 24 + 16);
static_assert(sizeof(CopierPiece) == 32);
static_assert(sizeof(CopierCopy) == 24 + 48);
static_assert(sizeof(CopierWatch) == 24 + 16);
static_assert(sizeof(CopierSerial) == 32);
static_assert(sizeof(CopierAnswer) == 24 + 24 + 256);
static_assert(sizeof(CopierImport) <= kMaxPacketBytes);

}  // namespace ckptd

#endif  // CKPTD_PROTO_LOCAL_COPIER_H_
