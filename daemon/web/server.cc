#include "daemon/web/server.h"

#include <sys/epoll.h>

#include "daemon/base/log.h"
#include "daemon/base/status_macros.h"

namespace ckptd {

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(Loop* loop, absl::string_view address,
                                                              const HttpLimits& limits, HttpHandler handler) {
  CKPTD_ASSIGN_OR_RETURN(TcpListener listener, TcpListener::Listen(address));
  auto server = std::unique_ptr<HttpServer>(new HttpServer(loop, std::move(listener), limits, std::move(handler)));
  CKPTD_RETURN_IF_ERROR(server->Listen(true));
  return server;
}

HttpServer::~HttpServer() {
  while (!connections_.empty()) Remove(connections_.begin()->first);
  (void)Listen(false);  // last: Remove listens again
  loop_->CancelTimer(pause_);
}

absl::Status HttpServer::Listen(bool on) {
  if (on == listening_) return absl::OkStatus();
  if (on) CKPTD_RETURN_IF_ERROR(loop_->Watch(listener_.fd(), EPOLLIN, [this](uint32_t) { AcceptAll(); }));
  if (!on) loop_->Unwatch(listener_.fd());
  listening_ = on;
  return absl::OkStatus();
}

void HttpServer::AcceptAll() {
  while (connections_.size() < limits_.connections) {
    auto accepted = listener_.Accept();
    if (!accepted.ok()) return PauseAccepting();
    if (!accepted->has_value()) return;
    Add(std::move(**accepted));
  }
  (void)Listen(false);  // full: Remove listens again
}

// The connection that could not be accepted still waits, so the loop would spin.
void HttpServer::PauseAccepting() {
  (void)Listen(false);
  loop_->CancelTimer(pause_);
  pause_ = loop_->After(limits_.accept_pause, [this] { (void)Listen(true); });
}

void HttpServer::Add(UniqueFd fd) {
  int number = fd.get();
  absl::Status watched = loop_->Watch(number, EPOLLIN, [this, number](uint32_t) { OnEvent(number); });
  if (!watched.ok()) {
    Log(kWarning, "web.watch").Error(watched);
    return;
  }
  Loop::TimerId deadline = loop_->After(limits_.exchange, [this, number] { Remove(number); });
  connections_.emplace(number, Connection{std::move(fd), deadline, "", "", 0});
}

void HttpServer::OnEvent(int fd) {
  auto found = connections_.find(fd);
  if (found == connections_.end()) return;
  Connection* connection = &found->second;
  bool goes_on = connection->answer.empty() ? Receive(connection) : Send(connection);
  if (!goes_on) Remove(fd);
}

bool HttpServer::Receive(Connection* connection) {
  char buffer[4096];
  auto got = ReadStream(connection->fd.get(), buffer, sizeof(buffer));
  if (!got.ok()) return false;
  if (!got->has_value()) return true;
  if (**got == 0) return false;
  connection->received.append(buffer, **got);
  return Answer(connection);
}

bool HttpServer::Answer(Connection* connection) {
  HttpRequest request = ParseHttpRequest(connection->received, limits_.request_bytes);
  if (request.state == HttpRequest::kIncomplete) return true;
  bool refused = request.state == HttpRequest::kRefused;
  connection->answer = HttpResponseText(refused ? request.refusal : handler_(request.path), request.head);
  if (!Send(connection)) return false;
  return loop_->ChangeEvents(connection->fd.get(), EPOLLOUT).ok();
}

bool HttpServer::Send(Connection* connection) {
  auto taken = WriteStream(connection->fd.get(), absl::string_view(connection->answer).substr(connection->sent));
  if (!taken.ok()) return false;
  connection->sent += *taken;
  return connection->sent < connection->answer.size();
}

void HttpServer::Remove(int fd) {
  auto found = connections_.find(fd);
  if (found == connections_.end()) return;
  loop_->Unwatch(fd);
  loop_->CancelTimer(found->second.deadline);
  connections_.erase(found);
  if (absl::Status listening = Listen(true); !listening.ok()) Log(kWarning, "web.listen").Error(listening);
}

}  // namespace ckptd
