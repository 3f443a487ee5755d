#include "daemon/app/peers.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/membership/dns_source.h"
#include "daemon/membership/etcd_source.h"
#ifdef CKPTD_GRPC
#include "daemon/membership/etcd_client.h"
#endif

namespace ckptd {
namespace {

constexpr size_t kMostListed = 1000;  // an answer of the admin service has at most 1 MiB
constexpr size_t kOneQuestion = 1;    // is open at a time

const char* NameOf(MembershipChoice choice) {
  switch (choice) {
    case MembershipChoice::kDns:
      return "dns";
    case MembershipChoice::kSlurm:
      return "slurm";
    case MembershipChoice::kEtcd:
      return "etcd";
    case MembershipChoice::kStatic:
      break;
  }
  return "static";
}

std::optional<std::string> OfEnvironment(absl::string_view name) {
  const char* value = std::getenv(std::string(name).c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

// A host may be called anything ("(none)", where nobody named it); a member may not.
std::string MemberName(std::string node) {
  for (char& c : node) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '.' && c != '_') c = '-';
  }
  node.erase(0, node.find_first_not_of(".-"));
  return node.empty() ? "node" : node;
}

constexpr char kNextSource[] =
    "the last members stay and jobs go on; see that what is named answers and that this node may reach it (README: "
    "other "
    "nodes)";
constexpr char kNextRefused[] = "correct what is named; that node is left out until then";
constexpr char kNextSelf[] =
    "jobs on this node alone go on; those on several nodes capture nothing, and nothing is written to other nodes, "
    "until this is mended";

absl::Status Of(const char* what, const absl::Status& status) {
  return Error(CodeOf(status), absl::StrCat("peers: ", what, status.message()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Peers>> Peers::Start(Loop& loop, const Clock& clock, Files& files,
                                                    const PeersConfig& config, const std::string& node,
                                                    uint64_t incarnation) {
  std::unique_ptr<Peers> peers(new Peers(clock, config, incarnation));
  CKPTD_ASSIGN_OR_RETURN(auto source, peers->MakeSource(loop, files, node));
  peers->membership_ = std::make_unique<membership::Membership>(clock, std::move(source));
  CKPTD_RETURN_IF_ERROR(peers->membership_->Start());
  return peers;
}

absl::Status Peers::Check(const Clock& clock, Files& files, const PeersConfig& config, const std::string& node) {
  if (config.membership == MembershipChoice::kSlurm) return absl::OkStatus();  // of the agent's own environment
  CKPTD_ASSIGN_OR_RETURN(auto loop, Loop::Create(clock, kOneQuestion));
  Peers peers(clock, config, 0);
  return peers.MakeSource(*loop, files, node).status();
}

Peers::~Peers() {
  membership_.reset();
  if (questions_) questions_->Stop();
}

bool Peers::StopWithin(Nanos patience) {
  membership_.reset();
  return questions_ == nullptr || questions_->StopWithin(patience);
}

absl::StatusOr<std::unique_ptr<membership::Source>> Peers::MakeSource(Loop& loop, Files& files,
                                                                      const std::string& node) {
  membership::Self self;
  self.name = MemberName(node);
  self.host = config_.address;
  self.port = static_cast<uint16_t>(config_.port);
  self.incarnation = incarnation_;
  CKPTD_ASSIGN_OR_RETURN(self.domains, membership::ParseLabels(config_.labels));
  switch (config_.membership) {
    case MembershipChoice::kDns:
      return MakeDnsSource(loop, self);
    case MembershipChoice::kSlurm:
      return membership::MakeSlurmSource(self, OfEnvironment);
    case MembershipChoice::kEtcd:
      return MakeEtcdSource(loop, files, self);
    case MembershipChoice::kStatic:
      break;
  }
  return membership::MakeStaticSource(self, config_.members);
}

absl::StatusOr<std::unique_ptr<membership::Source>> Peers::MakeDnsSource(Loop& loop, const membership::Self& self) {
  CKPTD_ASSIGN_OR_RETURN(Resolver resolver, Resolver::Create(config_.dns_server));
  questions_ = std::make_unique<ThreadPool>("ckptd-names", 1, kOneQuestion);
  return std::make_unique<membership::DnsSource>(loop, *questions_, resolver,
                                                 membership::DnsSettings{self, config_.dns_name, config_.dns_refresh});
}

#ifdef CKPTD_GRPC
absl::StatusOr<std::unique_ptr<membership::Source>> Peers::MakeEtcdSource(Loop& loop, Files& files,
                                                                          const membership::Self& self) {
  membership::EtcdOptions options;
  options.endpoints = config_.etcd_endpoints;
  options.timeout = config_.etcd_ttl / 3;
  options.ca = config_.etcd_ca;
  options.cert = config_.etcd_cert;
  options.key = config_.etcd_key;
  CKPTD_ASSIGN_OR_RETURN(auto etcd, membership::ConnectEtcd(files, options));
  return std::make_unique<membership::EtcdSource>(
      loop, std::move(etcd), membership::EtcdSettings{self, config_.etcd_prefix, config_.etcd_ttl});
}
#else
absl::StatusOr<std::unique_ptr<membership::Source>> Peers::MakeEtcdSource(Loop&, Files&, const membership::Self&) {
  return Error(ErrorCode::INVALID_ARGUMENT, "peers.membership is etcd: this ckptd was built without gRPC");
}
#endif

std::vector<Peers::Problem> Peers::Problems() const {
  const membership::View& view = *membership_->view();
  std::vector<Problem> problems;
  if (!view.source.ok()) problems.push_back({Of("", view.source), kNextSource});
  for (const absl::Status& why : view.refused) problems.push_back({Of("refused: ", why), kNextRefused});
  const membership::Standing self = membership_->self();
  if (!self.status.ok()) problems.push_back({Of("this node: ", self.status), kNextSelf});
  return problems;
}

void Peers::Fill(v1::PeersStatus* out) const {
  const membership::View& view = *membership_->view();
  const membership::Standing self = membership_->self();
  out->set_membership(NameOf(config_.membership));
  out->set_view(view.number);
  out->set_source_ok(view.source.ok());
  if (view.number != 0 || !view.source.ok())
    out->set_source_seconds(static_cast<double>((clock_.Monotonic() - view.source_since).count()) / 1e9);
  out->set_self(self.name);
  out->set_generation(self.generation);
  out->set_speaks(self.status.ok());
  out->set_refused(view.refusals);
  out->set_member_count(view.members.size());
  for (const membership::Member& member : std::span(view.members).first(std::min(view.members.size(), kMostListed))) {
    v1::MemberStatus* added = out->add_members();
    added->set_name(member.name);
    added->set_address(member.address);
    added->set_generation(member.generation);
    for (const auto& [key, value] : member.domains) (*added->mutable_domains())[key] = value;
  }
}

}  // namespace ckptd
