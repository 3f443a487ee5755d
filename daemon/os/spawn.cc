#include "daemon/os/spawn.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/os/capabilities.h"
#include "daemon/os/pidfd.h"

#ifndef P_PIDFD
#define P_PIDFD 3  // older C libraries do not name it
#endif

namespace ckptd {
namespace {

constexpr int kAboveTheChilds = 16;  // our ends are moved above the numbers that the program uses
constexpr int kNotRun = 127;         // as a shell says it

enum class Step : int { kDescriptors, kIdentity, kParent, kProgram };

struct Failure {
  Step step;
  int error;
};

const char* NameOf(Step step) {
  switch (step) {
    case Step::kDescriptors:
      return "descriptors of";
    case Step::kIdentity:
      return "ids of";
    case Step::kParent:
      return "parent of";
    case Step::kProgram:
      break;
  }
  return "run";
}

// All that the child needs, made before there is one: it may only make system calls, because another thread may have
// held any lock at the moment of the fork.
struct ChildPlan {
  const char* program;
  char* const* argv;
  char* const* envp;
  const SpawnOptions* options;
  int socket;
  int outcome;
  pid_t parent;
  bool may_change_ids;
  int highest_fd;
};

[[noreturn]] void Fail(const ChildPlan& plan, Step step) {
  const Failure failure{step, errno};
  (void)!write(plan.outcome, &failure, sizeof(failure));
  _exit(kNotRun);
}

// Everything the agent has open goes when the program begins: also what lacks close-on-exec by somebody's mistake.
void KeepNothing(const ChildPlan& plan) {
#ifdef SYS_close_range
  constexpr unsigned kCloseOnExec = 4;  // CLOSE_RANGE_CLOEXEC, Linux 5.11
  if (syscall(SYS_close_range, kSpawnedSocket + 1, ~0U, kCloseOnExec) == 0) return;
#endif
  for (int fd = kSpawnedSocket + 1; fd <= plan.highest_fd; ++fd) fcntl(fd, F_SETFD, FD_CLOEXEC);
}

void SetDescriptors(const ChildPlan& plan) {
  const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (nothing < 0) Fail(plan, Step::kDescriptors);
  const int last = plan.options->uid == geteuid() ? STDOUT_FILENO : STDERR_FILENO;
  for (int fd = STDIN_FILENO; fd <= last; ++fd) {
    if (dup2(nothing, fd) < 0) Fail(plan, Step::kDescriptors);
  }
  if (dup2(plan.socket, kSpawnedSocket) < 0) Fail(plan, Step::kDescriptors);
  KeepNothing(plan);
}

// Also of a trainer that is root, perhaps in a container with few of them. From one user to another they stay, so they
// go by hand; without new privileges no program gets them back.
void DropCapabilities(const ChildPlan& plan) {
  prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);  // what systemd lends us
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  const __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {};
  if (syscall(SYS_capset, &header, none) != 0) Fail(plan, Step::kIdentity);
}

// By system call: the C library would tell all threads of this process, of which only one was copied.
void SetIdentity(const ChildPlan& plan) {
  const SpawnOptions& options = *plan.options;
  if (plan.may_change_ids) {
    if (syscall(SYS_setgroups, options.groups.size(), options.groups.data()) != 0 ||
        syscall(SYS_setresgid, options.gid, options.gid, options.gid) != 0 ||
        syscall(SYS_setresuid, options.uid, options.uid, options.uid) != 0) {
      Fail(plan, Step::kIdentity);
    }
  }
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) Fail(plan, Step::kIdentity);
  DropCapabilities(plan);
}

void ResetSignals() {
  struct sigaction standard {};
  standard.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) sigaction(signal, &standard, nullptr);  // some cannot be set: no matter
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

[[noreturn]] void RunChild(const ChildPlan& plan) {
  SetDescriptors(plan);
  SetIdentity(plan);
  // After the ids: their change takes it back. A parent that died before it is noticed by who the parent is now.
  if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) != 0) Fail(plan, Step::kParent);
  if (getppid() != plan.parent) {
    errno = ESRCH;
    Fail(plan, Step::kParent);
  }
  ResetSignals();
  execve(plan.program, plan.argv, plan.envp);
  Fail(plan, Step::kProgram);
}

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

