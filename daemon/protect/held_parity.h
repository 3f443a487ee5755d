// Parity in this node's memory, as those read it who rebuild an image of it.
#ifndef CKPTD_DAEMON_PROTECT_HELD_PARITY_H_
#define CKPTD_DAEMON_PROTECT_HELD_PARITY_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "daemon/region/slot_file.h"
#include "proto/ckptd/v1/copy.pb.h"

namespace ckptd::protect {

// Its bytes stay as long as this does.
struct HeldParity {
  uint64_t bytes = 0;          // from the file's begin
  std::vector<uint32_t> crcs;  // one for each chunk; chunks are those of the images
  std::shared_ptr<region::SlotFile> file;
  std::shared_ptr<void> keep;  // let go of on the loop's thread
  v1::ParityContents contents;
};

}  // namespace ckptd::protect

#endif  // CKPTD_DAEMON_PROTECT_HELD_PARITY_H_
