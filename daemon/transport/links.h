// What carries the messages of the job protocol between agents. grpc_links.h does it over TCP; testing/fake_links.h in
// one process, with losses.
//
// Nothing is promised: a message may be lost, doubled or late, and of those of one job and kind only the newest counts.
// Whoever sends, sends again on change and by timer (protocol.md, section 3).
#ifndef CKPTD_DAEMON_TRANSPORT_LINKS_H_
#define CKPTD_DAEMON_TRANSPORT_LINKS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "daemon/base/clock.h"
#include "daemon/transport/link_message.h"

namespace ckptd::transport {

// One other member, as the membership names it.
struct PeerNode {
  std::string name;
  std::string address;  // "HOST:PORT", "[IPv6]:PORT"
  bool operator==(const PeerNode&) const = default;
};

// How the link to one peer stands.
struct PeerCondition {
  std::string name;
  std::string agent;        // its id in the job protocol, as it last said it; empty = it never did
  bool wanted = false;      // something was sent to it: a link is kept, and made again when it breaks
  bool connected = false;   // it answered Hello, and the stream stands
  Nanos since{0};           // monotonic: of `connected`, or of the link's end; 0 = never tried
  absl::Status last_error;  // why there is no link, or why the last one ended
  uint64_t sent_messages = 0;
  uint64_t sent_bytes = 0;
  uint64_t unsent_messages = 0;    // wait now
  uint64_t replaced_messages = 0;  // were never sent: a newer one came
  uint64_t received_messages = 0;
  uint64_t received_bytes = 0;
  uint64_t links = 0;  // how often there was one
};

class LinkSink {
 public:
  virtual ~LinkSink() = default;
  // From a peer that proved to be `peer`, checked by CheckReceived. On the owner's thread.
  virtual void Received(const std::string& peer, const LinkMessage& message) = 0;
};

// Everything on the owner's thread. No call waits.
class Links {
 public:
  virtual ~Links() = default;  // says nothing any more

  // All other members. Who is not among them any more is cut off, both ways; who has another address is dialled there;
  // and everybody who is linked is judged anew, since a view may have fenced them. Call it too when this node's own
  // standing changes.
  virtual void SetPeers(const std::vector<PeerNode>& peers) = 0;
  // Takes the place of an unsent message of the same job and kind. NOT_FOUND: no such peer. REFUSED: too large, or too
  // much waits.
  [[nodiscard]] virtual absl::Status Send(const std::string& peer, const LinkMessage& message) = 0;
  // Of all peers, by name.
  [[nodiscard]] virtual std::vector<PeerCondition> Conditions() const = 0;
};

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_LINKS_H_
