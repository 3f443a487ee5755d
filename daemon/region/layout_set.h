// One layout of one rank: ctl file and slot files, and the operations by which the lifecycle machine's executor moves
// them. One thread (the control thread) but for what SlotFile says of itself.
//
// While the agent lives, what it decided stands in private memory (Slot()); the ctl file is written through, in an
// order that a kill between any two stores leaves readable:
//
//   grant    bell: step = 0, word = (e, OPEN); ctl: owner, flags = 0, state (e, FILLING); Grant: attempt, floor, word
//   seal     flags, CRC list, RecordHead, then state (e, SEALED), release
//   free     state (e, FREE) first; the record behind it is then nobody's
//   drop     state (e, RETIRED), file_id = 0, the file discarded
//   replace  the slot is RETIRED throughout; new file whole and named, file_id = new, old file unlinked; then FREE
//
// Until the last store of a seal the slot is FILLING or LOADING to a successor, afterwards it is SEALED with a record
// that was complete before. Nothing in between exists.
#ifndef CKPTD_DAEMON_REGION_LAYOUT_SET_H_
#define CKPTD_DAEMON_REGION_LAYOUT_SET_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/ids.h"
#include "daemon/os/files.h"
#include "daemon/region/bell.h"
#include "daemon/region/ctl_file.h"
#include "daemon/region/populate.h"
#include "daemon/region/quota.h"
#include "daemon/region/record.h"
#include "daemon/region/scan.h"
#include "daemon/region/slot_file.h"
#include "daemon/region/superblock.h"

namespace ckptd::region {

struct GrantOrder {
  uint32_t slot = 0;
  Epoch epoch = 0;  // RankRegion::NextEpoch()
  StepId floor = 0;
  SlotOwner owner;
  SnapshotId parent;  // of its attempt
};

// For LAYOUT_READY; all owned by LayoutSet. Add Bell::fd() and Bell::hint_fd().
struct LayoutDescriptors {
  int ctl = -1;            // read-only
  std::vector<int> slots;  // read-write
};

// For LOAD; owned by LayoutSet, and by the SlotFile.
struct SlotDescriptors {
  int ctl = -1;   // read-only
  int slot = -1;  // read-only
};

class LayoutSet {
 public:
  [[nodiscard]] uint32_t layout() const { return head_.block.layout; }
  [[nodiscard]] const CtlHead& head() const { return head_; }
  [[nodiscard]] uint32_t slot_count() const { return head_.block.slot_count; }

  // ---- reading. `slot` < slot_count() everywhere.
  [[nodiscard]] const SlotSnapshot& Slot(uint32_t slot) const { return slots_[slot]; }
  [[nodiscard]] const GrantSnapshot& grant() const { return grant_; }
  [[nodiscard]] std::optional<uint32_t> NewestSealed() const;  // by epoch
  // Null when the slot has none (see adopt.h and DropFile).
  [[nodiscard]] std::shared_ptr<SlotFile> FileOf(uint32_t slot) const { return files_of_[slot]; }
  [[nodiscard]] Epoch max_epoch() const { return max_epoch_; }

  // ---- descriptors. CORRUPT or REFUSED naming the slot when a file is missing or not of its size: replace it first.
  [[nodiscard]] absl::StatusOr<LayoutDescriptors> DescriptorsForSaving() const;
  [[nodiscard]] absl::StatusOr<SlotDescriptors> DescriptorsForRestore(uint32_t slot) const;

