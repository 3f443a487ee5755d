// Members for tests, and random memberships from a seed.
#ifndef CKPTD_DAEMON_PLACEMENT_PLACEMENT_TEST_UTIL_H_
#define CKPTD_DAEMON_PLACEMENT_PLACEMENT_TEST_UTIL_H_

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/placement/placement.h"

namespace ckptd::placement {

// "n000", "n001", ...: `per_rack` in a rack, 0 = no labels.
inline std::vector<Member> Nodes(size_t count, size_t per_rack = 0) {
  std::vector<Member> out;
  for (size_t i = 0; i < count; ++i) {
    Member& member = out.emplace_back();
    member.name = absl::StrCat("n", absl::Dec(i, absl::kZeroPad5));
    if (per_rack != 0) member.rack = absl::StrCat("r", i / per_rack);
  }
  return out;
}

inline Scheme Mixed(uint32_t copies) { return Scheme::Copies(Kind::kMixed, copies); }

inline Placement MustPlace(const Scheme& scheme, size_t nodes) { return *Place(scheme, Nodes(nodes)); }

using Engine = std::mt19937;
inline size_t Draw(Engine& engine, size_t from, size_t to) {  // both included
  return from + engine() % (to - from + 1);
}

inline Member RandomMember(Engine& engine, size_t number) {
  Member member;
  member.name = absl::StrCat("m", engine() % 1000, "-", number);
  if (engine() % 8 != 0) member.zone = absl::StrCat("z", engine() % 3);
  if (engine() % 8 != 0) member.rack = absl::StrCat("r", engine() % 6);
  if (engine() % 4 == 0) member.host = absl::StrCat("h", engine() % 8);
  return member;
}

// Of `scheme`, `most` at most, enough of them, and as many as its groups divide where it wants that.
inline std::vector<Member> RandomMembers(Engine& engine, const Scheme& scheme, size_t most) {
  size_t count = Draw(engine, scheme.width(), std::max<size_t>(most, scheme.width()));
  if (scheme.kind == Kind::kGroup) count -= count % scheme.copies;
  std::vector<Member> out;
  for (size_t i = 0; i < count; ++i) out.push_back(RandomMember(engine, i));
  return out;
}

inline Scheme RandomScheme(Engine& engine) {
  const auto copies = static_cast<uint32_t>(Draw(engine, 2, 5));
  switch (engine() % 6) {
    case 0:
      return {};
    case 1:
      return Scheme::Copies(Kind::kGroup, copies);
    case 2:
      return Scheme::Copies(Kind::kRing, copies);
    case 3:
      return Scheme::Copies(Kind::kMixed, copies);
    case 4:
      return Scheme::Xor(static_cast<uint32_t>(Draw(engine, 1, 7)));
    default:
      return Scheme::ReedSolomon(static_cast<uint32_t>(Draw(engine, 1, 6)), static_cast<uint32_t>(Draw(engine, 1, 3)));
  }
}

inline std::vector<size_t> Sizes(const Placement& placement) {
  std::vector<size_t> out;
  for (const auto& group : placement.groups) out.push_back(group.size());
  return out;
}

}  // namespace ckptd::placement

#endif  // CKPTD_DAEMON_PLACEMENT_PLACEMENT_TEST_UTIL_H_
