#ifndef CKPTD_CLIENT_SRC_GATE_H_
#define CKPTD_CLIENT_SRC_GATE_H_

#include <cstdint>

#include "client/src/state.h"

namespace ckptd {

// ckpt_gate. The only place where training waits for a capture; the deadline needs no agent.
int32_t PassGate(State& state, uint64_t timeout_ns);

// A save begins and the one before saw no gate: gives that one up if it can still be, and tells. With the mutex held.
void RefuseUngated(State& state);

}  // namespace ckptd

#endif  // CKPTD_CLIENT_SRC_GATE_H_
