#include "daemon/os/kernel_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace ckptd {
namespace {

constexpr size_t kMostErrors = 64;
constexpr size_t kMostText = 256;
constexpr size_t kMostRecords = 1u << 20;  // more than any ring holds
constexpr char kMark[] = "NVRM: Xid";

Nanos BootTime() {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return std::chrono::seconds(now.tv_sec) + Nanos(now.tv_nsec);
}

// By its number, which the kernel promises: a sandbox may hide the name.
bool IsKernelLog(int fd) {
  struct stat info {};
  return fstat(fd, &info) == 0 && S_ISCHR(info.st_mode) && info.st_rdev == makedev(1, 11);
}

UniqueFd OpenLog(const std::string& path, int given) {
  if (!IsKernelLog(given)) return UniqueFd(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  const int flags = fcntl(given, F_GETFL);
  if (flags < 0 || fcntl(given, F_SETFL, flags | O_NONBLOCK) != 0) return {};
  return UniqueFd(fcntl(given, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
}

}  // namespace

KernelLog::KernelLog(const std::string& path, int given) : fd_(OpenLog(path, given)) {}

bool KernelLog::Read(size_t most) {
  std::array<char, 16384> record;  // NOLINT(cppcoreguidelines-pro-type-member-init): one record fits
  for (size_t i = 0; fd_.valid() && i < most; ++i) {
    const ssize_t got = read(fd_.get(), record.data(), record.size());
    const int error = got < 0 ? errno : 0;
    if (error == EAGAIN) caught_up_ = true;
    if (error == EAGAIN) return true;
    if (error == EPIPE || error == EINTR || error == EINVAL) continue;  // overwritten meanwhile: the next one
    if (got <= 0) return false;
    Take({record.data(), static_cast<size_t>(got)});
  }
  return fd_.valid();
}

// "priority,sequence,microseconds,flags[,…];text", then lines of properties. The kernel's microseconds and the boot
// clock drift apart over weeks, so what is read as it comes has the time at which it is read.
void KernelLog::Take(absl::string_view record) {
  const size_t semicolon = record.find(';');
  if (semicolon == record.npos) return;
  const absl::string_view text = record.substr(semicolon + 1, record.find('\n', semicolon) - semicolon - 1);
  if (!absl::StrContains(text, kMark)) return;
  const std::vector<absl::string_view> fields = absl::StrSplit(record.substr(0, semicolon), ',');
  int64_t microseconds = 0;
  if (fields.size() < 3 || !absl::SimpleAtoi(fields[2], &microseconds)) return;
  std::string shown(text.substr(0, kMostText));
  for (char& c : shown) c = absl::ascii_isprint(static_cast<unsigned char>(c)) ? c : '?';
  errors_.push_back({caught_up_ ? BootTime() : std::chrono::microseconds(microseconds), std::move(shown)});
  if (errors_.size() > kMostErrors) errors_.pop_front();
}

std::optional<std::string> KernelLog::GpuErrorSince(Nanos since_boot) {
  (void)Read(kMostRecords);
  const auto newest = std::max_element(
      errors_.begin(), errors_.end(), [](const GpuError& a, const GpuError& b) { return a.since_boot < b.since_boot; });
  if (newest == errors_.end() || newest->since_boot < since_boot) return std::nullopt;
  return newest->text;
}

Nanos SinceBoot(uint64_t clock_ticks) {
  const auto per_second = static_cast<uint64_t>(sysconf(_SC_CLK_TCK));
  return std::chrono::seconds(clock_ticks / per_second) +
         Nanos(static_cast<int64_t>(clock_ticks % per_second * 1'000'000'000 / per_second));
}

}  // namespace ckptd
