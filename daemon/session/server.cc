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
namespace {

constexpr char kUnclosed[] = "packet too large, or it brought descriptors while others of this user cannot be closed";

}  // namespace

struct Server::Session {
  UniqueFd socket;
  UniqueFd pidfd;  // until WatchPeer
  Peer peer;
  Loop::TimerId hello_timer = 0;  // until HELLO
  bool greeted = false;
  bool closing = false;
};

Server::Server(Loop& loop, SessionHandler& handler, Executor& closer, const ServerOptions& options)
    : loop_(loop),
      handler_(handler),
      options_(options),
      watch_(loop, [this](const ProcessId& process) { OnDead(process); }),
      foreign_fds_(closer) {}

Server::~Server() {
  loop_.CancelTimer(pause_);
  if (listener_) loop_.Unwatch(listener_->fd());
  for (const auto& [id, session] : sessions_) {
    loop_.CancelTimer(session->hello_timer);
    loop_.Unwatch(session->socket.get());
  }
}

absl::Status Server::Open() {
  CKPTD_ASSIGN_OR_RETURN(UnixListener listener, UnixListener::Listen(options_.listen));
  listener_.emplace(std::move(listener));
  return Watch();
}

absl::Status Server::Watch() {
  return loop_.Watch(listener_->fd(), EPOLLIN, [this](uint32_t) { AcceptSome(); });
}

// A few a turn: those who connect without end must not hold up those who are connected.
void Server::AcceptSome() {
  constexpr int kPerTurn = 32;
  for (int i = 0; i < kPerTurn; ++i) {
    auto accepted = listener_->Accept();
    if (!accepted.ok()) {
      Log(kWarning, "session.accept").Error(accepted.status());
      return PauseAccepting();
    }
    if (!accepted->has_value()) return;
    Add(*std::move(*accepted));
  }
}

// What could not be accepted still waits, so the loop would spin.
void Server::PauseAccepting() {
  loop_.Unwatch(listener_->fd());
  pause_ = loop_.After(options_.accept_pause, [this] {
    if (absl::Status status = Watch(); !status.ok()) Log(kError, "session.listen").Error(status);
  });
}

absl::Status Server::CheckRoom(uint32_t uid) const {
  const auto of_user = sessions_of_user_.find(uid);
  if (of_user != sessions_of_user_.end() && of_user->second >= options_.max_sessions_of_user) {
    return Error(ErrorCode::REFUSED, absl::StrCat("uid ", uid, " has ", of_user->second,
                                                  " connections to this agent, as many as one user may have: end "
                                                  "processes that need none"));
  }
  if (sessions_.size() < options_.max_sessions) return absl::OkStatus();
  return Error(ErrorCode::REFUSED,
               absl::StrCat("this agent has ", sessions_.size(), " connections, as many as it takes"));
}

// Told to the log once a second at most.
void Server::TurnAway(const AcceptedSocket& accepted, const absl::Status& why) {
  ErrorMessage message = ErrorOf(MessageType::kHello, why);
  SetHead(MessageType::kError, message);
  (void)SendPacket(accepted.fd.get(), BytesOf(message));
  ++turned_away_;
  const Nanos now = loop_.clock().Monotonic();
  if (now - told_ < std::chrono::seconds(1)) return;
  told_ = now;
  Log(kWarning, "session.refused").Field("connections", std::exchange(turned_away_, 0)).Error(why);
}

void Server::Add(AcceptedSocket accepted) {
  auto start_time = ProcessStartTime(accepted.peer.pid);
  if (!start_time.ok() || HasExited(accepted.pidfd.get())) return;
  const uint32_t uid = accepted.peer.uid;
  absl::Status status = CheckRoom(uid);
  const SessionId id = next_session_++;
  if (status.ok()) status = loop_.Watch(accepted.fd.get(), EPOLLIN, [this, id](uint32_t) { OnReadable(id); });
  if (!status.ok()) return TurnAway(accepted, status);
  auto session = std::make_unique<Session>();
  session->peer = {{accepted.peer.pid, *start_time}, uid, accepted.peer.gid, std::move(accepted.peer.groups)};
  session->socket = std::move(accepted.fd);
  session->pidfd = std::move(accepted.pidfd);
  session->hello_timer = loop_.After(options_.hello_timeout, [this, id] { Close(id); });
  sessions_.emplace(id, std::move(session));
  ++sessions_of_user_[uid];
}

