// Which snapshot the loss of any `copies` - 1 nodes leaves to restore, and which one is copied next. With parity
// instead of copies it is the loss of any `parity` nodes of a group, and a step is complete when every rank has sealed
// it and all parity of all groups was made of it; the rest is the same.
//
//   target      what all ranks copy, and keep in their slots: W when it was chosen. Until it is protected, or durable,
//               no other one is chosen, so ranks whose copies take longer than the time between two saves agree on one
//   complete    P: each rank's part is on `copies` agents, in its own slot and as copies at others. It was the target,
//               or, at the start of an attempt, something on the lineage that everybody still had
//   given_up    up to here nothing is kept for the sake of protection: a holder was lost, or has no room, and training
//               needs the slots
//   turns       of a snapshot that was given up, and is W still: odd, it is protected anew
//
// A job may stand still, so what was given up is copied on, to whoever holds for the rank now. As long as it is W every
// owner keeps it anyway; so it may be called protected once more.
//
// All of them only grow within an attempt, so messages may come in any order. An agent keeps what it tells or hears of
// them before anybody counts on it, and a coordinator that restarts learns them from its own and the others' REPORTs: a
// promise outlives the end of all agents at once, and what was given up is not promised again. What an owner keeps is
// W, P and the target. P may only become what every owner keeps already: else a slot could be freed between the REPORT
// that tells of it and the STATE that says P. For the same reason only REPORTs count whose agents had heard of these
// marks: who has not may give up its copy of the target for another step's.
#ifndef CKPTD_DAEMON_JOB_PROTECTION_H_
#define CKPTD_DAEMON_JOB_PROTECTION_H_

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "daemon/base/ids.h"
#include "daemon/base/marks.h"
#include "daemon/job/coverage.h"
#include "daemon/job/events.h"
#include "daemon/job/machine.h"
#include "daemon/job/parity_coverage.h"
#include "daemon/job/who_has.h"
#include "daemon/protect/groups.h"

namespace ckptd::job {

[[nodiscard]] ProtectionMarks MarksOf(const v1::State& state);
[[nodiscard]] ProtectionMarks MarksOf(const v1::Report& report);

// What the agents of an attempt have, as they REPORTed.
struct Holdings {
  const std::map<std::string, ReportPtr>& reports;
  const std::map<Rank, v1::RankClaim>& claims;
  uint32_t copies = 0;
  std::function<bool(const std::string& agent)> counts;  // is not lost, as far as known
  uint32_t parity = 0;                                   // instead of copies; then `rank_groups` says of whom
  const std::vector<protect::RankGroup>* rank_groups = nullptr;
  // Has heard what the target is. One that has not may have given its copy up since, or be in another life: it does not
  // count for the target. Null: all have.
  std::function<bool(const std::string& agent)> knows = nullptr;
};

// Ranks whose part of `id` is not on `copies` agents, as a copy or in a slot, or not as a copy on `copies` - 1 others
// than the claim's. With parity: all ranks of a group in which one has not sealed it, or parity is missing.
[[nodiscard]] std::vector<Rank> Lacking(const Holdings& holdings, const SnapshotId& id, const Rules& rules);

// The newest one on the lineage up to the decision's parent of which no rank lacks copies; none = no such.
[[nodiscard]] SnapshotId StillProtected(const Holdings& holdings, const v1::DecisionRecord& decision,
                                        const Rules& rules);

// Of each rank whose claim's agent has not sealed `parent`: who else has it. An agent that has a copy itself comes
// first, the others from another one on for each rank, so that not all ask the same. Where nobody has it, what it can
// be rebuilt from.
[[nodiscard]] std::vector<v1::RankSources> SourcesOf(const Holdings& holdings, const SnapshotId& parent,
                                                     const Rules& rules = {});

// By rank, which snapshots nobody has and parity brings back.
[[nodiscard]] std::map<Rank, std::vector<SnapshotId>> Rebuildable(const HadBySnapshot& snapshots,
                                                                  const Rules& rules = {});

class Protection {
 public:
  // What an Update() looks at besides the holdings.
  struct Facts {
    SnapshotId watermark;
    SnapshotId durable;
    bool owners_reported = false;  // every rank, since the attempt was decided or this coordinator started
    bool settled = false;          // who has not reported by now is lost
    bool hopeless = false;         // an owner has no holders that live
  };

  // A new attempt. `complete`: StillProtected.
  void Reset(const SnapshotId& parent, const SnapshotId& complete);
  void Raise(const ProtectionMarks& told) { marks_.Raise(told); }
  // What is known of `agent` has changed: its REPORT, or whether it counts. Each such change, before Update().
  void Heard(const Holdings& holdings, const std::string& agent);
  // A STATE tells another target, or what was given up: nobody has heard it yet.
  void Told();
  // Who holds for whom has changed: with parity, another group has to be complete.
  void Regrouped() { coverages_.clear(); }
  // True when a mark rose.
  bool Update(const Holdings& holdings, const Facts& facts, const Rules& rules);

  [[nodiscard]] const ProtectionMarks& marks() const { return marks_; }
  [[nodiscard]] bool now() const { return marks_.in_force(); }
  // Of the target, at the last Update().
  [[nodiscard]] const std::set<Rank>& lacking() const;

 private:
  using AnyCoverage = std::variant<Coverage, ParityCoverage>;
  using Covered = std::pair<SnapshotId, bool>;  // the bool: only agents that know of the target count
  [[nodiscard]] const AnyCoverage& CoverageOf(const Covered& of, const Holdings& holdings, const Rules& rules);
  static void Replace(AnyCoverage& coverage, const std::string& agent, const v1::Report* report);
  [[nodiscard]] static const std::set<Rank>& LackingOf(const AnyCoverage& coverage);
  void ChooseTarget(const Facts& facts);
  [[nodiscard]] bool IsMadeGood(const Facts& facts, const Rules& rules) const;

  ProtectionMarks marks_;
  std::map<Covered, AnyCoverage> coverages_;  // of `complete` and the target, as far as they were asked for
  SnapshotId judged_;                         // the target of the last Update()
};

}  // namespace ckptd::job

#endif  // CKPTD_DAEMON_JOB_PROTECTION_H_
