// In the place of ckptd-copier: tells over its socket what it was given, then does as FAKECUDA_COPIER says:
//   (nothing)  ends when its socket does
//   deaf       looks at nothing, and does not mind SIGTERM
//   dies       ends at once
// A RescueOrder over its socket (fill.h) makes it a rescuer.
#include <dirent.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include "client/core/wire/packet.h"
#include "tests/integration/fill.h"

namespace {

using ckptd::harness::RescueOrder;

std::string Content(const char* path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  std::string content = text.str();
  for (char& c : content) c = c == '\0' ? '\n' : c;
  return content;
}

std::string Descriptors() {
  std::string out;
  DIR* folder = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(folder)) {
    if (entry->d_name[0] == '.' || strtol(entry->d_name, nullptr, 10) == dirfd(folder)) continue;
    char target[4096] = {};
    const std::string path = std::string("/proc/self/fd/") + entry->d_name;
    if (readlink(path.c_str(), target, sizeof target - 1) < 0) continue;
    out += std::string("fd ") + entry->d_name + " " + target + "\n";
  }
  closedir(folder);
  return out;
}

void Complete(const RescueOrder& order, const ckptd::Packet& packet) {
  if (!CompleteFill(packet.fds[0].get(), packet.fds[2].get(), order.fill)) _exit(5);
  const uint64_t one = 1;
  if (write(packet.fds[1].get(), &one, sizeof one) < 0) _exit(6);
}

[[noreturn]] void Rescue(const RescueOrder& order, const ckptd::Packet& packet) {
  std::signal(SIGTERM, SIG_IGN);
  if (order.how == RescueOrder::kAtOnce) Complete(order, packet);
  pollfd dead{packet.fds[3].get(), POLLIN, 0};
  while (poll(&dead, 1, -1) != 1) {
  }
  usleep(order.delay_ms * 1000);
  while (order.how == RescueOrder::kHangs) pause();
  if (order.how == RescueOrder::kAfterDeath) Complete(order, packet);
  _exit(0);
}

}  // namespace

int main() {
  rlimit core{1, 1};
  getrlimit(RLIMIT_CORE, &core);
  const std::string said = "pid " + std::to_string(getpid()) + "\ncore " + std::to_string(core.rlim_cur) + "\n" +
                           Content("/proc/self/status") + Descriptors() + "command\n" + Content("/proc/self/cmdline") +
                           "environment\n" + Content("/proc/self/environ");
  if (send(3, said.data(), said.size(), MSG_NOSIGNAL) < 0 && errno != ENOTSOCK) return 1;
  const char* how = std::getenv("FAKECUDA_COPIER");
  if (how != nullptr && strcmp(how, "dies") == 0) return 3;
  if (how != nullptr && strcmp(how, "deaf") == 0) {
    std::signal(SIGTERM, SIG_IGN);
    for (;;) pause();
  }
  ckptd::Packet packet;
  while (ckptd::ReceivePacket(3, ckptd::Wait::kYes, &packet) == 0) {
    RescueOrder order{};
    if (packet.bytes.size() != sizeof order || packet.fds.size() != 4) continue;
    std::memcpy(&order, packet.bytes.data(), sizeof order);
    Rescue(order, packet);
  }
  return 0;
}
