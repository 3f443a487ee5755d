#include "daemon/region/region.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/failpoint.h"
#include "daemon/base/status_macros.h"
#include "daemon/os/probe.h"
#include "daemon/region/bell.h"

namespace ckptd::region {
namespace {

constexpr uint32_t kOthersBits = 077;

absl::Status MakeDirectory(Files& files, const std::string& path) {
  absl::Status made = files.Mkdir(path, 0700);
  return absl::IsAlreadyExists(made) ? absl::OkStatus() : made;
}

absl::Status CheckOurs(Files& files, const RegionOptions& options) {
  CKPTD_ASSIGN_OR_RETURN(FileInfo info, files.Stat(options.dir));
  if (info.type != FileType::kDirectory)
    return Error(ErrorCode::REFUSED, absl::StrCat(options.dir, ": is no directory"));
  if (info.uid == options.uid && (info.mode & kOthersBits) == 0) return absl::OkStatus();
  return Error(ErrorCode::REFUSED,
               absl::StrCat(options.dir, ": belongs to uid ", info.uid, " with mode ", absl::Hex(info.mode >> 6),
                            absl::Hex(info.mode >> 3 & 7), absl::Hex(info.mode & 7), "; it must be uid ", options.uid,
                            "'s alone: chown ", options.uid, " and chmod 700, or set region.dir to another folder"));
}

absl::Status WriteId(Files& files, const std::string& path) {
  const std::string text = absl::StrCat(absl::Hex(RandomId(), absl::kZeroPad16), "\n");
  CKPTD_ASSIGN_OR_RETURN(auto file, files.Open(path, {.write = true, .create = true}));
  CKPTD_RETURN_IF_ERROR(file->PWrite(0, std::as_bytes(std::span(text))));
  return file->Close();
}

// The id never changes: with another one, everything in the directory would be somebody else's.
absl::StatusOr<uint64_t> FindOrMakeId(Files& files, const std::string& dir) {
  absl::StatusOr<uint64_t> id = ReadRegionId(files, dir);
  if (id.ok() || !absl::IsNotFound(id.status())) return id;
  const std::string temporary = absl::StrCat(dir, "/", kTemporaryPrefix, "id");
  absl::Status old = files.Unlink(temporary);
  if (!old.ok() && !absl::IsNotFound(old)) return old;
  CKPTD_RETURN_IF_ERROR(WriteId(files, temporary));
  CKPTD_RETURN_IF_ERROR(files.Link(temporary, absl::StrCat(dir, "/", kRegionIdName)));
  CKPTD_RETURN_IF_ERROR(files.Unlink(temporary));
  return ReadRegionId(files, dir);
}

AdoptedLayout ReportLayout(const LayoutSet& set) {
  const Superblock& block = set.head().block;
  AdoptedLayout report{.layout = block.layout,
                       .header_crc = block.header_crc,
                       .world = block.world,
                       .slot_bytes = block.slot_bytes,
                       .slots = {}};
  for (uint32_t slot = 0; slot < set.slot_count(); ++slot) report.slots.push_back(set.Slot(slot));
  return report;
}

bool HoldsAnything(const ScannedJob& job) {
  return std::any_of(job.ranks.begin(), job.ranks.end(),
                     [](const ScannedRank& rank) { return rank.newer || !rank.layouts.empty(); });
}

void AddFacts(const LayoutSet& set, JobFacts& facts) {
  facts.bytes += set.bytes() + set.head().block.file_bytes + BellBytes(set.head());
  for (uint32_t slot = 0; slot < set.slot_count(); ++slot) {
    const SlotSnapshot& now = set.Slot(slot);
    if (now.state != SlotStateCode::kSealed) continue;
    if ((now.flags & kSlotPersisted) == 0) ++facts.unpersisted;
    facts.newest_unix_ns = std::max(facts.newest_unix_ns, now.record->head.captured_unix_ns);
  }
}

}  // namespace

// ----------------------------------------------------------------------------------------------------------- a job

absl::StatusOr<RankRegion*> JobRegion::OpenRank(Rank rank) {
  if (RankRegion* known = FindRank(rank)) return known;
  if (untouchable_.contains(rank))
    return Error(ErrorCode::NEWER_VERSION, absl::StrCat(dir_, "/", RankDirName(rank), ": written by a newer agent"));
  CKPTD_ASSIGN_OR_RETURN(auto made, RankRegion::Open(context_, dir_, rank));
  return (ranks_[rank] = std::move(made)).get();
}

RankRegion* JobRegion::FindRank(Rank rank) {
  auto found = ranks_.find(rank);
  return found == ranks_.end() ? nullptr : found->second.get();
}

JobFacts JobRegion::Facts() const {
  JobFacts facts{.job = job_};
  facts.in_use = !untouchable_.empty();
  for (const auto& [rank, region] : ranks_)
    for (const auto& [number, set] : region->layouts()) AddFacts(*set, facts);
  return facts;
}

bool JobRegion::IsEmptyOf(uint32_t uid) const {
  const JobFacts facts = Facts();
  return journal_->uid() == uid && !facts.in_use && facts.newest_unix_ns == 0;
}

// -------------------------------------------------------------------------------------------------------- the region

absl::StatusOr<std::unique_ptr<Region>> Region::Open(Files& files, const Clock& clock, const RegionOptions& options) {
  CKPTD_RETURN_IF_ERROR(MakeDirectory(files, options.dir));
  CKPTD_RETURN_IF_ERROR(CheckOurs(files, options));
  CKPTD_ASSIGN_OR_RETURN(FileLock lock, FileLock::Acquire(absl::StrCat(options.dir, "/", kRegionLockName)));
  CKPTD_ASSIGN_OR_RETURN(uint64_t id, FindOrMakeId(files, options.dir));
  std::unique_ptr<Region> region(new Region(files, options, std::move(lock)));
  region->context_.reset(
      new RegionContext{files, clock, Quota::Create(options.size_limit, options.job_quota), id, options.freeing});
  CKPTD_RETURN_IF_ERROR(region->Warn());
  CKPTD_RETURN_IF_ERROR(region->MakePeers());
  CKPTD_RETURN_IF_ERROR(region->Adopt());
  return region;
}

absl::Status Region::Warn() {
  CKPTD_ASSIGN_OR_RETURN(TmpfsFacts facts, ProbeTmpfs(options_.dir));
  huge_pages_ = facts.huge != "never";
  may_swap_ = facts.may_swap;
  if (!facts.is_tmpfs)
    warnings_.push_back(absl::StrCat(options_.dir, ": is not on a tmpfs: saves run at the speed of its disk"));
  if (options_.size_limit > facts.total)
    warnings_.push_back(absl::StrCat(options_.dir, ": region.size is above the size of its tmpfs"));
  return absl::OkStatus();
}

absl::Status Region::MakePeers() {
  uint64_t memory = options_.peers_memory;
  if (memory == 0) {
    CKPTD_ASSIGN_OR_RETURN(SpaceInfo space, files_.Space(options_.dir));
    memory = (options_.size_limit == 0 ? space.total : options_.size_limit) / 2;
  }
  peers_ = std::make_unique<PeerStore>(*context_, options_.dir, PeerOptions{.memory = memory});
  return absl::OkStatus();
}

absl::Status Region::Adopt() {
  CKPTD_ASSIGN_OR_RETURN(RegionScan scan, ScanRegion(files_, options_.dir));
  adopted_.notes = scan.problems;
  for (const ScannedJob& job : scan.jobs) CKPTD_RETURN_IF_ERROR(AdoptJob(job));
  for (const auto& [name, job] : jobs_) adopted_.jobs.push_back(Report(*job));
  return absl::OkStatus();
}

absl::Status Region::AdoptJob(const ScannedJob& scanned) {
  adopted_.notes.insert(adopted_.notes.end(), scanned.problems.begin(), scanned.problems.end());
  if (scanned.newer) {
    untouchable_.insert(scanned.job);
    peers_->LeaveAlone(scanned.job);
    adopted_.untouched.push_back(scanned.dir);
    return absl::OkStatus();
  }
  Remove(scanned.debris);
  std::unique_ptr<JobRegion> job(new JobRegion(*context_, scanned.job, scanned.dir));
  // Before the ranks: what is lost must be known to the next agent too when this one is killed while it cleans up.
  const bool known = scanned.journal_valid || HoldsAnything(scanned);
  if (known) CKPTD_RETURN_IF_ERROR(AdoptJournal(scanned, *job));
  for (const ScannedRank& rank : scanned.ranks) CKPTD_RETURN_IF_ERROR(AdoptRank(rank, *job));
  CKPTD_RETURN_IF_ERROR(peers_->Adopt(scanned, adopted_));
  if (!known) {
    if (!peers_->Holds(scanned.job)) RemoveDirectory(scanned.dir);
    return absl::OkStatus();
  }
  jobs_[scanned.job] = std::move(job);
  return absl::OkStatus();
}

absl::Status Region::AdoptJournal(const ScannedJob& scanned, JobRegion& job) {
  const JournalContent content{scanned.uid, scanned.seen, scanned.lost, scanned.marks};
  if (scanned.journal_valid) {
    CKPTD_ASSIGN_OR_RETURN(job.journal_, JobJournal::Open(files_, scanned.dir, content));
    return absl::OkStatus();
  }
  adopted_.notes.push_back(absl::StrCat(scanned.dir, ": journal made again, seen ", scanned.seen));
  CKPTD_ASSIGN_OR_RETURN(job.journal_, JobJournal::Create(files_, scanned.dir, scanned.job, id(), content));
  return absl::OkStatus();
}

absl::Status Region::AdoptRank(const ScannedRank& scanned, JobRegion& job) {
  adopted_.notes.insert(adopted_.notes.end(), scanned.problems.begin(), scanned.problems.end());
  if (scanned.newer) {
    job.untouchable_.insert(scanned.rank);
    adopted_.untouched.push_back(scanned.dir);
    return absl::OkStatus();
  }
  Remove(scanned.debris);
  CKPTD_FP("region.adopt.rank");
  if (scanned.layouts.empty()) {
    RemoveDirectory(scanned.dir);
    return absl::OkStatus();
  }
  CKPTD_ASSIGN_OR_RETURN(RankRegion * rank, job.OpenRank(scanned.rank));
  for (const ScannedLayout& layout : scanned.layouts) CKPTD_RETURN_IF_ERROR(rank->AdoptLayout(layout, adopted_.notes));
  return absl::OkStatus();
}

void Region::Remove(const std::vector<std::string>& debris) {
  for (const std::string& path : debris) {
    absl::Status removed = files_.Unlink(path);
    adopted_.notes.push_back(removed.ok() ? absl::StrCat(path, ": removed, nothing refers to it")
                                          : std::string(removed.message()));
  }
}

// Something that is not ours may be in it; that is no reason not to start.
void Region::RemoveDirectory(const std::string& dir) {
  absl::Status removed = files_.Rmdir(dir);
  if (!removed.ok()) adopted_.notes.push_back(std::string(removed.message()));
}

AdoptedJob Region::Report(const JobRegion& job) const {
  AdoptedJob report{.job = job.job_,
                    .uid = job.journal_->uid(),
                    .seen = job.journal_->seen(),
                    .lost = job.journal_->lost(),
                    .ranks = {}};
  for (const auto& [number, rank] : job.ranks_) {
    AdoptedRank& to = report.ranks.emplace_back(AdoptedRank{.rank = number, .layouts = {}});
    for (const auto& [layout, set] : rank->layouts()) to.layouts.push_back(ReportLayout(*set));
  }
  return report;
}

absl::StatusOr<JobRegion*> Region::OpenJob(absl::string_view name, uint32_t uid) {
  CKPTD_RETURN_IF_ERROR(CheckJobName(name));
  if (untouchable_.contains(std::string(name)))
    return Error(ErrorCode::NEWER_VERSION, absl::StrCat("job ", name, ": its region was written by a newer agent"));
  if (JobRegion* known = FindJob(name)) {
    if (known->journal().uid() == uid) return known;
    return Error(ErrorCode::JOB_OWNED, absl::StrCat("job ", name, ": belongs to uid ", known->journal().uid()));
  }
  const std::string dir = absl::StrCat(options_.dir, "/", name);
  CKPTD_RETURN_IF_ERROR(MakeDirectory(files_, dir));
  std::unique_ptr<JobRegion> job(new JobRegion(*context_, std::string(name), dir));
  CKPTD_ASSIGN_OR_RETURN(job->journal_, JobJournal::Create(files_, dir, name, id(), {uid, 0, 0}));
  return (jobs_[std::string(name)] = std::move(job)).get();
}

JobRegion* Region::FindJob(absl::string_view name) {
  auto found = jobs_.find(std::string(name));
  return found == jobs_.end() ? nullptr : found->second.get();
}

// The journal goes last: until then the job is known, and with it the highest attempt seen.
absl::Status Region::RemoveJob(absl::string_view name) {
  auto found = jobs_.find(std::string(name));
  if (found == jobs_.end()) return Error(ErrorCode::NOT_FOUND, absl::StrCat("job ", name, ": not in the region"));
  JobRegion& job = *found->second;
  if (!job.untouchable_.empty())
    return Error(ErrorCode::NEWER_VERSION, absl::StrCat("job ", name, ": holds a rank written by a newer agent"));
  while (!job.ranks_.empty()) {
    CKPTD_RETURN_IF_ERROR(job.ranks_.begin()->second->Remove());
    job.ranks_.erase(job.ranks_.begin());
  }
  CKPTD_RETURN_IF_ERROR(files_.Unlink(absl::StrCat(job.dir_, "/", kJournalName)));
  if (!peers_->Holds(job.job_)) CKPTD_RETURN_IF_ERROR(files_.Rmdir(job.dir_));
  jobs_.erase(found);
  return absl::OkStatus();
}

absl::StatusOr<RegionUsage> Region::Usage() {
  CKPTD_ASSIGN_OR_RETURN(SpaceInfo space, files_.Space(options_.dir));
  return RegionUsage{.total = space.total,
                     .available = space.available,
                     .held = context_->quota->used(),
                     .size_limit = options_.size_limit,
                     .job_quota = options_.job_quota,
                     .huge_pages = huge_pages_,
                     .may_swap = may_swap_};
}

}  // namespace ckptd::region
