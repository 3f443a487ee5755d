#include "tests/integration/intruder.h"

#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace ckptd::harness {
namespace {

[[noreturn]] void Become(uid_t user, int said, const std::function<std::string()>& act) {
  const bool other = setgroups(0, nullptr) == 0 && setresgid(user, user, user) == 0 && setresuid(user, user, user) == 0;
  if (!other) _exit(1);
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // a change of user takes it back
  std::string text = act() + "\n";
  if (write(said, text.data(), text.size()) < 0) _exit(1);
  for (;;) pause();
}

}  // namespace

Intruder::Intruder(const std::function<std::string()>& act, uid_t user) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) std::abort();
  fflush(stdout);
  pid_ = fork();
  if (pid_ == 0) Become(user, ends[1], act);
  close(ends[1]);
  said_ = ends[0];
}

Intruder::~Intruder() {
  End();
  close(said_);
}

std::string Intruder::Said(Millis timeout) {
  std::string text;
  for (const TimePoint deadline = std::chrono::steady_clock::now() + timeout;;) {
    const auto left = std::chrono::duration_cast<Millis>(deadline - std::chrono::steady_clock::now());
    pollfd wait{said_, POLLIN, 0};
    if (left <= Millis(0) || poll(&wait, 1, static_cast<int>(left.count())) <= 0) return "silent";
    char buffer[4096];
    const ssize_t got = read(said_, buffer, sizeof buffer);
    if (got <= 0) return "died";
    text.append(buffer, static_cast<size_t>(got));
    if (text.back() == '\n') return text.substr(0, text.size() - 1);
  }
}

void Intruder::End() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

}  // namespace ckptd::harness
