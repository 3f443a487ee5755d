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

// What the ranks of this node know of the time before the present attempt, as long as nobody has decided that one.
struct Before {
  SnapshotId id;
  bool durable = false;
  bool stands = true;  // nobody is here who could be in restore()
};

Before BeforeDecision(const JobRunner& job) {
  Before before;
  for (const auto& [number, rank] : job.ranks()) {
    const snapshot::View view = rank->view();
    if (view.decided) continue;
    before.stands = before.stands && view.process == 0;
    if (view.newest > before.id) before.durable = view.newest_durable;
    before.id = std::max(before.id, view.newest);
  }
  return before;
}

std::string WaitingFor(const job::View& view, const Sealed* sealed, bool undecided) {
  std::string why;
  const bool here = sealed != nullptr && !sealed->unflushed.empty();
  if (undecided && !here) {
    why = "the next restore(), which commits what each node has flushed: run ckptctl drain on all nodes of the job";
  } else if (sealed == nullptr) {
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

FlushLook LookAtFlush(JobRunner& job) {
  FlushLook look;
  job::View view = job.view();
  uint32_t world = view.world_size;
  auto sealed = SealedSteps(job, &world);
  const Before before = BeforeDecision(job);
  const SnapshotId id = std::max(NewestCaptured(view, sealed, world), before.id);
  if (id.none()) return look;
  const bool undecided = id == before.id;
  look.flush.set_attempt(id.attempt);
  look.flush.set_step(id.step);
  look.flush.set_durable(IsCommitted(view, id) || (undecided && before.durable));
  if (look.flush.durable()) return look;
  const auto found = sealed.find(id);
  const Sealed* here = found == sealed.end() ? nullptr : &found->second;
  look.flush.set_waiting_for(WaitingFor(view, here, undecided));
  look.ended = undecided && before.stands && (here == nullptr || here->unflushed.empty());
  return look;
}

FlushWaits::~FlushWaits() { Close(); }

void FlushWaits::Flush(AdminCallPtr call, const v1::FlushRequest& request,
                       const AdminBackend::Done<v1::FlushResponse>& done) {
  const std::string& name = request.job();
  JobRunner* job = agent_.FindJob(name);
  if (job == nullptr)
    return done(Error(ErrorCode::NOT_FOUND, absl::StrCat("job ", name, " is not known to this agent")));
  v1::FlushResponse now = LookAtFlush(*job).flush;
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
    const FlushLook look = !durable && runner != nullptr ? LookAtFlush(*runner) : FlushLook();
    if (!durable && runner != nullptr && !last && !look.ended) return false;
    if (!durable && runner != nullptr) now.set_waiting_for(look.flush.waiting_for());
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
      FlushLook look = LookAtFlush(*job);
      all = all && (look.flush.step() == 0 || look.flush.durable() || look.ended);
      v1::DrainedJob* drained = response.add_jobs();
      drained->set_job(name);
      *drained->mutable_last() = std::move(look.flush);
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
