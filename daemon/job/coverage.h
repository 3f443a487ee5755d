// Which ranks lack copies of one snapshot, kept up to date agent by agent: of thousands of ranks each REPORT speaks of
// a few, and only those are looked at again. The same ranks as Lacking (protection.h), which looks at all of them.
#ifndef CKPTD_DAEMON_JOB_COVERAGE_H_
#define CKPTD_DAEMON_JOB_COVERAGE_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "daemon/base/ids.h"
#include "daemon/job/events.h"
#include "daemon/job/machine.h"

namespace ckptd::job {

class Coverage {
 public:
  // Of `id` nobody has anything yet.
  Coverage(const SnapshotId& id, const std::map<Rank, v1::RankClaim>& claims, uint32_t copies, const Rules& rules);

  // What `agent` has, instead of what it had; null: nothing that counts.
  void Replace(const std::string& agent, const v1::Report* report);

  [[nodiscard]] const std::set<Rank>& lacking() const { return lacking_; }

 private:
  // What one agent has of one rank's part.
  struct Share {
    Rank rank = 0;
    bool others = false;  // as a copy of another agent's rank
    uint32_t places = 0;  // slots and copies
    bool operator==(const Share&) const = default;
  };
  // What all agents together have of it.
  struct Part {
    Rank rank = 0;
    std::string owner;
    uint32_t agents = 0;
    uint32_t others = 0;  // as a copy, without the owner
    uint32_t places = 0;
  };

  [[nodiscard]] std::vector<Share> SharesOf(const std::string& agent, const v1::Report& report) const;
  [[nodiscard]] const Part* Find(Rank rank) const;
  void Count(const std::vector<Share>& shares, bool more);
  [[nodiscard]] bool Enough(const Part& part) const;

  SnapshotId id_;
  uint32_t copies_ = 0;
  bool only_others_ = true;
  std::vector<Part> parts_;  // by rank
  std::map<std::string, std::vector<Share>> shares_;
  std::set<Rank> lacking_;
};

}  // namespace ckptd::job

#endif  // CKPTD_DAEMON_JOB_COVERAGE_H_
