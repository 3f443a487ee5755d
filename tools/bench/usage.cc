#include "tools/bench/usage.h"

#include <time.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/base/units.h"
#include "daemon/os/files.h"

namespace ckptd::bench {
namespace {

// The number behind `name` ("RssAnon:") in a status file of /proc.
absl::StatusOr<uint64_t> NumberIn(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    uint64_t number = 0;
    if (word == name && file >> number) return number;
  }
  return Error(ErrorCode::NOT_FOUND, absl::StrCat(path, " has no ", name));
}

}  // namespace

absl::StatusOr<double> CpuSecondsOf(pid_t pid) {
  clockid_t clock = 0;
  if (int error = clock_getcpuclockid(pid, &clock)) return FileError(error, "clock_getcpuclockid", absl::StrCat(pid));
  timespec used = {};
  if (clock_gettime(clock, &used) != 0) return FileError(errno, "clock_gettime", absl::StrCat(pid));
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) / 1e9;
}

absl::StatusOr<uint64_t> SleepsOf(pid_t pid) {
  const std::string tasks = absl::StrCat("/proc/", pid, "/task");
  std::error_code failed;
  uint64_t sleeps = 0;
  for (std::filesystem::directory_iterator at(tasks, failed), end; !failed && at != end; at.increment(failed)) {
    auto of_thread = NumberIn(at->path() / "status", "voluntary_ctxt_switches:");
    if (of_thread.ok()) sleeps += *of_thread;  // else it has just ended
  }
  if (failed) return FileError(failed.value(), "read", tasks);
  return sleeps;
}

absl::StatusOr<uint64_t> OwnMemoryOf(pid_t pid) {
  const std::string status = absl::StrCat("/proc/", pid, "/status");
  CKPTD_ASSIGN_OR_RETURN(uint64_t anonymous, NumberIn(status, "RssAnon:"));
  CKPTD_ASSIGN_OR_RETURN(uint64_t files, NumberIn(status, "RssFile:"));
  return (anonymous + files) * kKiB;
}

}  // namespace ckptd::bench
