#include "daemon/session/server.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/log.h"
#include "daemon/base/status_macros.h"

namespace ckptd {

struct Server::Session {
  UniqueFd socket;
  Peer peer;
  bool greeted = false;
  bool closing = false;
};

absl::StatusOr<std::unique_ptr<Server>> Server::Start(Loop& loop, SessionHandler& handler,
                                                      const ServerOptions& options) {
  CKPTD_ASSIGN_OR_RETURN(auto listener, UnixListener::Listen(options.listen));
  std::unique_ptr<Server> server(new Server(loop, handler, std::move(listener), options));
  Server* self = server.get();
  CKPTD_RETURN_IF_ERROR(loop.Watch(server->listener_.fd(), EPOLLIN, [self](uint32_t) { self->AcceptAll(); }));
  return server;
}

Server::Server(Loop& loop, SessionHandler& handler, UnixListener listener, const ServerOptions& options)
    : loop_(loop),
      handler_(handler),
      listener_(std::move(listener)),
      options_(options),
      watch_(loop, [this](const ProcessId& process) { handler_.OnProcessDead(process); }) {}

Server::~Server() {
  loop_.Unwatch(listener_.fd());
  for (const auto& [id, session] : sessions_) loop_.Unwatch(session->socket.get());
}

void Server::AcceptAll() {
  while (true) {
    auto accepted = listener_.Accept();
    if (!accepted.ok()) Log(kWarning, "session.accept").Error(accepted.status());
    if (!accepted.ok() || !accepted->has_value()) return;
    Add(*std::move(*accepted));
  }
}

void Server::Add(AcceptedSocket accepted) {
  if (sessions_.size() >= options_.max_sessions) {
    Log(kWarning, "session.refused").Field("reason", "too many connections").Field("uid", uint64_t{accepted.peer.uid});
    return;
  }
  auto start_time = ProcessStartTime(accepted.peer.pid);
  if (!start_time.ok() || HasExited(accepted.pidfd.get())) return;
  auto session = std::make_unique<Session>();
  session->peer = {
      {accepted.peer.pid, *start_time}, accepted.peer.uid, accepted.peer.gid, std::move(accepted.peer.groups)};
  session->socket = std::move(accepted.fd);
  SessionId id = next_session_++;
  absl::Status status = watch_.Watch(session->peer.process, std::move(accepted.pidfd));
  if (status.ok()) status = loop_.Watch(session->socket.get(), EPOLLIN, [this, id](uint32_t) { OnReadable(id); });
  if (!status.ok()) {
    Log(kWarning, "session.refused").Error(status);
    return;
  }
  sessions_.emplace(id, std::move(session));
}

// A few packets a turn, so that one busy peer does not hold up the others: epoll is level-triggered.
void Server::OnReadable(SessionId id) {
  constexpr int kPacketsPerTurn = 16;
  for (int i = 0; i < kPacketsPerTurn; ++i) {
    auto found = sessions_.find(id);
    if (found == sessions_.end()) return;
    Session& session = *found->second;
    int error = ReceivePacket(session.socket.get(), Wait::kNo, &packet_);
    if (error == EAGAIN) return;
    if (error == EMSGSIZE) SendError(id, MessageType::kError, Error(ErrorCode::PROTOCOL, "packet too large"));
    if (error != 0 || !TakePacket(id, session)) return Close(id);
  }
}

// False ends the connection.
bool Server::TakePacket(SessionId id, Session& session) {
  if (session.closing) return false;
  auto request = Decode(std::as_bytes(std::span(packet_.bytes)));
  absl::Status status = request.status();
  if (status.ok()) {
    if (const auto* hello = std::get_if<HelloRequest>(&*request)) {
      status = Greet(id, session, *hello);
    } else if (!session.greeted) {
      status = Error(ErrorCode::PROTOCOL, "the first message must be HELLO");
    } else {
      handler_.OnRequest(id, session.peer, *std::move(request), std::move(packet_.fds));
    }
  }
  if (status.ok()) return true;
  Log(kWarning, "session.bad_message").Field("pid", static_cast<uint64_t>(session.peer.process.pid)).Error(status);
  SendError(id, MessageType::kError, status);
  return CodeOf(status) != ErrorCode::PROTOCOL;
}

absl::Status Server::Greet(SessionId id, Session& session, const HelloRequest& hello) {
  if (hello.max_major < kProtocolMajorMin || hello.min_major > kProtocolMajorMax) {
    return Error(ErrorCode::PROTOCOL,
                 absl::StrCat("libckpt ", hello.library, " speaks protocol ", hello.min_major, " to ", hello.max_major,
                              ", this agent ", kProtocolMajorMin, " to ", kProtocolMajorMax));
  }
  HelloReplyMessage reply = options_.hello;
  reply.major = std::min(hello.max_major, kProtocolMajorMax);
  session.greeted = true;
  Send(id, MessageType::kHelloReply, reply);
  return absl::OkStatus();
}

void Server::SendRaw(SessionId id, std::span<const uint8_t> packet, std::span<const int> fds, bool hint) {
  auto found = sessions_.find(id);
  if (found == sessions_.end() || found->second->closing) return;
  int error = SendPacket(found->second->socket.get(), packet, fds);
  if (error == 0) return;
  if (hint) ++dropped_hints_;
  if (hint && error == EAGAIN) return;
  // Closed from the loop, not here: the caller may be iterating over what OnDisconnected changes.
  found->second->closing = true;
  loop_.After(Nanos(0), [this, id] { Close(id); });
}

void Server::SendError(SessionId session, MessageType answers, const absl::Status& status) {
  ErrorMessage message{};
  message.code = static_cast<uint32_t>(CodeOf(status));
  message.answers = static_cast<uint32_t>(answers);
  SetText(message.sentence, absl::string_view(status.message().data(), status.message().size()));
  Send(session, MessageType::kError, message);
}

void Server::Close(SessionId id) {
  auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  loop_.Unwatch(found->second->socket.get());
  sessions_.erase(found);
  handler_.OnDisconnected(id);
}

}  // namespace ckptd