absl::Status Server::WatchPeer(SessionId id) {
  auto found = sessions_.find(id);
  if (found == sessions_.end()) return absl::OkStatus();
  const Peer& peer = found->second->peer;
  if (users_.contains(peer.process)) return absl::OkStatus();
  const auto watched =
      std::count_if(users_.begin(), users_.end(), [&](const auto& user) { return user.second == peer.uid; });
  if (static_cast<size_t>(watched) >= options_.max_processes_of_user) {
    return Error(ErrorCode::REFUSED, absl::StrCat("uid ", peer.uid, " has ", watched,
                                                  " processes with a rank on this node, as many as one user may have: "
                                                  "end those that need none"));
  }
  CKPTD_RETURN_IF_ERROR(watch_.Watch(peer.process, std::move(found->second->pidfd)));
  users_[peer.process] = peer.uid;
  return absl::OkStatus();
}

void Server::OnDead(const ProcessId& process) {
  users_.erase(process);
  handler_.OnProcessDead(process);
}

// A few packets a turn, so that one busy peer does not hold up the others: epoll is level-triggered.
void Server::OnReadable(SessionId id) {
  constexpr int kPacketsPerTurn = 16;
  for (int i = 0; i < kPacketsPerTurn; ++i) {
    auto found = sessions_.find(id);
    if (found == sessions_.end()) return;
    Session& session = *found->second;
    const uint32_t uid = session.peer.uid;
    const bool may_bring_fds = foreign_fds_.MayTake(uid);
    int error = ReceivePacket(session.socket.get(), Wait::kNo, &packet_, may_bring_fds ? Fds::kTake : Fds::kRefuse);
    if (error == EAGAIN) return;
    const bool memory_only = foreign_fds_.KeepMemory(uid, &packet_.fds);
    if (error == EMSGSIZE) {
      RefusePacket(id, session, Error(ErrorCode::PROTOCOL, may_bring_fds ? "packet too large" : kUnclosed));
    }
    if (error == 0 && !memory_only) {
      error = EBADF;
      RefusePacket(id, session, Error(ErrorCode::PROTOCOL, "received descriptor: is not memory"));
    }
    if (error != 0 || !TakePacket(id, session)) return Close(id);
  }
}

// False ends the connection.
bool Server::TakePacket(SessionId id, Session& session) {
  if (session.closing) return false;
  absl::Status status = TakeRequest(id, session);
  if (status.ok()) return true;
  RefusePacket(id, session, status);
  return CodeOf(status) != ErrorCode::PROTOCOL;
}

void Server::RefusePacket(SessionId id, const Session& session, const absl::Status& why) {
  Log(kWarning, "session.bad_message").Field("pid", static_cast<uint64_t>(session.peer.process.pid)).Error(why);
  SendError(id, MessageType::kError, why);
}

absl::Status Server::TakeRequest(SessionId id, Session& session) {
  CKPTD_ASSIGN_OR_RETURN(Request request, Decode(std::as_bytes(std::span(packet_.bytes))));
  if (const auto* hello = std::get_if<HelloRequest>(&request)) return Greet(id, session, *hello);
  if (!session.greeted) return Error(ErrorCode::PROTOCOL, "the first message must be HELLO");
  handler_.OnRequest(id, session.peer, std::move(request), std::move(packet_.fds));
  return absl::OkStatus();
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
  loop_.CancelTimer(std::exchange(session.hello_timer, 0));
  Send(id, MessageType::kHelloReply, reply);
  return absl::OkStatus();
}

void Server::SendRaw(SessionId id, std::span<const uint8_t> packet, std::span<const int> fds, bool hint) {
  auto found = sessions_.find(id);
  if (found == sessions_.end() || found->second->closing) return;
  int error = SendPacket(found->second->socket.get(), packet, fds);
  if (error == 0) return;
  if (hint && error == EAGAIN) return;
  // Closed from the loop, not here: the caller may be iterating over what OnDisconnected changes.
  found->second->closing = true;
  loop_.After(Nanos(0), [this, id] { Close(id); });
}

ErrorMessage Server::ErrorOf(MessageType answers, const absl::Status& status) {
  ErrorMessage message{};
  message.code = static_cast<uint32_t>(CodeOf(status));
  message.answers = static_cast<uint32_t>(answers);
  SetText(message.sentence, absl::string_view(status.message().data(), status.message().size()));
  return message;
}

void Server::SendError(SessionId session, MessageType answers, const absl::Status& status) {
  Send(session, MessageType::kError, ErrorOf(answers, status));
}

void Server::Close(SessionId id) {
  auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  loop_.CancelTimer(found->second->hello_timer);
  loop_.Unwatch(found->second->socket.get());
  const auto of_user = sessions_of_user_.find(found->second->peer.uid);
  if (--of_user->second == 0) sessions_of_user_.erase(of_user);
  sessions_.erase(found);
  handler_.OnDisconnected(id);
}

}  // namespace ckptd
