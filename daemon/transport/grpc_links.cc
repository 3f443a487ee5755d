#include "daemon/transport/grpc_links.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/resource_quota.h>

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/transport/copies_desk.h"
#include "daemon/transport/door.h"
#include "daemon/transport/grpc_copies.h"
#include "daemon/transport/out_link.h"
#include "daemon/transport/visit.h"

namespace ckptd::transport {
namespace {

constexpr int kFrame = 1024;  // around a message
constexpr int kStreamsPerConnection = 8;
constexpr int kHandshakeMs = 10'000;
constexpr int kIdleMs = 60'000;  // a connection without a call
constexpr int kEndingMs = 1000;  // for calls on a connection that lived long enough
constexpr int kMostPingsPerSecond = 2;
constexpr size_t kReceiveMemory = size_t{1} << 30;  // of all peers together, before gRPC lets them wait
constexpr std::chrono::milliseconds kHousekeeping{1000};
constexpr int kMostAboutCopies = 16 << 20;  // 2^20 checksums, and more

// gRPC 1.51 ends its queue for callbacks with the last that uses it, and was seen to free it twice:
// this one, without a port, uses it for as long as the process lives.
void KeepCallbackQueue() {
  static const grpc::Server* const kept = [] {
    grpc::ServerBuilder builder;
    builder.RegisterCallbackGenericService(new grpc::CallbackGenericService);
    return builder.BuildAndStart().release();
  }();
  (void)kept;
}

int Milliseconds(std::chrono::milliseconds span) { return static_cast<int>(span.count()); }

}  // namespace

struct GrpcLinks::Impl {
  Impl(Loop& event_loop, LinkSink& link_sink, std::unique_ptr<Credentials> own, GrpcLinksOptions chosen);
  ~Impl();

  [[nodiscard]] absl::Status Listen();
  void Housekeep();
  [[nodiscard]] absl::StatusOr<Card> Self() const;
  [[nodiscard]] absl::Status CheckMember(const Card& peer) const;
  [[nodiscard]] absl::Status Admit(const Card& peer) const;
  [[nodiscard]] absl::Status WouldAdmit(const Card& peer) const;
  [[nodiscard]] absl::Status AdmitCaller(const CertificateNames& names, const Card& peer) const;
  [[nodiscard]] absl::StatusOr<std::shared_ptr<grpc::Channel>> Connect(const PeerNode& node, int most_received) const;
  [[nodiscard]] absl::StatusOr<std::shared_ptr<grpc::Channel>> ConnectForCopies(const std::string& peer) const;
  [[nodiscard]] grpc::ChannelArguments ChannelArguments(int most_received) const;
  void Configure(grpc::ServerBuilder* builder) const;
  [[nodiscard]] DoorOptions OptionsOfDoor();
  [[nodiscard]] CopiesDeskOptions OptionsOfCopiesDesk();
  [[nodiscard]] GrpcCopiesOptions OptionsOfCopies();
  [[nodiscard]] OutLinkShared SharedByLinks();

