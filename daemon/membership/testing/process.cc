#include "daemon/membership/testing/process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>

namespace ckptd::membership {

Process::Process(const std::vector<std::string>& argv, const std::string& error_file) {
  std::vector<char*> arguments;
  arguments.reserve(argv.size() + 1);
  for (const std::string& argument : argv) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  std::array<int, 2> pipe{};
  if (pipe2(pipe.data(), O_CLOEXEC) != 0) std::abort();
  const UniqueFd write_end(pipe[1]);
  out_ = UniqueFd(pipe[0]);
  const UniqueFd errors(open(error_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  pid_ = fork();
  if (pid_ < 0) std::abort();
  if (pid_ > 0) return;
  // Between fork and exec only what a signal handler may do.
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  (void)dup2(write_end.get(), STDOUT_FILENO);
  (void)dup2(errors.get(), STDERR_FILENO);
  execv(arguments[0], arguments.data());
  _exit(127);
}

Process::~Process() { Kill(); }

void Process::Signal(int signal) const {
  if (pid_ > 0) (void)kill(pid_, signal);
}

void Process::Kill() {
  if (pid_ <= 0) return;
  Signal(SIGKILL);
  (void)waitpid(pid_, nullptr, 0);
  pid_ = 0;
}

std::optional<std::string> Process::NextLine(std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  for (;;) {
    if (const size_t end = buffer_.find('\n'); end != std::string::npos) {
      std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      return line;
    }
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    pollfd fd = {out_.get(), POLLIN, 0};
    if (left <= 0 || poll(&fd, 1, static_cast<int>(std::min<int64_t>(left, 1000))) < 0) return std::nullopt;
    if (fd.revents == 0) continue;
    std::array<char, 4096> bytes{};
    const ssize_t got = read(out_.get(), bytes.data(), bytes.size());
    if (got <= 0) return std::nullopt;
    buffer_.append(bytes.data(), static_cast<size_t>(got));
  }
}

std::optional<std::string> Process::WaitFor(const std::string& text, std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    std::optional<std::string> line = NextLine(left);
    if (!line || line->find(text) != std::string::npos) return line;
  }
}

}  // namespace ckptd::membership
