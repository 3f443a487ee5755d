// One job as this agent sees it (protocol.md, sections 1, 3 and 5): always a member, and the coordinator of an attempt
// when rank 0 joined here.
//
// Member. Keeps `seen`, the highest attempt it heard of, persisted before it is answered; passes STATE on to the ranks'
// slots (room snapshot) and sends what they hold as REPORT to the coordinator of `seen`. A rank belongs to one live
// process; the second claim is refused. Ranks other than 0 wait here until an attempt names their ticket.
//
// Coordinator. Opens an attempt by exclusive creation of its record, *then* lists storage and decisions, sends
// STATE(GATHER), and waits for every rank and every member (or decide_timeout). It chooses the newest snapshot on the
// lineage of the newest decided attempt that every rank can get; the choice is a file created exclusively. LOAD until
// every rank has loaded, then RUN. Any failed load opens the next attempt, and all ranks load again.
// In RUN it publishes two numbers that only grow: W, the newest snapshot that every rank has sealed, and the floor G,
// below which steps are dead. It commits snapshots whose sidecars are all there, reports *durable* only when its
// attempt is still the newest after the manifest exists, and deletes by retention, never without having re-read a
// successor.
//
//   IDLE ► READING ► CREATING ► LISTING ► COMMITTING ► GATHER ► DECIDING ► CHECKING ► LOAD ► RUN
//   any of them ► STOPPED when a higher attempt is known.            TRANSITIONS.md is the whole table.
//
// A coordinator that restarts knows nothing and rebuilds W, G and RUN from REPORTs. Two things keep it from
// contradicting its predecessor: it counts only REPORTs that answer its own incarnation, and it declares no step
// dropped before every rank has reported, because until then it may not know what its predecessor saw captured.
//
// Every refusal carries a code of errors.def and a sentence that names job, ranks, steps or agents.
//
// Not thread-safe; one thread feeds it.
#ifndef CKPTD_DAEMON_JOB_MACHINE_H_
#define CKPTD_DAEMON_JOB_MACHINE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "daemon/job/events.h"
#include "daemon/job/flush_plan.h"
#include "daemon/job/report_numbers.h"
#include "daemon/protect/groups.h"

