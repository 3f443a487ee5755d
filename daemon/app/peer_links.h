// What this node's jobs and those of other nodes say to each other: which agents take part in jobs, and the links that
// carry their messages (daemon/transport).
//
// In the job protocol an agent is called as its node is in the membership, once it may speak to others at all
// (peers.tls); a node that may not is alone in its jobs, whatever members there are.
//
// On the loop's thread. Links that cannot be made (a port that is taken, certificates that are not there yet) are tried
// again: this node's own jobs need none.
#ifndef CKPTD_DAEMON_APP_PEER_LINKS_H_
#define CKPTD_DAEMON_APP_PEER_LINKS_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/app/peers.h"
#include "daemon/base/callback_scope.h"
#include "daemon/base/clock.h"
#include "daemon/config/config.h"
#include "daemon/os/files.h"
#include "daemon/os/loop.h"
#include "daemon/transport/bulk_port.h"
#include "daemon/transport/copies.h"
#include "daemon/transport/links.h"
#include "daemon/transport/sockets/socket_port.h"
#include "proto/ckptd/v1/status.pb.h"

namespace ckptd {

// Whether this node speaks to others: it has certificates, or needs none.
[[nodiscard]] bool SpeaksToPeers(const PeersConfig& config);

class PeerLinks final : private transport::LinkSink {
 public:
  struct Self {
    std::string agent;         // as job messages name this agent
    uint64_t incarnation = 0;  // random for this process, never 0
  };
  struct Handler {
    // From the agent of that name, proved by its certificate.
    std::function<void(const transport::LinkMessage& message)> received;
    std::function<void()> members_changed;
    transport::CopyHost* copies = nullptr;  // what others ask of this node's memory; outlives it
  };

  // `loop`, `clock`, `files` and `membership` outlive it.
  PeerLinks(Loop& loop, const Clock& clock, Files& files, const PeersConfig& config, membership::Membership& membership,
            Self self, Handler handler);
  ~PeerLinks() override;  // waits for no peer

  // Once. Nothing is received before.
  void Start();
  // Nothing comes or goes any more.
  void Stop() {
    copies_ = nullptr;
    links_.reset();
    bulks_.clear();
  }
  // This node speaks to others, or would.
  [[nodiscard]] bool speaks() const { return speaks_; }
  [[nodiscard]] const membership::Membership& membership() const { return membership_; }
  // The agents of every job, this one among them.
  [[nodiscard]] const std::vector<std::string>& members() const { return members_; }
  // To another agent. What cannot be sent is said in the log, and sent again by whoever repeats it.
  void Send(const std::string& agent, const transport::StatePtr& state);
  void Send(const std::string& agent, const transport::ReportPtr& report);

  // What this node asks of others' memory; null while there are no links.
  [[nodiscard]] transport::CopyCalls* copies() { return copies_; }

  void Fill(v1::PeersStatus* out) const;
  // No links, and peers that are not reached.
  [[nodiscard]] std::vector<Peers::Problem> Problems() const;
  // Peers that this node speaks to, and how many of them are reached.
  struct Count {
    size_t wanted = 0;
    size_t connected = 0;
  };
  [[nodiscard]] Count count() const;
  // How fast copies went lately, by peer and way.
  [[nodiscard]] std::vector<transport::PathChoice::Speed> Speeds() const;

 private:
  void Received(const std::string& peer, const transport::LinkMessage& message) override;
  void TryToStart();
  [[nodiscard]] absl::StatusOr<std::unique_ptr<transport::Links>> MakeLinks();
  [[nodiscard]] transport::SocketPortOptions SocketOptions() const;
  [[nodiscard]] absl::StatusOr<std::unique_ptr<transport::BulkPort>> MakeTlsPort();
  [[nodiscard]] absl::StatusOr<std::unique_ptr<transport::BulkPort>> MakeUcxPort();
  void AddBulk(transport::BulkWay way, absl::StatusOr<std::unique_ptr<transport::BulkPort>> port);
  void OpenBulk();
  [[nodiscard]] std::string ListenAddress() const;
  void HeardDomains(const std::string& name, const membership::Labels& domains);
  void TakeView();
  void SendTo(const std::string& agent, const transport::LinkMessage& message);

  Loop& loop_;
  const Clock& clock_;
  Files& files_;
  const PeersConfig config_;
  membership::Membership& membership_;
  const Self self_;
  const Handler handler_;
  const bool speaks_;
  struct Taken {
    uint64_t nodes = 0;  // membership::View
    membership::Standing self;
    bool operator==(const Taken&) const = default;
  };
  std::optional<Taken> taken_;                       // by the links, and as members_
  std::map<std::string, membership::Labels> heard_;  // and not told the membership yet
  std::vector<std::string> members_;
  std::vector<std::unique_ptr<transport::BulkPort>> bulks_;  // by peers.bulk; they outlive the links
  absl::Status why_no_bulk_;                                 // it was asked for, and cannot be
  std::unique_ptr<transport::Links> links_;
  transport::CopyCalls* copies_ = nullptr;  // of links_
  absl::Status why_not_;                    // there are no links
  transport::RecentStates recent_states_;
  std::optional<Loop::TimerId> retry_;
  CallbackScope scope_;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_APP_PEER_LINKS_H_
