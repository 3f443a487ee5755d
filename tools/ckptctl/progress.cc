#include "tools/ckptctl/progress.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/units.h"

namespace ckptd {
namespace {

constexpr size_t kBar = 24;
constexpr Nanos kRedraw = std::chrono::milliseconds(100);
constexpr Nanos kLineEvery = std::chrono::seconds(5);

}  // namespace

std::string ProgressLine(const std::string& what, uint64_t done, uint64_t total, Nanos elapsed) {
  const double part = total == 0 ? 0 : std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
  const size_t full = static_cast<size_t>(part * kBar);
  std::string line = absl::StrCat(what, "  [", std::string(full, '#'), std::string(kBar - full, '-'), "]  ",
                                  static_cast<int>(part * 100), " %  ", FormatBytes(done), " of ", FormatBytes(total));
  const double seconds = static_cast<double>(elapsed.count()) / 1e9;
  if (seconds > 0.2) {
    absl::StrAppend(&line, "  ", FormatBytes(static_cast<uint64_t>(static_cast<double>(done) / seconds)), "/s");
  }
  return line;
}

Progress::Progress(std::string what, bool quiet)
    : what_(std::move(what)),
      quiet_(quiet),
      terminal_(isatty(STDERR_FILENO) != 0),
      started_(SystemClock().Monotonic()),
      shown_(started_) {}

Progress::~Progress() {
  if (line_open_) std::fputs("\n", stderr);
}

void Progress::Update(uint64_t done, uint64_t total) {
  const Nanos now = SystemClock().Monotonic();
  if (quiet_ || now - shown_ < (terminal_ ? kRedraw : kLineEvery)) return;
  shown_ = now;
  std::string line = ProgressLine(what_, done, total, now - started_);
  std::fprintf(stderr, terminal_ ? "\r%s\x1b[K" : "%s\n", line.c_str());
  line_open_ = terminal_;
}

}  // namespace ckptd