namespace ckptd::job {

// Switches for tests: each false removes one protection, and the simulation must notice.
struct Rules {
  bool go_after_all_loaded = true;          // I1
  bool only_decided_tickets = true;         // I1
  bool reuse_decision_file = true;          // I5
  bool record_before_listing = true;        // I4
  bool newest_check_after_manifest = true;  // I4
  bool drop_passed_steps = true;            // I5
  bool lineage_not_number = true;           // I6
  bool verify_before_delete = true;         // I7
  bool deletion_marker = true;              // I7
  bool check_after_marker = true;           // I7
  bool all_parts_proven = true;             // I7
  bool proofs_of_this_step = true;          // I7
  bool parts_of_others_are_read = true;     // I5: of agents that are gone, or older
  bool listing_skips_marked = true;         // I7
  bool remains_are_over = true;             // I7: what somebody may still write to the end is no remains
  bool unsettled_is_in_a_slot = true;       // I7: what cannot be given a fresh file is flushed after all
  bool owners_of_remains_report = true;     // I7: members or not, who may have had it in a slot has none any more
  bool all_agents_before_zero = true;       // I8
  bool lost_proves_nothing = true;          // I8
  bool attempt_in_identity = true;          // I1
  bool persist_seen = true;
  bool refuse_old_state = true;            // defence
  bool check_after_decision = true;        // defence
  bool intersection = true;                // defence
  bool void_markers = true;                // defence
  bool reports_answer_incarnation = true;  // I3 after a coordinator's restart
  bool drop_after_all_reported = true;     // I3 after a coordinator's restart
  bool all_ranks_protect = true;           // I9
  bool only_other_agents_protect = true;   // I9
  bool copies_stated_under_seen = true;    // I9
  bool survey_after_restart = true;        // I9
  bool persist_marks = true;               // I9: what was promised, and given up, outlives the agents' processes
  bool target_before_protected = true;     // I9
  bool ask_for_whole = true;               // a State that leaves out what is not known here is not taken
  bool made_good_only_captured = true;     // I9
  bool holders_know_target = true;         // I9
  bool parity_of_these_ranks = true;       // I9: counts for a group, not what was made of others
  bool parity_in_its_place = true;         // I9: not at a node that a loss would take it with another place
  bool images_in_their_place = true;       // I9: not where the rank was before
  bool regrouping_covers_anew = true;      // I9: who has what for whom is counted from the start
  bool small_groups_are_hopeless = true;   // I5: what cannot be protected is waited for by nobody
  bool created_as_newest = true;           // defence: a name that was pruned may be created again
  bool every_stripe_rebuilds = true;       // I9: an image needs all stripes that it gave a block to
};

using protect::Groups;

struct Config {
  std::string job;
  std::string user;                  // whose job it is here; "" = nobody asks
  std::string agent;                 // this one
  std::vector<std::string> members;  // all agents, this one among them, until MembersChanged
  uint64_t incarnation = 0;          // random for each start of the agent, never 0
  std::shared_ptr<ReportNumbers> numbers = std::make_shared<ReportNumbers>();  // of this incarnation
  Nanos decide_timeout{};
  Nanos resend{};       // between repeated STATEs and REPORTs; unused while there is one member
  Nanos retry{};        // pause after a storage error
  size_t at_once = 64;  // up to so many members, each REPORT is acted on when it comes,
  Nanos settle = std::chrono::milliseconds(10);  // else after so long, with all that came meanwhile
  Retention retention;
  FlushPolicy flush;
  uint32_t copies = 0;  // how many nodes have each snapshot, the owner's among them; 0 or 1 = no copies
  uint32_t parity = 0;  // instead of copies: of a group of nodes that share parity, any so many may be lost
  // Who holds for whom among `agents`, moving little from `before` (empty: a new job). Pure. Without it: no copies.
  std::function<Groups(const std::vector<std::string>& agents, const Groups& before)> place;
  Rules rules;
  // Nodes keep something for each other, copies or parity.
  [[nodiscard]] bool copying() const { return (copies > 1 || parity > 0) && place != nullptr; }
  // Fewer nodes than that cannot protect each other.
  [[nodiscard]] size_t fewest_nodes() const { return parity > 0 ? parity + size_t{1} : copies; }
};

enum class Phase : uint8_t {
  kIdle,
  kReading,
  kCreating,
  kListing,
  kCommitting,  // late commits
  kGather,
  kDeciding,
  kChecking,
  kLoad,
  kRun,
  kStopped,
};

inline constexpr size_t kMaxUnprotected = 16;

// A copy for StatusView.
struct View {
  AttemptId seen = 0;
  std::string coordinator;                    // of `seen`, empty while unknown
  Phase phase = Phase::kIdle;                 // of this agent as coordinator
  v1::State::Phase told = v1::State::GATHER;  // by the coordinator, wherever it is; and so is what follows
  AttemptId attempt = 0;                      // it coordinates
  SnapshotId parent;
  SnapshotId watermark;
  StepId floor = 0;
  SnapshotId durable;
  uint32_t world_size = 0;
  std::vector<Rank> missing;               // ranks waited for
  std::vector<std::string> silent_agents;  // members without a REPORT in this attempt
  std::vector<StoredStep> stored;          // as far as known
  uint32_t copies = 0;                     // of Config, where they are on
  uint32_t parity = 0;                     // the same
  Groups groups;                           // who holds for whom
  SnapshotId protected_;                   // newest one
  bool protected_now = false;              // protected_ still is: no holder of it was lost since
  SnapshotId protecting;                   // what is copied now
  std::vector<Rank> unprotected;  // ranks whose copies of `protecting` are not complete; at most kMaxUnprotected
  absl::Status trouble;           // while the job runs: a step that is not committed, not deleted or damaged, and why
  std::string last_error;
};

class Machine {
 public:
  explicit Machine(Config config);
  ~Machine();
  Machine(Machine&&) noexcept;
  Machine& operator=(Machine&&) noexcept;

  // Appends to `effects`.
  void Step(const Event& event, Effects& effects);

  [[nodiscard]] View view() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ckptd::job

#endif  // CKPTD_DAEMON_JOB_MACHINE_H_
