// The trainer's side of the capture word of proto/local/bell.h. Every function is one compare-and-swap or store:
// whoever loses the race learns what the word became and acts on that.
#ifndef CKPTD_CLIENT_CORE_COPY_CAPTURE_WORD_H_
#define CKPTD_CLIENT_CORE_COPY_CAPTURE_WORD_H_

#include <cstdint>

#include "proto/local/bell.h"

namespace ckptd {

[[nodiscard]] bool IsOpen(const BellSlot& slot, uint64_t epoch);

// By a copier.
[[nodiscard]] bool IsComplete(const BellSlot& slot, uint64_t epoch);

// (e, OPEN) -> (e, COMPLETE). False: somebody gave the capture up. No thread may write the slot after this.
[[nodiscard]] bool TryComplete(BellSlot& slot, uint64_t epoch);

// (e, OPEN) -> (e, ABANDONED). True when the capture is given up now, by this call or by another before; false when
// COMPLETE won, or when the slot has a newer epoch.
bool TryAbandon(BellSlot& slot, uint64_t epoch);

// Only when no thread of this process writes the slot any more. Without effect unless the word is (e, ABANDONED). True
// when it was not acknowledged before.
bool Acknowledge(BellSlot& slot, uint64_t epoch);

}  // namespace ckptd

#endif  // CKPTD_CLIENT_CORE_COPY_CAPTURE_WORD_H_
