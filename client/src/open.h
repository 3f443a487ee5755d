#ifndef CKPTD_CLIENT_SRC_OPEN_H_
#define CKPTD_CLIENT_SRC_OPEN_H_

#include <cstdint>

#include "client/include/ckpt/ckpt.h"
#include "client/src/state.h"

namespace ckptd {

// Checks the options and fills in what State calls fixed. 0 or INVALID_ARGUMENT.
int32_t TakeOptions(const ckpt_options& options, State* state);

}  // namespace ckptd

#endif  // CKPTD_CLIENT_SRC_OPEN_H_
