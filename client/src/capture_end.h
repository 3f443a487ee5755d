// How a capture ends. All of these are called with the handle's mutex held; whoever calls them wakes the session thread
// (State::Wake) after unlocking, so that the agent hears of it.
#ifndef CKPTD_CLIENT_SRC_CAPTURE_END_H_
#define CKPTD_CLIENT_SRC_CAPTURE_END_H_

#include <cstdint>

#include "client/src/state.h"

namespace ckptd {

// A save of `step` that will not be captured: counted, remembered, told to the agent. `sentence` is kept.
void RecordDrop(State& state, uint64_t step, uint64_t attempt, int32_t number, const char* sentence);

// Gives the capture up for `number`. False: COMPLETE won, nothing is lost. The slot is acknowledged later, by
// EndCapture.
bool GiveUp(State& state, int32_t number, const char* sentence);

// All bytes are in the slot and may be sealed. False: somebody gave it up before.
bool CompleteCapture(State& state);

// No thread of this process writes the slot any more: acknowledges an abandoned one and frees the capture.
void EndCapture(State& state);

}  // namespace ckptd

#endif  // CKPTD_CLIENT_SRC_CAPTURE_END_H_
