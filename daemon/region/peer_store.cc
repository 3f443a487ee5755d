#include "daemon/region/peer_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/log.h"
#include "daemon/base/status_macros.h"
#include "daemon/base/units.h"
#include "daemon/region/bell.h"
#include "proto/local/messages.h"

namespace ckptd::region {
namespace {

constexpr uint32_t kPeerSlots = 2;
constexpr size_t kMaxNames = 1u << 16;
// No job can have this name: it begins with a dot.
constexpr const char* kAccount = ".peers";

RegionContext WithShare(const RegionContext& region, uint64_t memory) {
  return {region.files, region.clock, Quota::CreateShare(region.quota, kAccount, memory), region.region_id,
          region.freeing};
}

LayoutSpec Normalised(const PeerSpec& spec) {
  LayoutSpec layout = spec.layout;
  layout.slot_count = kPeerSlots;
  layout.tail_bytes = spec.kind == PeerKind::kParity ? kParityTailBytes : 0;
  return layout;
}

std::string NameOf(const PeerSpec& spec) { return absl::StrCat("job ", spec.layout.job, " ", ToString(spec.key())); }

void AddFacts(const LayoutSet& set, const SnapshotId& durable, JobFacts& facts) {
  facts.bytes += set.bytes() + set.head().block.file_bytes + BellBytes(set.head());
  for (uint32_t slot = 0; slot < set.slot_count(); ++slot) {
    const SlotSnapshot& now = set.Slot(slot);
    if (now.state != SlotStateCode::kSealed || now.record == nullptr) continue;
    if (now.record->id() > durable) ++facts.unpersisted;
    facts.newest_unix_ns = std::max(facts.newest_unix_ns, now.record->head.captured_unix_ns);
  }
}

}  // namespace

PeerStore::PeerStore(const RegionContext& region, std::string dir, const PeerOptions& options)
    : context_(WithShare(region, options.memory)), dir_(std::move(dir)), options_(options) {}

std::string PeerStore::JobDir(absl::string_view job) const { return absl::StrCat(dir_, "/", job); }

// ------------------------------------------------------------------------------------------------------ taking over

absl::Status PeerStore::Adopt(const ScannedJob& scanned, AdoptReport& report) {
  Job job;
  for (const ScannedPeer& peer : scanned.peers) CKPTD_RETURN_IF_ERROR(AdoptPeer(peer, scanned, job, report));
  if (job.ranks.empty() && job.untouchable.empty()) return absl::OkStatus();
  Heard(job);
  for (const auto& [key, rank] : job.ranks) {
    job.marks.attempt = std::max(job.marks.attempt, rank->HighestAttempt());
    job.durable = std::max(job.durable, rank->NewestDurable());
  }
  jobs_[scanned.job] = std::move(job);
  return absl::OkStatus();
}

absl::Status PeerStore::AdoptPeer(const ScannedPeer& scanned, const ScannedJob& of, Job& job, AdoptReport& report) {
  const ScannedRank& held = scanned.held;
  report.notes.insert(report.notes.end(), held.problems.begin(), held.problems.end());
  if (held.newer) {
    job.untouchable.insert(scanned.key);
    report.untouched.push_back(held.dir);
    return absl::OkStatus();
  }
  RemoveFiles(held.debris, report);
  if (held.layouts.empty()) {
    absl::Status removed = context_.files.Rmdir(held.dir);
    if (!removed.ok()) report.notes.push_back(std::string(removed.message()));
    return absl::OkStatus();
  }
  CKPTD_ASSIGN_OR_RETURN(auto rank, PeerRank::Open(context_, of.job, of.dir, scanned.key));
  for (const ScannedLayout& layout : held.layouts)
    CKPTD_RETURN_IF_ERROR(rank->region().AdoptLayout(layout, report.notes));
  job.uid = held.layouts.front().head.block.uid;
  job.ranks[scanned.key] = std::move(rank);
  return absl::OkStatus();
}

void PeerStore::RemoveFiles(const std::vector<std::string>& debris, AdoptReport& report) {
  for (const std::string& path : debris) {
    absl::Status removed = context_.files.Unlink(path);
    report.notes.push_back(removed.ok() ? absl::StrCat(path, ": removed, nothing refers to it")
                                        : std::string(removed.message()));
  }
}

// ---------------------------------------------------------------------------------------------------------- finding

PeerStore::Job* PeerStore::FindJob(absl::string_view job) {
  auto found = jobs_.find(job);
  return found == jobs_.end() ? nullptr : &found->second;
}

absl::StatusOr<PeerRank*> PeerStore::Find(absl::string_view job, const PeerKey& key) {
  if (Job* known = FindJob(job)) {
    auto found = known->ranks.find(key);
    if (found != known->ranks.end()) return found->second.get();
  }
  return Error(ErrorCode::NOT_FOUND, absl::StrCat("job ", job, " ", ToString(key), ": nothing of it is held here"));
}

absl::Status PeerStore::CheckMayHold(const PeerSpec& spec) {
  CKPTD_RETURN_IF_ERROR(CheckJobName(spec.layout.job));
  if (spec.layout.rank >= kMaxRanks)
    return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat(NameOf(spec), ": numbers end below ", kMaxRanks));
  const Job* job = FindJob(spec.layout.job);
  if (untouchable_.contains(spec.layout.job) || (job != nullptr && job->untouchable.contains(spec.key())))
    return Error(ErrorCode::NEWER_VERSION, absl::StrCat(NameOf(spec), ": written by a newer agent"));
  if (job == nullptr || job->ranks.empty() || job->uid == spec.layout.uid) return absl::OkStatus();
  return Error(ErrorCode::JOB_OWNED,
               absl::StrCat(NameOf(spec), ": is uid ", spec.layout.uid, "'s, copies here are uid ", job->uid, "'s"));
}

