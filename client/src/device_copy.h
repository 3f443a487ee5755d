// The copy of a capture that has tensors on GPUs: see device_copy.cc.
#ifndef CKPTD_CLIENT_SRC_DEVICE_COPY_H_
#define CKPTD_CLIENT_SRC_DEVICE_COPY_H_

#include <vector>

#include "client/src/capture.h"

namespace ckptd {

struct State;

// By the copy thread, in phase kCopying. Sets capture.submitted, and returns when nothing is under way any more.
[[nodiscard]] CopyResult CopyFromDevices(State& state);

// Adds the digests of lazy tensors on GPUs, as they are when the caller's streams have come this far. Waits for them.
// By the trainer's thread inside ckpt_save. 0 or a negative code with its sentence.
int32_t DigestOnDevices(const Registration& registration, SumTeam& team, std::vector<uint32_t>* digests);

}  // namespace ckptd

#endif  // CKPTD_CLIENT_SRC_DEVICE_COPY_H_
