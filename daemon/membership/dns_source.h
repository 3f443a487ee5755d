// Members by a DNS name that is asked again and again: several A records, a Kubernetes headless service, or SRV
// records.
//
//   ckptd.ml.svc.cluster.local                A; where there is none, AAAA. A member is named by its address, and its
//                                             agent is at that address and this node's own port.
//   _peers._tcp.ckptd.ml.svc.cluster.local    SRV: a name that begins with "_". A member is named by its target, and
//   its
//                                             agent is at that target and the record's port.
//
// In Kubernetes let the service be headless (clusterIP: None) with publishNotReadyAddresses: true, else an agent that
// is not ready yet is no member, and the pods of a DaemonSet that starts never find each other. Behind a StatefulSet
// the targets of SRV are stable names with the pod's ordinal; A records are not: they name pods by address.
//
// An empty answer is a failure, never an empty view: a service that lost all its endpoints looks the same as a DNS
// server that lost its data. DNS knows no generations (fixed_sources.h) and no failure domains of others: they
// say them themselves (ViewState::Learn).
#ifndef CKPTD_DAEMON_MEMBERSHIP_DNS_SOURCE_H_
#define CKPTD_DAEMON_MEMBERSHIP_DNS_SOURCE_H_

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/callback_scope.h"
#include "daemon/base/clock.h"
#include "daemon/base/executor.h"
#include "daemon/membership/dns_answer.h"
#include "daemon/membership/fixed_sources.h"
#include "daemon/membership/source.h"
#include "daemon/os/loop.h"
#include "daemon/os/resolver.h"

namespace ckptd::membership {

struct DnsSettings {
  Self self;         // name and host are how this node finds itself in an answer
  std::string name;  // that is asked for
  Nanos refresh{0};  // from one answer to the next question
};

// The members in an answer. `self` has its domains; others have none. Pure.
[[nodiscard]] std::vector<Member> MembersOf(const std::vector<DnsRecord>& records, const Self& self);

// How this node is named among them, as far as its own settings tell: jobs begin before DNS has answered, and the name
// by which they know an agent never changes. Its address; behind SRV agent.node_name, or peers.address, or the first
// label of the one below the service ("ckptd-3.ckptd.ml.svc.cluster.local"). Pure.
[[nodiscard]] std::string OwnName(const Self& self, const std::string& dns_name);

// Which of them this node is: by its host or its name; of an SRV target the first label is enough ("ckptd-3").
[[nodiscard]] const Member* FindSelf(const std::vector<Member>& members, const Self& self);

class DnsSource final : public Source {
 public:
  // All outlive it, and `loop` what `worker` still runs: a question waits there for seconds, its answer comes on the
  // loop's thread. One question at a time.
  DnsSource(Loop& loop, Executor& worker, const Resolver& resolver, DnsSettings settings);
  ~DnsSource() override;

  [[nodiscard]] absl::Status Start(SourceSink& sink) override;
  [[nodiscard]] Standing StandingAt(Nanos) const override { return standing_; }

 private:
  using Answer = absl::StatusOr<std::vector<DnsRecord>>;

  void Ask();
  void Answered(const Answer& answer);
  void AskLater();
  void SetStanding(const std::vector<Member>& members);
  [[nodiscard]] absl::Status StandingIn(const std::vector<Member>& members) const;

  Loop& loop_;
  Executor& worker_;
  const Resolver resolver_;
  const DnsSettings settings_;
  SourceSink* sink_ = nullptr;
  Standing standing_;
  Loop::TimerId timer_ = 0;
  std::shared_ptr<std::atomic<bool>> asking_ = std::make_shared<std::atomic<bool>>(false);  // cleared by the worker
  CallbackScope scope_;  // the last member: it goes first
};

}  // namespace ckptd::membership

#endif  // CKPTD_DAEMON_MEMBERSHIP_DNS_SOURCE_H_