// The name may stand there already for something else, such as a link to elsewhere.
absl::Status PeerStore::MakeDirectory(const std::string& parent, const std::string& name) {
  const std::string path = absl::StrCat(parent, "/", name);
  absl::Status made = context_.files.Mkdir(path, 0700);
  if (!absl::IsAlreadyExists(made)) return made;
  CKPTD_ASSIGN_OR_RETURN(std::vector<DirEntry> entries, context_.files.ReadDir(parent, kMaxNames));
  for (const DirEntry& entry : entries)
    if (entry.name == name && entry.type == FileType::kDirectory) return absl::OkStatus();
  return Error(ErrorCode::REFUSED, absl::StrCat(path, ": is no directory of this agent; move it away"));
}

absl::StatusOr<PeerRank*> PeerStore::FindOrMake(const PeerSpec& spec) {
  Job& job = jobs_[spec.layout.job];
  Heard(job);
  std::unique_ptr<PeerRank>& rank = job.ranks[spec.key()];
  if (rank != nullptr) return rank.get();
  absl::Status made = MakeDirectory(dir_, spec.layout.job);
  if (made.ok()) made = MakeDirectory(JobDir(spec.layout.job), PeerDirName(spec.key()));
  if (made.ok()) {
    auto opened = PeerRank::Open(context_, spec.layout.job, JobDir(spec.layout.job), spec.key());
    if (opened.ok()) {
      job.uid = spec.layout.uid;
      return (rank = *std::move(opened)).get();
    }
    made = opened.status();
  }
  job.ranks.erase(spec.key());
  if (job.ranks.empty() && job.untouchable.empty()) jobs_.erase(spec.layout.job);
  return made;
}

bool PeerStore::Holds(absl::string_view job) const { return jobs_.find(job) != jobs_.end(); }

// ------------------------------------------------------------------------------------------------------------ marks

// An attempt that nobody here had heard of shuts the ones before it out, also after a restart of the agent.
void PeerStore::Raise(Job& job) {
  for (const auto& [key, rank] : job.ranks) rank->SetFence(job.marks.attempt);
}

absl::Status PeerStore::Tell(absl::string_view name, const PeerMarks& marks) {
  Job* job = FindJob(name);
  if (job == nullptr) return absl::OkStatus();
  Heard(*job);
  const AttemptId before = job->marks.attempt;
  if (absl::Status news = Advance(job->marks, marks); !news.ok())
    return Error(ErrorCode::FENCED, absl::StrCat("job ", name, ": ", news.message()));
  if (job->marks.attempt != before) Raise(*job);
  return absl::OkStatus();
}

PeerMarks PeerStore::MarksOf(absl::string_view job) const {
  const auto known = jobs_.find(job);
  return known == jobs_.end() ? PeerMarks() : known->second.marks;
}

