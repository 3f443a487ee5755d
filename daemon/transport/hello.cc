#include "daemon/transport/hello.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/transport/link_message.h"
#include "daemon/transport/shown.h"

namespace ckptd::transport {
namespace {

absl::Status Wrong(absl::string_view what) {
  return Error(ErrorCode::PROTOCOL, absl::StrCat("Hello: ", what, "; is ckptd of this version on both nodes?"));
}

template <typename Message>
Card CardOf(const Message& message) {
  return {message.cluster(), message.member(), message.agent(), message.generation(), message.incarnation()};
}

absl::Status CheckCard(const Card& self, const Card& peer) {
  if (peer.name.empty() || peer.name.size() > kMaxPeerNameBytes)
    return Wrong(absl::StrCat("a name of ", peer.name.size(), " bytes; 1 to ", kMaxPeerNameBytes));
  if (peer.agent.empty() || peer.agent.size() > kMaxAgentBytes)
    return Wrong(absl::StrCat("an agent's id of ", peer.agent.size(), " bytes; 1 to ", kMaxAgentBytes));
  if (peer.generation == 0 || peer.incarnation == 0) return Wrong("a generation or incarnation of 0");
  if (peer.cluster == self.cluster) return absl::OkStatus();
  return Error(ErrorCode::REFUSED,
               absl::StrCat("node ", Shown(peer.name), " is of cluster ", Shown(peer.cluster), ", node ", self.name,
                            " of ", self.cluster, ": correct peers.cluster or the membership of one of them"));
}

absl::StatusOr<Domains> DomainsOf(const v1::HelloRequest& hello) {
  Domains domains;
  for (const auto& [key, value] : hello.domains()) {
    if (key.size() > kMaxDomainBytes || value.size() > kMaxDomainBytes)
      return Wrong("a failure domain that is too long");
    domains.emplace(key, value);
  }
  if (domains.size() <= kMaxDomains) return domains;
  return Wrong(absl::StrCat(domains.size(), " failure domains; at most ", kMaxDomains));
}

}  // namespace

v1::HelloRequest MakeHello(const Card& self, const std::string& to) {
  v1::HelloRequest hello;
  hello.set_protocol_min(kOldestProtocol);
  hello.set_protocol_max(kNewestProtocol);
  hello.set_cluster(self.cluster);
  hello.set_member(self.name);
  hello.set_to(to);
  hello.set_generation(self.generation);
  hello.set_incarnation(self.incarnation);
  hello.set_agent(self.agent);
  for (const auto& [key, value] : self.domains) (*hello.mutable_domains())[key] = value;
  return hello;
}

v1::HelloResponse MakeAnswer(const Card& self, uint32_t protocol) {
  v1::HelloResponse answer;
  answer.set_protocol(protocol);
  answer.set_cluster(self.cluster);
  answer.set_member(self.name);
  answer.set_generation(self.generation);
  answer.set_incarnation(self.incarnation);
  answer.set_agent(self.agent);
  return answer;
}

absl::StatusOr<Greeting> CheckHello(const Card& self, const v1::HelloRequest& hello) {
  Greeting greeting{CardOf(hello), std::min(hello.protocol_max(), kNewestProtocol)};
  CKPTD_RETURN_IF_ERROR(CheckCard(self, greeting.peer));
  CKPTD_ASSIGN_OR_RETURN(greeting.peer.domains, DomainsOf(hello));
  if (hello.protocol_min() == 0 || hello.protocol_min() > hello.protocol_max())
    return Wrong(absl::StrCat("protocols ", hello.protocol_min(), " to ", hello.protocol_max()));
  if (hello.protocol_min() > kNewestProtocol || hello.protocol_max() < kOldestProtocol)
    return Error(ErrorCode::NEWER_VERSION,
                 absl::StrCat("node ", Shown(greeting.peer.name), " speaks protocols ", hello.protocol_min(), " to ",
                              hello.protocol_max(), ", node ", self.name, " ", kOldestProtocol, " to ", kNewestProtocol,
                              ": upgrade the older one"));
  if (hello.to() == self.name) return greeting;
  return Error(ErrorCode::REFUSED,
               absl::StrCat("node ", Shown(greeting.peer.name), " dialled node ", Shown(hello.to()),
                            " and reached node ", self.name, ": correct the address that the membership has"));
}

absl::StatusOr<Greeting> CheckAnswer(const Card& self, const std::string& to, const v1::HelloResponse& answer) {
  Greeting greeting{CardOf(answer), answer.protocol()};
  CKPTD_RETURN_IF_ERROR(CheckCard(self, greeting.peer));
  if (greeting.protocol < kOldestProtocol || greeting.protocol > kNewestProtocol)
    return Wrong(absl::StrCat("protocol ", greeting.protocol, ", which was not offered"));
  if (greeting.peer.name == to) return greeting;
  return Error(ErrorCode::REFUSED, absl::StrCat("node ", to, " was dialled and node ", Shown(greeting.peer.name),
                                                " answered: correct the address that the membership has"));
}

}  // namespace ckptd::transport
