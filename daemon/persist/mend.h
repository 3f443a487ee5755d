// Putting the images of one rank of a committed step back from the slot that still holds the same snapshot: each is
// written anew under a temporary name and made durable, the old one is deleted, the new one takes its name. Manifest
// and sidecar stay as they are and are never made here: they bind the bytes, and a step that somebody deletes meanwhile
// does not come back.
//
// Nothing that was good is at risk, also where an image was called bad that is not (a server that did not answer reads
// for a while): nothing is deleted before its like is durable, and the slot stays where it is.
#ifndef CKPTD_DAEMON_PERSIST_MEND_H_
#define CKPTD_DAEMON_PERSIST_MEND_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "daemon/persist/rank_flush.h"

namespace ckptd {

// The slot's bytes were checked against `chunk_crcs`. CORRUPT when those are not the committed ones, CANCELLED when the
// step is being deleted; whoever calls reads the images again. Blocks as long as the storage does.
[[nodiscard]] absl::Status MendImages(Store& store, const FlushSource& source, const std::vector<uint32_t>& chunk_crcs);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_PERSIST_MEND_H_