  Loop& loop;
  const std::unique_ptr<Credentials> credentials;
  const GrpcLinksOptions options;
  const std::shared_ptr<Mailbox> mailbox;
  const std::shared_ptr<Pending> pending = std::make_shared<Pending>();
  OutLinkShared shared;
  std::map<std::string, PeerNode> peers;
  std::map<std::string, std::unique_ptr<OutLink>> links;
  Door door;
  const std::unique_ptr<VisitDesk> desk;
  const std::unique_ptr<CopiesDesk> copies_desk;
  std::unique_ptr<GrpcCopies> copies;
  std::unique_ptr<grpc::Server> server;
  int port = 0;
  Loop::TimerId housekeeping = 0;
};

GrpcLinks::Impl::Impl(Loop& event_loop, LinkSink& link_sink, std::unique_ptr<Credentials> own, GrpcLinksOptions chosen)
    : loop(event_loop),
      credentials(std::move(own)),
      options(std::move(chosen)),
      mailbox(Mailbox::Create(event_loop)),
      shared(SharedByLinks()),
      door(event_loop, mailbox, link_sink, OptionsOfDoor()),
      desk(MakeVisitDesk(door)),
      copies_desk(MakeCopiesDesk(event_loop, mailbox, OptionsOfCopiesDesk())),
      copies(std::make_unique<GrpcCopies>(event_loop, mailbox, OptionsOfCopies())) {
  Housekeep();
}

// From here on nothing is told any more; calls of both directions are cancelled, which does not ask the peer.
GrpcLinks::Impl::~Impl() {
  loop.CancelTimer(housekeeping);
  mailbox->Close();
  links.clear();
  copies.reset();
  const absl::Status leaving = Error(ErrorCode::DRAINING, absl::StrCat("node ", options.self().name, " leaves"));
  copies_desk->Close(leaving);
  desk->Close(leaving);
  if (server) {
    server->Shutdown(std::chrono::system_clock::now());
    server->Wait();
  }
  pending->WaitForNone();
}

void GrpcLinks::Impl::Housekeep() {
  mailbox->Drain();
  housekeeping = loop.After(kHousekeeping, [this] { Housekeep(); });
}

absl::StatusOr<Card> GrpcLinks::Impl::Self() const {
  SelfStanding self = options.self();
  CKPTD_RETURN_IF_ERROR(self.status);
  return Card{options.cluster, std::move(self.name), options.agent,
              self.generation, options.incarnation,  options.domains};
}

absl::Status GrpcLinks::Impl::CheckMember(const Card& peer) const {
  if (peers.find(peer.name) != peers.end()) return absl::OkStatus();
  return Error(ErrorCode::NOT_FOUND, absl::StrCat("node ", peer.name, " is not a member as node ", options.self().name,
                                                  " knows them: it registers first, or is added to peers.members"));
}

absl::Status GrpcLinks::Impl::Admit(const Card& peer) const {
  CKPTD_RETURN_IF_ERROR(CheckMember(peer));
  return options.admit(peer.name, peer.generation);
}

absl::Status GrpcLinks::Impl::WouldAdmit(const Card& peer) const {
  CKPTD_RETURN_IF_ERROR(CheckMember(peer));
  return options.would_admit(peer.name, peer.generation);
}

absl::Status GrpcLinks::Impl::AdmitCaller(const CertificateNames& names, const Card& peer) const {
  CKPTD_RETURN_IF_ERROR(credentials->CheckCaller(names, peer.name));
  return Admit(peer);
}

DoorOptions GrpcLinks::Impl::OptionsOfDoor() {
  return {options.hello_patience, [this] { return Self(); },
          [this](const CertificateNames& names, const Card& peer) { return AdmitCaller(names, peer); },
          [this](const Card& peer) {
            if (const auto link = links.find(peer.name); link != links.end()) link->second->Heard(peer);
            if (options.heard_domains) options.heard_domains(peer.name, peer.domains);
          }};
}

CopiesDeskOptions GrpcLinks::Impl::OptionsOfCopiesDesk() {
  return {options.copy_host,
          options.hello_patience,
          options.moves_in,
          [this] { return Self(); },
          [this](const CertificateNames& names, const Card& peer) { return AdmitCaller(names, peer); },
          [this](const Card& peer) { return WouldAdmit(peer); },
          options.bulks};
}

GrpcCopiesOptions GrpcLinks::Impl::OptionsOfCopies() {
  return {pending,
          options.hello_patience,
          options.first_pause,
          options.longest_pause,
          options.moves_out,
          [this] { return Self(); },
          [this](const Card& peer) { return Admit(peer); },
          [this](const Card& peer) { return WouldAdmit(peer); },
          [this](const std::string& peer) { return ConnectForCopies(peer); },
          options.bulks,
          options.measures};
}

OutLinkShared GrpcLinks::Impl::SharedByLinks() {
  return {loop,
          mailbox,
          pending,
          options.hello_patience,
          options.first_pause,
          options.longest_pause,
          options.longest_connection / 5 * 4,  // before the callee ends it, who is no more exact than a tenth
          [this] { return Self(); },
          [this](const Card& peer) { return Admit(peer); },
          [this](const PeerNode& node) { return Connect(node, kFrame * 4); }};  // an answer to Hello
}

// One attempt to connect for each channel: the pauses between them are OutLink's.
grpc::ChannelArguments GrpcLinks::Impl::ChannelArguments(int most_received) const {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(options.ping_every));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Milliseconds(options.ping_patience));
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // a proxy of the surroundings is not for peers
  arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  arguments.SetMaxReceiveMessageSize(most_received);
  arguments.SetMaxSendMessageSize(static_cast<int>(kMaxLinkMessage) + kFrame);
  return arguments;
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> GrpcLinks::Impl::Connect(const PeerNode& node, int most_received) const {
  if (credentials->mode() == TlsMode::kPlaintextOnLoopback) CKPTD_RETURN_IF_ERROR(CheckPlaintext({node.address}));
  // With the scheme: a host may be called "unix".
  return grpc::CreateCustomChannel(absl::StrCat("dns:///", node.address), credentials->ForPeer(node.name),
                                   ChannelArguments(most_received));
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> GrpcLinks::Impl::ConnectForCopies(const std::string& peer) const {
  const auto found = peers.find(peer);
  if (found == peers.end()) return Error(ErrorCode::NOT_FOUND, "it is not a member");
  return Connect(found->second, kMostAboutCopies);
}

void GrpcLinks::Impl::Configure(grpc::ServerBuilder* builder) const {
  grpc::ResourceQuota quota("ckptd-peers");
  quota.Resize(kReceiveMemory);
  builder->SetResourceQuota(quota);
  builder->SetMaxReceiveMessageSize(static_cast<int>(kMaxLinkMessage) + kFrame);
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // a port that is taken is an error
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreamsPerConnection);
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMs);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleMs);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, Milliseconds(options.longest_connection));
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, kEndingMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(options.ping_every));
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Milliseconds(options.ping_patience));
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000 / kMostPingsPerSecond);
}

