// Which ranks lack parity of one snapshot, kept up to date agent by agent, as coverage.h does it for copies. The same
// ranks as Lacking (protection.h), which looks at everything.
#ifndef CKPTD_DAEMON_JOB_PARITY_COVERAGE_H_
#define CKPTD_DAEMON_JOB_PARITY_COVERAGE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "daemon/base/ids.h"
#include "daemon/job/events.h"
#include "daemon/job/machine.h"
#include "daemon/protect/groups.h"

namespace ckptd::job {

class ParityCoverage {
 public:
  // Of `id` nobody has anything yet. Ranks in no group, or in one that is too small for a code, lack for ever.
  ParityCoverage(const SnapshotId& id, const std::map<Rank, v1::RankClaim>& claims,
                 std::vector<protect::RankGroup> groups, uint32_t parity, const Rules& rules);

  // What `agent` has, instead of what it had; null: nothing that counts.
  void Replace(const std::string& agent, const v1::Report* report);

  [[nodiscard]] const std::set<Rank>& lacking() const { return lacking_; }

 private:
  // What one agent has of what a group needs: its image, and the parity that it keeps.
  using Shares = std::map<size_t, uint32_t>;  // by group, how many of them
  struct Group {
    protect::RankGroup of;
    std::optional<erasure::Shape> shape;
    uint32_t missing = 0;  // images and parity
  };

  [[nodiscard]] Shares SharesOf(const std::string& agent, const v1::Report& report) const;
  [[nodiscard]] std::optional<size_t> Keeps(const std::string& agent, const v1::HeldParity& held) const;
  void Count(const Shares& shares, bool more);

  SnapshotId id_;
  uint32_t parity_ = 0;
  Rules rules_;
  std::vector<Group> groups_;
  std::map<Rank, size_t> group_of_;
  std::map<std::string, Shares> shares_;
  std::set<Rank> lacking_;
};

}  // namespace ckptd::job

#endif  // CKPTD_DAEMON_JOB_PARITY_COVERAGE_H_
