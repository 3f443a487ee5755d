#include "daemon/app/scrub_plan.h"

#include <algorithm>
#include <utility>

namespace ckptd {

void ScrubPlan::Present(const std::map<ScrubItem, Nanos>& made, const std::set<std::string>& unlisted) {
  std::map<ScrubItem, Last> last;
  for (const auto& [item, when] : last_) {
    if (item.tier == ScrubItem::Tier::kStorage && unlisted.count(item.job) != 0) last.emplace(item, when);
  }
  for (const auto& [item, when] : made) {
    auto known = last_.find(item);
    last.emplace(item, known == last_.end() ? Last{when} : known->second);
  }
  last_ = std::move(last);
}

void ScrubPlan::Read(const ScrubItem& item, Nanos now) {
  if (auto known = last_.find(item); known != last_.end()) known->second = {now};
}

void ScrubPlan::FoundBad(const ScrubItem& item, Nanos now) {
  if (auto known = last_.find(item); known != last_.end()) known->second = {now, true};
}

std::optional<ScrubItem> ScrubPlan::Next(Nanos now, const ScrubIntervals& every) const {
  const std::pair<const ScrubItem, Last>* longest = nullptr;
  for (const auto& entry : last_) {
    Nanos interval = entry.first.tier == ScrubItem::Tier::kRegion ? every.region : every.storage;
    if (interval == Nanos(0)) continue;
    if (entry.second.bad) interval = std::min(interval, kBadAgain);
    if (now - entry.second.when < interval) continue;
    if (longest == nullptr || entry.second.when < longest->second.when) longest = &entry;
  }
  return longest == nullptr ? std::nullopt : std::optional(longest->first);
}

}  // namespace ckptd
