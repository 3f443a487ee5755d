#include "daemon/os/signal.h"

#include <pthread.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "daemon/base/errors.h"

namespace ckptd {

absl::StatusOr<SignalFd> SignalFd::Create(std::initializer_list<int> signals) {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : signals) sigaddset(&set, signal);
  if (int error = pthread_sigmask(SIG_BLOCK, &set, nullptr); error != 0) return ErrnoError(error, "sigmask", "");
  std::signal(SIGPIPE, SIG_IGN);
  UniqueFd fd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd.valid()) return ErrnoError(errno, "signalfd", "");
  return SignalFd(std::move(fd));
}

std::optional<int> SignalFd::Read() {
  signalfd_siginfo info{};
  if (read(fd_.get(), &info, sizeof(info)) != sizeof(info)) return std::nullopt;
  return static_cast<int>(info.ssi_signo);
}

}  // namespace ckptd
