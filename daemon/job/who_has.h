// What the REPORTs say of each snapshot: who has the image of which rank, and which parity. They are read once for all
// snapshots: with thousands of ranks every reading of all of them counts. Pure.
#ifndef CKPTD_DAEMON_JOB_WHO_HAS_H_
#define CKPTD_DAEMON_JOB_WHO_HAS_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "daemon/base/ids.h"
#include "daemon/job/events.h"
#include "proto/ckptd/v1/job.pb.h"

namespace ckptd::job {

// What one agent said: a part of its REPORT.
template <typename Part>
struct Said {
  const Part* part = nullptr;
  const std::string* agent = nullptr;
  bool operator==(const Said&) const = default;
};

// Of one snapshot. Points into the REPORTs.
struct Had {
  std::vector<Said<v1::RankReport>> sealed;  // in a slot
  std::vector<Said<v1::HeldCopies>> copies;
  std::vector<Said<v1::HeldParity>> parity;
};
using HadBySnapshot = std::map<SnapshotId, Had>;

// Of the agents for which `counts` holds. The REPORTs outlive it.
[[nodiscard]] HadBySnapshot WhoHasWhat(const std::map<std::string, ReportPtr>& reports,
                                       const std::function<bool(const std::string& agent)>& counts);

}  // namespace ckptd::job

#endif  // CKPTD_DAEMON_JOB_WHO_HAS_H_
