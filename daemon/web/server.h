// A small HTTP server on the agent's loop, loopback only. It cannot slow the agent down: so many connections at a time
// (others wait in the kernel's queue), so many bytes and seconds for each, no reads or writes that wait.
#ifndef CKPTD_DAEMON_WEB_SERVER_H_
#define CKPTD_DAEMON_WEB_SERVER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/base/clock.h"
#include "daemon/os/loop.h"
#include "daemon/os/tcp.h"
#include "daemon/web/http.h"

namespace ckptd {

// Answers one path, on the loop's thread; must not block.
using HttpHandler = std::function<HttpResponse(absl::string_view path)>;

struct HttpLimits {
  size_t connections = 16;
  size_t request_bytes = 8 << 10;
  Nanos exchange = std::chrono::seconds(10);     // from accept to the last byte of the answer
  Nanos accept_pause = std::chrono::seconds(1);  // after an accept that failed, such as no descriptors left
};

class HttpServer {
 public:
  // `address` as TcpListener::Listen. `loop` outlives the server; all calls on its thread.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<HttpServer>> Start(Loop* loop, absl::string_view address,
                                                                         const HttpLimits& limits, HttpHandler handler);
  ~HttpServer();  // closes all connections
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  [[nodiscard]] uint16_t port() const { return listener_.port(); }
  [[nodiscard]] size_t connections() const { return connections_.size(); }

 private:
  struct Connection {
    UniqueFd fd;
    Loop::TimerId deadline;
    std::string received;
    std::string answer;  // empty until the request is complete
    size_t sent = 0;
  };

  HttpServer(Loop* loop, TcpListener listener, const HttpLimits& limits, HttpHandler handler)
      : loop_(loop), listener_(std::move(listener)), limits_(limits), handler_(std::move(handler)) {}

  [[nodiscard]] absl::Status Listen(bool on);
  void AcceptAll();
  void PauseAccepting();
  void Add(UniqueFd fd);
  void OnEvent(int fd);
  // Each false = the connection is finished.
  bool Receive(Connection* connection);
  bool Answer(Connection* connection);
  bool Send(Connection* connection);
  void Remove(int fd);

  Loop* const loop_;
  TcpListener listener_;
  const HttpLimits limits_;
  const HttpHandler handler_;
  bool listening_ = false;
  Loop::TimerId pause_ = 0;
  std::map<int, Connection> connections_;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_WEB_SERVER_H_
