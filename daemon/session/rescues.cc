#include "daemon/session/rescues.h"

#include <algorithm>
#include <utility>

namespace ckptd {

const Rescues::Told* Rescues::Find(const ProcessId& process) const {
  const auto found = told_.find(process);
  return found == told_.end() ? nullptr : &found->second;
}

bool Rescues::Begin(const ProcessId& process, const std::set<std::string>& jobs, bool refused, Nanos now) {
  const auto told = told_.extract(process);
  const Nanos hold = told ? told.mapped().hold : Nanos(0);
  if (refused || hold <= Nanos(0)) {
    refused_.insert(process);
    return false;
  }
  rescues_[process] = {jobs, now, now + hold, {}, false};
  return true;
}

void Rescues::Sealed(const ProcessId& process, const SnapshotId& snapshot) {
  const auto found = rescues_.find(process);
  if (found != rescues_.end()) found->second.newest = std::max(found->second.newest, snapshot);
}

std::optional<Rescues::Rescue> Rescues::End(const ProcessId& process) {
  refused_.erase(process);
  const auto ended = rescues_.extract(process);
  return ended ? std::optional(ended.mapped()) : std::nullopt;
}

std::vector<ProcessId> Rescues::TakeOverdue(Nanos now) {
  std::vector<ProcessId> overdue;
  for (auto& [process, rescue] : rescues_) {
    if (rescue.over || now < rescue.deadline) continue;
    rescue.over = true;
    overdue.push_back(process);
  }
  return overdue;
}

Rescues::Standing Rescues::Of(const ProcessId& process) const {
  if (rescues_.contains(process)) return Standing::kHeld;
  return refused_.contains(process) ? Standing::kRefused : Standing::kLives;
}

const Rescues::Rescue* Rescues::FindRescue(const ProcessId& process) const {
  const auto found = rescues_.find(process);
  return found == rescues_.end() ? nullptr : &found->second;
}

bool Rescues::Delays(const std::string& job) const {
  return std::any_of(rescues_.begin(), rescues_.end(),
                     [&](const auto& each) { return !each.second.over && each.second.jobs.contains(job); });
}

std::optional<Nanos> Rescues::deadline() const {
  std::optional<Nanos> first;
  for (const auto& [process, rescue] : rescues_) {
    if (!rescue.over && (!first || rescue.deadline < *first)) first = rescue.deadline;
  }
  return first;
}

}  // namespace ckptd
