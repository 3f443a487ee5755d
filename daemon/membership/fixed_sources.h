// Members that are known when the agent starts and stay: a list in the configuration, or the nodes of a Slurm job.
//
// Neither knows generations: the member's own (its agent's incarnation, incarnation.h) is what fences its past.
#ifndef CKPTD_DAEMON_MEMBERSHIP_FIXED_SOURCES_H_
#define CKPTD_DAEMON_MEMBERSHIP_FIXED_SOURCES_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/membership/member.h"
#include "daemon/membership/source.h"

namespace ckptd::membership {

// What a node knows of itself.
struct Self {
  std::string name;          // agent.node_name, else the host name
  std::string host;          // where peers reach it; empty = its name
  uint16_t port = 0;         // of its agent, for peers; also of members that name none
  Labels domains;            // peers.labels
  uint64_t incarnation = 0;  // of this process, above those of all before it
};

[[nodiscard]] Member MemberOf(const Self& self);

// Members said once, and a standing that is always well.
class FixedSource final : public Source {
 public:
  FixedSource(std::vector<Member> members, Standing standing)
      : members_(std::move(members)), standing_(std::move(standing)) {}

  [[nodiscard]] absl::Status Start(SourceSink& sink) override;
  [[nodiscard]] Standing StandingAt(Nanos) const override { return standing_; }

 private:
  std::vector<Member> members_;
  const Standing standing_;
};

// peers.members: groups separated by ";", each a hostlist and then what all its nodes have, separated by spaces:
//
//   n[001-064] rack=r1 zone=a; n[065-128] rack=r2 zone=a; login address=10.0.0.9:9465
//
// KEY=VALUE is a failure domain; port=P and address=HOST:PORT say where the agent is, else it is at NAME:`port`. A name
// that is given twice is an error.
[[nodiscard]] absl::StatusOr<std::vector<Member>> ParseMembers(absl::string_view text, uint16_t port);

// An empty list is this node alone; else this node must be in it: INVALID_ARGUMENT.
[[nodiscard]] absl::StatusOr<std::unique_ptr<Source>> MakeStaticSource(const Self& self, absl::string_view members);

// A variable of the environment; nullopt when it is not set.
using Environment = std::function<std::optional<std::string>(absl::string_view name)>;

// The nodes of the job that this process runs in: SLURM_JOB_NODELIST (SLURM_NODELIST), which SLURM_JOB_NUM_NODES must
// count. Its own name is SLURMD_NODENAME, else the one that SLURM_NODEID counts to, whatever self.name is. Slurm tells
// no failure domains of other nodes: a node knows its own, and its peers by what they say.
[[nodiscard]] absl::StatusOr<std::unique_ptr<Source>> MakeSlurmSource(const Self& self, const Environment& environment);

}  // namespace ckptd::membership

#endif  // CKPTD_DAEMON_MEMBERSHIP_FIXED_SOURCES_H_
