#include "daemon/os/process_stats.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <ctime>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "daemon/os/fd.h"

namespace ckptd {
namespace {

// Files of /proc/self are short; empty when it cannot be read.
std::string ReadProc(const char* path) {
  UniqueFd fd(open(path, O_RDONLY | O_CLOEXEC));
  char text[2048];
  ssize_t got = fd.valid() ? read(fd.get(), text, sizeof(text)) : -1;
  return got > 0 ? std::string(text, static_cast<size_t>(got)) : std::string();
}

double Seconds(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

// Number `index` of the words in `text`, 0 when there is none.
uint64_t Word(absl::string_view text, size_t index) {
  std::vector<absl::string_view> words = absl::StrSplit(text, ' ', absl::SkipWhitespace());
  uint64_t number = 0;
  if (index >= words.size() || !absl::SimpleAtoi(words[index], &number)) return 0;
  return number;
}

uint64_t CountFds() {
  DIR* dir = opendir("/proc/self/fd");
  if (dir == nullptr) return 0;
  uint64_t entries = 0;
  while (readdir(dir) != nullptr) ++entries;
  closedir(dir);
  return entries < 3 ? 0 : entries - 3;  // ".", ".." and the directory's own descriptor
}

// starttime is word 22 of stat, in clock ticks after boot. Word 2 is the program's name in brackets and may hold
// spaces.
double StartTime() {
  std::string stat = ReadProc("/proc/self/stat");
  size_t bracket = stat.rfind(')');
  if (bracket == std::string::npos) return 0;
  uint64_t ticks = Word(absl::string_view(stat).substr(bracket + 1), 19);
  double after_boot = static_cast<double>(ticks) / static_cast<double>(sysconf(_SC_CLK_TCK));
  return Seconds(CLOCK_REALTIME) - Seconds(CLOCK_BOOTTIME) + after_boot;
}

}  // namespace

ProcessStats ReadProcessStats() {
  static const double start = StartTime();
  ProcessStats stats;
  stats.cpu_seconds = Seconds(CLOCK_PROCESS_CPUTIME_ID);
  stats.resident_bytes = Word(ReadProc("/proc/self/statm"), 1) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  stats.open_fds = CountFds();
  stats.start_unix_seconds = start;
  return stats;
}

}  // namespace ckptd
