#include "tools/bench/echo.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "daemon/base/errors.h"
#include "daemon/os/files.h"

namespace ckptd::bench {
namespace {

bool SendAll(int socket, const std::string& bytes) {
  for (size_t at = 0; at < bytes.size();) {
    ssize_t sent = send(socket, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    at += static_cast<size_t>(sent);
  }
  return true;
}

// As many bytes as `bytes` has. False at the end of the stream, too.
bool ReceiveAll(int socket, std::string* bytes) {
  for (size_t at = 0; at < bytes->size();) {
    ssize_t got = recv(socket, bytes->data() + at, bytes->size() - at, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += static_cast<size_t>(got);
  }
  return true;
}

void Serve(const UniqueFd& socket, std::string request, const std::string& answer) {
  while (ReceiveAll(socket.get(), &request) && SendAll(socket.get(), answer)) {
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Echo>> Echo::Make(size_t request_bytes, size_t answer_bytes) {
  int ends[2] = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return FileError(errno, "socketpair", "AF_UNIX");
  std::unique_ptr<Echo> echo(new Echo(std::max<size_t>(request_bytes, 1), std::max<size_t>(answer_bytes, 1)));
  echo->socket_ = UniqueFd(ends[0]);
  echo->server_ = std::thread([socket = UniqueFd(ends[1]), request = echo->request_, answer = echo->answer_] {
    Serve(socket, request, answer);
  });
  return echo;
}

Echo::~Echo() {
  shutdown(socket_.get(), SHUT_RDWR);
  server_.join();
}

absl::Status Echo::RoundTrip() {
  if (SendAll(socket_.get(), request_) && ReceiveAll(socket_.get(), &answer_)) return absl::OkStatus();
  return Error(ErrorCode::INTERNAL, "the echo has gone");
}

}  // namespace ckptd::bench
