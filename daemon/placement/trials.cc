// Survival asked set by set: enumeration, simulation, and which snapshots are gone.
#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/placement/survival.h"

namespace ckptd::placement {
namespace {

// Members numbered group by group, and which of them are lost.
class Losses {
 public:
  explicit Losses(const Placement& placement) : scheme_(placement.scheme) {
    size_t first = 0;
    for (const auto& group : placement.groups) {
      homes_.insert(homes_.end(), group.size(), {first, group.size()});
      first += group.size();
    }
    lost_.resize(homes_.size());
  }

  [[nodiscard]] size_t members() const { return homes_.size(); }
  void Set(const std::vector<size_t>& members, bool lost) {
    for (size_t member : members) lost_[member] = lost;
  }

  // Of a lost member.
  [[nodiscard]] bool Recoverable(size_t member) const {
    const Home& home = homes_[member];
    size_t gone = 0;
    if (!scheme_.is_copies()) {
      for (size_t i = 0; i < home.size; ++i) gone += lost_[home.first + i] ? 1 : 0;
      return gone <= scheme_.tolerated();
    }
    for (size_t d = 0; d < scheme_.copies; ++d) {
      gone += lost_[home.first + (member - home.first + d) % home.size] ? 1 : 0;
    }
    return gone < scheme_.copies;
  }

  // The members are lost and nobody else is.
  [[nodiscard]] bool Survives(const std::vector<size_t>& members) {
    Set(members, true);
    const bool survives = std::all_of(members.begin(), members.end(), [&](size_t each) { return Recoverable(each); });
    Set(members, false);
    return survives;
  }

 private:
  struct Home {
    size_t first;  // of the group
    size_t size;
  };
  const Scheme scheme_;
  std::vector<Home> homes_;
  std::vector<bool> lost_;
};

absl::Status CheckLost(size_t lost, size_t members) {
  if (lost <= members) return absl::OkStatus();
  return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat(lost, " losses of ", members, " members"));
}

// C(members, lost), or more than kMaxEnumerated.
uint64_t SetsOf(size_t members, size_t lost) {
  uint64_t sets = 1;
  for (size_t i = 1; i <= std::min(lost, members - lost) && sets <= kMaxEnumerated; ++i) {
    sets = sets * (members - i + 1) / i;
  }
  return sets;
}

// The next set in lexicographic order; false behind the last.
bool Next(std::vector<size_t>* set, size_t members) {
  for (size_t i = set->size(); i-- > 0;) {
    if ((*set)[i] + (set->size() - i) >= members) continue;
    std::iota(set->begin() + static_cast<ptrdiff_t>(i), set->end(), (*set)[i] + 1);
    return true;
  }
  return false;
}

// SplitMix64 (Steele, Lea, Flood 2014).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  // Fair enough: n is at most 10^4 of 2^32.
  size_t Below(size_t n) {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    z ^= z >> 31;
    return static_cast<size_t>((z >> 32) * n >> 32);
  }

 private:
  uint64_t state_;
};

}  // namespace

absl::StatusOr<std::vector<std::string>> Unrecoverable(const Placement& placement,
                                                       const std::vector<std::string>& lost) {
  std::vector<std::string> names;
  for (const auto& group : placement.groups) names.insert(names.end(), group.begin(), group.end());
  std::vector<size_t> members;
  for (const std::string& name : lost) {
    auto at = std::find(names.begin(), names.end(), name);
    if (at == names.end()) {
      return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat("member ", name, " is not in this placement"));
    }
    members.push_back(static_cast<size_t>(at - names.begin()));
  }
  std::sort(members.begin(), members.end());
  members.erase(std::unique(members.begin(), members.end()), members.end());
  Losses losses(placement);
  losses.Set(members, true);
  std::vector<std::string> out;
  for (size_t member : members) {
    if (!losses.Recoverable(member)) out.push_back(names[member]);
  }
  return out;
}

absl::StatusOr<Counted> EnumerateLosses(const Placement& placement, size_t lost) {
  Losses losses(placement);
  CKPTD_RETURN_IF_ERROR(CheckLost(lost, losses.members()));
  if (SetsOf(losses.members(), lost) > kMaxEnumerated) {
    return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat("more than ", kMaxEnumerated, " sets of ", lost, " of ",
                                                           losses.members(), " members: SurvivalOfLosses counts them"));
  }
  Counted counted;
  std::vector<size_t> set(lost);
  std::iota(set.begin(), set.end(), 0);
  do {
    ++counted.total;
    if (losses.Survives(set)) ++counted.survived;
  } while (Next(&set, losses.members()));
  return counted;
}

absl::StatusOr<Counted> SimulateLosses(const Placement& placement, size_t lost, uint64_t trials, uint64_t seed) {
  Losses losses(placement);
  CKPTD_RETURN_IF_ERROR(CheckLost(lost, losses.members()));
  Random random(seed);
  std::vector<size_t> members(losses.members());
  std::iota(members.begin(), members.end(), 0);
  std::vector<size_t> set(lost);
  Counted counted{0, trials};
  for (uint64_t trial = 0; trial < trials; ++trial) {
    for (size_t i = 0; i < lost; ++i) {  // Fisher and Yates, the first `lost` of it
      std::swap(members[i], members[i + random.Below(members.size() - i)]);
      set[i] = members[i];
    }
    if (losses.Survives(set)) ++counted.survived;
  }
  return counted;
}

}  // namespace ckptd::placement
