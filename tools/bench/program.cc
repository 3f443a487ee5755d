#include "tools/bench/program.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"

namespace ckptd::bench {
namespace {

constexpr size_t kMostOutput = size_t{1} << 20;

std::vector<char*> PointersTo(const std::vector<std::string>& words) {
  std::vector<char*> pointers;
  pointers.reserve(words.size());
  for (const std::string& word : words) pointers.push_back(const_cast<char*>(word.c_str()));
  return pointers;
}

}  // namespace

bool Installed(const std::string& program) {
  const char* path = std::getenv("PATH");
  for (const absl::string_view folder : absl::StrSplit(path == nullptr ? "" : path, ':')) {
    if (!folder.empty() && access(absl::StrCat(folder, "/", program).c_str(), X_OK) == 0) return true;
  }
  return false;
}

absl::StatusOr<std::unique_ptr<Program>> Program::Start(const std::vector<std::string>& argv,
                                                        const std::vector<std::string>& more) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoError(errno, "pipe", argv[0]);
  UniqueFd output(ends[0]);
  const UniqueFd into(ends[1]);
  std::vector<char*> arguments = PointersTo(argv);
  arguments.push_back(nullptr);
  std::vector<char*> environment = PointersTo(more);  // the first of a name counts
  for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
  environment.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDWR, 0);
  posix_spawn_file_actions_adddup2(&actions, into.get(), 1);
  posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_RDWR, 0);
  pid_t pid = -1;
  const int error = posix_spawnp(&pid, argv[0].c_str(), &actions, nullptr, arguments.data(), environment.data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return ErrnoError(error, "start", argv[0]);
  return std::unique_ptr<Program>(new Program(argv[0], pid, std::move(output)));
}

Program::~Program() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

absl::StatusOr<bool> Program::ReadSome(std::chrono::milliseconds patience) {
  pollfd ready = {output_.get(), POLLIN, 0};
  const int found = poll(&ready, 1, static_cast<int>(patience.count()));
  if (found < 0 && errno == EINTR) return Error(ErrorCode::CANCELLED, "interrupted");
  if (found <= 0) return Error(ErrorCode::TIMEOUT, absl::StrCat(name_, " said nothing for ", patience.count(), " ms"));
  char block[4096];
  const ssize_t got = read(output_.get(), block, sizeof block);
  if (got < 0) return ErrnoError(errno, "read from", name_);
  if (said_.size() + static_cast<size_t>(got) > kMostOutput)
    return Error(ErrorCode::INTERNAL, absl::StrCat(name_, " says more than it should"));
  said_.append(block, static_cast<size_t>(got));
  return got > 0;
}

absl::Status Program::Await(const std::string& text, std::chrono::milliseconds patience) {
  while (said_.find(text) == std::string::npos) {
    CKPTD_ASSIGN_OR_RETURN(const bool more, ReadSome(patience));
    if (!more) return Error(ErrorCode::INTERNAL, absl::StrCat(name_, " ended without \"", text, "\""));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Program::Finish(std::chrono::milliseconds patience) {
  for (bool more = true; more;) {
    CKPTD_ASSIGN_OR_RETURN(more, ReadSome(patience));
  }
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return said_;
  return Error(ErrorCode::INTERNAL, absl::StrCat(name_, " failed: ", said_.substr(0, 200)));
}

absl::StatusOr<int> FreePort() {
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const plain = reinterpret_cast<sockaddr*>(&address);
  if (bind(fd.get(), plain, size) != 0 || getsockname(fd.get(), plain, &size) != 0)
    return ErrnoError(errno, "bind", "127.0.0.1");
  return ntohs(address.sin_port);
}

}  // namespace ckptd::bench
