// Place(): a placement from nothing but the members.
#include <algorithm>
#include <numeric>

#include "daemon/base/status_macros.h"
#include "daemon/placement/seating.h"

namespace ckptd::placement {
namespace {

// Groups of `copies`, and the ring of what Algorithm 1 leaves over.
std::vector<Seats> Algorithm1(const Roster& roster, const Seats& order, size_t copies) {
  const size_t groups = order.size() / copies;
  const size_t over = order.size() % copies;
  if (over == 0) return Deal(order, groups);
  if (groups == 1) return {ArrangeRing(roster, order, copies)};
  const Seats ring = ChooseRing(roster, order, copies + over, groups - 1);
  Seats rest = order;
  std::erase_if(rest, [&](uint32_t seat) { return std::find(ring.begin(), ring.end(), seat) != ring.end(); });
  std::vector<Seats> out = Deal(rest, groups - 1);
  out.push_back(ArrangeRing(roster, DealingOrder(roster, ring), copies));
  return out;
}

std::vector<Seats> PlaceAll(const Scheme& scheme, const Roster& roster) {
  Seats all(roster.size());
  std::iota(all.begin(), all.end(), 0);
  const Seats order = DealingOrder(roster, all);
  switch (scheme.kind) {
    case Kind::kNone:
      return Deal(order, order.size());
    case Kind::kRing:
      return {ArrangeRing(roster, order, scheme.copies)};
    case Kind::kGroup:
    case Kind::kMixed:
      return Algorithm1(roster, order, scheme.copies);
    case Kind::kXor:
    case Kind::kReedSolomon:
      return Deal(order, ShapeOf(scheme, order.size()).groups);
  }
  return {};
}

}  // namespace

Shape ShapeOf(const Scheme& scheme, size_t members) {
  if (scheme.kind == Kind::kRing) return {1, members, {}};
  if (scheme.kind == Kind::kNone) return {members, 1, {}};
  Shape shape{members / scheme.width(), scheme.width(), {}};
  if (scheme.is_code()) {
    shape.base = members / shape.groups;
    shape.extra.assign(members % shape.groups, 1);
  } else if (members % scheme.copies != 0) {
    shape.extra.push_back(members % scheme.copies);
  }
  return shape;
}

Placement ToPlacement(const Scheme& scheme, const Roster& roster, const std::vector<Seats>& groups) {
  Placement out{scheme, {}};
  for (const Seats& seats : groups) {
    auto& names = out.groups.emplace_back();
    for (uint32_t seat : seats) names.push_back(roster.name(seat));
  }
  return out;
}

absl::StatusOr<Placement> Place(const Scheme& scheme, const std::vector<Member>& members) {
  CKPTD_ASSIGN_OR_RETURN(Roster roster, Roster::Make(members));
  CKPTD_RETURN_IF_ERROR(CheckScheme(scheme, roster.size()));
  return ToPlacement(scheme, roster, PlaceAll(scheme, roster));
}

}  // namespace ckptd::placement