void PeerStore::MarkDurable(absl::string_view name, const SnapshotId& id) {
  Job* job = FindJob(name);
  if (job == nullptr) return;
  job->durable = std::max(job->durable, id);
  for (const auto& [key, rank] : job->ranks) rank->MarkDurable(id);
}

// ----------------------------------------------------------------------------------------------------------- memory

bool PeerStore::Ready(const PeerSpec& spec) const {
  auto job = jobs_.find(spec.layout.job);
  if (job == jobs_.end()) return false;
  auto rank = job->second.ranks.find(spec.key());
  return rank != job->second.ranks.end() && rank->second->region().FindSame(Normalised(spec)) != nullptr;
}

absl::StatusOr<std::unique_ptr<PeerBuild>> PeerStore::StartLayout(const PeerSpec& spec, Preparation preparation,
                                                                  Executor& executor, SlotBuild::Done done) {
  CKPTD_RETURN_IF_ERROR(CheckMayHold(spec));
  // Before anything is made: a layout that breaks a limit leaves no trace.
  CKPTD_RETURN_IF_ERROR(MakeCtlHead(Normalised(spec), context_.region_id, 1, 0).status());
  if (Ready(spec)) return Error(ErrorCode::REFUSED, absl::StrCat(NameOf(spec), ": memory for this layout is ready"));
  auto build = Build(spec, preparation, executor, std::move(done));
  Sweep();
  return build;
}

absl::StatusOr<std::unique_ptr<PeerBuild>> PeerStore::Build(const PeerSpec& spec, Preparation preparation,
                                                            Executor& executor, SlotBuild::Done done) {
  CKPTD_ASSIGN_OR_RETURN(PeerRank * rank, FindOrMake(spec));
  if (rank->building() != nullptr)
    return Error(ErrorCode::LAYOUT_PREPARING, absl::StrCat(NameOf(spec), ": memory for a layout is being prepared"));
  CKPTD_RETURN_IF_ERROR(MakeRoom(spec, *rank));
  std::unique_ptr<PeerBuild> build(new PeerBuild());
  build->job_ = spec.layout.job;
  build->key_ = spec.key();
  build->token_ = rank->StartBuilding();
  CKPTD_ASSIGN_OR_RETURN(build->build_,
                         rank->region().StartLayout(Normalised(spec), preparation, executor, std::move(done)));
  return build;
}

// What a refused or dropped layout left behind: a directory with nothing in it. One that a worker still has a file in
// goes the next time.
void PeerStore::Sweep() {
  std::vector<std::pair<std::string, PeerKey>> empty;
  for (const auto& [name, job] : jobs_)
    for (const auto& [key, rank] : job.ranks)
      if (rank->region().layouts().empty() && rank->building() == nullptr) empty.emplace_back(name, key);
  for (const auto& [name, key] : empty) (void)Remove(name, key);
}

absl::Status PeerStore::MakeRoom(const PeerSpec& spec, PeerRank& rank) {
  const LayoutSpec layout = Normalised(spec);
  CKPTD_ASSIGN_OR_RETURN(LayoutPlan plan, rank.region().PlanLayout(layout));
  if (plan.need > plan.soon()) {
    CKPTD_RETURN_IF_ERROR(rank.Trim(0, FindJob(spec.layout.job)->marks));
    CKPTD_ASSIGN_OR_RETURN(plan, rank.region().PlanLayout(layout));
  }
  if (plan.need > plan.soon()) {
    CKPTD_RETURN_IF_ERROR(ReclaimEnded(spec, plan));
    CKPTD_ASSIGN_OR_RETURN(plan, rank.region().PlanLayout(layout));
  }
  if (plan.fit != LayoutFit::kFitsOnceFreed) return absl::OkStatus();
  return Error(ErrorCode::LAYOUT_PREPARING, absl::StrCat(NameOf(spec), ": memory for it is being freed"));
}

absl::Status PeerStore::ReclaimEnded(const PeerSpec& spec, const LayoutPlan& plan) {
  const uint64_t left = plan.soon();
  std::vector<JobFacts> facts = Facts();
  std::erase_if(facts, [&](const JobFacts& job) { return job.job == spec.layout.job; });
  auto ended = PlanReclaim(std::move(facts), {.bytes = plan.need - left});
  if (!ended.ok())
    return Error(plan.quota_soon < plan.free_soon ? ErrorCode::QUOTA_EXCEEDED : ErrorCode::REGION_FULL,
                 absl::StrCat(NameOf(spec), ": two slots need ", FormatBytes(plan.need), "; peers.memory is ",
                              FormatBytes(options_.memory), ", ", FormatBytes(Usage().held), " of it held, ",
                              FormatBytes(left), " left with region.size and the tmpfs: ", ended.status().message()));
  for (const std::string& name : *ended) CKPTD_RETURN_IF_ERROR(RemoveJob(name));
  return absl::OkStatus();
}

