// What this node keeps of one rank (or one group's parity) that belongs to other nodes: a RankRegion in a directory of
// its own (peer_key.h), whose slots are filled over the network instead of by a trainer. One thread, but for the
// handles it gives out. PeerStore owns it and says what the job's marks are.
//
//   Begin      slot: FREE, or a copy that may go (peer_rules.h) -> (e, LOADING); SetFence came before
//   Complete   every chunk verified, root checksum compared; record, then (e, SEALED): LayoutSet's order of stores
//   Abort      (e, FREE)
//
// A kill anywhere before Complete's last store leaves LOADING, which a successor finds FREE; the copies before it are
// in other slots. When the owner's layout changes, the new one is made beside the old, whose slots go by the same rule;
// what is left of it goes with the first complete copy of the new one.
//
// Parity of another grouping of the ranks is another layout. So that of a step stays while the same step's is made of
// the new grouping, and until a newer one is protected: others may not have made theirs yet, and what is lost meanwhile
// is rebuilt from the old.
#ifndef CKPTD_DAEMON_REGION_PEER_RANK_H_
#define CKPTD_DAEMON_REGION_PEER_RANK_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/executor.h"
#include "daemon/region/peer_fill.h"
#include "daemon/region/peer_key.h"
#include "daemon/region/peer_rules.h"
#include "daemon/region/rank_region.h"

namespace ckptd::region {

// What the owner says when it has sent all: its record, of which only identity, parent, times and ids are taken, and
// the root checksum of its chunk CRCs (RootCrc).
struct PeerSeal {
  RecordHead head{};
  uint32_t root_crc = 0;
  std::shared_ptr<const ParityRecord> parity;  // of PeerKind::kParity, and only there
};

// One slot, for reports.
struct PeerEntry {
  std::string job;
  uint32_t uid = 0;
  PeerKey key;
  uint32_t world = 0;  // ranks, or groups
  SnapshotId id;
  uint32_t layout_crc = 0;  // Superblock::header_crc: the identity of the layout
  uint64_t slot_bytes = 0;
  uint64_t chunk_bytes = 0;
  bool complete = false;  // else it is being filled
  uint64_t missing_chunks = 0;
  bool verified = false;  // since this agent started; else VerifySlot before it is offered
  bool durable = false;
  bool held = false;
  std::shared_ptr<const SlotRecord> record;    // of a complete one
  std::shared_ptr<const ParityRecord> parity;  // of complete parity
};

// A complete copy, pinned while this lives. May be destroyed on any thread.
struct PeerCopy {
  SlotHold hold;
  CtlHead head;  // the images
  std::shared_ptr<const SlotRecord> record;
  std::shared_ptr<const ParityRecord> parity;
  std::shared_ptr<SlotFile> file;  // Read, Map(kReadOnly), read_fd, VerifySlot
};

// Superblock::header_crc of the one that is meant, where several layouts may have the step; without one the newest.
using LayoutCrc = std::optional<uint32_t>;

class PeerRank {
 public:
  // Makes the directory where it is missing.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<PeerRank>> Open(const RegionContext& context, std::string job,
                                                                      const std::string& job_dir, const PeerKey& key);

  [[nodiscard]] RankRegion& region() { return *region_; }
  [[nodiscard]] const RankRegion& region() const { return *region_; }
  [[nodiscard]] std::string Name() const;          // "job gpt rank 7"
  [[nodiscard]] AttemptId HighestAttempt() const;  // that its ctl files know of
  // Stored in its ctl files, before anything is done for that attempt. A running fill of a lower one is fenced.
  void SetFence(AttemptId attempt);

  [[nodiscard]] absl::StatusOr<std::shared_ptr<PeerFill>> Begin(const LayoutSpec& spec, const SnapshotId& id,
                                                                const PeerMarks& marks);
  [[nodiscard]] absl::Status Complete(PeerFill& fill, const PeerSeal& seal, const PeerMarks& marks);
  [[nodiscard]] absl::Status Abort(PeerFill& fill);