absl::Status GrpcLinks::Impl::Listen() {
  if (credentials->mode() == TlsMode::kPlaintextOnLoopback) CKPTD_RETURN_IF_ERROR(CheckPlaintext({options.listen}));
  grpc::ServerBuilder builder;
  Configure(&builder);
  builder.RegisterService(desk->service());
  builder.RegisterService(copies_desk->service());
  builder.AddListeningPort(options.listen, credentials->ForServer(), &port);
  server = builder.BuildAndStart();
  if (server && port > 0) return absl::OkStatus();
  return Error(ErrorCode::REFUSED,
               absl::StrCat("cannot listen for other nodes at ", options.listen,
                            ": is that address this node's, and the port free? (peers.address, peers.port)"));
}

GrpcLinks::GrpcLinks(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GrpcLinks::~GrpcLinks() = default;
CopyCalls& GrpcLinks::copies() { return *impl_->copies; }
int GrpcLinks::port() const { return impl_->port; }

absl::StatusOr<std::unique_ptr<GrpcLinks>> GrpcLinks::Start(Loop& loop, LinkSink& sink,
                                                            std::unique_ptr<Credentials> credentials,
                                                            GrpcLinksOptions options) {
  KeepCallbackQueue();
  auto impl = std::make_unique<Impl>(loop, sink, std::move(credentials), std::move(options));
  CKPTD_RETURN_IF_ERROR(impl->Listen());
  return std::unique_ptr<GrpcLinks>(new GrpcLinks(std::move(impl)));
}

void GrpcLinks::SetPeers(const std::vector<PeerNode>& peers) {
  const std::string self = impl_->options.self().name;
  impl_->peers.clear();
  for (const PeerNode& peer : peers) {
    if (peer.name != self) impl_->peers.emplace(peer.name, peer);
  }
  const auto is_peer = [this](const std::string& name) { return impl_->peers.count(name) != 0; };
  std::erase_if(impl_->links, [&](const auto& link) { return !is_peer(link.first); });
  for (const auto& [name, link] : impl_->links) {
    const PeerNode& node = impl_->peers.at(name);
    if (link->node() != node)
      link->MoveTo(node);
    else
      link->Rejudge();
  }
  impl_->door.Rejudge();
  impl_->copies_desk->Rejudge();
  impl_->copies->Rejudge();
  impl_->door.ForgetCounts(is_peer);
  impl_->copies->ForgetOthers(is_peer);
}

absl::Status GrpcLinks::Send(const std::string& peer, const LinkMessage& message) {
  const auto found = impl_->peers.find(peer);
  if (found == impl_->peers.end())
    return Error(ErrorCode::NOT_FOUND, absl::StrCat("job ", message.job(), ": node ", peer, " is not a member"));
  std::unique_ptr<OutLink>& link = impl_->links[peer];
  if (!link) link = std::make_unique<OutLink>(impl_->shared, found->second);
  return link->Send(message);
}

std::vector<PeerCondition> GrpcLinks::Conditions() const {
  std::vector<PeerCondition> all;
  all.reserve(impl_->peers.size());
  for (const auto& [name, node] : impl_->peers) {
    PeerCondition& condition = all.emplace_back();
    if (const auto link = impl_->links.find(name); link != impl_->links.end()) link->second->Fill(&condition);
    condition.name = name;
    const Door::Count* count = impl_->door.FindCount(name);
    if (count == nullptr) continue;
    condition.agent = count->agent;
    condition.received_messages = count->messages;
    condition.received_bytes = count->bytes;
  }
  return all;
}

}  // namespace ckptd::transport