bool PeerStore::IsOver(const Job& job, const PeerRank& rank) {
  if (job.marks.floor == 0 || rank.held() || rank.building() != nullptr) return false;
  const std::vector<SnapshotId> complete = rank.CompleteCopies();
  return std::all_of(complete.begin(), complete.end(),
                     [&](const SnapshotId& id) { return region::IsOver(id, job.marks, job.durable); });
}

bool PeerStore::GiveUpAllBut(const std::string& name, const std::set<PeerKey>& wanted) {
  const Job* job = FindJob(name);
  if (job == nullptr) return false;
  std::vector<PeerKey> over;
  for (const auto& [key, rank] : job->ranks)
    if (wanted.count(key) == 0 && IsOver(*job, *rank)) over.push_back(key);
  return std::count_if(over.begin(), over.end(), [&](const PeerKey& key) { return Remove(name, key).ok(); }) != 0;
}

bool PeerStore::GiveUpOlder(const PeerSpec& spec) {
  const auto rank = Find(spec.layout.job, spec.key());
  if (!rank.ok() || Ready(spec) || (*rank)->building() != nullptr) return false;
  const Job& job = *FindJob(spec.layout.job);
  const size_t before = (*rank)->CompleteCopies().size();
  const absl::Status trimmed = (*rank)->TrimOver(job.marks, job.durable);
  if (!trimmed.ok()) Log(kWarning, "region.peer.trim").Job(spec.layout.job).Error(trimmed);
  return (*rank)->CompleteCopies().size() != before;
}

bool PeerStore::IsBusy(const Job& job) {
  return !job.untouchable.empty() || std::any_of(job.ranks.begin(), job.ranks.end(), [](const auto& rank) {
    return rank.second->held() || rank.second->building() != nullptr;
  });
}

JobFacts PeerStore::FactsOf(const std::string& name, const Job& job) const {
  JobFacts facts{.job = name, .copies = true};
  facts.in_use = IsBusy(job) || context_.clock.Monotonic() - job.heard < options_.quiet;
  for (const auto& [key, rank] : job.ranks) {
    for (const auto& [number, set] : rank->region().layouts()) AddFacts(*set, job.durable, facts);
  }
  return facts;
}

std::vector<JobFacts> PeerStore::Facts() const {
  std::vector<JobFacts> facts;
  for (const auto& [name, job] : jobs_) facts.push_back(FactsOf(name, job));
  return facts;
}

PeerJob PeerStore::SummaryOf(const std::string& name, const Job& job) const {
  PeerJob out;
  out.job = name;
  out.bytes = FactsOf(name, job).bytes;
  out.attempt = job.marks.attempt;
  out.durable = job.durable;
  out.silent = context_.clock.Monotonic() - job.heard;
  out.busy = IsBusy(job);
  for (const auto& [key, rank] : job.ranks) {
    if (key.kind == PeerKind::kCopy) out.ranks.insert(key.number);
    for (const SnapshotId& id : rank->CompleteCopies()) out.newest = std::max(out.newest, id);
  }
  return out;
}

std::vector<PeerJob> PeerStore::Jobs() const {
  std::vector<PeerJob> out;
  for (const auto& [name, job] : jobs_) out.push_back(SummaryOf(name, job));
  return out;
}

absl::Status PeerStore::FinishLayout(std::unique_ptr<PeerBuild> build) {
  CKPTD_ASSIGN_OR_RETURN(PeerRank * rank, Find(build->job_, build->key_));
  CKPTD_ASSIGN_OR_RETURN(LayoutSet * set, rank->region().FinishLayout(std::move(build->build_)));
  set->SetFence(FindJob(build->job_)->marks.attempt);
  return absl::OkStatus();
}

PeerUsage PeerStore::Usage() { return {.memory = options_.memory, .held = context_.quota->used()}; }

// ---------------------------------------------------------------------------------------------------------- filling

