#include "daemon/app/scrubber.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/app/job_runner.h"
#include "daemon/app/storage_watch.h"
#include "daemon/base/status_macros.h"
#include "daemon/format/paths.h"
#include "daemon/persist/mend.h"
#include "daemon/recover/step_check.h"
#include "daemon/storage/step_files.h"

namespace ckptd {
namespace {

constexpr uint64_t kDefaultRate = 100 << 20;  // bytes per second: a few percent of a core
constexpr Nanos kShortestRest = std::chrono::milliseconds(100);
constexpr Nanos kLongestRest = std::chrono::minutes(10);
constexpr size_t kMaxBad = 64;  // chunks that are told of one rank of a step

using Tier = ScrubItem::Tier;

// When something was made, on the monotonic clock.
Nanos WhenMade(const Clock& clock, int64_t unix_ns) {
  return clock.Monotonic() - std::max(Nanos(0), clock.Wall() - Nanos(unix_ns));
}

std::string Last(const std::string& path) { return path.substr(path.rfind('/') + 1); }

absl::Status Told(const ScrubItem& item, const std::vector<BadChunk>& bad) {
  const BadChunk& first = bad.front();
  const std::string more = bad.size() == 1 ? "" : absl::StrCat(", and ", bad.size() - 1, " more");
  return Error(ErrorCode::CORRUPT,
               absl::StrCat("job ", item.job, ": step ", item.id.step, " is damaged on storage: ", Last(first.part),
                            " from byte ", first.offset, ": ", first.reason, more, "; it is not restored from there"));
}

struct StoredResult {
  std::vector<BadChunk> bad;
  uint64_t bytes = 0;  // read
};

// A step that is being deleted, or is gone, is not damaged.
bool StillCounts(Store& store, const ScrubItem& item) {
  auto step = ListStep(store, item.job, item.id);
  return step.ok() && step->marker == 0 && (step->committed || !step->damage.empty());
}

// An error: the storage did not answer, or Stop().
absl::StatusOr<StoredResult> ReadRank(Store& store, const ScrubItem& item, Pace& pace, uint64_t rate) {
  StoredResult result;
  CheckedReadOptions options;
  options.cancel = &pace.stopped();
  options.progress = [&](uint64_t done) { pace.Spend(done - std::exchange(result.bytes, done), rate); };
  options.on_bad = [&](const BadChunk& bad) {
    if (result.bad.size() < kMaxBad) result.bad.push_back(bad);
  };
  absl::Status status = CheckStoredRank(store, item.job, item.id, item.rank, options);
  const ErrorCode code = CodeOf(status);
  if (code == ErrorCode::CORRUPT || code == ErrorCode::NOT_FOUND) {
    result.bad.push_back({InStep(item.job, item.id, kManifestName), 0, 0, std::string(status.message())});
  } else if (!status.ok()) {
    return status;
  }
  if (!result.bad.empty() && !StillCounts(store, item)) result.bad.clear();
  return result;
}

// The steps that are read of one job: `mine` are the ranks of this agent.
absl::Status AddSteps(Store& store, const Clock& clock, const std::string& job, const std::vector<Rank>& mine,
                      std::map<ScrubItem, Nanos>* made) {
  CKPTD_ASSIGN_OR_RETURN(const JobListing listing, ListJob(store, job));
  for (const StepListing& step : listing.steps) {
    if (!step.committed || step.marker != 0 || step.newer) continue;
    for (Rank rank : mine) {
      if (rank < step.world) (*made)[{Tier::kStorage, job, step.id, rank}] = WhenMade(clock, step.created_unix_ns);
    }
  }
  return absl::OkStatus();
}

bool AllAreImages(const std::vector<BadChunk>& bad) {
  return std::all_of(bad.begin(), bad.end(), [](const BadChunk& each) {
    auto file = ParseRankFileName(Last(each.part));
    return file && !file->sidecar;
  });
}

absl::Status CheckAndMend(Store& store, const region::SlotRecord& record, const FlushSource& source,
                          const region::SlotFile& file) {
  region::Progress progress(record.slot_bytes);
  absl::Status status = region::VerifySlot(file, record, progress);
  return status.ok() ? MendImages(store, source, record.chunk_crcs) : status;
}

// The slot of `rank` that holds the snapshot whole; null when none does.
const snapshot::SlotView* FindSealed(const snapshot::View& view, const SnapshotId& id) {
  for (const snapshot::SlotView& slot : view.slots) {
    if (slot.state == SlotStateCode::kSealed && slot.snapshot == id) return &slot;
  }
  return nullptr;
}

}  // namespace

Scrubber::Scrubber(Services& services, const Jobs& jobs) : services_(services), jobs_(jobs) {
  services_.loop.After(kShortestRest, [this] { Round(); });
}

Scrubber::~Scrubber() { Stop(); }

void Scrubber::Stop() {
  stopped_ = true;
  pace_.Stop();
}

uint64_t Scrubber::rate() const {
  const uint64_t bytes = services_.config.scrub.rate.bytes;
  return bytes == 0 ? kDefaultRate : bytes;
}

RankRunner* Scrubber::FindRank(const ScrubItem& item) const {
  auto job = jobs_.find(item.job);
  return job == jobs_.end() ? nullptr : job->second->FindRank(item.rank);
}

Scrubber::Made Scrubber::SlotsHere() const {
  Made made;
  for (const auto& [name, job] : jobs_) {
    for (const auto& [number, rank] : job->ranks()) {
      for (const snapshot::SlotView& slot : rank->view().slots) {
        const region::LayoutSet* set = rank->region().FindLayout(slot.id.layout);
        if (slot.state != SlotStateCode::kSealed || set == nullptr || !set->Slot(slot.id.index).record) continue;
        const auto captured = static_cast<int64_t>(set->Slot(slot.id.index).record->head.captured_unix_ns);
        made[{Tier::kRegion, name, slot.snapshot, number}] = WhenMade(services_.clock, captured);
      }
    }
  }
  return made;
}

// What there is: slots by what the machines say, steps by what storage lists.
void Scrubber::Round() {
  if (stopped_) return;
  std::map<std::string, std::vector<Rank>> ranks;
  for (const auto& [name, job] : jobs_) {
    for (const auto& [number, rank] : job->ranks()) ranks[name].push_back(number);
  }
  auto list = [&store = services_.store, &clock = services_.clock, ranks = std::move(ranks),
               listing = Listing{SlotsHere(), {}}]() mutable -> absl::StatusOr<Listing> {
    for (const auto& [job, mine] : ranks) {
      const absl::Status status = AddSteps(store, clock, job, mine, &listing.made);
      if (!status.ok()) listing.unlisted.emplace(job, status);
    }
    return std::move(listing);
  };
  RunAsync<absl::StatusOr<Listing>>(services_.loop, worker_, std::move(list), [this](const auto& listing) {
    if (!listing.ok()) return Rest();  // the worker is busy for ever: that is told elsewhere
    Listed(*listing);
  });
}

// Of a job that was not listed, what was known before is still the best that is known.
void Scrubber::Listed(const Listing& listing) {
  std::set<std::string> unlisted;
  for (const auto& [job, why] : listing.unlisted) unlisted.insert(job);
  plan_.Present(listing.made, unlisted);
  std::erase_if(damage_, [&](const auto& entry) {
    return !listing.made.contains(entry.first) && !unlisted.contains(entry.first.job);
  });
  TellUnlisted(listing.unlisted);
  Advance();
}

// Once, and again when it is another failure: rounds come every few minutes.
void Scrubber::TellUnlisted(const std::map<std::string, absl::Status>& unlisted) {
  for (const auto& [job, why] : unlisted) {
    auto before = unlisted_.find(job);
    if (before != unlisted_.end() && before->second == why) continue;
    Log(kWarning, "scrub.not_listed").Job(job).Error(why);
  }
  unlisted_ = unlisted;
}

void Scrubber::Advance() {
  if (stopped_) return;
  const ScrubConfig& config = services_.config.scrub;
  auto next = plan_.Next(services_.clock.Monotonic(), {config.region_every, config.storage_every});
  if (!next) return Rest();
  if (next->tier == Tier::kRegion) return ReadSlot(*next);
  ReadStored(*next, Mend::kMayTry);
}

void Scrubber::Rest() {
  const ScrubConfig& config = services_.config.scrub;
  Nanos rest = kLongestRest;
  for (Nanos every : {config.region_every, config.storage_every}) {
    if (every != Nanos(0)) rest = std::min(rest, every / 8);
  }
  services_.loop.After(std::max(rest, kShortestRest), [this] { Round(); });
}

void Scrubber::Ended(const ScrubItem& item) {
  plan_.Read(item, services_.clock.Monotonic());
  services_.loop.After(Nanos(0), [this] { Advance(); });
}

// Not pinned: a save may take the slot while it is read, and then what was read says nothing. Whoever needs its memory
// does not wait for the rest.
void Scrubber::ReadSlot(const ScrubItem& item) {
  RankRunner* rank = FindRank(item);
  if (rank == nullptr) return Ended(item);
  const snapshot::View view = rank->view();
  const snapshot::SlotView* slot = FindSealed(view, item.id);
  const region::LayoutSet* set = slot == nullptr ? nullptr : rank->region().FindLayout(slot->id.layout);
  if (set == nullptr || !set->Slot(slot->id.index).record || !set->FileOf(slot->id.index)) return Ended(item);
  auto read = [this, file = set->FileOf(slot->id.index), record = set->Slot(slot->id.index).record, rate = rate()] {
    region::Progress progress(record->slot_bytes);
    return region::VerifySlot(*file, *record, progress, [&](uint64_t bytes) {
      pace_.Spend(bytes, rate);
      if (pace_.stopped() || file->unlinked()) progress.Cancel();
    });
  };
  services_.metrics.scrubbed_bytes.With({"region"})
      .Add(static_cast<double>(set->Slot(slot->id.index).record->slot_bytes));
  RunAsync<absl::Status>(services_.loop, worker_, std::move(read),
                         [this, item, id = slot->id](const absl::Status& status) { SlotRead(item, id, status); });
}

void Scrubber::SlotRead(const ScrubItem& item, const snapshot::SlotId& slot, const absl::Status& status) {
  RankRunner* rank = FindRank(item);
  if (rank != nullptr && CodeOf(status) == ErrorCode::CORRUPT) {
    const snapshot::View view = rank->view();
    const snapshot::SlotView* still = FindSealed(view, item.id);
    if (still != nullptr && still->id == slot) {
      rank->metrics().DamagedInRegion();
      Log(kError, "scrub.slot_damaged").Job(item.job).Rank(item.rank).Snapshot(item.id).Error(status);
      jobs_.at(item.job)->PostToRank(item.rank, snapshot::DamageFound{slot, item.id});
    }
  }
  Ended(item);
}

void Scrubber::ReadStored(const ScrubItem& item, Mend mend) {
  RunAsync<absl::StatusOr<StoredResult>>(
      services_.loop, worker_,
      [this, &store = services_.store, item, rate = rate()] { return ReadRank(store, item, pace_, rate); },
      [this, item, mend](const absl::StatusOr<StoredResult>& read) {
        if (!read.ok()) {
          services_.storage_watch.Answered(read.status(), /*wrote=*/false);
          return Ended(item);
        }
        services_.metrics.scrubbed_bytes.With({"storage"}).Add(static_cast<double>(read->bytes));
        StoredRead(item, read->bad, mend);
      });
}

void Scrubber::StoredRead(const ScrubItem& item, const std::vector<BadChunk>& bad, Mend mend) {
  if (bad.empty()) {
    damage_.erase(item);
    return Ended(item);
  }
  const absl::Status told = Told(item, bad);
  if (mend == Mend::kMayTry) {
    services_.metrics.verify_failures.With({"storage"}).Add();
    Log(kError, "scrub.step_damaged").Job(item.job).Rank(item.rank).Snapshot(item.id).Error(told);
    if (StartMending(item, bad)) return;
  }
  damage_[item] = told;
  Ended(item);
  plan_.FoundBad(item, services_.clock.Monotonic());
}

// False: memory does not hold it any more, or what is bad is a record, which is bound by its time too.
bool Scrubber::StartMending(const ScrubItem& item, const std::vector<BadChunk>& bad) {
  RankRunner* rank = FindRank(item);
  if (rank == nullptr || !AllAreImages(bad)) return false;
  const snapshot::View view = rank->view();
  const snapshot::SlotView* slot = FindSealed(view, item.id);
  if (slot == nullptr) return false;
  const region::LayoutSet* set = rank->region().FindLayout(slot->id.layout);
  auto source = rank->SourceOf(slot->id, item.id);
  if (!source.ok()) return false;
  auto record = set->Slot(slot->id.index).record;
  auto mend = [&store = services_.store, source = *std::move(source), record, file = set->FileOf(slot->id.index)] {
    return CheckAndMend(store, *record, source, *file);
  };
  JobRunner& job = *jobs_.at(item.job);
  job.PostToRank(item.rank, snapshot::ReadPinned{slot->id, item.id});
  RunAsync<absl::Status>(services_.loop, worker_, std::move(mend),
                         [this, item, id = slot->id, bad](const absl::Status& status) {
                           if (auto found = jobs_.find(item.job); found != jobs_.end())
                             found->second->PostToRank(item.rank, snapshot::ReadUnpinned{id, item.id});
                           if (!status.ok()) {
                             Log(kError, "scrub.not_mended").Job(item.job).Snapshot(item.id).Error(status);
                             return StoredRead(item, bad, Mend::kTried);
                           }
                           services_.metrics.mended.With({}).Add();
                           Log(kWarning, "scrub.mended").Job(item.job).Rank(item.rank).Snapshot(item.id);
                           ReadStored(item, Mend::kTried);
                         });
  return true;
}

}  // namespace ckptd
