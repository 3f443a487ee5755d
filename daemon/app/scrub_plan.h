// What lies still is read again from time to time, because memory and disks lose bits: which copy is next. Pure.
//
// A copy counts as read when it is made: the checksums of a slot are taken while it is filled, and a step is read back
// before its predecessor goes. So only what lies longer than its interval is read, the one that waits longest first.
#ifndef CKPTD_DAEMON_APP_SCRUB_PLAN_H_
#define CKPTD_DAEMON_APP_SCRUB_PLAN_H_

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "daemon/base/clock.h"
#include "daemon/base/ids.h"

namespace ckptd {

struct ScrubItem {
  enum class Tier : uint8_t { kRegion, kStorage };
  Tier tier = Tier::kRegion;
  std::string job;
  SnapshotId id;
  Rank rank = 0;  // of a slot; a step on storage is one item with all its ranks
  auto operator<=>(const ScrubItem&) const = default;
};

struct ScrubIntervals {
  Nanos region{0};  // 0 = never
  Nanos storage{0};
};

inline constexpr Nanos kBadAgain = std::chrono::hours(1);

class ScrubPlan {
 public:
  // All there is, each with the time (monotonic) when it was made, which may be before 0. What is known keeps the time
  // when it was last read; what is missing is forgotten, but for the steps of jobs that could not be listed.
  void Present(const std::map<ScrubItem, Nanos>& made, const std::set<std::string>& unlisted = {});
  void Read(const ScrubItem& item, Nanos now);
  // The same, and it is bad: somebody may mend it, so it is read again after kBadAgain at the latest.
  void FoundBad(const ScrubItem& item, Nanos now);

  // What is due and waits longest.
  [[nodiscard]] std::optional<ScrubItem> Next(Nanos now, const ScrubIntervals& every) const;

 private:
  struct Last {
    Nanos when;
    bool bad = false;
  };
  std::map<ScrubItem, Last> last_;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_APP_SCRUB_PLAN_H_
