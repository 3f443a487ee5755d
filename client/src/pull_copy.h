// The copy of a capture that a copier does: see pull_copy.cc.
#ifndef CKPTD_CLIENT_SRC_PULL_COPY_H_
#define CKPTD_CLIENT_SRC_PULL_COPY_H_

#include "client/src/capture.h"

namespace ckptd {

struct State;

// By the copy thread, in phase kCopying with a link. True: `result`, and no copier writes to the slot any more, or the
// capture is orphaned. False: it was not pulled, nothing is under way, and it may be pushed.
[[nodiscard]] bool CopyByCopier(State& state, CopyResult* result);

}  // namespace ckptd

#endif  // CKPTD_CLIENT_SRC_PULL_COPY_H_
