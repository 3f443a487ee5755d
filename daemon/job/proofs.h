// Whether a committed step is whole on the storage, before older ones may go (deletion.h): the coordinator asks the
// agents (State.to_prove), each reads the parts of its own ranks back (prover.h), and what they say is counted here.
//
// protocol.md says that the step "was re-read and verified by me". One agent that reads all parts of a big job is still
// at it when the next attempt begins, so here each agent reads its own, and the coordinator believes the agents of its
// own attempt, as it does for what is durable. Of what comes from others it believes no more: an agent speaks for the
// ranks whose claims name it, and for the step that was asked for. What no agent reads for itself, since it is gone or
// older, or since the present attempt does not have the rank, the coordinator's agent reads.
#ifndef CKPTD_DAEMON_JOB_PROOFS_H_
#define CKPTD_DAEMON_JOB_PROOFS_H_

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "daemon/job/context.h"
#include "daemon/job/reports.h"

namespace ckptd::job {

struct ProofFacts {
  const std::map<Rank, v1::RankClaim>& claims;
  const Reports& reports;
  const Config& config;
  const v1::Proof& own;  // what this agent has read
};

class Proofs {
 public:
  // The step is to be proven. True: the agents are to be told.
  bool Ask(const StoredStep& step, const ProofFacts& facts);
  // OK: all of it is right. An error: of a part that is not. None: parts are still being read.
  [[nodiscard]] std::optional<absl::Status> Found(const ProofFacts& facts) const;
  // Nothing is to be proven. True: agents may be reading, and are to be told.
  bool Rest();

  void Fill(v1::State* state) const;
  // What was asked for last, also in an attempt before this one: some of it may be proven.
  [[nodiscard]] const SnapshotId& step() const { return step_; }

 private:
  struct Counted;
  void Count(const std::string& agent, const v1::Proof& proof, const ProofFacts& facts, Counted* counted) const;
  [[nodiscard]] bool SpeaksFor(const std::string& agent, Rank rank, const ProofFacts& facts) const;

  SnapshotId step_;
  uint32_t world_size_ = 0;
  uint32_t sidecars_ = 0;
  std::vector<Rank> others_;  // the coordinator's agent reads these; ascending
  bool asks_ = false;
};

}  // namespace ckptd::job

#endif  // CKPTD_DAEMON_JOB_PROOFS_H_
