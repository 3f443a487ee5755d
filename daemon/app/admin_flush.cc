#include "daemon/app/admin_flush.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ckptd {
namespace {

constexpr Nanos kTick = std::chrono::milliseconds(50);
constexpr Nanos kLongest = std::chrono::hours(1);
constexpr Nanos kReserve = std::chrono::milliseconds(500);  // to answer before the client gives up

// Ranks of this node that have sealed each snapshot, and which of them storage holds.
struct Sealed {
  std::set<Rank> ranks;
  std::vector<Rank> unflushed;
};

std::map<SnapshotId, Sealed> SealedSteps(JobRunner& job, uint32_t* world) {
  std::map<SnapshotId, Sealed> out;
  for (const auto& [number, rank] : job.ranks()) {
    for (const snapshot::SlotView& slot : rank->view().slots) {
      if (slot.state != SlotStateCode::kSealed) continue;
      Sealed& sealed = out[slot.snapshot];
      sealed.ranks.insert(number);
      if (!slot.persisted) sealed.unflushed.push_back(number);
      const region::LayoutSet* set = rank->region().FindLayout(slot.id.layout);
      if (set != nullptr) *world = set->head().block.world;
    }
  }
  return out;
}

// The watermark; after a restart of the agent, before anybody told it, what memory holds whole.
SnapshotId NewestCaptured(const job::View& view, const std::map<SnapshotId, Sealed>& sealed, uint32_t world) {
  SnapshotId newest = view.watermark;
  for (const auto& [id, step] : sealed) {
    if (world != 0 && step.ranks.size() == world && id > newest && (view.seen == 0 || id.attempt <= view.seen))
      newest = id;
  }
  return newest;
}

std::string WaitingFor(const job::View& view, const Sealed* sealed) {
  std::string why;
  if (sealed == nullptr) {
    why = "ranks on other nodes";
  } else if (sealed->unflushed.empty()) {
    why = view.phase == job::Phase::kRun ? "the commit" : "the commit, which the coordinator of the job makes";
  } else {
    why = absl::StrCat("the flush of rank ", absl::StrJoin(sealed->unflushed, ", "));
  }
  if (!view.last_error.empty()) absl::StrAppend(&why, "; last error: ", view.last_error);
  return why;
}

}  // namespace

bool IsCommitted(const job::View& view, const SnapshotId& id) {
  const bool began_with = view.durable.attempt == view.seen && view.parent.attempt == id.attempt && view.parent >= id;
  if (view.durable >= id && (view.durable.attempt == id.attempt || began_with)) return true;
  return std::any_of(view.stored.begin(), view.stored.end(),
                     [&](const job::StoredStep& step) { return step.id == id && step.committed; });
}

v1::FlushResponse LookAtFlush(JobRunner& job) {
  v1::FlushResponse response;
  job::View view = job.view();
  uint32_t world = view.world_size;
  auto sealed = SealedSteps(job, &world);
  SnapshotId id = NewestCaptured(view, sealed, world);
  if (id.none()) return response;
  response.set_attempt(id.attempt);
  response.set_step(id.step);
  response.set_durable(IsCommitted(view, id));
  auto here = sealed.find(id);
  if (!response.durable()) response.set_waiting_for(WaitingFor(view, here == sealed.end() ? nullptr : &here->second));
  return response;
}

FlushWaits::~FlushWaits() { Close(); }

void FlushWaits::Flush(AdminCallPtr call, const v1::FlushRequest& request,
                       const AdminBackend::Done<v1::FlushResponse>& done) {
  const std::string& name = request.job();
  JobRunner* job = agent_.FindJob(name);
  if (job == nullptr)
    return done(Error(ErrorCode::NOT_FOUND, absl::StrCat("job ", name, " is not known to this agent")));
  v1::FlushResponse now = LookAtFlush(*job);
  if (now.step() == 0) {
    return done(Error(ErrorCode::NOT_FOUND, absl::StrCat("job ", name, ": nothing is captured yet")));
  }
  if (!now.durable()) job->FlushNewest();
  if (now.durable() || !request.wait()) return done(std::move(now));
  // The step that was the newest when it was asked; newer ones may come for ever.
  SnapshotId wanted{now.attempt(), now.step()};
  Add(std::move(call), [this, name, wanted, now, done](bool last) mutable {
    JobRunner* runner = agent_.FindJob(name);
    const bool durable = runner != nullptr && IsCommitted(runner->view(), wanted);
    if (!durable && runner != nullptr && !last) return false;
    if (!durable && runner != nullptr) now.set_waiting_for(LookAtFlush(*runner).waiting_for());
    now.set_durable(durable);
    if (durable) now.clear_waiting_for();
    done(now);
    return true;
  });
}

void FlushWaits::Drain(AdminCallPtr call, const AdminBackend::Done<v1::DrainResponse>& done) {
  agent_.SetDraining(true);
  Add(std::move(call), [this, done](bool last) {
    v1::DrainResponse response;
    bool all = !agent_.flushing();
    for (const auto& [name, job] : agent_.jobs()) {
      v1::FlushResponse flush = LookAtFlush(*job);
      all = all && (flush.step() == 0 || flush.durable());
      v1::DrainedJob* drained = response.add_jobs();
      drained->set_job(name);
      *drained->mutable_last() = std::move(flush);
    }
    if (all || last) done(std::move(response));
    return all || last;
  });
}

void FlushWaits::Add(AdminCallPtr call, Look look) {
  if (look(false)) return;
  const Nanos left = std::clamp(call->time_left() - kReserve, Nanos(0), kLongest);
  waits_.push_back({std::move(call), agent_.services().clock.Monotonic() + left, std::move(look)});
  if (timer_ == 0) timer_ = agent_.loop().After(kTick, [this] { Tick(); });
}

void FlushWaits::Tick() {
  timer_ = 0;
  const Nanos now = agent_.services().clock.Monotonic();
  waits_.remove_if([now](Wait& wait) { return wait.look(wait.call->cancelled() || now >= wait.until); });
  if (!waits_.empty()) timer_ = agent_.loop().After(kTick, [this] { Tick(); });
}

void FlushWaits::Close() {
  if (timer_ != 0) agent_.loop().CancelTimer(timer_);
  timer_ = 0;
  for (Wait& wait : waits_) (void)wait.look(true);
  waits_.clear();
}

}  // namespace ckptd
