// Reading a region directory without changing it: what a starting agent adopts and what `ckptctl salvage` reads.
//
// Nothing in the directory is believed: files are copied out, heads and records checked (superblock.h, record.h), slot
// files only looked at by size. No slot byte is read, so a scan takes milliseconds whatever the region holds.
//
// What stands where it may stand is classified; everything else in a rank's directory is debris:
//
//   temporary files
//   slot files that no ctl file names (of a build that was not finished, or of a layout being removed), or that the
//   trainer has cut
//   ctl files that fail their check: they are complete before they get their name, so no crash makes one; the memory
//   was damaged, and with the head nothing says any more what the slots are
//
// Directories of what is kept for other nodes (peer_key.h) are read the same way. Nothing in them says anything of the
// job's own ranks: neither `seen` nor `lost` is taken from them.
//
// A directory with a ctl file of a newer major is reported and otherwise left alone, all of it.
#ifndef CKPTD_DAEMON_REGION_SCAN_H_
#define CKPTD_DAEMON_REGION_SCAN_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/base/ids.h"
#include "daemon/base/marks.h"
#include "daemon/os/files.h"
#include "daemon/region/parity_record.h"
#include "daemon/region/peer_key.h"
#include "daemon/region/record.h"
#include "daemon/region/superblock.h"
#include "proto/local/region.h"

namespace ckptd::region {

// Who fills a slot, as the ctl file keeps it for a successor agent.
struct SlotOwner {
  Ticket ticket = 0;
  AttemptId attempt = 0;
  int32_t pid = 0;
  uint64_t start_time = 0;  // clock ticks after boot: pids are reused
  bool operator==(const SlotOwner&) const = default;
};

struct SlotSnapshot {
  SlotStateCode state = SlotStateCode::kFree;
  Epoch epoch = 0;
  uint64_t flags = 0;
  uint64_t file_id = 0;  // 0: no file
  SlotOwner owner;
  std::shared_ptr<const SlotRecord> record;    // of kSealed and kQuarantined; checked
  std::shared_ptr<const ParityRecord> parity;  // beside the record, where the slot holds parity; checked
};

struct GrantSnapshot {
  uint64_t word = 0;
  StepId floor = 0;
  AttemptId attempt = 0;
  SnapshotId parent;  // of the attempt
};

struct ScannedSlot {
  SlotSnapshot now;
  bool file_whole = false;
  std::string problem;  // why a slot that says SEALED is not, or why its file is of no use; empty: none
  bool lost = false;    // held a snapshot, or may have, and holds it no more
};

struct ScannedLayout {
  CtlHead head;
  GrantSnapshot grant;
  std::vector<ScannedSlot> slots;
};

struct ScannedRank {
  Rank rank = 0;
  std::string dir;
  bool newer = false;  // holds a newer major: `layouts` and `debris` are empty
  bool lost = false;   // a ctl file fails its check, or a slot is lost
  std::vector<ScannedLayout> layouts;
  std::vector<std::string> debris;    // paths
  std::vector<std::string> problems;  // sentences
};

// What this node keeps of another one: `rank` of it is the number in its name.
struct ScannedPeer {
  PeerKey key;
  ScannedRank held;
};

struct ScannedJob {
  std::string job;
  std::string dir;
  bool newer = false;  // the job file is of a newer major: `ranks`, `peers` and `debris` are empty
  bool journal_valid = false;
  AttemptId seen = 0;
  AttemptId lost = 0;  // see job_journal.h; what this scan found is in it
  KeptMarks marks;
  uint32_t uid = 0;
  std::vector<ScannedRank> ranks;
  std::vector<ScannedPeer> peers;
  std::vector<std::string> debris;
  std::vector<std::string> problems;
};

struct RegionScan {
  uint64_t region_id = 0;
  std::vector<ScannedJob> jobs;
  std::vector<std::string> problems;  // names that are no job's
};

// NOT_FOUND when `dir` is no region directory.
[[nodiscard]] absl::StatusOr<RegionScan> ScanRegion(Files& files, const std::string& dir);

// Reads `dir`/.id.
[[nodiscard]] absl::StatusOr<uint64_t> ReadRegionId(Files& files, const std::string& dir);

// "rank-00007"
[[nodiscard]] std::string RankDirName(Rank rank);

// Begin with a dot, so that no job's directory can have these names.
inline constexpr const char* kRegionLockName = ".lock";
inline constexpr const char* kRegionIdName = ".id";
inline constexpr const char* kJournalName = "job";
inline constexpr const char* kTemporaryPrefix = ".tmp-";

}  // namespace ckptd::region

#endif  // CKPTD_DAEMON_REGION_SCAN_H_
