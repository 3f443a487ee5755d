// The link to one peer, from this agent's side: dialled when there is something to say, and again, after growing
// pauses, whenever it breaks, as long as the peer is a member.
//
//   idle -- Send --> dialling -- Hello answered --> open
//                       ^  \                         |
//                       |   '-- refused, silent --.  | broken
//                       '------- pausing <---------'-'
//
// A link that stood for long is made anew, without a pause: nothing more is written, the peer, which has read all of
// it, ends the stream, and it is dialled again.
#ifndef CKPTD_DAEMON_TRANSPORT_OUT_LINK_H_
#define CKPTD_DAEMON_TRANSPORT_OUT_LINK_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/callback_scope.h"
#include "daemon/os/loop.h"
#include "daemon/transport/backoff.h"
#include "daemon/transport/dial_stream.h"
#include "daemon/transport/hello.h"
#include "daemon/transport/links.h"
#include "daemon/transport/mailbox.h"
#include "daemon/transport/outbox.h"

namespace ckptd::transport {

// What all links of an agent share. Outlives them.
struct OutLinkShared {
  Loop& loop;
  std::shared_ptr<Mailbox> mailbox;
  std::shared_ptr<Pending> pending;
  Nanos patience;  // from dialling to the answer to Hello
  Nanos first_pause;
  Nanos longest_pause;
  Nanos renew_after;  // a link that stood so long is made anew
  // This agent; an error while it may not speak to others.
  std::function<absl::StatusOr<Card>()> self;
  // May `peer`, whose name TLS proved, be believed?
  std::function<absl::Status(const Card& peer)> admit;
  // A channel that has not been used; an error where the address is none for this agent.
  std::function<absl::StatusOr<std::shared_ptr<grpc::Channel>>(const PeerNode& node)> connect;
};

// Everything on the loop's thread.
class OutLink {
 public:
  OutLink(OutLinkShared& shared, PeerNode node);
  ~OutLink();
  OutLink(const OutLink&) = delete;
  OutLink& operator=(const OutLink&) = delete;

  [[nodiscard]] absl::Status Send(const LinkMessage& message);
  // The peer moved: dialled there, now.
  void MoveTo(const PeerNode& node);
  // Something changed: this agent's own standing, or who is believed. A link that would not be made now, or would be
  // made with another Hello, ends.
  void Rejudge();
  // The peer said who it is on a link of its own: one to another life of it is of no use, and a pause is over.
  void Heard(const Card& peer);

  [[nodiscard]] const PeerNode& node() const { return node_; }
  void Fill(PeerCondition* out) const;

 private:
  enum class Phase { kIdle, kDialling, kOpen, kPausing };

  void Dial();
  [[nodiscard]] DialEvents EventsOf(uint64_t dial);
  void Answered(const v1::HelloResponse& answer);
  [[nodiscard]] absl::StatusOr<Greeting> Consider(const v1::HelloResponse& answer) const;
  void Written();
  void WriteNext();
  void Renew();
  void Broken(const absl::Status& why);  // pauses
  void Drop();                           // the stream, if any; nothing of it is heard any more
  void Redial();

  OutLinkShared& shared_;
  PeerNode node_;
  Outbox outbox_;
  Backoff backoff_;
  Phase phase_ = Phase::kIdle;
  Loop::TimerId timer_ = 0;  // kDialling, kOpen and renewing_: patience; kOpen: Renew; kPausing: the pause
  uint64_t dial_ = 0;        // which stream is heard
  std::shared_ptr<DialStream> stream_;
  bool writing_ = false;  // or nothing may be written any more
  bool renewing_ = false;
  size_t writing_bytes_ = 0;  // 0: it is Hello
  Card self_;                 // as it was said on this stream
  Card peer_;                 // as it was last said
  PeerCondition condition_;
  CallbackScope scope_;
};

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_OUT_LINK_H_
