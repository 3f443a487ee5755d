// The peer store: snapshots of ranks that run on other nodes, and parity of groups, in this node's region, so that a
// lost node is restored from memory.
//
// The order in which whoever receives copies calls:
//
//   Tell                            STATE of the job: what is fenced, what must stay
//   Ready, StartLayout, FinishLayout   memory for both slots, once for each layout of the owner
//   Begin -> PeerFill               a slot; bytes and checksums of each chunk go to the PeerFill, on any thread
//   Complete, Abort
//   List                            REPORT: what is complete here
//   OpenCopy                        restore: pinned, its bytes by descriptor; VerifySlot first where not yet verified
//
// Memory. All copies together may take PeerOptions::memory; what they take counts against region.size as well, but not
// against any job's region.job_quota, which is for ranks that run here. Both slots of a layout are counted, then
// reserved, before the first byte arrives, so a copy under way never fails for want of memory. When a new layout does
// not fit, the old layouts of the same rank give up what may go (peer_rules.h); then jobs go that have ended; then it
// is refused, QUOTA_EXCEEDED with need and budget, and whoever knows that no rank loads says what else may go
// (GiveUpOlder, GiveUpAllBut). No complete copy of a living job is ever given up for another job.
//
// A job has ended for this node when nobody has spoken of it (Tell, StartLayout, Begin) for PeerOptions::quiet, nobody
// reads or writes its copies, and none of them is newer than what storage has (MarkDurable). Ended jobs go oldest
// first, and only as many as are needed (PlanReclaim, as for jobs that run here); also for ranks that run here, by
// Facts and RemoveJob. A job with a copy that is newer than storage goes on somebody's word only.
//
// Region owns it. One thread, but for the handles it gives out; calls touch tmpfs only and do not block.
#ifndef CKPTD_DAEMON_REGION_PEER_STORE_H_
#define CKPTD_DAEMON_REGION_PEER_STORE_H_

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
#include "daemon/base/executor.h"
#include "daemon/region/adopt.h"
#include "daemon/region/peer_fill.h"
#include "daemon/region/peer_key.h"
#include "daemon/region/peer_rank.h"
#include "daemon/region/peer_rules.h"
#include "daemon/region/reclaim.h"

namespace ckptd::region {

struct PeerOptions {
  uint64_t memory = 0;  // bytes for all copies together
  Nanos quiet = std::chrono::hours(1);
};

// The owner's layout, as it says: nothing of it is believed. rank and world are the group's number and the number of
// groups for parity; slot_count and tail_bytes are this store's business.
struct PeerSpec {
  PeerKind kind = PeerKind::kCopy;
  LayoutSpec layout;
  [[nodiscard]] PeerKey key() const { return {kind, layout.rank}; }
};

struct PeerUsage {
  uint64_t memory = 0;  // the budget
  uint64_t held = 0;
};

// What is held of one job.
struct PeerJob {
  std::string job;
  uint64_t bytes = 0;
  std::set<uint32_t> ranks;  // whose copies; of parity there are none here
  AttemptId attempt = 0;     // highest seen
  SnapshotId newest;         // of what is complete
  SnapshotId durable;        // newest on storage, as far as was told
  Nanos silent{0};           // since somebody spoke of it
  bool busy = false;         // somebody reads or writes it, or it is a newer agent's
};

// Memory for a layout being made. Dropping it removes its files.
class PeerBuild {
 public:
  [[nodiscard]] Progress& progress() { return build_->progress(); }
  [[nodiscard]] std::shared_ptr<Progress> shared_progress() const { return build_->shared_progress(); }

 private:
  friend class PeerStore;
  std::string job_;
  PeerKey key_;
  std::shared_ptr<const bool> token_;
  std::unique_ptr<LayoutBuild> build_;
};

class PeerStore {
 public:
  // `region`: of this node; its quota is the parent of this store's. `dir`: the region's.
  PeerStore(const RegionContext& region, std::string dir, const PeerOptions& options);

  // ---- taking over, by the rules of adopt.h: complete copies stay, unverified; the rest is FREE.
  [[nodiscard]] absl::Status Adopt(const ScannedJob& scanned, AdoptReport& report);
  // A job of a newer major: every call for it is NEWER_VERSION.
  void LeaveAlone(const std::string& job) { untouchable_.insert(job); }

  // ---- what the job protocol says.
  // FENCED when an attempt above was seen. Fills of lower attempts are fenced.
  [[nodiscard]] absl::Status Tell(absl::string_view job, const PeerMarks& marks);
  // What was told. Nothing of a job that nobody has copies of here.
  [[nodiscard]] PeerMarks MarksOf(absl::string_view job) const;
  // `id` is on storage, all ranks of it. Nobody waits any more for what is older than that.
  void MarkDurable(absl::string_view job, const SnapshotId& id);

