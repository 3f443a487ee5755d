#include "daemon/membership/testing/etcd_server.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <random>

#include "absl/strings/str_cat.h"
#include "daemon/os/fd.h"

namespace ckptd::membership {
namespace {

// That nobody has now, below those that the kernel gives to connections: one of them took what etcd was to have, and
// etcd ended.
uint16_t FreePort() {
  constexpr uint32_t kFirst = 10'000;
  constexpr uint32_t kCount = 22'000;
  std::random_device random;
  for (int tries = 0; tries < 1000; ++tries) {
    const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const auto port = static_cast<uint16_t>(kFirst + random() % kCount);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    if (bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return port;
  }
  std::abort();
}

}  // namespace

std::string EtcdProgram() {
  const char* home = std::getenv("HOME");
  for (const std::string& program :
       {std::string("/usr/bin/etcd"),
        absl::StrCat(home == nullptr ? "" : home, "/.cache/ckptd/etcd-server/usr/bin/etcd")}) {
    if (access(program.c_str(), X_OK) == 0) return program;
  }
  return "";
}

// In memory: what is tested is not the disk, and other tests may be writing to it.
EtcdServer::EtcdServer(std::vector<std::string> tls) : tls_(std::move(tls)) {
  std::string name = "/dev/shm/ckptd-etcd-XXXXXX";
  if (mkdtemp(name.data()) == nullptr) std::abort();
  dir_ = name;
  endpoint_ = absl::StrCat(tls_.empty() ? "http" : "https", "://127.0.0.1:", FreePort());
  peer_ = absl::StrCat("http://127.0.0.1:", FreePort());
  Start();
}

EtcdServer::~EtcdServer() {
  process_.reset();
  std::error_code ignored;
  std::filesystem::remove_all(dir_, ignored);
}

void EtcdServer::Start() {
  std::vector<std::string> argv = {EtcdProgram(),
                                   "--name=test",
                                   "--data-dir=" + dir_ + "/data",
                                   "--listen-client-urls=" + endpoint_,
                                   "--advertise-client-urls=" + endpoint_,
                                   "--listen-peer-urls=" + peer_,
                                   "--initial-advertise-peer-urls=" + peer_,
                                   "--initial-cluster=test=" + peer_};
  argv.insert(argv.end(), tls_.begin(), tls_.end());
  process_ = std::make_unique<Process>(argv, dir_ + "/log");
}

void EtcdServer::Kill() { process_->Kill(); }
void EtcdServer::Stop() { process_->Signal(SIGSTOP); }
void EtcdServer::Continue() { process_->Signal(SIGCONT); }

}  // namespace ckptd::membership
