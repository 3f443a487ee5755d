#ifndef CKPTD_CLIENT_SRC_GATE_H_
#define CKPTD_CLIENT_SRC_GATE_H_

#include <cstdint>

#include "client/src/state.h"

namespace ckptd {

// ckpt_gate. The only place where training waits for a capture; the deadline needs no agent. With a stream the caller
// waits until all copies are submitted, and the stream for the copies themselves.
int32_t PassGate(State& state, uint64_t timeout_ns, const DeviceStream* stream);

// ckpt_gate_stream. A stream that is being captured into a graph is refused, and counts as no gate.
int32_t PassGateOnStream(State& state, void* handle, uint64_t timeout_ns);

// INVALID_ARGUMENT with the way out for a stream that is being captured into a graph.
int32_t RefuseCapturing(const Lane& lane, DeviceStream stream);

// A save begins, or a step has passed, and the save before saw no gate: gives that one up if it can still be, and
// tells. With the mutex held.
void RefuseUngated(State& state);

}  // namespace ckptd

#endif  // CKPTD_CLIENT_SRC_GATE_H_
