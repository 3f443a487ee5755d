#include "daemon/session/copiers.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/units.h"

namespace ckptd {
namespace {

absl::Status Later(absl::string_view why, Nanos wait) {
  return Error(ErrorCode::BUSY, absl::StrCat(why, "; ask again in ", FormatDuration(wait)));
}

}  // namespace

absl::Status Copiers::MayStart(const ProcessId& process, const GpuId& gpu, Nanos now) {
  if (ended_.contains(process)) return Error(ErrorCode::BUSY, "the process that asked has ended");
  ForgetOld(process, now);
  const auto known = history_.find({process, gpu});
  if (known != history_.end()) {
    const History& history = known->second;
    if (now < history.refused_until) {
      return Later(absl::StrCat("the copier of ", ToString(gpu), " died ", kManyDeaths, " times within ",
                                FormatDuration(kDeathsWithin)),
                   history.refused_until - now);
    }
    const Nanos again = history.last_start + kBetweenStarts;
    if (now < again) return Later(absl::StrCat("a copier of ", ToString(gpu), " was started just now"), again - now);
  }
  const size_t running = CountOf(process, known == history_.end() ? 0 : known->second.wanted);
  const auto gpus = static_cast<size_t>(
      std::count_if(history_.begin(), history_.end(), [&](const auto& each) { return each.first.first == process; }));
  if (running >= kMostOfAProcess || (known == history_.end() && gpus >= kMostOfAProcess)) {
    return Later(absl::StrCat("process ", process.pid, " has ", std::max(running, gpus),
                              " copiers that run or have not ended yet, and may not have more"),
                 kDeathsWithin);
  }
  return absl::OkStatus();
}

Copiers::CopierId Copiers::Started(const ProcessId& process, const GpuId& gpu, CopierId copier, Nanos now) {
  History& history = history_[{process, gpu}];
  const CopierId before = history.wanted;
  if (before != 0) running_.at(before).wanted = false;
  history.wanted = copier;
  history.last_start = now;
  running_[copier] = {process, gpu, true};
  return before;
}

void Copiers::Orphan(const ProcessId& itself, CopierId copier) { orphans_[copier] = itself; }

void Copiers::GiveUp(CopierId copier) {
  const auto found = running_.find(copier);
  if (found == running_.end() || !found->second.wanted) return;
  found->second.wanted = false;
  history_[{found->second.process, found->second.gpu}].wanted = 0;
}

std::vector<Copiers::CopierId> Copiers::Release(const ProcessId& process) {
  std::vector<CopierId> killed;
  for (auto& [copier, running] : running_) {
    if (running.process != process || !running.wanted) continue;
    running.wanted = false;
    killed.push_back(copier);
    history_[{process, running.gpu}].wanted = 0;
  }
  return killed;
}

std::vector<Copiers::CopierId> Copiers::ProcessDied(const ProcessId& process) {
  std::vector<CopierId> killed = Release(process);
  std::erase_if(history_, [&](const auto& each) { return each.first.first == process; });
  ended_.insert(process);
  return killed;
}

bool Copiers::Ended(CopierId copier, Nanos now) {
  orphans_.erase(copier);
  const auto found = running_.find(copier);
  if (found == running_.end()) return true;
  const Running ended = found->second;
  running_.erase(found);
  if (!ended.wanted) return true;
  History& history = history_[{ended.process, ended.gpu}];
  history.wanted = 0;
  history.deaths.push_back(now);
  while (history.deaths.front() + kDeathsWithin < now) history.deaths.pop_front();
  if (history.deaths.size() < kManyDeaths) return false;
  history.refused_until = now + kRefusedAfterDeaths;
  history.deaths.clear();
  return false;
}

std::vector<ProcessId> Copiers::TakeReaped() {
  std::vector<ProcessId> reaped;
  const auto waiting_for = waiting();
  for (const ProcessId& process : ended_) {
    if (!waiting_for.contains(process)) reaped.push_back(process);
  }
  for (const ProcessId& process : reaped) ended_.erase(process);
  return reaped;
}

// A process can only have had a copier that is younger than itself.
bool Copiers::Blocks(CopierId copier, const ProcessId& process) const {
  if (const auto running = running_.find(copier); running != running_.end()) return running->second.process == process;
  return orphans_.at(copier).start_time >= process.start_time;
}

std::map<ProcessId, std::vector<Copiers::CopierId>> Copiers::waiting() const {
  std::map<ProcessId, std::vector<CopierId>> waiting;
  for (const ProcessId& process : ended_) {
    for (const auto& [copier, running] : running_) {
      if (Blocks(copier, process)) waiting[process].push_back(copier);
    }
    for (const auto& [copier, itself] : orphans_) {
      if (Blocks(copier, process)) waiting[process].push_back(copier);
    }
  }
  return waiting;
}

Copiers::CopierId Copiers::Find(const ProcessId& process, const GpuId& gpu) const {
  const auto known = history_.find({process, gpu});
  return known == history_.end() ? 0 : known->second.wanted;
}

bool Copiers::HasAny(const ProcessId& process) const {
  return std::any_of(running_.begin(), running_.end(),
                     [&](const auto& each) { return each.second.process == process && each.second.wanted; });
}

size_t Copiers::CountOf(const ProcessId& process, CopierId but) const {
  return static_cast<size_t>(std::count_if(running_.begin(), running_.end(), [&](const auto& each) {
    return each.second.process == process && each.first != but;
  }));
}

// A process that names ever new GPUs costs no more memory than its share.
void Copiers::ForgetOld(const ProcessId& process, Nanos now) {
  std::erase_if(history_, [&](const auto& each) {
    const auto& [key, history] = each;
    return key.first == process && history.wanted == 0 && now >= history.refused_until &&
           now >= history.last_start + kDeathsWithin;
  });
}

}  // namespace ckptd