absl::StatusOr<std::shared_ptr<PeerFill>> PeerStore::Begin(const PeerSpec& spec, const SnapshotId& id,
                                                           const PeerMarks& marks) {
  CKPTD_RETURN_IF_ERROR(CheckMayHold(spec));
  CKPTD_RETURN_IF_ERROR(Tell(spec.layout.job, marks));
  absl::StatusOr<PeerRank*> rank = Find(spec.layout.job, spec.key());
  if (!rank.ok())
    return Error(ErrorCode::LAYOUT_PREPARING,
                 absl::StrCat(NameOf(spec), ": no memory is prepared for this layout yet"));
  return (*rank)->Begin(Normalised(spec), id, FindJob(spec.layout.job)->marks);
}

absl::Status PeerStore::Complete(PeerFill& fill, const PeerSeal& seal) {
  CKPTD_ASSIGN_OR_RETURN(PeerRank * rank, Find(fill.place().job, fill.place().key));
  return rank->Complete(fill, seal, FindJob(fill.place().job)->marks);
}

// What was removed meanwhile is fenced already.
absl::Status PeerStore::Abort(PeerFill& fill) {
  absl::StatusOr<PeerRank*> rank = Find(fill.place().job, fill.place().key);
  return rank.ok() ? (*rank)->Abort(fill) : absl::OkStatus();
}

// ------------------------------------------------------------------------------------------------------ what there is

std::vector<PeerEntry> PeerStore::List() const {
  std::vector<PeerEntry> entries;
  for (const auto& [name, job] : jobs_)
    for (const auto& [key, rank] : job.ranks) rank->AddEntries(entries);
  return entries;
}

absl::StatusOr<PeerCopy> PeerStore::OpenCopy(absl::string_view job, const PeerKey& key, const SnapshotId& id,
                                             LayoutCrc of) {
  CKPTD_ASSIGN_OR_RETURN(PeerRank * rank, Find(job, key));
  return rank->OpenCopy(id, of);
}

absl::Status PeerStore::MarkVerified(absl::string_view job, const PeerKey& key, const SnapshotId& id, LayoutCrc of) {
  CKPTD_ASSIGN_OR_RETURN(PeerRank * rank, Find(job, key));
  return rank->MarkVerified(id, of);
}

absl::Status PeerStore::Quarantine(absl::string_view job, const PeerKey& key, const SnapshotId& id, LayoutCrc of) {
  CKPTD_ASSIGN_OR_RETURN(PeerRank * rank, Find(job, key));
  return rank->Quarantine(id, of);
}

// --------------------------------------------------------------------------------------------------------- deletion

absl::Status PeerStore::Delete(absl::string_view job, const PeerKey& key, const SnapshotId& id, LayoutCrc of) {
  CKPTD_ASSIGN_OR_RETURN(PeerRank * rank, Find(job, key));
  return rank->Delete(id, of);
}

absl::Status PeerStore::Remove(absl::string_view name, const PeerKey& key) {
  CKPTD_ASSIGN_OR_RETURN(PeerRank * rank, Find(name, key));
  CKPTD_RETURN_IF_ERROR(rank->Remove());
  Job& job = *FindJob(name);
  job.ranks.erase(key);
  if (!job.ranks.empty() || !job.untouchable.empty()) return absl::OkStatus();
  jobs_.erase(jobs_.find(name));
  return RemoveDirectoryIfEmpty(std::string(name));
}

absl::Status PeerStore::RemoveJob(absl::string_view name) {
  const std::string job(name);  // `name` may be a key of jobs_
  if (FindJob(job) == nullptr) return Error(ErrorCode::NOT_FOUND, absl::StrCat("job ", job, ": no copies of it here"));
  if (!FindJob(job)->untouchable.empty())
    return Error(ErrorCode::NEWER_VERSION, absl::StrCat("job ", job, ": holds copies written by a newer agent"));
  while (Holds(job)) CKPTD_RETURN_IF_ERROR(Remove(job, FindJob(job)->ranks.begin()->first));
  return absl::OkStatus();
}

// Ranks of the same job may run here: their journal is in it then.
absl::Status PeerStore::RemoveDirectoryIfEmpty(const std::string& job) {
  CKPTD_ASSIGN_OR_RETURN(std::vector<DirEntry> entries, context_.files.ReadDir(JobDir(job), kMaxNames));
  return entries.empty() ? context_.files.Rmdir(JobDir(job)) : absl::OkStatus();
}

}  // namespace ckptd::region
