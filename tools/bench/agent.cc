#include "tools/bench/agent.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/os/pidfd.h"
#include "tools/bench/measure.h"

extern char** environ;

namespace ckptd::bench {
namespace {

namespace fs = std::filesystem;

constexpr int kStartTimeoutMs = 120'000;
constexpr size_t kLogTailBytes = 500;
constexpr int kNever = 1'000'000;  // steps: no benchmark comes to so many

absl::StatusOr<std::string> MakeTemp(const std::string& parent) {
  std::string path = parent + "/ckptd-bench-XXXXXX";
  if (mkdtemp(path.data()) == nullptr) return ErrnoError(errno, "mkdtemp", path);
  return path;
}

void RemoveAll(const std::string& path) {
  std::error_code ignored;
  if (!path.empty()) fs::remove_all(path, ignored);
}

std::string ProgramPath() {
  const char* chosen = std::getenv("CKPTD_BIN");
  if (chosen != nullptr && *chosen != 0) return chosen;
  std::error_code ignored;
  return fs::read_symlink("/proc/self/exe", ignored).parent_path() / "ckptd";
}

// stderr to `log`, stdin and stdout to nowhere: stdout is for JSON lines.
absl::StatusOr<pid_t> Spawn(const std::vector<std::string>& argv, const std::vector<std::string>& more,
                            const std::string& log) {
  std::vector<char*> arguments;
  arguments.reserve(argv.size() + 1);
  for (const std::string& word : argv) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  std::vector<char*> environment;
  environment.reserve(more.size() + 1);
  for (const std::string& entry : more)
    environment.push_back(const_cast<char*>(entry.c_str()));  // the first one counts
  for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
  environment.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDWR, 0);
  posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_RDWR, 0);
  posix_spawn_file_actions_addopen(&actions, 2, log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  pid_t pid = -1;
  int error = posix_spawn(&pid, argv[0].c_str(), &actions, nullptr, arguments.data(), environment.data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return ErrnoError(error, "start", argv[0]);
  return pid;
}

int Reap(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

absl::StatusOr<UniqueFd> BindNotify(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  UniqueFd fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    return ErrnoError(errno, "bind", path);
  }
  return fd;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Agent>> Agent::Make(const Options& options, Storage storage, Admin admin,
                                                   Peering peering) {
  std::unique_ptr<Agent> agent(new Agent(storage, admin, std::move(peering)));
  agent->program_ = ProgramPath();
  agent->chunk_ = options.chunk;
  CKPTD_ASSIGN_OR_RETURN(agent->base_, MakeTemp("/tmp"));  // a socket's path is short
  CKPTD_ASSIGN_OR_RETURN(agent->region_, MakeTemp(options.region));
  agent->storage_ = agent->peering_.storage;
  if (agent->storage_.empty()) {
    CKPTD_ASSIGN_OR_RETURN(agent->storage_, MakeTemp(options.dir));
  }
  CKPTD_RETURN_IF_ERROR(agent->WriteConfig());
  CKPTD_ASSIGN_OR_RETURN(agent->notify_, BindNotify(agent->base_ + "/notify"));
  return agent;
}

Agent::~Agent() {
  Kill();
  RemoveAll(region_);
  if (peering_.storage.empty()) RemoveAll(storage_);
  RemoveAll(base_);
}

absl::Status Agent::WriteConfig() const {
  std::ofstream file(base_ + "/ckptd.toml");
  const std::string admin = admin_ == Admin::kOn ? admin_socket() : "off";
  file << "[agent]\nsocket = \"" << socket() << "\"\nadmin_socket = \"" << admin << "\"\n";
  if (!peering_.node.empty()) file << "node_name = \"" << peering_.node << "\"\n" << PeersSection();
  file << "[region]\ndir = \"" << region_ << "/r\"\n";
  if (chunk_ != 0) file << "chunk_bytes = \"" << chunk_ << "\"\n";
  file << "[storage]\nroot = \"" << storage_ << "\"\n[metrics]\nlisten = \"off\"\n";
  if (what_ == Storage::kNothing) file << "[durability]\nflush_every = " << kNever << "\n";
  if (what_ == Storage::kEveryStepForEver) file << "[retention]\nkeep_last = " << kNever << "\n";
  file.close();
  return file ? absl::OkStatus() : Error(ErrorCode::STORAGE_IO, absl::StrCat("cannot write into ", base_));
}

std::string Agent::PeersSection() const {
  return absl::StrCat("[peers]\nmembers = \"", peering_.members, "\"\naddress = \"", peering_.address,
                      "\"\ntls = \"plaintext-on-loopback\"\n", peering_.scheme, "\nbulk = \"", peering_.bulk, "\"\n");
}

absl::StatusOr<double> Agent::Start() {
  TimePoint begin = Now();
  CKPTD_ASSIGN_OR_RETURN(pid_, Spawn({program_, "--config", base_ + "/ckptd.toml"},
                                     {absl::StrCat("NOTIFY_SOCKET=", base_, "/notify")}, base_ + "/log"));
  CKPTD_RETURN_IF_ERROR(AwaitReady());
  return SecondsSince(begin);
}

absl::Status Agent::AwaitReady() {
  CKPTD_ASSIGN_OR_RETURN(UniqueFd process, OpenPidFd(pid_));
  char text[512];
  for (;;) {
    pollfd wait[] = {{notify_.get(), POLLIN, 0}, {process.get(), POLLIN, 0}};
    if (poll(wait, 2, kStartTimeoutMs) < 0 && errno == EINTR) continue;
    if (wait[0].revents == 0) {
      return Error(ErrorCode::AGENT_UNREACHABLE, absl::StrCat(program_, " does not become ready: ", LogTail()));
    }
    ssize_t size = recv(notify_.get(), text, sizeof text, 0);
    if (size > 0 && absl::StrContains(absl::string_view(text, static_cast<size_t>(size)), "READY=1")) {
      return absl::OkStatus();
    }
  }
}

std::string Agent::LogTail() const {
  std::ifstream file(base_ + "/log");
  std::stringstream text;
  text << file.rdbuf();
  std::string all = text.str();
  return all.size() <= kLogTailBytes ? all : all.substr(all.size() - kLogTailBytes);
}

void Agent::Kill() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  Reap(pid_);
  pid_ = -1;
}

void Agent::LoseRegion() const { RemoveAll(region_ + "/r"); }

absl::StatusOr<double> TimeProgram(std::vector<std::string> argv) {
  TimePoint begin = Now();
  CKPTD_ASSIGN_OR_RETURN(pid_t pid, Spawn(argv, {}, "/dev/null"));
  if (Reap(pid) != 0) return Error(ErrorCode::INTERNAL, absl::StrCat(argv[0], " failed"));
  return SecondsSince(begin);
}

}  // namespace ckptd::bench