  // ---- moving. A broken precondition is INTERNAL: the machine and its executor disagree with the region.
  // The slot is FREE and `epoch` above every epoch before. CORRUPT when the trainer has cut its file: the slot is
  // RETIRED then, to be replaced.
  [[nodiscard]] absl::Status OpenGrant(Bell& bell, const GrantOrder& order);
  void MoveFloor(StepId floor);
  void RevokeGrant();  // no grant in ctl; the bell's word is another matter (Bell::Abandon)
  // Any state but SEALED. `epoch` not below the slot's. FREE clears owner and flags.
  [[nodiscard]] absl::Status SetState(uint32_t slot, SlotStateCode state, Epoch epoch);
  void SetOwner(uint32_t slot, const SlotOwner& owner);
  void SetFlags(uint32_t slot, uint64_t flags);  // adds
  // Seals the slot, which is FILLING or LOADING, with head.epoch not below its own. `flags`: what is true from the
  // first moment on (kSlotPersisted for a snapshot that was read from storage).
  [[nodiscard]] absl::Status WriteRecord(uint32_t slot, const RecordHead& head, std::vector<uint32_t> chunk_crcs,
                                         uint64_t flags = 0);
  // Seals a slot that holds parity. INVALID_ARGUMENT unless the layout has room for `parity`'s record.
  [[nodiscard]] absl::Status WriteParity(uint32_t slot, const RecordHead& head, std::vector<uint32_t> chunk_crcs,
                                         const ParityRecord& parity, uint64_t flags = 0);
  // What is kept for other nodes has no grants; the highest attempt heard of stands in their place.
  void SetFence(AttemptId attempt);
  // FREE. CORRUPT when the file is not whole any more: the slot is RETIRED then, to be replaced.
  [[nodiscard]] absl::Status FreeSlot(uint32_t slot);

  // ---- a fresh file for a slot whose writer may still wake up, whose bytes are still being read, or whose file is of
  // no use.
  [[nodiscard]] absl::Status RetireSlot(uint32_t slot);
  // The slot is RETIRED, or SEALED or QUARANTINED and needed no more. QUOTA_EXCEEDED or REGION_FULL (that one perhaps
  // through `done`): nothing changes.
  [[nodiscard]] absl::StatusOr<std::shared_ptr<SlotBuild>> StartReplace(uint32_t slot, Executor& executor,
                                                                        SlotBuild::Done done);
  // After `done` said OK. The slot is RETIRED afterwards: SetState(FREE) when the machine says so. The old file is
  // unlinked; its bytes live on in the returned handle (may be null) and with every reader.
  [[nodiscard]] absl::StatusOr<std::shared_ptr<SlotFile>> FinishReplace(uint32_t slot, SlotBuild& build);

  // ---- less memory, for an old layout that has to make room. The slot is FREE or RETIRED and its last writer is gone;
  // afterwards it is RETIRED without a file.
  [[nodiscard]] absl::Status DropFile(uint32_t slot);
  [[nodiscard]] uint64_t bytes() const;  // of the slot files it has
  // What dropping could give back in time: all but the newest sealed slot.
  [[nodiscard]] uint64_t shrinkable_bytes() const;

 private:
  friend class RankRegion;
  LayoutSet(Files& files, std::shared_ptr<Quota> quota, Executor* freeing, std::string rank_dir, CtlHead head);
  absl::Status CheckFile(uint32_t slot) const;
  absl::Status CheckGrant(const Bell& bell, const GrantOrder& order) const;
  void StoreWord(uint32_t slot, SlotStateCode state, Epoch epoch);
  absl::Status CheckSeal(uint32_t slot, const RecordHead& head) const;
  void StoreRecord(uint32_t slot, const SlotRecord& record);
  void Seal(uint32_t slot, SlotRecord record, uint64_t flags);
  std::string Name(uint32_t slot) const;  // "job gpt rank 0 layout 1 slot 0", for messages

  Files& files_;
  std::shared_ptr<Quota> quota_;
  Executor* const freeing_;
  const std::string rank_dir_;
  const CtlHead head_;
  QuotaHold ctl_hold_;
  std::unique_ptr<CtlFile> ctl_;
  GrantSnapshot grant_;
  std::vector<SlotSnapshot> slots_;
  std::vector<std::shared_ptr<SlotFile>> files_of_;
  std::vector<Epoch> replaced_epoch_;  // of StartReplace
  Epoch max_epoch_ = 0;
};

}  // namespace ckptd::region

#endif  // CKPTD_DAEMON_REGION_LAYOUT_SET_H_