  // ---- memory.
  [[nodiscard]] bool Ready(const PeerSpec& spec) const;
  // INVALID_ARGUMENT, JOB_OWNED, QUOTA_EXCEEDED, REGION_FULL, LAYOUT_PREPARING (another one is being made, or memory
  // for this one is being freed), or REFUSED where it is ready. `done` brings the rest, on the executor's thread.
  [[nodiscard]] absl::StatusOr<std::unique_ptr<PeerBuild>> StartLayout(const PeerSpec& spec, Preparation preparation,
                                                                       Executor& executor, SlotBuild::Done done);
  // Ranks and groups of the job that this node is not to hold any more, where a newer step is protected elsewhere or on
  // storage, and nobody reads them: whether there were any.
  [[nodiscard]] bool GiveUpAllBut(const std::string& job, const std::set<PeerKey>& wanted);
  // The same of what the rank or group of `spec` has in other layouts than that one, though it is to be held here.
  [[nodiscard]] bool GiveUpOlder(const PeerSpec& spec);
  // After `done` said OK.
  [[nodiscard]] absl::Status FinishLayout(std::unique_ptr<PeerBuild> build);

  // ---- filling. The returned handle holds the slot (peer_fill.h).
  // Errors of peer_rules.h, or LAYOUT_PREPARING. The fill that it overtakes is fenced; BUSY until its writer lets go.
  [[nodiscard]] absl::StatusOr<std::shared_ptr<PeerFill>> Begin(const PeerSpec& spec, const SnapshotId& id,
                                                                const PeerMarks& marks);
  // From now on it is in List, also after a kill. FENCED; REFUSED while chunks are missing; CORRUPT when the root
  // checksum is another; INVALID_ARGUMENT when the record is of another snapshot. The fill stays open after an error.
  [[nodiscard]] absl::Status Complete(PeerFill& fill, const PeerSeal& seal);
  [[nodiscard]] absl::Status Abort(PeerFill& fill);

  // ---- what there is.
  [[nodiscard]] std::vector<PeerEntry> List() const;  // by job, kind, number
  // NOT_FOUND.
  [[nodiscard]] absl::StatusOr<PeerCopy> OpenCopy(absl::string_view job, const PeerKey& key, const SnapshotId& id,
                                                  LayoutCrc of = {});
  [[nodiscard]] absl::Status MarkVerified(absl::string_view job, const PeerKey& key, const SnapshotId& id,
                                          LayoutCrc of = {});
  [[nodiscard]] absl::Status Quarantine(absl::string_view job, const PeerKey& key, const SnapshotId& id,
                                        LayoutCrc of = {});
  [[nodiscard]] PeerUsage Usage();
  [[nodiscard]] bool Holds(absl::string_view job) const;
  [[nodiscard]] std::vector<PeerJob> Jobs() const;    // by name
  [[nodiscard]] std::vector<JobFacts> Facts() const;  // for reclaim.h; in use: it has not ended

  // ---- deletion, on somebody's word. Readers keep their bytes. BUSY while memory is being prepared there.
  [[nodiscard]] absl::Status Delete(absl::string_view job, const PeerKey& key, const SnapshotId& id, LayoutCrc of = {});
  [[nodiscard]] absl::Status Remove(absl::string_view job, const PeerKey& key);
  [[nodiscard]] absl::Status RemoveJob(absl::string_view job);

 private:
  struct Job {
    uint32_t uid = 0;
    PeerMarks marks;
    SnapshotId durable;  // newest on storage, as told or as the copies' flags say
    Nanos heard{0};
    std::map<PeerKey, std::unique_ptr<PeerRank>> ranks;
    std::set<PeerKey> untouchable;  // of a newer major
  };

  Job* FindJob(absl::string_view job);
  absl::StatusOr<PeerRank*> Find(absl::string_view job, const PeerKey& key);
  absl::Status MakeDirectory(const std::string& parent, const std::string& name);
  absl::StatusOr<PeerRank*> FindOrMake(const PeerSpec& spec);
  absl::Status CheckMayHold(const PeerSpec& spec);
  absl::Status AdoptPeer(const ScannedPeer& scanned, const ScannedJob& of, Job& job, AdoptReport& report);
  void RemoveFiles(const std::vector<std::string>& debris, AdoptReport& report);
  absl::Status MakeRoom(const PeerSpec& spec, PeerRank& rank);
  absl::Status ReclaimEnded(const PeerSpec& spec, const LayoutPlan& plan);
  [[nodiscard]] static bool IsOver(const Job& job, const PeerRank& rank);
  JobFacts FactsOf(const std::string& name, const Job& job) const;
  [[nodiscard]] static bool IsBusy(const Job& job);
  [[nodiscard]] PeerJob SummaryOf(const std::string& name, const Job& job) const;
  void Heard(Job& job) { job.heard = context_.clock.Monotonic(); }
  void Raise(Job& job);
  absl::StatusOr<std::unique_ptr<PeerBuild>> Build(const PeerSpec& spec, Preparation preparation, Executor& executor,
                                                   SlotBuild::Done done);
  void Sweep();
  absl::Status RemoveDirectoryIfEmpty(const std::string& job);
  std::string JobDir(absl::string_view job) const;

  const RegionContext context_;  // with the store's own quota
  const std::string dir_;
  const PeerOptions options_;
  std::map<std::string, Job, std::less<>> jobs_;
  std::set<std::string, std::less<>> untouchable_;
};

}  // namespace ckptd::region

#endif  // CKPTD_DAEMON_REGION_PEER_STORE_H_
