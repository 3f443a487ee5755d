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

// Bytes of a character that a terminal obeys instead of showing it: control characters, and those that turn the
// direction of writing. 0: it is shown.
size_t ObeyedBytes(absl::string_view text) {
  const auto at = [text](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0; };
  const auto within = [](int c, int low, int high) { return c >= low && c <= high; };
  if (at(0) < ' ' || at(0) == 0x7f) return 1;
  if (at(0) == 0xc2 && within(at(1), 0x80, 0x9f)) return 2;
  if (at(0) == 0xd8 && at(1) == 0x9c) return 2;
  const bool marks = at(1) == 0x80 && (within(at(2), 0x8e, 0x8f) || within(at(2), 0xa8, 0xae));
  const bool isolates = at(1) == 0x81 && within(at(2), 0xa6, 0xa9);
  return at(0) == 0xe2 && (marks || isolates) ? 3 : 0;
}

// Tensors' names and what trainers say come from anybody.
void AppendQuoted(std::string& out, absl::string_view value) {
  out += '"';
  while (!value.empty()) {
    const size_t obeyed = ObeyedBytes(value);
    if (obeyed == 0 && (value[0] == '"' || value[0] == '\\')) out += '\\';
    out += obeyed == 0 ? value[0] : ' ';
    value.remove_prefix(obeyed == 0 ? 1 : obeyed);
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
