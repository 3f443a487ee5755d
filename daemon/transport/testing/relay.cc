#include "daemon/transport/testing/relay.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace ckptd::transport {
namespace {

constexpr int kLookMs = 20;  // for freezing and the end

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

}  // namespace

Relay::Relay(int target_port) : target_port_(target_port), listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  auto* plain = reinterpret_cast<sockaddr*>(&address);
  if (bind(listener_.get(), plain, size) != 0 || listen(listener_.get(), 16) != 0 ||
      getsockname(listener_.get(), plain, &size) != 0)
    std::abort();
  port_ = ntohs(address.sin_port);
  thread_.emplace("relay", [this] { Run(); });
}

Relay::~Relay() {
  stop_ = true;
  thread_->Join();
}

std::string Relay::address() const { return absl::StrCat("127.0.0.1:", port_); }

// All of it: the kernel's buffers hold what a test sends.
bool Relay::Pass(int from, int to) {
  std::array<char, 65536> bytes{};
  const ssize_t got = recv(from, bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (got < 0) return errno == EAGAIN;
  for (ssize_t done = 0; done < got;) {
    const ssize_t put = send(to, bytes.data() + done, static_cast<size_t>(got - done), MSG_NOSIGNAL);
    if (put < 0) return false;
    done += put;
    passed_ += static_cast<uint64_t>(put);
  }
  return got > 0;
}

void Relay::Run() {
  std::vector<std::pair<UniqueFd, UniqueFd>> cables;
  while (!stop_) {
    std::vector<pollfd> fds = {{listener_.get(), POLLIN, 0}};
    for (const auto& [a, b] : cables) {
      fds.push_back({a.get(), POLLIN, 0});
      fds.push_back({b.get(), POLLIN, 0});
    }
    if (frozen_) fds.clear();
    if (cut_.exchange(false)) {
      cables.clear();
      continue;
    }
    if (poll(fds.data(), fds.size(), kLookMs) <= 0) continue;
    for (size_t i = cables.size(); i-- > 0;) {
      const auto& [a, b] = cables[i];
      const bool well = (fds[1 + 2 * i].revents == 0 || Pass(a.get(), b.get())) &&
                        (fds[2 + 2 * i].revents == 0 || Pass(b.get(), a.get()));
      if (!well) cables.erase(cables.begin() + static_cast<ptrdiff_t>(i));
    }
    if (fds[0].revents == 0) continue;
    UniqueFd caller(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    UniqueFd callee(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in target = Loopback(target_port_);
    if (connect(callee.get(), reinterpret_cast<const sockaddr*>(&target), sizeof(target)) == 0)
      cables.emplace_back(std::move(caller), std::move(callee));
  }
}

}  // namespace ckptd::transport
