// Rearrange(): seats that stay are left alone. In this order: newcomers take the seats of those who left; groups that
// are too many are dissolved, the smallest first, and missing ones are founded empty; who has no seat gets one in a
// group that is too small; groups that are too large give members to those that still are. Each choice is the one that
// shares the fewest failure domains, then the first by name.
#include <algorithm>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/placement/seating.h"

namespace ckptd::placement {
namespace {

constexpr uint32_t kEmpty = std::numeric_limits<uint32_t>::max();

class Rearranger {
 public:
  Rearranger(const Scheme& scheme, const Roster& roster) : scheme_(scheme), roster_(roster) {}

  absl::Status Seat(const Placement& before) {
    std::set<std::string> seated;
    for (const auto& group : before.groups) {
      Seats& seats = groups_.emplace_back();
      for (const std::string& name : group) {
        if (!seated.insert(name).second) {
          return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat("the placement before seats member ", name, " twice"));
        }
        seats.push_back(roster_.Find(name).value_or(kEmpty));
      }
    }
    for (uint32_t seat = 0; seat < roster_.size(); ++seat) {
      if (seated.count(roster_.name(seat)) == 0) loose_.push_back(seat);
    }
    return absl::OkStatus();
  }

  std::vector<Seats> Run() {
    FillEmptySeats();
    for (Seats& group : groups_) std::erase(group, kEmpty);
    const Shape shape = ShapeOf(scheme_, roster_.size());
    while (groups_.size() > shape.groups) Dissolve();
    groups_.resize(shape.groups);
    ChooseSizes(shape);
    for (uint32_t seat : loose_) Settle(seat);
    while (MoveOne()) {
    }
    return std::move(groups_);
  }

 private:
  void FillEmptySeats() {
    for (Seats& group : groups_) {
      for (size_t p = 0; p < group.size() && !loose_.empty(); ++p) {
        if (group[p] != kEmpty) continue;
        auto cost = [&](uint32_t seat) { return CostAt(group, p, 0, seat); };
        auto best =
            std::min_element(loose_.begin(), loose_.end(), [&](uint32_t a, uint32_t b) { return cost(a) < cost(b); });
        group[p] = *best;
        loose_.erase(best);
      }
    }
  }

  void Dissolve() {
    auto smallest = groups_.begin();
    for (auto group = groups_.begin(); group != groups_.end(); ++group) {
      if (group->size() <= smallest->size()) smallest = group;
    }
    loose_.insert(loose_.end(), smallest->begin(), smallest->end());
    groups_.erase(smallest);
  }

  // Who is largest already stays so; among equals, who has least in common with those that need a seat.
  void ChooseSizes(const Shape& shape) {
    std::vector<std::tuple<size_t, uint64_t, size_t>> order;  // size from above, cost, index
    for (size_t i = 0; i < groups_.size(); ++i) {
      uint64_t cost = 0;
      for (uint32_t seat : loose_) cost += CostIn(groups_[i], seat);
      order.emplace_back(roster_.size() - groups_[i].size(), cost, i);
    }
    std::sort(order.begin(), order.end());
    sizes_.assign(groups_.size(), shape.base);
    for (size_t i = 0; i < shape.extra.size(); ++i) sizes_[std::get<2>(order[i])] += shape.extra[i];
  }

  void Settle(uint32_t seat) {
    size_t best = groups_.size();
    uint64_t best_cost = 0;
    for (size_t i = 0; i < groups_.size(); ++i) {
      if (groups_[i].size() >= sizes_[i]) continue;
      const uint64_t cost = CostIn(groups_[i], seat);
      if (best < groups_.size() && cost >= best_cost) continue;
      best = i;
      best_cost = cost;
    }
    Insert(groups_[best], seat);
  }

  // From a group that is too large to one that is too small. False when there is none.
  bool MoveOne() {
    std::tuple<int64_t, size_t, size_t, size_t> best{std::numeric_limits<int64_t>::max(), 0, 0, 0};
    for (size_t from = 0; from < groups_.size(); ++from) {
      if (groups_[from].size() <= sizes_[from]) continue;
      for (size_t to = 0; to < groups_.size(); ++to) {
        if (groups_[to].size() < sizes_[to]) FindMove(from, to, &best);
      }
    }
    const auto& [cost, from, to, position] = best;
    if (from == to) return false;
    const uint32_t seat = groups_[from][position];
    groups_[from].erase(groups_[from].begin() + static_cast<ptrdiff_t>(position));
    Insert(groups_[to], seat);
    return true;
  }

  void FindMove(size_t from, size_t to, std::tuple<int64_t, size_t, size_t, size_t>* best) const {
    for (size_t p = 0; p < groups_[from].size(); ++p) {
      const uint32_t seat = groups_[from][p];
      const auto cost =
          static_cast<int64_t>(CostIn(groups_[to], seat)) - static_cast<int64_t>(CostIn(groups_[from], seat));
      *best = std::min(*best, std::make_tuple(cost, from, to, p));
    }
  }

  // At the end, or in a ring where it shares least with its neighbours: any place breaks up as many copies.
  void Insert(Seats& group, uint32_t seat) const {
    size_t best = group.size();
    if (scheme_.is_copies() && group.size() >= scheme_.copies) {
      uint64_t best_cost = CostAt(group, best, 1, seat);
      for (size_t p = 0; p < group.size(); ++p) {
        const uint64_t cost = CostAt(group, p, 1, seat);
        if (cost >= best_cost) continue;
        best = p;
        best_cost = cost;
      }
    }
    group.insert(group.begin() + static_cast<ptrdiff_t>(best), seat);
  }

  // What `seat` shares with all others of the group.
  [[nodiscard]] uint64_t CostIn(const Seats& group, uint32_t seat) const {
    uint64_t cost = 0;
    for (uint32_t other : group) cost += other == kEmpty || other == seat ? 0 : roster_.SharedCost(other, seat);
    return cost;
  }

  // What it shares with those whose copies meet its own, once for each holder set, at position p of the ring (between =
  // 0), or between p - 1 and p (between = 1).
  [[nodiscard]] uint64_t CostAt(const Seats& ring, size_t p, size_t between, uint32_t seat) const {
    if (!scheme_.is_copies()) return CostIn(ring, seat);
    uint64_t cost = 0;
    const size_t length = ring.size();
    for (size_t d = 1; d < scheme_.copies; ++d) {
      for (size_t at : {p + scheme_.copies * length - d, p + d - between}) {
        const uint32_t other = ring[at % length];
        if (other != kEmpty && other != seat) cost += (scheme_.copies - d) * roster_.SharedCost(other, seat);
      }
    }
    return cost;
  }

  const Scheme scheme_;
  const Roster& roster_;
  std::vector<Seats> groups_;
  std::vector<size_t> sizes_;  // that they are to have
  Seats loose_;                // without a seat
};

}  // namespace

absl::StatusOr<Placement> Rearrange(const Placement& before, const std::vector<Member>& members) {
  CKPTD_ASSIGN_OR_RETURN(Roster roster, Roster::Make(members));
  CKPTD_RETURN_IF_ERROR(CheckScheme(before.scheme, roster.size()));
  Rearranger rearranger(before.scheme, roster);
  CKPTD_RETURN_IF_ERROR(rearranger.Seat(before));
  return ToPlacement(before.scheme, roster, rearranger.Run());
}

}  // namespace ckptd::placement
