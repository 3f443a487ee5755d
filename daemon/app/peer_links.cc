#include "daemon/app/peer_links.h"

#include <arpa/inet.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/log.h"
#include "daemon/base/status_macros.h"
#include "daemon/membership/member.h"
#ifdef CKPTD_GRPC
#include "daemon/transport/grpc_links.h"
#include "daemon/transport/tls/tls_port.h"
#include "daemon/transport/ucx/ucx_port.h"
#endif

namespace ckptd {
namespace {

constexpr Nanos kRetry = std::chrono::seconds(5);
constexpr Nanos kSuspicious = std::chrono::seconds(10);  // a peer that restarts is back by then
constexpr size_t kMostNamed = 5;

constexpr char kNextLinks[] =
    "jobs of this node alone go on; correct what is named, it is tried again every 5 s (README: other nodes)";
constexpr char kNextBulk[] = "copies take another way meanwhile; correct what is named and restart the agent";
constexpr char kNextPeer[] =
    "see that ckptd runs there and that its port may be reached from here; a node that is gone for good leaves "
    "peers.members";

constexpr char kNextFenced[] = "of one name the process that was started last is believed, see the sentence above";

bool IsAddress(const std::string& host) {
  in6_addr room{};
  return inet_pton(AF_INET, host.c_str(), &room) == 1 || inet_pton(AF_INET6, host.c_str(), &room) == 1;
}

bool Unreached(const transport::PeerCondition& peer, Nanos now) {
  return peer.wanted && !peer.connected && !peer.last_error.ok() && now - peer.since > kSuspicious;
}

}  // namespace

bool SpeaksToPeers(const PeersConfig& config) {
  return config.tls == PeersTlsChoice::kPlaintextOnLoopback || !config.tls_ca.empty();
}

PeerLinks::PeerLinks(Loop& loop, const Clock& clock, Files& files, const PeersConfig& config,
                     membership::Membership& membership, Self self, Handler handler)
    : loop_(loop),
      clock_(clock),
      files_(files),
      config_(config),
      membership_(membership),
      self_(std::move(self)),
      handler_(std::move(handler)),
      speaks_(SpeaksToPeers(config)),
      members_{self_.agent} {}

PeerLinks::~PeerLinks() {
  if (retry_) loop_.CancelTimer(*retry_);
}

void PeerLinks::Start() {
  if (!speaks_) return;
  membership_.Watch([take = scope_.Bind([this](int) { TakeView(); })](const auto&) mutable { take(0); });
  TryToStart();
  TakeView();
}

void PeerLinks::TryToStart() {
  retry_.reset();
  auto links = MakeLinks();
  why_not_ = links.status();
  if (links.ok()) {
    links_ = *std::move(links);
    Log(kInfo, "peers.listening").Field("address", ListenAddress());
    taken_.reset();
    return TakeView();
  }
  Log(kError, "peers.no_links").Error(why_not_);
  retry_ = loop_.After(kRetry, [this] { TryToStart(); });
}

std::string PeerLinks::ListenAddress() const {
  const std::string host = IsAddress(config_.address) ? config_.address : "::";
  return membership::JoinAddress(host, static_cast<uint16_t>(config_.port));
}

#ifdef CKPTD_GRPC
transport::SocketPortOptions PeerLinks::SocketOptions() const {
  transport::SocketPortOptions options;
  options.host = IsAddress(config_.address) ? config_.address : "";
  options.port = static_cast<uint16_t>(config_.bulk_port);
  options.dscp = static_cast<uint8_t>(config_.dscp);
  options.cluster = config_.cluster;
  return options;
}

absl::StatusOr<std::unique_ptr<transport::BulkPort>> PeerLinks::MakeTlsPort() {
  transport::TlsPortOptions options;
  static_cast<transport::SocketPortOptions&>(options) = SocketOptions();
  options.tls = {transport::TlsMode::kMutual, config_.tls_ca, config_.tls_cert, config_.tls_key};
  return transport::OpenTlsPort(files_, options);
}

absl::StatusOr<std::unique_ptr<transport::BulkPort>> PeerLinks::MakeUcxPort() {
  transport::UcxPortOptions options;
  options.library = config_.ucx_library;
  options.only_loopback = config_.tls == PeersTlsChoice::kPlaintextOnLoopback;
  options.host = IsAddress(config_.address) ? config_.address : "0.0.0.0";
  return transport::UcxPort::Open(options);
}

// What cannot be opened is said where problems are, but for a UCX that nobody has asked for by its name.
void PeerLinks::AddBulk(transport::BulkWay way, absl::StatusOr<std::unique_ptr<transport::BulkPort>> port) {
  const char* const name = transport::NameOf(way);
  if (!port.ok()) {
    const bool optional = config_.bulk == PeersBulkChoice::kAuto && way == transport::BulkWay::kUcx;
    if (!optional) why_no_bulk_ = port.status();
    Log(optional ? kInfo : kError, absl::StrCat("peers.no_", name)).Error(port.status());
    return;
  }
  bulks_.push_back(*std::move(port));
  Log(kInfo, absl::StrCat("peers.", name))
      .Field("address", config_.address)
      .Field("port", uint64_t{bulks_.back()->port()});
}

void PeerLinks::OpenBulk() {
  if (!bulks_.empty()) return;
  why_no_bulk_ = absl::OkStatus();
  const bool any = config_.bulk == PeersBulkChoice::kAuto;
  const bool trusted = config_.bulk_network == BulkNetworkChoice::kTrusted;
  const bool plain = trusted || config_.tls == PeersTlsChoice::kPlaintextOnLoopback;
  if (config_.bulk == PeersBulkChoice::kUcx || (any && trusted)) AddBulk(transport::BulkWay::kUcx, MakeUcxPort());
  // One of them: TLS is not faster than what it is made of, and they have one port.
  if (config_.bulk == PeersBulkChoice::kTcp || (any && plain))
    AddBulk(transport::BulkWay::kTcp, transport::OpenTcpPort(SocketOptions()));
  else if (config_.bulk == PeersBulkChoice::kTls || any)
    AddBulk(transport::BulkWay::kTls, MakeTlsPort());
}

absl::StatusOr<std::unique_ptr<transport::Links>> PeerLinks::MakeLinks() {
  OpenBulk();
  transport::TlsOptions tls{transport::TlsMode::kMutual, config_.tls_ca, config_.tls_cert, config_.tls_key};
  if (config_.tls == PeersTlsChoice::kPlaintextOnLoopback) tls.mode = transport::TlsMode::kPlaintextOnLoopback;
  CKPTD_ASSIGN_OR_RETURN(auto credentials, transport::Credentials::Create(files_, tls, config_.cluster));
  transport::GrpcLinksOptions options;
  options.cluster = config_.cluster;
  options.agent = self_.agent;
  options.incarnation = self_.incarnation;
  options.listen = ListenAddress();
  options.self = [this] {
    membership::Standing self = membership_.self();
    return transport::SelfStanding{std::move(self.name), self.generation, std::move(self.status)};
  };
  options.admit = [this](const std::string& name, uint64_t generation) { return membership_.Admit(name, generation); };
  options.would_admit = [this](const std::string& name, uint64_t generation) {
    return membership_.WouldAdmit(name, generation);
  };
  CKPTD_ASSIGN_OR_RETURN(options.domains, membership::ParseLabels(config_.labels));
  options.heard_domains = [this](const std::string& name, const transport::Domains& domains) {
    HeardDomains(name, domains);
  };
  options.copy_host = handler_.copies;
  for (const auto& bulk : bulks_) options.bulks.push_back(bulk.get());
  options.measures = config_.bulk == PeersBulkChoice::kAuto;
  CKPTD_ASSIGN_OR_RETURN(auto links,
                         transport::GrpcLinks::Start(loop_, *this, std::move(credentials), std::move(options)));
  copies_ = &links->copies();
  return links;
}
#else
absl::StatusOr<std::unique_ptr<transport::Links>> PeerLinks::MakeLinks() {
  return Error(ErrorCode::INVALID_ARGUMENT, "this ckptd was built without gRPC and speaks to no other node");
}
#endif

// A cluster that starts says them all at once: they are told together.
void PeerLinks::HeardDomains(const std::string& name, const membership::Labels& domains) {
  if (heard_.empty()) loop_.After(Nanos(0), scope_.Bind([this] { membership_.Learn(std::exchange(heard_, {})); }));
  heard_[name] = domains;
}

// Links do not look at failure domains, and each of them is judged anew with every view that they are given.
void PeerLinks::TakeView() {
  const auto view = membership_.view();
  const Taken now{view->nodes, membership_.self()};
  if (std::exchange(taken_, now) == now) return;
  std::vector<transport::PeerNode> others;
  std::vector<std::string> members{self_.agent};
  for (const membership::Member& member : view->members) {
    if (member.name == self_.agent) continue;
    others.push_back({member.name, member.address});
    members.push_back(member.name);
  }
  if (links_) links_->SetPeers(others);
  std::sort(members.begin(), members.end());
  if (members == members_) return;
  members_ = std::move(members);
  handler_.members_changed();
}

void PeerLinks::Send(const std::string& agent, const transport::StatePtr& state) {
  SendTo(agent, recent_states_.Of(state));
}

void PeerLinks::Send(const std::string& agent, const transport::ReportPtr& report) {
  SendTo(agent, transport::LinkMessage(report));
}

void PeerLinks::SendTo(const std::string& agent, const transport::LinkMessage& message) {
  if (!links_) return;
  const absl::Status sent = links_->Send(agent, message);
  if (sent.ok()) return;
  Log(absl::IsNotFound(sent) ? kDebug : kWarning, "peers.not_sent").Job(message.job()).Error(sent);
}

// That a peer speaks for itself, daemon/transport has checked by what it calls itself; here by its certificate's name.
void PeerLinks::Received(const std::string& peer, const transport::LinkMessage& message) {
  const std::string& from = message.state() ? message.state()->coordinator() : message.report()->agent();
  if (from == peer) return handler_.received(message);
  Log(kWarning, "peers.refused")
      .Job(message.job())
      .Error(Error(ErrorCode::PROTOCOL, absl::StrCat("node ", peer, " speaks for agent ", from)));
}

void PeerLinks::Fill(v1::PeersStatus* out) const {
  if (!links_) return;
  out->set_linked(true);
  const std::vector<transport::PeerCondition> peers = links_->Conditions();
  for (v1::MemberStatus& member : *out->mutable_members()) {
    const auto at = std::lower_bound(peers.begin(), peers.end(), member.name(),
                                     [](const auto& peer, const std::string& name) { return peer.name < name; });
    if (at == peers.end() || at->name != member.name()) continue;
    v1::LinkStatus* link = member.mutable_link();
    link->set_wanted(at->wanted);
    link->set_connected(at->connected);
    if (at->since != Nanos(0)) link->set_seconds(static_cast<double>((clock_.Monotonic() - at->since).count()) / 1e9);
    if (!at->connected && !at->last_error.ok()) link->set_error(std::string(at->last_error.message()));
    link->set_sent_messages(at->sent_messages);
    link->set_sent_bytes(at->sent_bytes);
    link->set_received_messages(at->received_messages);
    link->set_received_bytes(at->received_bytes);
  }
  for (const transport::PathChoice::Speed& speed : Speeds()) {
    auto& members = *out->mutable_members();
    const auto member =
        std::find_if(members.begin(), members.end(), [&](const auto& each) { return each.name() == speed.peer; });
    if (member == members.end()) continue;
    v1::PathStatus* path = member->mutable_link()->add_paths();
    path->set_way(transport::NameOf(speed.way));
    path->set_bytes_per_second(speed.bytes_per_second);
    path->set_in_use(speed.in_use);
  }
}

std::vector<transport::PathChoice::Speed> PeerLinks::Speeds() const {
  return copies_ == nullptr ? std::vector<transport::PathChoice::Speed>() : copies_->Speeds();
}

PeerLinks::Count PeerLinks::count() const {
  Count count;
  if (!links_) return count;
  for (const transport::PeerCondition& peer : links_->Conditions()) {
    count.wanted += peer.wanted ? 1 : 0;
    count.connected += peer.wanted && peer.connected ? 1 : 0;
  }
  return count;
}

std::vector<Peers::Problem> PeerLinks::Problems() const {
  std::vector<Peers::Problem> problems;
  if (!why_not_.ok())
    problems.push_back({Error(CodeOf(why_not_), absl::StrCat("peers: ", why_not_.message())), kNextLinks});
  if (!why_no_bulk_.ok())
    problems.push_back({Error(CodeOf(why_no_bulk_), absl::StrCat("peers: ", why_no_bulk_.message())), kNextBulk});
  if (!links_) return problems;
  size_t unreached = 0;
  for (const transport::PeerCondition& peer : links_->Conditions()) {
    if (!Unreached(peer, clock_.Monotonic()) || ++unreached > kMostNamed) continue;
    problems.push_back({Error(CodeOf(peer.last_error),
                              absl::StrCat("peers: node ", peer.name, " is not reached: ", peer.last_error.message())),
                        CodeOf(peer.last_error) == ErrorCode::FENCED ? kNextFenced : kNextPeer});
  }
  if (unreached > kMostNamed)
    problems.push_back(
        {Error(ErrorCode::TIMEOUT, absl::StrCat("peers: ", unreached, " nodes are not reached")), kNextPeer});
  return problems;
}

}  // namespace ckptd