  // NOT_FOUND when there is no complete copy of `id`, in that layout or in any.
  [[nodiscard]] absl::StatusOr<PeerCopy> OpenCopy(const SnapshotId& id, LayoutCrc of);
  [[nodiscard]] absl::Status MarkVerified(const SnapshotId& id, LayoutCrc of);
  void MarkDurable(const SnapshotId& id);  // where there is a copy of it
  [[nodiscard]] SnapshotId NewestDurable() const;
  // Its bytes failed a check: it is offered to nobody, and its slot may be taken.
  [[nodiscard]] absl::Status Quarantine(const SnapshotId& id, LayoutCrc of);
  [[nodiscard]] absl::Status Delete(const SnapshotId& id, LayoutCrc of);

  [[nodiscard]] std::vector<SnapshotId> CompleteCopies() const;
  void AddEntries(std::vector<PeerEntry>& to) const;
  [[nodiscard]] bool held() const;

  // Gives back what the layouts other than `but` (0: all) hold and may go.
  [[nodiscard]] absl::Status Trim(uint32_t but, const PeerMarks& marks);
  // Gives back what all its layouts hold, as the one that is wanted now is none of them, and IsOver.
  [[nodiscard]] absl::Status TrimOver(const PeerMarks& marks, const SnapshotId& durable);
  // Everything, and the directory. Readers keep their bytes. BUSY while a layout is being prepared.
  [[nodiscard]] absl::Status Remove();

  // A token for as long as a layout is being made: one at a time.
  [[nodiscard]] std::shared_ptr<const bool> building() const { return building_.lock(); }
  [[nodiscard]] std::shared_ptr<const bool> StartBuilding();

 private:
  using Place = std::pair<uint32_t, uint32_t>;  // layout, slot
  PeerRank(std::string job, const PeerKey& key, std::unique_ptr<RankRegion> region)
      : job_(std::move(job)), key_(key), region_(std::move(region)) {}

  absl::Status Named(const absl::Status& status) const;
  std::shared_ptr<SlotUse> UseOf(const Place& place);
  bool IsHeld(const Place& place) const;
  absl::Status SetFlags(const SnapshotId& id, uint64_t flags, LayoutCrc of);
  absl::StatusOr<Place> Find(const SnapshotId& id, LayoutCrc of) const;
  std::vector<PeerSlotFacts> FactsOf(const LayoutSet& set) const;
  [[nodiscard]] std::vector<SnapshotId> BesideOtherParity(std::vector<SnapshotId> complete, const LayoutSet* set,
                                                          const SnapshotId& id) const;
  absl::StatusOr<std::shared_ptr<PeerFill>> OpenFill(LayoutSet& set, uint32_t slot, const SnapshotId& id,
                                                     AttemptId attempt);
  [[nodiscard]] absl::Status MakeWay(const SnapshotId& id, const PeerMarks& marks);
  bool IsCurrent(const PeerFill& fill) const;
  absl::Status CheckSeal(const PeerFill& fill, const PeerSeal& seal) const;
  absl::Status Write(LayoutSet& set, const PeerFill& fill, const PeerSeal& seal, std::vector<uint32_t> crcs) const;
  using MayGive = std::function<bool(const SnapshotId& id)>;  // that complete copy
  absl::Status GiveUp(LayoutSet& set, const MayGive& may_give);
  absl::Status TrimBy(uint32_t but, const MayGive& may_give);
  PeerEntry EntryOf(const LayoutSet& set, uint32_t slot) const;

  const std::string job_;
  const PeerKey key_;
  std::unique_ptr<RankRegion> region_;
  std::map<Place, std::shared_ptr<SlotUse>> uses_;
  std::weak_ptr<PeerFill> fill_;  // the one that may still complete
  std::weak_ptr<const bool> building_;
};

}  // namespace ckptd::region

#endif  // CKPTD_DAEMON_REGION_PEER_RANK_H_
