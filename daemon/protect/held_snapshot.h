// A snapshot in this node's memory, as copies of it are read.
#ifndef CKPTD_DAEMON_PROTECT_HELD_SNAPSHOT_H_
#define CKPTD_DAEMON_PROTECT_HELD_SNAPSHOT_H_

#include <memory>

#include "daemon/region/record.h"
#include "daemon/region/slot_file.h"
#include "daemon/region/superblock.h"

namespace ckptd::protect {

// Wherever it lies. Its bytes stay as long as this does.
struct HeldSnapshot {
  region::CtlHead head;
  std::shared_ptr<const region::SlotRecord> record;
  std::shared_ptr<region::SlotFile> file;
  std::shared_ptr<void> keep;  // let go of on the loop's thread
};

}  // namespace ckptd::protect

#endif  // CKPTD_DAEMON_PROTECT_HELD_SNAPSHOT_H_
