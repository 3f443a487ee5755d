// Links over gRPC: a server for those who speak to this agent, and one connection with one stream to each peer that
// this agent speaks to (proto/ckptd/v1/peer.proto). Built only with CKPTD_GRPC (link ckptd::transport_grpc).
//
//   CKPTD_ASSIGN_OR_RETURN(auto credentials, Credentials::Create(files, tls, cluster));
//   CKPTD_ASSIGN_OR_RETURN(auto links, GrpcLinks::Start(loop, sink, std::move(credentials), options));
//   links->SetPeers(peers);   // with each view of other nodes, or generations, and when this node's standing changes
//   (void)links->Send("n2", LinkMessage(state));
//
// Everything is decided on the loop's thread; gRPC's own threads read and write. A peer that is silent is given up
// within 10 s (pings, from both sides). A connection lives an hour at most, so that certificates are looked at again:
// the caller makes a new one before the callee ends it, and loses nothing by that.
#ifndef CKPTD_DAEMON_TRANSPORT_GRPC_LINKS_H_
#define CKPTD_DAEMON_TRANSPORT_GRPC_LINKS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/os/loop.h"
#include "daemon/transport/bulk_port.h"
#include "daemon/transport/copies.h"
#include "daemon/transport/credentials.h"
#include "daemon/transport/hello.h"
#include "daemon/transport/links.h"

namespace ckptd::transport {

// How this node stands in the membership, now.
struct SelfStanding {
  std::string name;
  uint64_t generation = 0;
  absl::Status status;  // OK: it may speak to others
};

struct GrpcLinksOptions {
  std::string cluster;
  std::string agent;         // this agent's id in the job protocol
  uint64_t incarnation = 0;  // random for this process, never 0
  std::string listen;        // "HOST:PORT"; port 0 = any free one
  std::function<SelfStanding()> self;
  Domains domains;  // of this node: others hear them
  // A peer that was admitted says its own. Null: nobody wants to know.
  std::function<void(const std::string& name, const Domains& domains)> heard_domains = nullptr;
  // May a node that proved `name` and says this generation be believed? Membership::Admit.
  std::function<absl::Status(const std::string& name, uint64_t generation)> admit;
  // The same where nothing proved the name: Membership::WouldAdmit.
  std::function<absl::Status(const std::string& name, uint64_t generation)> would_admit;

  // What other agents ask of this one about copies, and outlives the links; null: that is REFUSED.
  CopyHost* copy_host = nullptr;
  // Other ways for the bytes of copies, where the other end has them, too; they outlive the links.
  std::vector<BulkPort*> bulks;
  bool measures = false;  // the way that was fastest lately is taken, also gRPC; else the first of `bulks` that is open
  size_t moves_out = 4;   // transfers that this agent dialled, at once, each on a thread; the rest wait
  size_t moves_in = 4;    // that others dialled; more are BUSY

  Nanos hello_patience = std::chrono::seconds(5);
  Nanos first_pause = std::chrono::milliseconds(200);
  Nanos longest_pause = std::chrono::seconds(5);
  std::chrono::milliseconds ping_every{4000};
  std::chrono::milliseconds ping_patience{3000};
  std::chrono::milliseconds longest_connection = std::chrono::hours(1);
};

class GrpcLinks final : public Links {
 public:
  // `loop` and `sink` outlive it. INVALID_ARGUMENT: without TLS, and `listen` is not loopback. REFUSED: cannot listen
  // there.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<GrpcLinks>> Start(Loop& loop, LinkSink& sink,
                                                                        std::unique_ptr<Credentials> credentials,
                                                                        GrpcLinksOptions options);
  // Cuts all links, and waits until gRPC has let go of them. No peer is waited for; a socket with bytes that a silent
  // peer does not take is given up after `ping_patience`. Not from within a callback.
  ~GrpcLinks() override;

  void SetPeers(const std::vector<PeerNode>& peers) override;
  [[nodiscard]] absl::Status Send(const std::string& peer, const LinkMessage& message) override;
  [[nodiscard]] std::vector<PeerCondition> Conditions() const override;

  // Valid as long as this.
  [[nodiscard]] CopyCalls& copies();
  [[nodiscard]] int port() const;

 private:
  struct Impl;
  explicit GrpcLinks(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_GRPC_LINKS_H_
