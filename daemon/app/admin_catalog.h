// The snapshots of one job, wherever they are: what memory holds and what storage holds as one list along the lineage,
// and which of them an operator means by JOB[@STEP].
#ifndef CKPTD_DAEMON_APP_ADMIN_CATALOG_H_
#define CKPTD_DAEMON_APP_ADMIN_CATALOG_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/app/admin_reads.h"
#include "daemon/app/agent.h"
#include "daemon/app/control_gate.h"
#include "daemon/rpc/admin_backend.h"
#include "daemon/storage/step_files.h"
#include "proto/ckptd/v1/admin.pb.h"

namespace ckptd {

// A sealed slot as the control thread saw it. The bytes may be used as long as the slot is pinned.
struct RegionCopy {
  Rank rank = 0;
  snapshot::SlotId slot;
  SnapshotId id;
  uint32_t world = 0;
  bool persisted = false;
  bool rescued = false;
  std::vector<ImageExtent> images;
  std::shared_ptr<region::SlotFile> file;
  std::shared_ptr<const region::SlotRecord> record;
};

struct JobMemory {
  bool known = false;   // to this agent
  bool in_use = false;  // a trainer, a flush or a reader
  job::View view;
  std::vector<RegionCopy> copies;  // by rank
};

struct CatalogStep {
  SnapshotId id;
  uint32_t world = 0;  // 0 = unknown
  std::vector<RegionCopy> copies;
  std::optional<StepListing> stored;
  bool on_lineage = false;
  bool deleting = false;  // carries a marker that holds

  [[nodiscard]] bool in_region() const { return world != 0 && copies.size() == world; }
  // Some rank of it was taken after the trainer's death.
  [[nodiscard]] bool rescued() const;
  [[nodiscard]] bool committed() const { return stored && stored->committed; }
  [[nodiscard]] bool restorable() const { return !deleting && (in_region() || committed()); }
  [[nodiscard]] const RegionCopy* CopyOf(Rank rank) const;  // null when it is not in memory here
  [[nodiscard]] uint64_t bytes() const;
};

struct Catalog {
  std::string job;
  std::vector<CatalogStep> steps;  // newest attempt first, then newest step
  absl::Status storage;            // why storage is missing from it
};

// Pure.
[[nodiscard]] Catalog MakeCatalog(const std::string& job, const JobMemory& memory, const JobListing& listing);
// NOT_FOUND with what there is instead. Without a step: the newest on the lineage that can be restored.
[[nodiscard]] absl::StatusOr<const CatalogStep*> FindStep(const Catalog& catalog, const v1::Target& target);

// Control thread.
[[nodiscard]] JobMemory LookAtJob(Agent& agent, const std::string& job);

// Keeps slots from being freed and filled again as long as it lives. Made and destroyed on any thread.
class Pins {
 public:
  Pins(Agent& agent, std::string job) : agent_(agent), job_(std::move(job)) {}
  ~Pins() { KeepOnly({}); }
  Pins(const Pins&) = delete;
  Pins& operator=(const Pins&) = delete;

  void Add(std::vector<RegionCopy> copies);  // control thread, in the call that saw them
  // Lets go of all others.
  void KeepOnly(const SnapshotId& id);

 private:
  Agent& agent_;
  const std::string job_;
  std::vector<RegionCopy> copies_;
};

// What the commands work with; on a worker thread.
struct AdminContext {
  Agent& agent;
  ControlGate& gate;
  Store& store;
  AdminReads& reads;
};

// For how long `call` waits for an answer of the storage: storage.timeout, but no longer than the client.
[[nodiscard]] absl::StatusOr<Nanos> PatienceOf(AdminContext& context, const AdminCall& call);
// ListJobs(), with that patience.
[[nodiscard]] absl::StatusOr<std::vector<std::string>> StoredJobs(AdminContext& context, const AdminCall& call);
// The job's catalog from memory and storage. When storage does not answer, memory alone (Catalog::storage says why).
// With `pins`, all copies are pinned before anything else. NOT_FOUND when neither knows the job.
[[nodiscard]] absl::StatusOr<Catalog> ReadCatalog(AdminContext& context, const AdminCall& call, const std::string& job,
                                                  Pins* pins);
// The same, of what memory was seen to hold.
[[nodiscard]] absl::StatusOr<Catalog> ReadCatalog(AdminReads& reads, Nanos patience, const std::string& job,
                                                  const JobMemory& memory);
// "<what>: <why>; <what to do>", of a storage that cannot be read.
[[nodiscard]] std::string WithNextStep(absl::string_view what, const absl::Status& why);
// Why a catalog lacks what storage holds, as a sentence with its next step; empty when it lacks nothing, and for what
// is no job (any more).
[[nodiscard]] std::string WhyIncomplete(const std::string& job, const absl::StatusOr<Catalog>& catalog);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_APP_ADMIN_CATALOG_H_
