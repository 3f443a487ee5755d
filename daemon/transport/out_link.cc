#include "daemon/transport/out_link.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/ids.h"
#include "daemon/base/log.h"
#include "daemon/base/status_macros.h"
#include "daemon/base/units.h"

namespace ckptd::transport {
OutLink::OutLink(OutLinkShared& shared, PeerNode node)
    : shared_(shared), node_(std::move(node)), backoff_(shared.first_pause, shared.longest_pause, RandomId()) {}

OutLink::~OutLink() { Drop(); }

absl::Status OutLink::Send(const LinkMessage& message) {
  CKPTD_RETURN_IF_ERROR(outbox_.Put(message));
  condition_.wanted = true;
  if (phase_ == Phase::kIdle) Dial();
  if (phase_ == Phase::kOpen) WriteNext();
  return absl::OkStatus();
}

void OutLink::Dial() {
  Drop();
  absl::StatusOr<Card> self = shared_.self();
  if (!self.ok()) return Broken(self.status());
  absl::StatusOr<std::shared_ptr<grpc::Channel>> channel = shared_.connect(node_);
  if (!channel.ok()) return Broken(channel.status());
  self_ = *self;
  phase_ = Phase::kDialling;
  writing_ = true;
  writing_bytes_ = 0;
  v1::LinkRequest hello;
  *hello.mutable_hello() = MakeHello(self_, node_.name);
  stream_ = DialStream::Start(*std::move(channel), hello, EventsOf(dial_), shared_.pending);
  timer_ = shared_.loop.After(shared_.patience, [this] {
    Broken(Error(ErrorCode::TIMEOUT, absl::StrCat("no answer within ", FormatDuration(shared_.patience))));
  });
}

// gRPC's threads call them, the loop's thread hears them, unless the link or the stream is of the past by then.
DialEvents OutLink::EventsOf(uint64_t dial) {
  const auto mailbox = shared_.mailbox;
  const auto on_loop = [this, dial, mailbox](auto member) {
    auto bound = scope_.Bind([this, dial, member](const auto&... what) {
      if (dial == dial_) (this->*member)(what...);
    });
    return [mailbox, bound](const auto&... what) { mailbox->Put([bound, what...]() mutable { bound(what...); }); };
  };
  auto broken = scope_.Bind([this, dial] {
    if (dial == dial_ && stream_) stream_->Release();  // it says why when it has ended
  });
  return {on_loop(&OutLink::Answered), on_loop(&OutLink::Written), [mailbox, broken] { mailbox->Put(broken); },
          on_loop(&OutLink::Broken)};
}

absl::StatusOr<Greeting> OutLink::Consider(const v1::HelloResponse& answer) const {
  CKPTD_ASSIGN_OR_RETURN(Greeting greeting, CheckAnswer(self_, node_.name, answer));
  CKPTD_RETURN_IF_ERROR(shared_.admit(greeting.peer));
  return greeting;
}

void OutLink::Answered(const v1::HelloResponse& answer) {
  absl::StatusOr<Greeting> greeting = Consider(answer);
  if (!greeting.ok()) return Broken(greeting.status());
  shared_.loop.CancelTimer(timer_);
  timer_ = shared_.loop.After(shared_.renew_after, [this] { Renew(); });
  phase_ = Phase::kOpen;
  peer_ = greeting->peer;
  condition_.connected = true;
  condition_.since = shared_.loop.clock().Monotonic();
  condition_.last_error = absl::OkStatus();
  ++condition_.links;
  Log(kInfo, "peer.linked").Field("peer", node_.name).Field("address", node_.address);
  WriteNext();
}

void OutLink::Written() {
  writing_ = false;
  if (writing_bytes_ != 0) ++condition_.sent_messages;
  condition_.sent_bytes += std::exchange(writing_bytes_, 0);
  if (phase_ == Phase::kOpen) WriteNext();
}

void OutLink::WriteNext() {
  if (writing_) return;
  if (renewing_) {
    writing_ = true;
    return stream_->EndWrites();
  }
  const std::optional<LinkMessage> next = outbox_.Take();
  if (!next) return;
  writing_ = true;
  writing_bytes_ = next->bytes();
  stream_->Write(next->wire());
}

void OutLink::Renew() {
  renewing_ = true;
  timer_ = shared_.loop.After(shared_.patience, [this] { Redial(); });
  WriteNext();
}

// Only a link that stood for a while ends the growth of the pauses: one that is made and broken at once does not.
void OutLink::Broken(const absl::Status& why) {
  if (renewing_) return Redial();
  Drop();
  const Nanos now = shared_.loop.clock().Monotonic();
  if (condition_.connected && now - condition_.since >= shared_.longest_pause) backoff_.Reset();
  const absl::Status said =
      Error(CodeOf(why), absl::StrCat("node ", node_.name, " at ", node_.address, ": ", why.message()));
  if (condition_.connected || said != condition_.last_error)
    Log(kWarning, "peer.unlinked").Field("peer", node_.name).Error(said);
  if (condition_.connected || condition_.since == Nanos(0)) condition_.since = now;
  condition_.connected = false;
  condition_.last_error = said;
  phase_ = Phase::kPausing;
  timer_ = shared_.loop.After(backoff_.Next(), [this] { Dial(); });
}

void OutLink::Drop() {
  ++dial_;
  renewing_ = false;
  shared_.loop.CancelTimer(std::exchange(timer_, 0));
  if (stream_) stream_->Release();
  stream_.reset();
}

void OutLink::Redial() {
  if (phase_ == Phase::kIdle) return;
  if (std::exchange(condition_.connected, false)) condition_.since = shared_.loop.clock().Monotonic();
  backoff_.Reset();
  Dial();
}

void OutLink::MoveTo(const PeerNode& node) {
  node_ = node;
  Redial();
}

void OutLink::Rejudge() {
  if (phase_ != Phase::kOpen && phase_ != Phase::kDialling) return;
  const absl::StatusOr<Card> self = shared_.self();
  if (!self.ok()) return Broken(self.status());
  if (*self != self_) return Redial();
  if (phase_ != Phase::kOpen) return;
  if (absl::Status admitted = shared_.admit(peer_); !admitted.ok()) Broken(admitted);
}

void OutLink::Heard(const Card& peer) {
  const bool another_life = phase_ == Phase::kOpen && peer.incarnation != peer_.incarnation;
  peer_.agent = peer.agent;
  if (another_life || phase_ == Phase::kPausing) Redial();
}

void OutLink::Fill(PeerCondition* out) const {
  *out = condition_;
  out->name = node_.name;
  out->agent = peer_.agent;
  out->unsent_messages = outbox_.size();
  out->replaced_messages = outbox_.replaced();
}

}  // namespace ckptd::transport
