#include "daemon/placement/spread.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"

namespace ckptd::placement {
namespace {

// How many of some members stand in each domain; those whose domain is not declared are not counted.
class DomainCount {
 public:
  explicit DomainCount(const Roster& roster) : roster_(roster) {
    for (auto& level : counts_) level.resize(roster.size() + 1);
  }

  void Add(uint32_t seat) {
    for (Level level : kLevels) {
      if (roster_.Domain(level, seat) != 0) ++At(level, seat);
    }
  }
  [[nodiscard]] int64_t Of(Level level, uint32_t seat) const {
    return counts_[static_cast<size_t>(level)][roster_.Domain(level, seat)];
  }
  // The largest of the narrowest level at which two share one; 1 where nobody does.
  [[nodiscard]] size_t Largest() const {
    for (const auto& level : counts_) {
      const int64_t most = *std::max_element(level.begin(), level.end());
      if (most > 1) return static_cast<size_t>(most);
    }
    return 1;
  }

 private:
  int64_t& At(Level level, uint32_t seat) { return counts_[static_cast<size_t>(level)][roster_.Domain(level, seat)]; }

  const Roster& roster_;
  std::array<std::vector<int64_t>, kLevels.size()> counts_;
};

DomainCount CountDomains(const Roster& roster, const Seats& seats) {
  DomainCount count(roster);
  for (uint32_t seat : seats) count.Add(seat);
  return count;
}

// Pairs in shared domains that the ring gains, less those that the groups lose, when `seat` moves into the ring. c
// members dealt into g groups form the fewest pairs, and one less forms floor((c - 1) / g) pairs less.
int64_t PairsGained(const Roster& roster, const DomainCount& all, const DomainCount& ring, uint32_t seat,
                    size_t groups) {
  int64_t gained = 0;
  for (Level level : kLevels) {
    if (roster.Domain(level, seat) == 0) continue;
    const int64_t in_ring = ring.Of(level, seat);
    const int64_t others = all.Of(level, seat) - in_ring - 1;
    gained += static_cast<int64_t>(LevelWeight(level)) * (in_ring - others / static_cast<int64_t>(groups));
  }
  return gained;
}

struct Labelled {
  const Placement& placement;
  Roster roster;
  std::vector<Seats> sets;  // holder sets
};

absl::StatusOr<Labelled> Label(const Placement& placement, const std::vector<Member>& members) {
  CKPTD_ASSIGN_OR_RETURN(Roster roster, Roster::Make(members));
  std::vector<Seats> sets;
  for (const auto& names : HolderSets(placement)) {
    Seats& set = sets.emplace_back();
    for (const std::string& name : names) {
      auto seat = roster.Find(name);
      if (!seat) return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat("member ", name, " is not among the living"));
      set.push_back(*seat);
    }
  }
  return Labelled{placement, std::move(roster), std::move(sets)};
}

void FindShared(const Labelled& labelled, Level level, const Seats& set, std::vector<Shared>* out) {
  const Roster& roster = labelled.roster;
  std::map<uint32_t, Seats> by_domain;
  for (uint32_t seat : set) {
    if (roster.Domain(level, seat) != 0) by_domain[roster.Domain(level, seat)].push_back(seat);
  }
  for (const auto& [domain, inside] : by_domain) {
    if (inside.size() < 2) continue;
    Shared& shared = out->emplace_back();
    shared.level = level;
    shared.domain = roster.DomainName(level, inside[0]);
    for (uint32_t seat : set) shared.holders.push_back(roster.name(seat));
    for (uint32_t seat : inside) shared.inside.push_back(roster.name(seat));
    shared.fatal = inside.size() > labelled.placement.scheme.tolerated();
  }
}

}  // namespace

Seats DealingOrder(const Roster& roster, Seats seats) {
  const DomainCount count = CountDomains(roster, seats);
  auto key = [&](uint32_t seat) {
    std::array<int64_t, 2 * kLevels.size() + 1> out{};
    size_t at = 0;
    for (auto level = kLevels.rbegin(); level != kLevels.rend(); ++level) {
      out[at++] = -count.Of(*level, seat);
      out[at++] = roster.Domain(*level, seat);
    }
    out[at] = seat;
    return out;
  };
  std::sort(seats.begin(), seats.end(), [&](uint32_t a, uint32_t b) { return key(a) < key(b); });
  return seats;
}

std::vector<Seats> Deal(const Seats& order, size_t groups) {
  std::vector<Seats> out(groups);
  for (size_t p = 0; p < order.size(); ++p) out[p % groups].push_back(order[p]);
  return out;
}

Seats ArrangeRing(const Roster& roster, const Seats& order, size_t copies) {
  size_t columns = order.size() / copies;
  if (columns < 2)
    columns = CountDomains(roster, order).Largest();  // any two share a holder set: as far as they can be
  Seats ring;
  for (const Seats& column : Deal(order, columns)) ring.insert(ring.end(), column.begin(), column.end());
  return ring;
}

Seats ChooseRing(const Roster& roster, const Seats& order, size_t length, size_t groups) {
  const DomainCount all = CountDomains(roster, order);
  DomainCount in_ring(roster);
  Seats rest = order;
  Seats ring;
  while (ring.size() < length) {
    auto gain = [&](uint32_t seat) { return PairsGained(roster, all, in_ring, seat, groups); };
    auto best = std::min_element(rest.begin(), rest.end(), [&](uint32_t a, uint32_t b) { return gain(a) < gain(b); });
    in_ring.Add(*best);
    ring.push_back(*best);
    rest.erase(best);
  }
  return ring;
}

absl::StatusOr<std::vector<Shared>> SharedDomains(const Placement& placement, const std::vector<Member>& members) {
  CKPTD_ASSIGN_OR_RETURN(Labelled labelled, Label(placement, members));
  std::vector<Shared> out;
  for (Level level : kLevels) {
    for (const Seats& set : labelled.sets) FindShared(labelled, level, set, &out);
  }
  return out;
}

}  // namespace ckptd::placement
