// Which jobs this agent knows: what it found in its region, what trainers name, and what it forgets.
#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/app/agent.h"
#include "daemon/app/rescuer.h"
#include "daemon/base/status_macros.h"

namespace ckptd {
namespace {

constexpr size_t kMostAbandoned = 64;

// The agent is in a group of those who hold copies for each other.
bool HoldsBy(const v1::State& state, const std::string& agent) {
  return std::any_of(state.groups().begin(), state.groups().end(), [&](const v1::HolderGroup& group) {
    return std::find(group.agents().begin(), group.agents().end(), agent) != group.agents().end();
  });
}

}  // namespace

void Agent::AdoptAll() {
  const region::AdoptReport& report = region_->adopted();
  for (const std::string& note : report.notes) Log(kWarning, "region.adopt").Field("text", note);
  for (const std::string& name : report.untouched) Log(kWarning, "region.untouched").Field("name", name);
  for (const region::AdoptedJob& adopted : report.jobs) {
    claims_.SetOwner(adopted.job, adopted.uid);
    auto runner = ObtainJob(adopted.job, adopted.uid, &adopted);
    if (!runner.ok()) Log(kError, "region.adopt").Job(adopted.job).Error(runner.status());
  }
  for (const region::PeerEntry& entry : region_->peers().List()) ObtainForCopies(entry.job, std::to_string(entry.uid));
  keeper_->VerifyAdopted();
}

// Null where the job's name is another user's here.
JobRunner* Agent::ObtainForCopies(const std::string& job, const std::string& user) {
  uint32_t uid = 0;
  if (JobRunner* known = FindJob(job)) return known;
  if (!absl::SimpleAtoi(user, &uid)) return nullptr;
  auto runner = ObtainJob(job, uid);
  if (!runner.ok()) Log(kWarning, "copy.no_job").Job(job).Error(runner.status());
  if (!runner.ok()) return nullptr;
  claims_.SetOwner(job, uid);
  return *runner;
}

absl::StatusOr<JobRunner*> Agent::ObtainJob(const std::string& job, uint32_t uid, const region::AdoptedJob* adopted) {
  if (JobRunner* known = FindJob(job)) return known;
  CKPTD_ASSIGN_OR_RETURN(region::JobRegion * memory, region_->OpenJob(job, uid));
  auto& runner = jobs_[job] = std::make_unique<JobRunner>(*services_, *memory);
  metrics_.AddJob(job);
  runner->Start(adopted);
  runner->SetDraining(draining_);
  if (job::StatePtr heard = bystander_->Take(job)) runner->Post(job::StateReceived{std::move(heard)});
  return runner.get();
}

// Of a job that has nothing here, and of which this node holds nothing, no runner is made for what others say.
void Agent::OnPeerMessage(const transport::LinkMessage& message) {
  JobRunner* job = FindJob(message.job());
  const bool holds = message.state() && (HoldsBy(*message.state(), agent_id_) || region_->peers().Holds(message.job()));
  if (job == nullptr && holds) job = ObtainForCopies(message.job(), message.state()->user());
  if (job != nullptr && message.state()) return job->Post(job::StateReceived{message.state()});
  if (job != nullptr) return job->Post(job::ReportReceived{message.report()});
  if (message.state()) links_->Send(message.state()->coordinator(), bystander_->Heard(message.state()));
}

void Agent::OnMembersChanged() {
  for (auto& [name, job] : jobs_) job->Post(job::MembersChanged{links_->members()});
}

JobRunner* Agent::FindJob(const std::string& job) {
  auto found = jobs_.find(job);
  return found == jobs_.end() ? nullptr : found->second.get();
}

bool Agent::InUse(const std::string& job) {
  const JobRunner* runner = FindJob(job);
  return claims_.Holds(job) || rescuer_->Delays(job) || (runner != nullptr && runner->busy());
}

absl::Status Agent::ForgetJob(const std::string& job) {
  if (auto found = jobs_.find(job); found != jobs_.end()) {
    found->second->Stop();
    EndCopiersOf(job);
    for (auto& [session, binding] : bindings_) {
      if (binding.job == found->second.get()) binding.job = nullptr;
    }
    std::erase_if(abandoned_, [](const auto& asking) { return *asking == 0; });
    if (auto asking = found->second->asking(); *asking != 0) abandoned_.push_back(std::move(asking));
    jobs_.erase(found);
    metrics_.ForgetJob(job);  // the runner had references into them
  }
  claims_.Forget(job);
  return region_->RemoveJob(job);
}

// The one that is asked for goes last: what memory holds of it makes this start fast. When much waits for the storage
// that jobs asked which are gone, no more of these go: a user that names job after job must not fill the queue that
// all restores stand in.
region::JobFacts Agent::FactsOf(const std::string& job, size_t ranks, const std::string& asked_for) {
  const region::JobRegion* memory = region_->FindJob(job);
  region::JobFacts facts = memory == nullptr ? region::JobFacts{.job = job} : memory->Facts();
  facts.ranks = ranks;
  const bool may_abandon = abandoned_.size() < kMostAbandoned;
  const JobRunner* runner = FindJob(job);
  facts.in_use = facts.in_use || InUse(job) || (runner != nullptr && *runner->asking() != 0 && !may_abandon);
  if (job == asked_for) facts.newest_unix_ns = UINT64_MAX;
  return facts;
}

// Jobs of the same user that nobody uses and that storage holds, as few as give room.
absl::Status Agent::MakeRoomFor(const std::string& job, Rank rank, uint32_t uid) {
  const Claims::Excess excess = claims_.ExcessFor(job, rank, uid);
  if (excess.none()) return absl::OkStatus();
  std::erase_if(abandoned_, [](const auto& asking) { return *asking == 0; });
  const region::Need need{.jobs = excess.jobs, .ranks = excess.ranks};
  region::NeverSaved never_saved(need);
  std::vector<region::JobFacts> jobs;
  claims_.VisitJobsOf(uid, [&](const std::string& name, size_t ranks) {
    return !never_saved.SufficeWith(jobs.emplace_back(FactsOf(name, ranks, job)));
  });
  auto orphans = region::PlanReclaim(std::move(jobs), need);
  if (!orphans.ok()) {
    return Error(ErrorCode::REFUSED,
                 absl::StrCat(claims_.CheckBounds(job, rank, uid).message(), ": ", orphans.status().message()));
  }
  for (const std::string& name : *orphans) {
    const region::JobRegion* memory = region_->FindJob(name);
    const bool empty = memory == nullptr || memory->IsEmptyOf(uid);
    Log(empty ? kDebug : kInfo, "job.forgotten").Job(name).Field("for", job);
    absl::Status forgotten = ForgetJob(name);
    if (!forgotten.ok() && !absl::IsNotFound(forgotten)) return forgotten;
  }
  return absl::OkStatus();
}

absl::Status Agent::Claim(SessionId session, const Peer& peer, const std::string& job, Rank rank, uint32_t world,
                          Ticket ticket) {
  Holder holder{static_cast<uint32_t>(peer.process.pid), peer.process.start_time, peer.uid, ticket, session};
  CKPTD_RETURN_IF_ERROR(server_->WatchPeer(session));
  CKPTD_RETURN_IF_ERROR(MakeRoomFor(job, rank, peer.uid));
  CKPTD_RETURN_IF_ERROR(claims_.Claim(job, rank, holder));
  auto runner = ObtainJob(job, peer.uid);
  if (!runner.ok()) {
    (void)claims_.Release(job, rank, ticket);
    return runner.status();
  }
  bindings_[session] = {*runner, rank, world, ticket, PackProcess(peer.process)};
  return absl::OkStatus();
}

}  // namespace ckptd
