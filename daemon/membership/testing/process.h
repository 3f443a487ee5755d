// A program that a test runs, stops, kills and reads line by line. Every wait ends at a deadline and is woken by the
// kernel.
#ifndef CKPTD_DAEMON_MEMBERSHIP_TESTING_PROCESS_H_
#define CKPTD_DAEMON_MEMBERSHIP_TESTING_PROCESS_H_

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "daemon/os/fd.h"

namespace ckptd::membership {

class Process {
 public:
  // argv[0] is a path. stderr goes to `error_file`, stdout to NextLine. It is killed when this process ends.
  Process(const std::vector<std::string>& argv, const std::string& error_file);
  ~Process();  // Kill
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void Signal(int signal) const;
  void Kill();  // SIGKILL, and waits until it is gone
  // The next line of stdout; nullopt at its end or after `patience`.
  [[nodiscard]] std::optional<std::string> NextLine(std::chrono::milliseconds patience);
  // Reads on until a line contains `text`.
  [[nodiscard]] std::optional<std::string> WaitFor(const std::string& text,
                                                   std::chrono::milliseconds patience = std::chrono::seconds(60));

 private:
  pid_t pid_ = 0;
  UniqueFd out_;
  std::string buffer_;
};

}  // namespace ckptd::membership

#endif  // CKPTD_DAEMON_MEMBERSHIP_TESTING_PROCESS_H_
