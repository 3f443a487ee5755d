// The region: all snapshots of this node in memory, in files of one directory on a tmpfs.
//
//   <dir>/.lock                 flock, held for life; names the holder
//   <dir>/.id                   random id of this directory (text, 16 hex digits)
//   <dir>/<job>/job             JobJournal
//   <dir>/<job>/rank-00000/…    ctl and slot files of one rank (rank_region.h)
//   <dir>/<job>/peer-00007/…    copies of a rank on another node (peer_store.h); the job may have no journal then
//   <dir>/<job>/parity-00002/…  a block of a group's parity, likewise
//
// An agent opens it once, takes over what is there, and is then its only writer. One thread, but for Quota, SlotFile
// and Progress objects. Calls touch tmpfs only and do not block; what takes long runs on an Executor, the freeing of
// memory too.
//
// The order in which an executor calls:
//
//   Region::Open -> adopted()                                        feed the machines
//   OpenJob(job, uid) -> SetSeen                                     before a STATE is answered
//   JobRegion::OpenRank -> PlanLayout, StartLayout, FinishLayout     LAYOUT
//   LayoutSet::DescriptorsForSaving, Bell::Create or Bell::Attach    LAYOUT_READY
//   NextEpoch -> LayoutSet::OpenGrant                                GRANT
//   Bell::Read, then Bell::ReadChunks -> LayoutSet::WriteRecord      SEALED
//   LayoutSet::FileOf(slot), Slot(slot).record                       flush, restore
//   SetFlags(kSlotPersisted), FreeSlot
#ifndef CKPTD_DAEMON_REGION_REGION_H_
#define CKPTD_DAEMON_REGION_REGION_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/base/clock.h"
#include "daemon/os/file_lock.h"
#include "daemon/os/files.h"
#include "daemon/region/adopt.h"
#include "daemon/region/job_journal.h"
#include "daemon/region/peer_store.h"
#include "daemon/region/progress.h"
#include "daemon/region/quota.h"
#include "daemon/region/rank_region.h"
#include "daemon/region/reclaim.h"

namespace ckptd::region {

struct RegionOptions {
  std::string dir;            // absolute; its parent exists
  uint32_t uid = 0;           // effective uid of this process: the directory must be its own
  uint64_t size_limit = 0;    // bytes of slots on this node; 0 = what the tmpfs holds
  uint64_t job_quota = 0;     // bytes of slots of one job; 0 = no limit
  uint64_t peers_memory = 0;  // bytes of what is kept for other nodes, within size_limit; 0 = half of it
  // Frees what is let go (slot_file.h), and outlives the region and all its SlotFiles; null: at once.
  Executor* freeing = nullptr;
};

struct RegionUsage {
  uint64_t total = 0;      // of the tmpfs
  uint64_t available = 0;  // of the tmpfs
  uint64_t held = 0;       // by this region's slots, ctl files and bells, retired ones included
  uint64_t size_limit = 0;
  uint64_t job_quota = 0;
  bool huge_pages = false;  // the tmpfs is mounted for them; without, slots get them where the kernel has some to give
  bool may_swap = false;    // the node had swap when the region was opened
};

// One job: its journal and the ranks that run on this node. One thread.
class JobRegion {
 public:
  [[nodiscard]] const std::string& job() const { return job_; }
  [[nodiscard]] JobJournal& journal() { return *journal_; }
  // The rank's directory is made where it is missing. NEWER_VERSION when a newer agent's files are in it.
  [[nodiscard]] absl::StatusOr<RankRegion*> OpenRank(Rank rank);
  [[nodiscard]] RankRegion* FindRank(Rank rank);
  [[nodiscard]] const std::map<Rank, std::unique_ptr<RankRegion>>& ranks() const { return ranks_; }
  // in_use only says whether a newer agent's files are in it.
  [[nodiscard]] JobFacts Facts() const;
  // Nothing is in it but its name, which `uid` has.
  [[nodiscard]] bool IsEmptyOf(uint32_t uid) const;

 private:
  friend class Region;
  JobRegion(const RegionContext& context, std::string job, std::string dir)
      : context_(context), job_(std::move(job)), dir_(std::move(dir)) {}

  const RegionContext context_;
  const std::string job_;
  const std::string dir_;
  std::unique_ptr<JobJournal> journal_;
  std::map<Rank, std::unique_ptr<RankRegion>> ranks_;
  std::set<Rank> untouchable_;  // of a newer major
};

class Region {
 public:
  // Makes the directory (0700) where it is missing, locks it, adopts. REFUSED naming the holder when another agent has
  // it; PERMISSION when it is not this user's alone. `files` and `clock` outlive it.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Region>> Open(Files& files, const Clock& clock,
                                                                    const RegionOptions& options);

  [[nodiscard]] uint64_t id() const { return context_->region_id; }
  [[nodiscard]] const AdoptReport& adopted() const { return adopted_; }
  [[nodiscard]] const std::vector<std::string>& warnings() const { return warnings_; }  // for status and doctor

  // The job, made where it is missing. JOB_OWNED when another user's; NEWER_VERSION when a newer agent's.
  [[nodiscard]] absl::StatusOr<JobRegion*> OpenJob(absl::string_view job, uint32_t uid);
  [[nodiscard]] JobRegion* FindJob(absl::string_view job);
  [[nodiscard]] const std::map<std::string, std::unique_ptr<JobRegion>, std::less<>>& jobs() const { return jobs_; }
  // Everything of it that ran here, sealed or not: `ckptctl rm`, or a job that PlanReclaim named. Its JobRegion is gone
  // afterwards. What is kept of it for other nodes stays: PeerStore::RemoveJob.
  [[nodiscard]] absl::Status RemoveJob(absl::string_view job);

  [[nodiscard]] absl::StatusOr<RegionUsage> Usage();
  [[nodiscard]] Quota& quota() { return *context_->quota; }
  [[nodiscard]] PeerStore& peers() { return *peers_; }
  // Whoever starts to prepare or to check slots tells it.
  [[nodiscard]] UnderWay& under_way() { return under_way_; }

  // The last call, before _exit: a successor may take the directory while this process still dies (FileLock). No
  // thread may write to the region any more.
  void GiveUpLock() { lock_.Release(); }

 private:
  Region(Files& files, RegionOptions options, FileLock lock)
      : files_(files), options_(std::move(options)), lock_(std::move(lock)) {}
  absl::Status Warn();
  absl::Status MakePeers();
  absl::Status Adopt();
  absl::Status AdoptJob(const ScannedJob& scanned);
  absl::Status AdoptJournal(const ScannedJob& scanned, JobRegion& job);
  absl::Status AdoptRank(const ScannedRank& scanned, JobRegion& job);
  void Remove(const std::vector<std::string>& debris);
  void RemoveDirectory(const std::string& dir);
  AdoptedJob Report(const JobRegion& job) const;

  Files& files_;
  const RegionOptions options_;
  FileLock lock_;
  std::unique_ptr<RegionContext> context_;
  std::map<std::string, std::unique_ptr<JobRegion>, std::less<>> jobs_;
  std::unique_ptr<PeerStore> peers_;
  UnderWay under_way_;
  std::set<std::string> untouchable_;  // jobs of a newer major
  AdoptReport adopted_;
  std::vector<std::string> warnings_;
  bool huge_pages_ = false;
  bool may_swap_ = false;
};

}  // namespace ckptd::region

#endif  // CKPTD_DAEMON_REGION_REGION_H_
