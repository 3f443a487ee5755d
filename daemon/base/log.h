// Log lines: logfmt on stderr, with the <N> priority that journald reads. Keys in use everywhere: job attempt rank step
// op error. One write(2) a line; any thread. A blocked stderr never blocks the caller: the line is counted and dropped.
//
//   Log(kInfo, "save.captured").Job("gpt").Rank(3).Step(1000).Field("seconds", 0.8);
#ifndef CKPTD_DAEMON_BASE_LOG_H_
#define CKPTD_DAEMON_BASE_LOG_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "daemon/base/ids.h"

namespace ckptd {

enum LogLevel { kError = 3, kWarning = 4, kInfo = 6, kDebug = 7 };

void SetLogLevel(LogLevel most_verbose);
[[nodiscard]] bool LogEnabled(LogLevel level);  // for fields that are costly to make
[[nodiscard]] uint64_t DroppedLogLines();

class Log {
 public:
  Log(LogLevel level, absl::string_view op);
  ~Log();  // writes the line
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  Log& Field(absl::string_view key, absl::string_view value);
  Log& Field(absl::string_view key, const std::string& value) { return Field(key, absl::string_view(value)); }
  Log& Field(absl::string_view key, const char* value) { return Field(key, absl::string_view(value)); }
  Log& Field(absl::string_view key, uint64_t value);
  Log& Field(absl::string_view key, double value);
  Log& Job(absl::string_view job) { return Field("job", job); }
  Log& Rank(ckptd::Rank rank) { return Field("rank", uint64_t{rank}); }
  Log& Step(StepId step) { return Field("step", uint64_t{step}); }
  Log& Snapshot(const SnapshotId& id) { return Field("attempt", uint64_t{id.attempt}).Step(id.step); }
  Log& Error(const absl::Status& status);

 private:
  bool on_;
  std::string line_;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_BASE_LOG_H_