absl::StatusOr<UniqueFd> MovedUp(const UniqueFd& fd, const std::string& program) {
  UniqueFd moved(fcntl(fd.get(), F_DUPFD_CLOEXEC, kAboveTheChilds));
  if (!moved.valid()) return ErrnoError(errno, "start", program);
  return moved;
}

struct ChildEnds {
  UniqueFd socket;
  UniqueFd outcome;
};

absl::StatusOr<ChildEnds> MakeEnds(const std::string& program, SpawnedProcess* ours) {
  int pair[2];
  int pipe[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
    return ErrnoError(errno, "socketpair for", program);
  }
  ours->socket = UniqueFd(pair[0]);
  const UniqueFd socket(pair[1]);
  if (pipe2(pipe, O_CLOEXEC) != 0) return ErrnoError(errno, "pipe for", program);
  ours->outcome = UniqueFd(pipe[0]);
  const UniqueFd outcome(pipe[1]);
  ChildEnds ends;
  CKPTD_ASSIGN_OR_RETURN(ends.socket, MovedUp(socket, program));
  CKPTD_ASSIGN_OR_RETURN(ends.outcome, MovedUp(outcome, program));
  return ends;
}

int HighestFd() {
  rlimit limit{};
  constexpr rlim_t kMost = 1 << 20;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return kMost;
  return static_cast<int>(std::min(limit.rlim_cur, kMost));
}

// Without the handlers that libraries hang on fork(). The thread sanitizer's is one that must run: without it the child
// looks for races with threads that it does not have, and waits for their locks.
pid_t ForkThisThread() {
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
  return fork();
#endif
#endif
  return _Fork();
}

// No handler of ours may run in the child, so no signal is let through until it has its own.
pid_t Fork(const ChildPlan& plan) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid = ForkThisThread();
  if (pid == 0) RunChild(plan);
  const int error = errno;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = error;
  return pid;
}

}  // namespace

absl::StatusOr<SpawnedProcess> Spawn(const SpawnOptions& options) {
  const std::vector<std::string> missing = MissingToRunAsOthers();
  if (!missing.empty() && options.uid != geteuid()) {
    return Error(ErrorCode::PERMISSION,
                 absl::StrCat(options.program, " cannot be started as uid ", options.uid, " by an agent of uid ",
                              geteuid(), ", which lacks ", absl::StrJoin(missing, ", ")));
  }
  SpawnedProcess child;
  CKPTD_ASSIGN_OR_RETURN(ChildEnds ends, MakeEnds(options.program, &child));
  const std::vector<char*> argv = Pointers(options.arguments);
  const std::vector<char*> envp = Pointers(options.environment);
  const ChildPlan plan{options.program.c_str(), argv.data(), envp.data(),     &options,   ends.socket.get(),
                       ends.outcome.get(),      getpid(),    missing.empty(), HighestFd()};
  child.pid = Fork(plan);
  if (child.pid < 0) return ErrnoError(errno, "start", options.program);
  // Nobody else reaps it, so its pid is its own until we do.
  auto pidfd = OpenPidFd(child.pid);
  if (!pidfd.ok()) {
    kill(child.pid, SIGKILL);
    return pidfd.status();
  }
  child.pidfd = *std::move(pidfd);
  return child;
}

absl::Status ReadSpawnOutcome(int outcome, const std::string& program) {
  Failure failure{};
  const ssize_t got = read(outcome, &failure, sizeof(failure));
  if (got == 0) return absl::OkStatus();  // closed by the program's start
  if (got != static_cast<ssize_t>(sizeof(failure))) return ErrnoError(errno, "start", program);
  return ErrnoError(failure.error, NameOf(failure.step), program);
}

absl::StatusOr<std::string> OwnExecutable() {
  std::array<char, 4096> path{};
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size());
  if (length <= 0) return ErrnoError(errno, "readlink", "/proc/self/exe");
  return std::string(path.data(), static_cast<size_t>(length));
}

std::optional<ProcessEnd> ReapChild(int pidfd) {
  siginfo_t info{};
  const int reaped = waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(pidfd), &info, WEXITED | WNOHANG);
  if (reaped != 0) return ProcessEnd{};  // not a child of ours (any more): then its pidfd is all there is to know
  if (info.si_pid == 0) return std::nullopt;
  if (info.si_code == CLD_EXITED) return ProcessEnd{info.si_status, 0};
  return ProcessEnd{0, info.si_status};
}

}  // namespace ckptd
