#include "daemon/session/claims.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"

namespace ckptd {

void Claims::SetOwner(const std::string& job, uint32_t uid) {
  if (jobs_.try_emplace(job, Job{uid, {}}).second) ++known_[uid].jobs;
}

void Claims::Forget(const std::string& job) {
  std::erase_if(held_, [&](const auto& held) { return held.first.first == job; });
  auto found = jobs_.find(job);
  if (found == jobs_.end()) return;
  Known& known = known_[found->second.uid];
  known.ranks -= found->second.ranks.size();
  if (--known.jobs == 0) known_.erase(found->second.uid);
  jobs_.erase(found);
}

Claims::Excess Claims::ExcessFor(const std::string& job, Rank rank, uint32_t uid) const {
  const auto of_user = known_.find(uid);
  const auto found = jobs_.find(job);
  const bool fresh_job = found == jobs_.end();
  if (of_user == known_.end() || (!fresh_job && found->second.uid != uid)) return {};
  const bool fresh_rank = fresh_job || !found->second.ranks.contains(rank);
  const Known& known = of_user->second;
  Excess excess;
  if (fresh_job && known.jobs >= kMostJobsOfUser) excess.jobs = known.jobs + 1 - kMostJobsOfUser;
  if (fresh_rank && known.ranks >= kMostRanksOfUser) excess.ranks = known.ranks + 1 - kMostRanksOfUser;
  return excess;
}

absl::Status Claims::CheckBounds(const std::string& job, Rank rank, uint32_t uid) const {
  const Excess excess = ExcessFor(job, rank, uid);
  if (excess.none()) return absl::OkStatus();
  const Known& known = known_.at(uid);
  const std::string what =
      excess.jobs != 0 ? absl::StrCat("job ", job, ": uid ", uid, " has ", known.jobs, " jobs")
                       : absl::StrCat("job ", job, " rank ", rank, ": uid ", uid, " has had ", known.ranks, " ranks");
  return Error(ErrorCode::REFUSED, absl::StrCat(what, " on this node, as many as one user may have"));
}

void Claims::VisitJobsOf(uint32_t uid, absl::FunctionRef<bool(const std::string& job, size_t ranks)> visit) const {
  for (const auto& [name, job] : jobs_) {
    if (job.uid == uid && !visit(name, job.ranks.size())) return;
  }
}

void Claims::Note(const std::string& job, Rank rank, uint32_t uid) {
  SetOwner(job, uid);
  if (jobs_[job].ranks.insert(rank).second) ++known_[uid].ranks;
}

absl::Status Claims::Claim(const std::string& job, Rank rank, const Holder& holder) {
  if (auto known = jobs_.find(job); known != jobs_.end() && known->second.uid != holder.uid) {
    return Error(ErrorCode::JOB_OWNED, absl::StrCat("job ", job, " belongs to uid ", known->second.uid,
                                                    ", this process runs as uid ", holder.uid));
  }
  CKPTD_RETURN_IF_ERROR(CheckBounds(job, rank, holder.uid));
  auto [held, fresh] = held_.try_emplace({job, rank}, holder);
  if (!fresh && (held->second.pid != holder.pid || held->second.start_time != holder.start_time)) {
    return Error(ErrorCode::RANK_TAKEN,
                 absl::StrCat("job ", job, " rank ", rank, " is held by the live process ", held->second.pid));
  }
  held->second = holder;
  Note(job, rank, holder.uid);
  return absl::OkStatus();
}

void Claims::Disconnect(SessionId session) {
  for (auto& [key, holder] : held_) {
    if (holder.session == session) holder.session = 0;
  }
}

std::vector<std::pair<std::string, Rank>> Claims::EndProcess(uint32_t pid, uint64_t start_time) {
  std::vector<std::pair<std::string, Rank>> ended;
  for (auto it = held_.begin(); it != held_.end();) {
    bool same = it->second.pid == pid && it->second.start_time == start_time;
    if (same) ended.push_back(it->first);
    it = same ? held_.erase(it) : std::next(it);
  }
  return ended;
}

bool Claims::Release(const std::string& job, Rank rank, Ticket ticket) {
  auto held = held_.find({job, rank});
  if (held == held_.end() || held->second.ticket != ticket) return false;
  held_.erase(held);
  return true;
}

bool Claims::Holds(const std::string& job) const {
  auto first = held_.lower_bound({job, 0});
  return first != held_.end() && first->first.first == job;
}

std::vector<Holder> Claims::HoldersOf(const std::string& job) const {
  std::vector<Holder> holders;
  for (auto held = held_.lower_bound({job, 0}); held != held_.end() && held->first.first == job; ++held) {
    holders.push_back(held->second);
  }
  return holders;
}

bool Claims::HoldsAny(uint32_t pid, uint64_t start_time, const std::string& but) const {
  return std::any_of(held_.begin(), held_.end(), [&](const auto& held) {
    return held.second.pid == pid && held.second.start_time == start_time && held.first.first != but;
  });
}

std::optional<Holder> Claims::Find(const std::string& job, Rank rank) const {
  auto held = held_.find({job, rank});
  if (held == held_.end()) return std::nullopt;
  return held->second;
}

SessionId Claims::SessionOf(const std::string& job, Rank rank, Ticket ticket) const {
  auto held = held_.find({job, rank});
  return held != held_.end() && held->second.ticket == ticket ? held->second.session : 0;
}

}  // namespace ckptd
