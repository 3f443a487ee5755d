#include "client/core/copy/capture_word.h"

namespace ckptd {
namespace {

bool Move(BellSlot& slot, uint64_t epoch, CaptureState to) {
  uint64_t expected = CaptureWord(epoch, CaptureState::kOpen);
  return slot.word.compare_exchange_strong(expected, CaptureWord(epoch, to), std::memory_order_acq_rel);
}

}  // namespace

bool IsOpen(const BellSlot& slot, uint64_t epoch) {
  return slot.word.load(std::memory_order_acquire) == CaptureWord(epoch, CaptureState::kOpen);
}

bool IsComplete(const BellSlot& slot, uint64_t epoch) {
  return slot.word.load(std::memory_order_acquire) == CaptureWord(epoch, CaptureState::kComplete);
}

bool TryComplete(BellSlot& slot, uint64_t epoch) { return Move(slot, epoch, CaptureState::kComplete); }

bool TryAbandon(BellSlot& slot, uint64_t epoch) {
  if (Move(slot, epoch, CaptureState::kAbandoned)) return true;
  return slot.word.load(std::memory_order_acquire) == CaptureWord(epoch, CaptureState::kAbandoned);
}

bool Acknowledge(BellSlot& slot, uint64_t epoch) {
  if (slot.word.load(std::memory_order_acquire) != CaptureWord(epoch, CaptureState::kAbandoned)) return false;
  return slot.ack.exchange(epoch, std::memory_order_release) != epoch;
}

}  // namespace ckptd
