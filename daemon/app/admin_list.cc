// List and Trace: what is known of the steps, without reading their bytes.
#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/app/admin_commands.h"
#include "daemon/app/admin_source.h"
#include "daemon/base/status_macros.h"
#include "daemon/recover/step_check.h"

namespace ckptd {
namespace {

constexpr size_t kListBytes = 900 << 10;  // below the limit of a message, with room for the frame
constexpr Rank kTracedRanks = 256;        // of a step; the others look the same

v1::SnapshotEntry ToEntry(const std::string& job, const CatalogStep& step) {
  v1::SnapshotEntry entry;
  entry.set_job(job);
  entry.set_attempt(step.id.attempt);
  entry.set_step(step.id.step);
  if (step.in_region()) entry.add_sources(step.rescued() ? kRescuedSource : kRegionSource);
  if (step.committed()) entry.add_sources("storage");
  entry.set_bytes(step.bytes());
  entry.set_captured(step.in_region() || step.committed());
  entry.set_protected_(step.committed());  // by storage; what copies protect, status tells
  entry.set_durable(step.committed());
  entry.set_pinned(step.stored && step.stored->pinned);
  entry.set_on_lineage(step.on_lineage);
  entry.set_deleting(step.deleting);
  entry.set_world_size(step.world);
  int64_t created = step.stored ? step.stored->created_unix_ns : 0;
  for (const RegionCopy& copy : step.copies) {
    created = std::max(created, static_cast<int64_t>(copy.record->head.captured_unix_ns));
  }
  entry.set_created_unix_ns(created);
  return entry;
}

// Without those that only storage knows when it cannot be read, which goes to `errors`.
absl::StatusOr<std::set<std::string>> JobNames(AdminContext& context, const AdminCall& call, const std::string& only,
                                               v1::ListResponse& response) {
  if (!only.empty()) return std::set<std::string>{only};
  CKPTD_ASSIGN_OR_RETURN(auto names, context.gate.Call<std::set<std::string>>([&] {
    std::set<std::string> known;
    for (const auto& [name, runner] : context.agent.jobs()) known.insert(name);
    return known;
  }));
  auto stored = StoredJobs(context, call);
  if (!stored.ok() && names.empty()) return stored.status();
  if (stored.ok()) {
    names.insert(stored->begin(), stored->end());
  } else {
    response.add_errors(WithNextStep("jobs that only storage has are left out", stored.status()));
  }
  return names;
}

v1::ListResponse Truncated(v1::ListResponse response) {
  response.set_truncated(true);
  return response;
}

// Wall clock times of one rank's save, as its record and its sidecar have them.
struct RankTimes {
  int64_t begin = 0;
  int64_t captured = 0;
  int64_t flushed = 0;
  uint64_t trace = 0;
};

RankTimes TimesOf(AdminContext& context, Nanos patience, const std::string& job, const CatalogStep& step, Rank rank) {
  RankTimes times;
  if (const RegionCopy* copy = step.CopyOf(rank)) {
    times.begin = static_cast<int64_t>(copy->record->head.begin_unix_ns);
    times.captured = static_cast<int64_t>(copy->record->head.captured_unix_ns);
    times.trace = copy->record->head.trace;
  }
  auto sidecar = context.reads.Ask<v1::Sidecar>(
      [job, id = step.id, rank, world = step.world](Store& store) { return ReadSidecar(store, job, id, rank, world); },
      patience);
  if (!sidecar.ok()) return times;  // not flushed yet, or gone: the rest still tells something
  times.captured = sidecar->captured_unix_ns();
  times.flushed = sidecar->flushed_unix_ns();
  times.trace = sidecar->trace_id();
  return times;
}

void AddEvent(v1::TraceResponse& trace, int64_t at_ns, Rank rank, const char* part, const char* name) {
  if (at_ns == 0) return;
  v1::TraceEvent* event = trace.add_events();
  event->set_at_seconds(static_cast<double>(at_ns - trace.start_unix_ns()) / 1e9);
  event->set_rank(rank);
  event->set_part(part);
  event->set_name(name);
}

}  // namespace

absl::StatusOr<v1::ListResponse> ListSteps(AdminContext& context, const AdminCall& call,
                                           const v1::ListRequest& request) {
  v1::ListResponse response;
  CKPTD_ASSIGN_OR_RETURN(auto names, JobNames(context, call, request.job(), response));
  size_t bytes = response.ByteSizeLong();
  for (const std::string& name : names) {
    if (call.cancelled()) return Error(ErrorCode::CANCELLED, "nobody waits for the list");
    auto catalog = ReadCatalog(context, call, name, nullptr);
    if (!catalog.ok() && !request.job().empty()) return catalog.status();
    if (std::string why = WhyIncomplete(name, catalog); !why.empty()) {
      bytes += why.size() + 4;
      response.add_errors(std::move(why));
    }
    if (bytes > kListBytes) return Truncated(std::move(response));
    if (!catalog.ok()) continue;  // another job's list is still worth having
    for (const CatalogStep& step : catalog->steps) {
      const bool whole = step.in_region() || step.committed();
      if (!whole || !(step.on_lineage || request.off_lineage())) continue;
      v1::SnapshotEntry entry = ToEntry(name, step);
      bytes += entry.ByteSizeLong() + 4;
      if (bytes > kListBytes) return Truncated(std::move(response));
      *response.add_snapshots() = std::move(entry);
    }
  }
  return response;
}

absl::StatusOr<v1::TraceResponse> TraceStep(AdminContext& context, const AdminCall& call,
                                            const v1::TraceRequest& request) {
  const std::string& job = request.target().job();
  CKPTD_ASSIGN_OR_RETURN(Catalog catalog, ReadCatalog(context, call, job, nullptr));
  CKPTD_ASSIGN_OR_RETURN(const CatalogStep* step, FindStep(catalog, request.target()));
  CKPTD_ASSIGN_OR_RETURN(const Nanos patience, PatienceOf(context, call));
  std::vector<RankTimes> ranks;
  for (Rank rank = 0; rank < std::min(step->world, kTracedRanks); ++rank) {
    ranks.push_back(TimesOf(context, patience, job, *step, rank));
  }
  v1::TraceResponse trace;
  trace.set_attempt(step->id.attempt);
  trace.set_step(step->id.step);
  int64_t start = INT64_MAX;
  for (const RankTimes& times : ranks) {
    for (int64_t at : {times.begin, times.captured, times.flushed}) start = at == 0 ? start : std::min(start, at);
    if (trace.trace_id() == 0) trace.set_trace_id(times.trace);
  }
  if (start == INT64_MAX)
    return Error(ErrorCode::NOT_FOUND, absl::StrCat("job ", job, ": no times of that step are kept"));
  trace.set_start_unix_ns(start);
  for (Rank rank = 0; rank < ranks.size(); ++rank) {
    AddEvent(trace, ranks[rank].begin, rank, "trainer", "save.begin");
    AddEvent(trace, ranks[rank].captured, rank, "agent", "save.captured");
    AddEvent(trace, ranks[rank].flushed, rank, "storage", "flush.done");
  }
  std::stable_sort(trace.mutable_events()->begin(), trace.mutable_events()->end(),
                   [](const auto& a, const auto& b) { return a.at_seconds() < b.at_seconds(); });
  return trace;
}

}  // namespace ckptd
