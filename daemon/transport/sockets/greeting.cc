#include "daemon/transport/sockets/greeting.h"

#include <sys/epoll.h>

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/os/socket_address.h"
#include "daemon/transport/transfer_messages.h"

namespace ckptd::transport {

SocketGreeting::SocketGreeting(std::unique_ptr<Wire> wire, std::unique_ptr<SocketMeant> meant, Over over)
    : wire_(std::move(wire)),
      meant_(std::move(meant)),
      over_(std::move(over)),
      reader_([here = wire_.get()](std::span<std::byte> into) { return here->Read(into); }),
      phase_(meant_ ? Phase::kConnecting : Phase::kShaking) {}

absl::StatusOr<std::shared_ptr<SocketGreeting>> SocketGreeting::Dialled(std::shared_ptr<ReadySet> set,
                                                                        std::unique_ptr<Wire> wire, SocketMeant meant,
                                                                        Over over) {
  return Begin(std::move(set), std::make_shared<SocketGreeting>(
                                   std::move(wire), std::make_unique<SocketMeant>(std::move(meant)), std::move(over)));
}

absl::StatusOr<std::shared_ptr<SocketGreeting>> SocketGreeting::Came(std::shared_ptr<ReadySet> set,
                                                                     std::unique_ptr<Wire> wire, Over over) {
  return Begin(std::move(set), std::make_shared<SocketGreeting>(std::move(wire), nullptr, std::move(over)));
}

absl::StatusOr<std::shared_ptr<SocketGreeting>> SocketGreeting::Begin(std::shared_ptr<ReadySet> set,
                                                                      std::shared_ptr<SocketGreeting> made) {
  CKPTD_ASSIGN_OR_RETURN(made->place_, ReadyPlace::Take(std::move(set), made->wire_->fd(), made));
  made->place_->WaitFor(made->phase_ == Phase::kConnecting ? EPOLLOUT : EPOLLIN);
  return made;
}

void SocketGreeting::OnReady() {
  if (phase_ == Phase::kOver) return;
  const absl::Status went = Step();
  if (!went.ok()) return End(went);
  if (phase_ != Phase::kOver) place_->WaitFor(wire_->waits_for());
}

absl::Status SocketGreeting::Step() {
  if (phase_ == Phase::kConnecting) {
    const absl::Status connected = ConnectError(wire_->fd());
    if (!connected.ok()) return Error(ErrorCode::AGENT_UNREACHABLE, connected.message());
    phase_ = Phase::kShaking;
  }
  if (phase_ == Phase::kShaking) {
    CKPTD_ASSIGN_OR_RETURN(const bool shaken, wire_->Shake());
    if (!shaken) return absl::OkStatus();
    CKPTD_RETURN_IF_ERROR(Shaken());
  }
  return Hear();
}

// Whoever came says in his hello who he is; the desk compares. Whoever was dialled must be who was meant, where
// there are certificates.
absl::Status SocketGreeting::Shaken() {
  phase_ = Phase::kHearing;
  if (!meant_) return absl::OkStatus();
  if (const std::optional<CertificateNames> names = wire_->names()) {
    const absl::Status fits = CheckIdentity(*names, meant_->cluster, meant_->peer);
    if (!fits.ok()) return Error(ErrorCode::AGENT_UNREACHABLE, fits.message());
  }
  const std::string frame = FrameHead(FrameKind::kHello, meant_->hello.size()) + meant_->hello;
  if (wire_->Write(std::as_bytes(std::span(frame)), false) == frame.size()) return absl::OkStatus();
  return Error(ErrorCode::AGENT_UNREACHABLE, "the connection ended");
}

absl::Status SocketGreeting::Hear() {
  CKPTD_ASSIGN_OR_RETURN(std::optional<FrameReader::Whole> frame, reader_.Take());
  if (!frame && wire_->read_over())
    return Error(ErrorCode::AGENT_UNREACHABLE, absl::StrCat("the other end hung up", wire_->why_over()));
  if (!frame) return absl::OkStatus();
  CKPTD_ASSIGN_OR_RETURN(std::string hello, HelloIn(*std::move(frame)));
  phase_ = Phase::kOver;
  place_.reset();
  std::exchange(over_, nullptr)(SocketGreeted{std::move(wire_), std::move(hello)});
  return absl::OkStatus();
}

absl::StatusOr<std::string> SocketGreeting::HelloIn(FrameReader::Whole frame) const {
  if (frame.kind == FrameKind::kHello) return std::move(frame.body);
  if (frame.kind == FrameKind::kMessage && meant_) {
    CKPTD_ASSIGN_OR_RETURN(const TransferMessage message, DecodeMessage(frame.body));
    if (const Stop* const stop = std::get_if<Stop>(&message)) return ErrorOf(*stop);
  }
  return Error(ErrorCode::PROTOCOL, "Move: it begins without Hello");
}

void SocketGreeting::End(const absl::Status& why) {
  if (phase_ == Phase::kOver) return;
  phase_ = Phase::kOver;
  place_.reset();
  wire_->CutOff();
  std::exchange(over_, nullptr)(why);
}

void SocketGreeting::CutOff() { End(Error(ErrorCode::CANCELLED, "cut off here")); }

}  // namespace ckptd::transport
