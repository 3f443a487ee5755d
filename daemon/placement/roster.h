// The members that a placement is made of, and where each of them stands.
//
// A failure domain is what fails as one: a host, the rack around it, the zone around that. A label is the domain's name
// within the next wider one, so rack "7" of zone "a" is not rack "7" of zone "b". A label that is empty is not
// declared: nothing is known to fail together with this member at that level.
#ifndef CKPTD_DAEMON_PLACEMENT_ROSTER_H_
#define CKPTD_DAEMON_PLACEMENT_ROSTER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ckptd::placement {

inline constexpr size_t kMaxMembers = 10'000;
inline constexpr size_t kMaxLabelBytes = 255;  // of a name or a label

// Narrowest first: what is narrower fails more often.
enum class Level : uint32_t { kHost = 0, kRack = 1, kZone = 2 };
inline constexpr std::array<Level, 3> kLevels = {Level::kHost, Level::kRack, Level::kZone};
[[nodiscard]] const char* LevelName(Level level);  // "host"

struct Member {
  std::string name;  // unique; the same for as long as the node is the same
  std::string zone{};
  std::string rack{};
  std::string host{};
  bool alive = true;  // false: gone for good as far as placement goes; it gets no copies and no group
};

// The living members by name. Their order in the list does not matter: a member's index is its place among the sorted
// names. Immutable.
class Roster {
 public:
  // INVALID_ARGUMENT naming the member: a name that is empty, too long or there twice; too many members.
  [[nodiscard]] static absl::StatusOr<Roster> Make(const std::vector<Member>& members);

  [[nodiscard]] size_t size() const { return members_.size(); }
  [[nodiscard]] const std::string& name(size_t index) const { return members_[index].name; }
  [[nodiscard]] std::optional<uint32_t> Find(absl::string_view name) const;

  // Equal for members of one domain, from 1; 0 = not declared. At most size().
  [[nodiscard]] uint32_t Domain(Level level, size_t index) const { return domains_[index][static_cast<size_t>(level)]; }
  // "zone/rack/host", down to `level`; wider labels that are not declared are left out.
  [[nodiscard]] std::string DomainName(Level level, size_t index) const;

  // How bad it is that these two hold parts of one thing: 0 when they share no domain. One shared host weighs more than
  // all racks, and one shared rack more than all zones, that a group of at most 2^15 pairs could share.
  [[nodiscard]] uint64_t SharedCost(size_t a, size_t b) const;

 private:
  std::vector<Member> members_;
  std::vector<std::array<uint32_t, kLevels.size()>> domains_;  // by index, then level
};

// What one pair in a shared domain of this level counts.
[[nodiscard]] constexpr uint64_t LevelWeight(Level level) {
  return uint64_t{1} << (16 * (kLevels.size() - 1 - static_cast<size_t>(level)));
}

}  // namespace ckptd::placement

#endif  // CKPTD_DAEMON_PLACEMENT_ROSTER_H_
