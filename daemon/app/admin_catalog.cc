#include "daemon/app/admin_catalog.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/status_macros.h"
#include "daemon/job/lineage.h"

namespace ckptd {
namespace {

using StepMap = std::map<SnapshotId, CatalogStep, std::greater<>>;

// A marker is void when a later attempt than the deleter's chose the step.
bool MarkerHolds(const StepListing& step, const std::vector<v1::DecisionRecord>& decisions) {
  job::StoredStep stored;
  stored.id = step.id;
  stored.marker = step.marker;
  return job::MarkerHolds(stored, decisions);
}

void AddStored(const JobListing& listing, StepMap& steps) {
  for (const StepListing& stored : listing.steps) {
    CatalogStep& step = steps[stored.id];
    step.stored = stored;
    step.world = std::max(step.world, stored.world);
    step.deleting = MarkerHolds(stored, listing.decisions);
  }
}

void AddCopies(const std::vector<RegionCopy>& copies, StepMap& steps) {
  for (const RegionCopy& copy : copies) {
    CatalogStep& step = steps[copy.id];
    step.world = std::max(step.world, copy.world);
    // A snapshot read back for a restore may stand beside the one it was: one of them is enough.
    if (step.CopyOf(copy.rank) == nullptr) step.copies.push_back(copy);
  }
}

std::string NameOf(const Catalog& catalog, const v1::Target& target) {
  std::string name = absl::StrCat("job ", catalog.job);
  if (target.has_step()) absl::StrAppend(&name, ": step ", target.step());
  if (target.has_attempt()) absl::StrAppend(&name, " of attempt ", target.attempt());
  return name;
}

const CatalogStep* NewestRestorable(const Catalog& catalog) {
  for (const CatalogStep& step : catalog.steps) {
    if (step.on_lineage && step.restorable()) return &step;
  }
  return nullptr;
}

void CopySlot(RankRunner& rank, const snapshot::SlotView& slot, JobMemory& out) {
  region::LayoutSet* set = rank.region().FindLayout(slot.id.layout);
  if (set == nullptr || slot.id.index >= set->slot_count()) return;
  RegionCopy copy;
  copy.rank = rank.options().rank;
  copy.slot = slot.id;
  copy.id = slot.snapshot;
  copy.world = set->head().block.world;
  copy.persisted = slot.persisted;
  copy.rescued = (set->Slot(slot.id.index).flags & kSlotRescued) != 0;
  copy.images = set->head().images;
  copy.file = set->FileOf(slot.id.index);
  copy.record = set->Slot(slot.id.index).record;
  if (copy.file && copy.record) out.copies.push_back(std::move(copy));
}

void PostPin(Agent& agent, const std::string& job, const RegionCopy& copy, bool pin) {
  JobRunner* runner = agent.FindJob(job);
  if (runner == nullptr) return;
  snapshot::Event event = snapshot::ReadUnpinned{copy.slot, copy.id};
  if (pin) event = snapshot::ReadPinned{copy.slot, copy.id};
  runner->PostToRank(copy.rank, std::move(event));
}

}  // namespace

const RegionCopy* CatalogStep::CopyOf(Rank rank) const {
  for (const RegionCopy& copy : copies) {
    if (copy.rank == rank) return &copy;
  }
  return nullptr;
}

bool CatalogStep::rescued() const {
  return std::any_of(copies.begin(), copies.end(), [](const RegionCopy& copy) { return copy.rescued; });
}

uint64_t CatalogStep::bytes() const {
  if (committed()) return stored->bytes;
  uint64_t sum = 0;
  for (const RegionCopy& copy : copies) sum += copy.record->slot_bytes;
  return sum;
}

Catalog MakeCatalog(const std::string& job, const JobMemory& memory, const JobListing& listing) {
  StepMap steps;
  AddStored(listing, steps);
  AddCopies(memory.copies, steps);
  const v1::DecisionRecord* newest = job::NewestBefore(listing.decisions, UINT64_MAX);
  Catalog catalog;
  catalog.job = job;
  for (auto& [id, step] : steps) {
    step.id = id;
    step.on_lineage = newest == nullptr || job::OnLineage(*newest, id);
    catalog.steps.push_back(std::move(step));
  }
  return catalog;
}

absl::StatusOr<const CatalogStep*> FindStep(const Catalog& catalog, const v1::Target& target) {
  const CatalogStep* newest = NewestRestorable(catalog);
  if (!target.has_step()) {
    if (newest != nullptr) return newest;
    return Error(ErrorCode::NOT_FOUND, absl::StrCat("job ", catalog.job, " has no step that is whole anywhere"));
  }
  const CatalogStep* found = nullptr;  // the one on the lineage, else the newest attempt's
  for (const CatalogStep& step : catalog.steps) {
    if (step.id.step != target.step()) continue;
    if (target.has_attempt() && step.id.attempt != target.attempt()) continue;
    if (found == nullptr || (step.on_lineage && !found->on_lineage)) found = &step;
  }
  if (found != nullptr) return found;
  std::string hint = newest == nullptr ? std::string() : absl::StrCat("; the newest is ", newest->id.step);
  return Error(ErrorCode::NOT_FOUND,
               absl::StrCat(NameOf(catalog, target), " is neither in memory nor on storage", hint));
}

JobMemory LookAtJob(Agent& agent, const std::string& job) {
  JobMemory out;
  out.known = agent.services().region.peers().Holds(job);
  JobRunner* runner = agent.FindJob(job);
  if (runner == nullptr) return out;
  out.known = true;
  out.view = runner->view();
  out.in_use = runner->flushing();
  for (const auto& [number, rank] : runner->ranks()) {
    snapshot::View view = rank->view();
    out.in_use = out.in_use || view.process != 0;
    for (const snapshot::SlotView& slot : view.slots) {
      out.in_use = out.in_use || slot.read_pins > 0;
      if (slot.state == SlotStateCode::kSealed) CopySlot(*rank, slot, out);
    }
  }
  return out;
}

void Pins::Add(std::vector<RegionCopy> copies) {
  for (RegionCopy& copy : copies) {
    PostPin(agent_, job_, copy, true);
    copies_.push_back(std::move(copy));
  }
}

void Pins::KeepOnly(const SnapshotId& id) {
  std::vector<RegionCopy> kept;
  auto gone = std::make_shared<std::vector<RegionCopy>>();
  for (RegionCopy& copy : copies_) (copy.id == id ? kept : *gone).push_back(std::move(copy));
  copies_ = std::move(kept);
  if (gone->empty()) return;
  // A loop that takes no more posts belongs to an agent that ends: nothing is freed any more.
  (void)agent_.loop().Post([&agent = agent_, job = job_, gone] {
    for (const RegionCopy& copy : *gone) PostPin(agent, job, copy, false);
  });
}

absl::StatusOr<Nanos> PatienceOf(AdminContext& context, const AdminCall& call) {
  CKPTD_ASSIGN_OR_RETURN(const Nanos timeout,
                         context.gate.Call<Nanos>([&] { return context.agent.config().storage.timeout; }));
  return std::min(timeout, call.time_left() / 2);  // the rest for the answer, before nobody waits for it
}

absl::StatusOr<std::vector<std::string>> StoredJobs(AdminContext& context, const AdminCall& call) {
  CKPTD_ASSIGN_OR_RETURN(const Nanos patience, PatienceOf(context, call));
  return context.reads.Ask<std::vector<std::string>>([](Store& store) { return ListJobs(store); }, patience);
}

absl::StatusOr<Catalog> ReadCatalog(AdminContext& context, const AdminCall& call, const std::string& job, Pins* pins) {
  CKPTD_RETURN_IF_ERROR(CheckJobName(job));
  CKPTD_ASSIGN_OR_RETURN(JobMemory memory, context.gate.Call<JobMemory>([&] {
    JobMemory seen = LookAtJob(context.agent, job);
    if (pins != nullptr) pins->Add(seen.copies);
    return seen;
  }));
  CKPTD_ASSIGN_OR_RETURN(const Nanos patience, PatienceOf(context, call));
  return ReadCatalog(context.reads, patience, job, memory);
}

absl::StatusOr<Catalog> ReadCatalog(AdminReads& reads, Nanos patience, const std::string& job,
                                    const JobMemory& memory) {
  auto listing = reads.Ask<JobListing>([job](Store& store) { return ListJob(store, job); }, patience);
  const bool stopping = CodeOf(listing.status()) == ErrorCode::CANCELLED;
  if (!listing.ok() && (memory.copies.empty() || stopping)) return listing.status();
  Catalog catalog = MakeCatalog(job, memory, listing.ok() ? *listing : JobListing());
  catalog.storage = listing.status();
  bool exists = memory.known || (listing.ok() && (!listing->steps.empty() || listing->newest_attempt != 0));
  if (!exists) return Error(ErrorCode::NOT_FOUND, absl::StrCat("job ", job, " is not known here, nor on storage"));
  return catalog;
}

std::string WhyIncomplete(const std::string& job, const absl::StatusOr<Catalog>& catalog) {
  const absl::Status why = catalog.ok() ? catalog->storage : catalog.status();
  if (why.ok() || (!catalog.ok() && CodeOf(why) == ErrorCode::NOT_FOUND)) return "";
  return WithNextStep(absl::StrCat("job ", job, ": what storage has of it cannot be read"), why);
}

std::string WithNextStep(absl::string_view what, const absl::Status& why) {
  const ErrorCode code = CodeOf(why);
  const bool asked = code == ErrorCode::NOT_FOUND || code == ErrorCode::REFUSED;  // the table speaks of what was asked
  return absl::StrCat(what, ": ", why.message(), "; ",
                      asked ? "ckptctl status tells how the storage is" : InfoOf(code).next_step);
}

}  // namespace ckptd
