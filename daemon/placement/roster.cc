#include "daemon/placement/roster.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"

namespace ckptd::placement {
namespace {

const std::string& Label(const Member& member, Level level) {
  if (level == Level::kHost) return member.host;
  return level == Level::kRack ? member.rack : member.zone;
}

absl::Status Check(const Member& member) {
  if (member.name.empty()) return Error(ErrorCode::INVALID_ARGUMENT, "a member has no name");
  for (const std::string* text : {&member.name, &member.zone, &member.rack, &member.host}) {
    if (text->size() <= kMaxLabelBytes) continue;
    return Error(ErrorCode::INVALID_ARGUMENT,
                 absl::StrCat("member ", member.name.substr(0, 64), ": a name or label of ", text->size(),
                              " bytes; at most ", kMaxLabelBytes));
  }
  return absl::OkStatus();
}

absl::Status CheckUnique(const std::vector<Member>& sorted) {
  auto twice = std::adjacent_find(sorted.begin(), sorted.end(),
                                  [](const Member& a, const Member& b) { return a.name == b.name; });
  if (twice == sorted.end()) return absl::OkStatus();
  return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat("member ", twice->name, " is listed twice"));
}

// The domain's labels from the widest level down to `level`.
std::array<std::string, kLevels.size()> Path(const Member& member, Level level) {
  std::array<std::string, kLevels.size()> path;
  for (Level each : kLevels) {
    if (each >= level) path[static_cast<size_t>(each)] = Label(member, each);
  }
  return path;
}

}  // namespace

const char* LevelName(Level level) {
  if (level == Level::kHost) return "host";
  return level == Level::kRack ? "rack" : "zone";
}

absl::StatusOr<Roster> Roster::Make(const std::vector<Member>& members) {
  if (members.size() > kMaxMembers) {
    return Error(ErrorCode::INVALID_ARGUMENT,
                 absl::StrCat(members.size(), " members; a placement has at most ", kMaxMembers));
  }
  Roster out;
  for (const Member& member : members) CKPTD_RETURN_IF_ERROR(Check(member));
  out.members_ = members;
  std::sort(out.members_.begin(), out.members_.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  CKPTD_RETURN_IF_ERROR(CheckUnique(out.members_));
  std::erase_if(out.members_, [](const Member& member) { return !member.alive; });
  out.domains_.resize(out.members_.size());
  for (Level level : kLevels) {
    std::map<std::array<std::string, kLevels.size()>, uint32_t> known;
    for (size_t i = 0; i < out.members_.size(); ++i) {
      if (Label(out.members_[i], level).empty()) continue;
      auto [at, added] = known.try_emplace(Path(out.members_[i], level), static_cast<uint32_t>(known.size() + 1));
      out.domains_[i][static_cast<size_t>(level)] = at->second;
    }
  }
  return out;
}

std::optional<uint32_t> Roster::Find(absl::string_view name) const {
  auto found = std::lower_bound(members_.begin(), members_.end(), name,
                                [](const Member& member, absl::string_view wanted) { return member.name < wanted; });
  if (found == members_.end() || found->name != name) return std::nullopt;
  return static_cast<uint32_t>(found - members_.begin());
}

std::string Roster::DomainName(Level level, size_t index) const {
  std::string out;
  for (auto each = kLevels.rbegin(); each != kLevels.rend() && *each >= level; ++each) {
    const std::string& label = Label(members_[index], *each);
    if (!label.empty()) absl::StrAppend(&out, out.empty() ? "" : "/", label);
  }
  return out;
}

uint64_t Roster::SharedCost(size_t a, size_t b) const {
  uint64_t cost = 0;
  for (Level level : kLevels) {
    if (Domain(level, a) != 0 && Domain(level, a) == Domain(level, b)) cost += LevelWeight(level);
  }
  return cost;
}

}  // namespace ckptd::placement
