// Putting the images of one rank of a committed step back from the slot that still holds the same snapshot: they are
// written anew under temporary names, the old ones are deleted, the new ones take their names. The commit stays as it
// is: manifest and sidecar bind the bytes, which are the same.
//
// Nothing that was good is at risk: the step was of no use to a restore, and whatever ends this half way leaves it so,
// and the slot where it is.
#ifndef CKPTD_DAEMON_PERSIST_MEND_H_
#define CKPTD_DAEMON_PERSIST_MEND_H_

#include "absl/status/status.h"
#include "daemon/persist/rank_flush.h"

namespace ckptd {

// The slot's bytes were checked, and stay as they are until this returns. Blocks as long as the storage does.
[[nodiscard]] absl::Status MendImages(Store& store, const Clock& clock, const FlushSource& source,
                                      const FlushSeal& seal);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_PERSIST_MEND_H_
