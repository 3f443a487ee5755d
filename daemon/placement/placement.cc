#include "daemon/placement/placement.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"

namespace ckptd::placement {
namespace {

using Copies = std::set<std::pair<std::string, std::string>>;  // owner, other holder

Copies CopiesOf(const Placement& placement) {
  Copies out;
  if (!placement.scheme.is_copies()) return out;
  for (const auto& ring : placement.groups) {
    for (size_t i = 0; i < ring.size(); ++i) {
      for (size_t d = 1; d < placement.scheme.copies; ++d) out.emplace(ring[i], ring[(i + d) % ring.size()]);
    }
  }
  return out;
}

std::set<std::vector<std::string>> GroupsByName(const Placement& placement) {
  std::set<std::vector<std::string>> out;
  for (std::vector<std::string> group : placement.groups) {
    std::sort(group.begin(), group.end());
    out.insert(std::move(group));
  }
  return out;
}

// Those of `group` that `home` knows, and that most of them do not come from: the group that most come from is the one
// that this group continues.
size_t Arrived(const std::vector<std::string>& group, const std::map<std::string, size_t>& home) {
  std::map<size_t, size_t> from;
  size_t known = 0;
  size_t stayed = 0;
  for (const std::string& name : group) {
    auto found = home.find(name);
    if (found == home.end()) continue;
    ++known;
    stayed = std::max(stayed, ++from[found->second]);
  }
  return known - stayed;
}

void CompareGroups(const Placement& before, const Placement& after, Movement* moved) {
  const auto old_groups = GroupsByName(before);
  for (const auto& group : GroupsByName(after)) moved->groups += old_groups.count(group) == 0 ? 1 : 0;
  std::map<std::string, size_t> home;
  for (size_t i = 0; i < before.groups.size(); ++i) {
    for (const std::string& name : before.groups[i]) home[name] = i;
  }
  for (const auto& group : after.groups) moved->members += Arrived(group, home);
}

}  // namespace

size_t Placement::members() const {
  size_t sum = 0;
  for (const auto& group : groups) sum += group.size();
  return sum;
}

Movement MoveBetween(const Placement& before, const Placement& after) {
  Movement moved;
  const Copies old_copies = CopiesOf(before);
  for (const auto& copy : CopiesOf(after)) moved.copies += old_copies.count(copy) == 0 ? 1 : 0;
  if (after.scheme.is_code()) CompareGroups(before, after, &moved);
  return moved;
}

absl::StatusOr<Duties> DutiesOf(const Placement& placement, absl::string_view member) {
  for (size_t g = 0; g < placement.groups.size(); ++g) {
    const auto& group = placement.groups[g];
    auto at = std::find(group.begin(), group.end(), member);
    if (at == group.end()) continue;
    Duties duties{g, static_cast<size_t>(at - group.begin()), {}, {}};
    for (size_t d = 1; placement.scheme.is_copies() && d < placement.scheme.copies; ++d) {
      duties.sends.push_back(group[(duties.position + d) % group.size()]);
      duties.stores.push_back(group[(duties.position + group.size() - d) % group.size()]);
    }
    return duties;
  }
  return Error(ErrorCode::NOT_FOUND, absl::StrCat("member ", member, " has no place among ", placement.members(),
                                                  " members: it joined after this placement was made"));
}

std::vector<std::vector<std::string>> HolderSets(const Placement& placement) {
  std::vector<std::vector<std::string>> out;
  const size_t copies = placement.scheme.copies;
  for (const auto& group : placement.groups) {
    if (!placement.scheme.is_copies() || group.size() <= copies) {
      out.push_back(group);
      continue;
    }
    for (size_t i = 0; i < group.size(); ++i) {
      std::vector<std::string> holders;
      for (size_t d = 0; d < copies; ++d) holders.push_back(group[(i + d) % group.size()]);
      out.push_back(std::move(holders));
    }
  }
  return out;
}

}  // namespace ckptd::placement
