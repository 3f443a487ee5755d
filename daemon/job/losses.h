// Why a snapshot in memory cannot be restored: whose part nobody has any more, and which nodes it went with. Sentences
// for people; what is decided is in decision.h. Pure.
//
//   copies   rank 5: its node n2 and its holder n3 are gone
//   parity   group of ranks 4 5 6 7 (parity 1) lost ranks 5 and 6 with nodes n2 n3: 2 lost, 1 may be
//
// A node that answers is not gone: "n3 (answers without it)". A node that did not answer may come back with what it
// has, so the sentence tells whom to bring back.
#ifndef CKPTD_DAEMON_JOB_LOSSES_H_
#define CKPTD_DAEMON_JOB_LOSSES_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "daemon/base/ids.h"
#include "daemon/job/events.h"
#include "daemon/job/who_has.h"
#include "daemon/protect/groups.h"
#include "proto/ckptd/v1/job.pb.h"

namespace ckptd::job {

// Of the attempt that a snapshot is of, as far as it is known.
struct LossFacts {
  const std::map<std::string, ReportPtr>& reports;  // of all who answered
  const HadBySnapshot& had;                         // by them
  std::map<Rank, std::string> node_of;              // where its ranks were; empty: not known
  protect::Groups groups;                           // who protected whom; empty: not known
  uint32_t copies = 0;
  uint32_t parity = 0;  // not 0: instead of copies
};

[[nodiscard]] std::map<Rank, std::string> NodesOf(const v1::DecisionRecord& ran);

// `lacking`: ranks, at least one, whose part of it nobody has and that cannot be rebuilt. A few of them, or of their
// groups, are told, and how many more there are.
[[nodiscard]] std::string TellLosses(const LossFacts& facts, const SnapshotId& id, const std::set<Rank>& lacking);

}  // namespace ckptd::job

#endif  // CKPTD_DAEMON_JOB_LOSSES_H_
