#include "daemon/os/pidfd.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/os/posix_files.h"

namespace ckptd {
namespace {

constexpr size_t kMaxStatBytes = 4096;
constexpr size_t kStartTimeAfterName = 19;  // field 22; the fields behind the name begin with number 3

absl::Status ProcessError(int error, absl::string_view operation, pid_t pid) {
  // ESRCH: no such process.
  return ErrnoError(error == ESRCH ? ENOENT : error, operation, absl::StrCat("process ", pid));
}

// /proc files have size 0, so ReadSmall would see nothing.
absl::StatusOr<std::string> ReadStat(pid_t pid) {
  CKPTD_ASSIGN_OR_RETURN(auto file, PosixFiles().Open(absl::StrCat("/proc/", pid, "/stat"), {}));
  std::string text(kMaxStatBytes, '\0');
  absl::StatusOr<size_t> got = file->PRead(0, std::as_writable_bytes(std::span(text)));
  if (!got.ok()) return ProcessError(ESRCH, "stat of", pid);  // it ended between open and read
  text.resize(*got);
  return text;
}

}  // namespace

absl::StatusOr<uint64_t> ProcessStartTime(pid_t pid) {
  CKPTD_ASSIGN_OR_RETURN(std::string text, ReadStat(pid));
  // The name stands in parentheses and may hold any byte, also ')': the last one ends it.
  absl::string_view view = text;
  std::vector<absl::string_view> fields;
  size_t name_end = view.rfind(") ");
  if (name_end != absl::string_view::npos) fields = absl::StrSplit(view.substr(name_end + 2), ' ');
  uint64_t start = 0;
  if (fields.size() > kStartTimeAfterName && absl::SimpleAtoi(fields[kStartTimeAfterName], &start)) return start;
  return Error(ErrorCode::INTERNAL, absl::StrCat("/proc/", pid, "/stat: no start time"));
}

absl::StatusOr<UniqueFd> OpenPidFd(pid_t pid) {
  UniqueFd fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!fd.valid()) return ProcessError(errno, "pidfd_open", pid);
  return fd;
}

absl::StatusOr<UniqueFd> OpenProcess(const ProcessId& id) {
  // First the pidfd, then the start time: what the pidfd names cannot change any more.
  CKPTD_ASSIGN_OR_RETURN(UniqueFd fd, OpenPidFd(id.pid));
  CKPTD_ASSIGN_OR_RETURN(uint64_t start_time, ProcessStartTime(id.pid));
  if (start_time != id.start_time || HasExited(fd.get())) return ProcessError(ESRCH, "open", id.pid);
  return fd;
}

absl::Status KillProcess(int pidfd) {
  if (syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, nullptr, 0) == 0 || errno == ESRCH) return absl::OkStatus();
  return ErrnoError(errno, "kill", "the process of a pidfd");
}

bool HasExited(int pidfd) {
  pollfd poll_for{pidfd, POLLIN, 0};
  return poll(&poll_for, 1, 0) > 0 && (poll_for.revents & POLLIN) != 0;
}

}  // namespace ckptd
