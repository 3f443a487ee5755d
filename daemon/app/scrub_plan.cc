#include "daemon/app/scrub_plan.h"

#include <utility>

namespace ckptd {

void ScrubPlan::Present(const std::map<ScrubItem, Nanos>& made) {
  std::map<ScrubItem, Nanos> read;
  for (const auto& [item, when] : made) {
    auto known = read_.find(item);
    read.emplace(item, known == read_.end() ? when : known->second);
  }
  read_ = std::move(read);
}

void ScrubPlan::Read(const ScrubItem& item, Nanos now) {
  if (auto known = read_.find(item); known != read_.end()) known->second = now;
}

std::optional<ScrubItem> ScrubPlan::Next(Nanos now, const ScrubIntervals& every) const {
  const std::pair<const ScrubItem, Nanos>* longest = nullptr;
  for (const auto& entry : read_) {
    const Nanos interval = entry.first.tier == ScrubItem::Tier::kRegion ? every.region : every.storage;
    if (interval == Nanos(0) || now - entry.second < interval) continue;
    if (longest == nullptr || entry.second < longest->second) longest = &entry;
  }
  return longest == nullptr ? std::nullopt : std::optional(longest->first);
}

}  // namespace ckptd
