// In the place of ckptd-copier: tells over its socket what it was given, then does as FAKECUDA_COPIER says:
//   (nothing)  ends when its socket does
//   deaf       looks at nothing, and does not mind SIGTERM
//   dies       ends at once
#include <dirent.h>
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

namespace {

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
  char packet[16];
  while (recv(3, packet, sizeof packet, 0) > 0) {
  }
  return 0;
}
