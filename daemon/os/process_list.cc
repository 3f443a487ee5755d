#include "daemon/os/process_list.h"

#include <dirent.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "daemon/base/errors.h"
#include "daemon/os/posix_files.h"

namespace ckptd {
namespace {

constexpr size_t kNameBytes = 15;
constexpr size_t kMaxCommandLine = 64u << 10;

// /proc files have size 0. What cannot be read is of a process that has ended, or that we may not look at.
std::string ReadProc(pid_t pid, const char* name) {
  auto file = PosixFiles().Open(absl::StrCat("/proc/", pid, "/", name), {});
  if (!file.ok()) return "";
  std::string text(kMaxCommandLine, '\0');
  auto got = (*file)->PRead(0, std::as_writable_bytes(std::span(text)));
  text.resize(got.ok() ? *got : 0);
  return text;
}

std::optional<ListedProcess> Look(pid_t pid, const std::vector<std::string>& names) {
  const std::string comm = ReadProc(pid, "comm");
  const bool named = std::any_of(names.begin(), names.end(), [&comm](const std::string& name) {
    return comm == absl::StrCat(name.substr(0, kNameBytes), "\n");
  });
  if (!named) return std::nullopt;
  auto start_time = ProcessStartTime(pid);
  if (!start_time.ok()) return std::nullopt;
  auto pidfd = OpenProcess({pid, *start_time});
  if (!pidfd.ok()) return std::nullopt;
  ListedProcess process{{pid, *start_time}, *std::move(pidfd), {}};
  const std::string line = ReadProc(pid, "cmdline");
  if (!line.empty()) process.command_line = absl::StrSplit(line, '\0');
  return process;
}

}  // namespace

std::vector<ListedProcess> ListProcesses(const std::vector<std::string>& names) {
  std::vector<ListedProcess> found;
  std::unique_ptr<DIR, int (*)(DIR*)> proc(opendir("/proc"), closedir);
  if (proc == nullptr) return found;
  while (const dirent* entry = readdir(proc.get())) {  // NOLINT(concurrency-mt-unsafe): its own stream
    pid_t pid = 0;
    if (!absl::SimpleAtoi(entry->d_name, &pid)) continue;
    if (auto process = Look(pid, names)) found.push_back(*std::move(process));
  }
  return found;
}

}  // namespace ckptd
