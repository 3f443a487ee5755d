// The memory of one rank of a job: its directory and its layouts, old and new side by side. One thread.
//
// A layout is made in three steps, because reserving and populating gigabytes takes seconds:
//
//   PlanLayout    does it fit? (quota, tmpfs, what shrinking the old ones would give)
//   StartLayout   slot files are made on a worker; progress for LAYOUT_STATE
//   FinishLayout  ctl file linked: the layout exists, all its slots FREE
//
// A crash before the link leaves files that no ctl file names: the next agent removes them.
#ifndef CKPTD_DAEMON_REGION_RANK_REGION_H_
#define CKPTD_DAEMON_REGION_RANK_REGION_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/clock.h"
#include "daemon/base/executor.h"
#include "daemon/os/files.h"
#include "daemon/region/layout_set.h"
#include "daemon/region/populate.h"
#include "daemon/region/quota.h"
#include "daemon/region/superblock.h"

namespace ckptd::region {

// What all ranks of a region share.
struct RegionContext {
  Files& files;
  const Clock& clock;
  std::shared_ptr<Quota> quota;
  uint64_t region_id = 0;
  Executor* freeing = nullptr;  // SlotFile::Create
};

enum class LayoutFit {
  kFits,
  kFitsOnceFreed,       // what was let go is enough, and is being freed
  kFitsAfterShrinking,  // the layouts there are, in time, to their newest sealed slots (LayoutSet::DropFile)
  kRefused,
};

struct LayoutPlan {
  LayoutFit fit = LayoutFit::kRefused;
  uint64_t need = 0;       // bytes
  uint64_t held = 0;       // by this rank's layouts
  uint64_t free = 0;       // of the tmpfs, and promised to nobody
  uint64_t quota = 0;      // left to the job; UINT64_MAX without limits
  uint64_t freeing = 0;    // bytes that were let go and are not free yet
  uint64_t free_soon = 0;  // free and quota once they are
  uint64_t quota_soon = 0;
  uint64_t shrinkable = 0;  // bytes that shrinking this rank's layouts, or others', would give back for certain
  absl::Status refusal;     // of kRefused: REGION_FULL or QUOTA_EXCEEDED with the numbers
  [[nodiscard]] uint64_t soon() const { return std::min(free_soon, quota_soon); }
};

// Bytes that other ranks of the job can give back.
struct Shrinkable {
  uint64_t surely = 0;   // layouts that another one takes the place of already
  uint64_t perhaps = 0;  // if their ranks grow too
};

// A layout being made. Dropping it before FinishLayout removes its files (after the worker let go of them).
class LayoutBuild {
 public:
  ~LayoutBuild();  // cancels what is still being made
  [[nodiscard]] Progress& progress() { return slots_->progress(); }
  [[nodiscard]] std::shared_ptr<Progress> shared_progress() const { return SlotBuild::ProgressOf(slots_); }
  [[nodiscard]] uint32_t layout() const { return head_.block.layout; }
  [[nodiscard]] uint32_t header_crc() const { return head_.block.header_crc; }

 private:
  friend class RankRegion;
  CtlHead head_;
  QuotaHold ctl_hold_;
  std::shared_ptr<SlotBuild> slots_;
};

class RankRegion {
 public:
  // Makes the directory where it is missing.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<RankRegion>> Open(const RegionContext& context,
                                                                        const std::string& job_dir, Rank rank);

  // The same in any directory: what is kept for other nodes (peer_rank.h) has names of its own.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<RankRegion>> OpenAt(const RegionContext& context, std::string dir,
                                                                          Rank rank);

  // Takes over a scanned layout by the rules of adopt.h; sentences about what was given up go to `notes`.
  [[nodiscard]] absl::Status AdoptLayout(const ScannedLayout& scanned, std::vector<std::string>& notes);

  // `elsewhere`: bytes that the other ranks of the job could give back: when the model grows, all of them shrink.
  [[nodiscard]] absl::StatusOr<LayoutPlan> PlanLayout(const LayoutSpec& spec, const Shrinkable& elsewhere = {}) const;
  // INVALID_ARGUMENT, QUOTA_EXCEEDED or REGION_FULL at once where that is known; `done` brings the rest, on the
  // executor's thread.
  [[nodiscard]] absl::StatusOr<std::unique_ptr<LayoutBuild>> StartLayout(const LayoutSpec& spec,
                                                                         Preparation preparation, Executor& executor,
                                                                         SlotBuild::Done done);
  // After `done` said OK. The LayoutSet is owned by this.
  [[nodiscard]] absl::StatusOr<LayoutSet*> FinishLayout(std::unique_ptr<LayoutBuild> build);
  // ctl file first, then the slot files. Readers that hold a SlotFile keep its bytes.
  [[nodiscard]] absl::Status RemoveLayout(uint32_t layout);

  [[nodiscard]] LayoutSet* FindLayout(uint32_t layout);  // null when unknown
  // A layout with these images, chunks and slots, whose slots all have whole files; null when there is none (also after
  // DropFile: what was shrunk is not grown again, but made anew beside it).
  [[nodiscard]] LayoutSet* FindSame(const LayoutSpec& spec);
  [[nodiscard]] const std::map<uint32_t, std::unique_ptr<LayoutSet>>& layouts() const { return layouts_; }

  // Above every epoch that any slot of this rank has had; never with 32 low bits of 0.
  [[nodiscard]] Epoch NextEpoch();

  [[nodiscard]] uint64_t bytes() const;  // of the slot files of all layouts
  // What its layouts below this one could give back.
  [[nodiscard]] uint64_t shrinkable_bytes(uint32_t below = UINT32_MAX) const;

  // All layouts and the directory. For RemoveJob.
  [[nodiscard]] absl::Status Remove();

  [[nodiscard]] Rank rank() const { return rank_; }
  [[nodiscard]] const std::string& dir() const { return dir_; }

 private:
  absl::Status Measure(absl::string_view job, LayoutPlan* plan) const;
  RankRegion(const RegionContext& context, std::string dir, Rank rank)
      : context_(context), dir_(std::move(dir)), rank_(rank) {}
  absl::Status AdoptSlot(LayoutSet& set, uint32_t slot, const ScannedSlot& scanned, std::vector<std::string>& notes);

  const RegionContext context_;
  const std::string dir_;
  const Rank rank_;
  std::map<uint32_t, std::unique_ptr<LayoutSet>> layouts_;
  uint32_t last_layout_ = 0;
  Epoch last_epoch_ = 0;
};

}  // namespace ckptd::region

#endif  // CKPTD_DAEMON_REGION_RANK_REGION_H_
