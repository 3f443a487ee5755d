#include "daemon/membership/dns_source.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"

namespace ckptd::membership {
namespace {

absl::StatusOr<std::vector<DnsRecord>> Lookup(const Resolver& resolver, const std::string& name, Resolver::Type type) {
  CKPTD_ASSIGN_OR_RETURN(std::string answer, resolver.Query(name, type));
  auto records = ParseDnsAnswer(answer);
  if (!records.ok())
    return Error(CodeOf(records.status()), absl::StrCat("DNS ", name, ": ", records.status().message()));
  if (records->empty()) return Error(ErrorCode::NOT_FOUND, absl::StrCat("DNS ", name, ": an answer without records"));
  return records;
}

// AAAA only where there is no A: a node with both would be two members.
absl::StatusOr<std::vector<DnsRecord>> LookupMembers(const Resolver& resolver, const std::string& name) {
  if (absl::StartsWith(name, "_")) return Lookup(resolver, name, Resolver::Type::kSrv);
  auto records = Lookup(resolver, name, Resolver::Type::kA);
  return CodeOf(records.status()) == ErrorCode::NOT_FOUND ? Lookup(resolver, name, Resolver::Type::kAaaa) : records;
}

absl::string_view FirstLabel(absl::string_view name) { return name.substr(0, name.find('.')); }

// As answers have it, however it was written; nothing where it is a name.
std::optional<std::string> AddressIn(const std::string& host) {
  for (const int family : {AF_INET, AF_INET6}) {
    in6_addr bytes{};
    std::array<char, INET6_ADDRSTRLEN> text{};
    if (inet_pton(family, host.c_str(), &bytes) == 1 && inet_ntop(family, &bytes, text.data(), text.size()) != nullptr)
      return text.data();
  }
  return std::nullopt;
}

// What is left of a service's name without "_peers._tcp.".
absl::string_view DomainOf(absl::string_view dns_name) {
  while (absl::StartsWith(dns_name, "_")) {
    const size_t dot = dns_name.find('.');
    dns_name = dot == absl::string_view::npos ? "" : dns_name.substr(dot + 1);
  }
  return absl::StripSuffix(dns_name, ".");
}

bool IsSelf(const Member& member, const Self& self) {
  if (member.name == AddressIn(self.host).value_or(absl::AsciiStrToLower(self.host))) return true;
  const std::string name = absl::AsciiStrToLower(self.name);
  const bool by_label = member.name.find(':') == std::string::npos && !name.empty();
  return member.name == name || (by_label && FirstLabel(member.name) == name);
}

}  // namespace

std::vector<Member> MembersOf(const std::vector<DnsRecord>& records, const Self& self) {
  std::vector<Member> members;
  members.reserve(records.size());
  for (const DnsRecord& record : records) {
    const uint16_t port = record.port == 0 ? self.port : record.port;
    members.push_back({record.host, JoinAddress(record.host, port), {}, 0});
    if (IsSelf(members.back(), self)) members.back().domains = self.domains;
  }
  return members;
}

std::string OwnName(const Self& self, const std::string& dns_name) {
  if (!absl::StartsWith(dns_name, "_")) return AddressIn(self.host).value_or(self.name);
  if (absl::StrContains(self.name, '.')) return absl::AsciiStrToLower(self.name);
  if (absl::StrContains(self.host, '.') && !AddressIn(self.host)) return absl::AsciiStrToLower(self.host);
  const absl::string_view domain = DomainOf(dns_name);
  return absl::AsciiStrToLower(absl::StrCat(self.name, domain.empty() ? "" : ".", domain));
}

const Member* FindSelf(const std::vector<Member>& members, const Self& self) {
  const auto found =
      std::find_if(members.begin(), members.end(), [&](const Member& member) { return IsSelf(member, self); });
  return found == members.end() ? nullptr : &*found;
}

DnsSource::DnsSource(Loop& loop, Executor& worker, const Resolver& resolver, DnsSettings settings)
    : loop_(loop), worker_(worker), resolver_(resolver), settings_(std::move(settings)) {
  standing_ = {OwnName(settings_.self, settings_.name), settings_.self.incarnation,
               Error(ErrorCode::REFUSED, absl::StrCat("DNS ", settings_.name, " has not answered yet"))};
}

DnsSource::~DnsSource() { loop_.CancelTimer(timer_); }

absl::Status DnsSource::Start(SourceSink& sink) {
  if (settings_.name.empty())
    return Error(ErrorCode::INVALID_ARGUMENT, "peers.dns_name is empty: give the name that has all nodes' addresses");
  sink_ = &sink;
  Ask();
  return absl::OkStatus();
}

// The worker holds what it needs: this may be gone when the answer comes. An answer that the loop's queue has no room
// for is lost; the timer runs meanwhile, so it is asked for again.
void DnsSource::Ask() {
  AskLater();
  if (asking_->exchange(true)) return;
  auto answered = scope_.Bind([this](const Answer& answer) { Answered(answer); });
  const bool runs =
      worker_.Run([&loop = loop_, resolver = resolver_, name = settings_.name, answered, asking = asking_] {
        Answer answer = LookupMembers(resolver, name);
        asking->store(false);
        (void)loop.Post([answered, answer = std::move(answer)]() mutable { answered(answer); });
      });
  if (runs) return;
  asking_->store(false);
  sink_->Failed(Error(ErrorCode::REFUSED, absl::StrCat("DNS ", settings_.name, ": no worker is free to ask")));
}

void DnsSource::AskLater() {
  loop_.CancelTimer(timer_);
  timer_ = loop_.After(settings_.refresh, [this] { Ask(); });
}

void DnsSource::Answered(const Answer& answer) {
  AskLater();
  if (!answer.ok()) return sink_->Failed(answer.status());
  std::vector<Member> members = MembersOf(*answer, settings_.self);
  SetStanding(members);
  sink_->Said(std::move(members));
}

void DnsSource::SetStanding(const std::vector<Member>& members) {
  absl::Status status = StandingIn(members);
  if (status == standing_.status) return;
  standing_.status = std::move(status);
  sink_->StandingChanged();
}

absl::Status DnsSource::StandingIn(const std::vector<Member>& members) const {
  const Member* self = FindSelf(members, settings_.self);
  if (self == nullptr)
    return Error(ErrorCode::NOT_FOUND,
                 absl::StrCat("this node, ", settings_.self.name, ", is not among the ", members.size(), " of DNS ",
                              settings_.name, ": set peers.address to its address (in Kubernetes status.podIP)"));
  if (self->name == standing_.name) return absl::OkStatus();
  const char* const key = absl::StartsWith(settings_.name, "_") ? "agent.node_name" : "peers.address";
  return Error(ErrorCode::INVALID_ARGUMENT,
               absl::StrCat("DNS ", settings_.name, " names this node ", self->name, ", and it calls itself ",
                            standing_.name, ": set ", key, " to ", self->name, " and restart the agent"));
}

}  // namespace ckptd::membership
