#include "daemon/base/log.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"

namespace ckptd {
namespace {

std::atomic<int> g_level{kInfo};
std::atomic<uint64_t> g_dropped{0};

bool NeedsQuotes(absl::string_view value) {
  if (value.empty()) return true;
  for (unsigned char c : value) {
    if (c <= ' ' || c == '"' || c == '=' || c == '\\' || c >= 0x7f) return true;
  }
  return false;
}

void AppendQuoted(std::string& out, absl::string_view value) {
  out += '"';
  for (char c : value) {
    if (c == '"' || c == '\\') out += '\\';
    out += (c == '\n' || c == '\r') ? ' ' : c;
  }
  out += '"';
}

void WriteLine(const std::string& line) {
  pollfd ready = {STDERR_FILENO, POLLOUT, 0};
  if (poll(&ready, 1, 0) != 1 || write(STDERR_FILENO, line.data(), line.size()) < 0) ++g_dropped;
}

}  // namespace

void SetLogLevel(LogLevel most_verbose) { g_level = most_verbose; }
bool LogEnabled(LogLevel level) { return level <= g_level.load(std::memory_order_relaxed); }
uint64_t DroppedLogLines() { return g_dropped; }

Log::Log(LogLevel level, absl::string_view op) : on_(level <= g_level.load(std::memory_order_relaxed)) {
  constexpr size_t kUsual = 200;  // a line in one piece of memory
  if (!on_) return;
  line_.reserve(kUsual);
  absl::StrAppend(&line_, "<", static_cast<int>(level), ">op=", op);
}

Log::~Log() {
  if (!on_) return;
  line_ += '\n';
  WriteLine(line_);
}

Log& Log::Field(absl::string_view key, absl::string_view value) {
  if (!on_) return *this;
  absl::StrAppend(&line_, " ", key, "=");
  if (NeedsQuotes(value)) {
    AppendQuoted(line_, value);
  } else {
    absl::StrAppend(&line_, value);
  }
  return *this;
}

Log& Log::Field(absl::string_view key, uint64_t value) { return Field(key, absl::string_view(absl::StrCat(value))); }
Log& Log::Field(absl::string_view key, double value) { return Field(key, absl::string_view(absl::StrCat(value))); }

Log& Log::Error(const absl::Status& status) {
  Field("code", absl::string_view(InfoOf(CodeOf(status)).name));
  return Field("error", status.message());
}

}  // namespace ckptd
