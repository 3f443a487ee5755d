#ifndef CKPTD_CLIENT_SRC_SAVE_H_
#define CKPTD_CLIENT_SRC_SAVE_H_

#include <cstdint>

#include "client/src/state.h"

namespace ckptd {

struct SaveRequest {
  uint64_t step = 0;
  const void* extra = nullptr;
  uint64_t extra_bytes = 0;
  const void* const* data = nullptr;
  uint32_t flags = 0;
};

// A step that is not saved. 0.
int32_t PassStep(State& state, const SaveRequest& request);

// ckpt_save. Needs no answer from the agent: the grant stands in the ctl file.
int32_t StartSave(State& state, const SaveRequest& request);

// ckpt_stream.
int32_t SetCallerStream(State& state, int32_t ordinal, void* stream);

}  // namespace ckptd

#endif  // CKPTD_CLIENT_SRC_SAVE_H_
