// Post-mortem capture: the copier (copier.h) of a trainer that died between two updates takes its state of the last
// completed step, from the GPU memory that it holds open and from what the trainer published of its host memory.
//
// The trainer counts what it publishes: serials 1, 2, …, one for each step behind which it may be resumed. Of each
// serial, in this order:
//
//   area     serials take turns in two areas. T stores 0 in the area's `serial`, writes everything of the slot that is
//            not GPU memory into the area's file, at the offsets that it has in the slot, then step and attempt, then
//            the serial
//   done     T's stream stores the serial in `done`, behind the kernels of the update and the copies that stage eager
//            tensors on the GPU
//   begun    before the next update each stream that will write stores serial + 1 in its own word of `begun`; an update
//            by the CPU stores it in begun[0]
//
// So the state in GPU memory is that of serial d, exactly when done = d and no word of `begun` is above d: streams
// store in their order, and no store takes another one back. The host runs ahead of the GPU: what it has published
// since is of no use then, and an area that was written over is missed. `armed` is 0 before the first serial, after an
// error of the GPU, when the trainer closes in order, and whenever it is not known that every update passes a gate.
//
// The copier acts when the trainer's process has ended, not when its socket has: forked workers keep sockets open. It
// fills the slot that is lent and unused, or the one whose fill of this very step was under way; looks at `done` and
// `begun` again behind the last copy; and moves the word to COMPLETE, or to ABANDONED. Then it exits: only its end
// gives the dead trainer's GPU memory back. The agent kills it when the hold that it was told of (RESCUE) is over. A
// fill of a step above `pos` was no save: that is how the agent knows a rescued one.
//
// Whatever a trainer writes here harms its own job only: what is sealed is what the chunks' checksums say.
#ifndef CKPTD_PROTO_LOCAL_RESCUE_H_
#define CKPTD_PROTO_LOCAL_RESCUE_H_

#include <atomic>
#include <cstdint>

namespace ckptd {

inline constexpr uint32_t kRescueStreams = 16;  // begun[0] is the CPU's
inline constexpr uint32_t kRescueAreas = 2;
inline constexpr uint64_t kMostHoldNs = 3'000'000'000;

struct RescueArea {
  std::atomic<uint64_t> serial;  // 0: being written
  std::atomic<uint64_t> step;
  std::atomic<uint64_t> attempt;
};

struct RescuePage {
  alignas(64) std::atomic<uint64_t> armed;  // 1, or not
  alignas(64) std::atomic<uint64_t> done;
  alignas(64) std::atomic<uint64_t> begun[kRescueStreams];
  alignas(64) RescueArea areas[kRescueAreas];
};
static_assert(sizeof(RescuePage) == 64 + 64 + kRescueStreams * 8 + 64);

}  // namespace ckptd

#endif  // CKPTD_PROTO_LOCAL_RESCUE_H_
