// A program of the machine that measures what it can do: iperf3, ucx_perftest. Its output is read, never shown.
#ifndef CKPTD_TOOLS_BENCH_PROGRAM_H_
#define CKPTD_TOOLS_BENCH_PROGRAM_H_

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/os/fd.h"

namespace ckptd::bench {

// Whether $PATH has it.
[[nodiscard]] bool Installed(const std::string& program);

// Killed and reaped with the object.
class Program {
 public:
  // argv[0] is looked for in $PATH; `more` are entries of the environment, "NAME=value".
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Program>> Start(const std::vector<std::string>& argv,
                                                                      const std::vector<std::string>& more = {});
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program();

  // Until its output has `text`. An error when it ends before, or says nothing for `patience`.
  [[nodiscard]] absl::Status Await(const std::string& text, std::chrono::milliseconds patience);
  // Until it ends: all that it said. An error when it fails, or says nothing for `patience`.
  [[nodiscard]] absl::StatusOr<std::string> Finish(std::chrono::milliseconds patience);

 private:
  Program(std::string name, pid_t pid, UniqueFd output)
      : name_(std::move(name)), pid_(pid), output_(std::move(output)) {}
  // False: it has closed its output.
  [[nodiscard]] absl::StatusOr<bool> ReadSome(std::chrono::milliseconds patience);

  const std::string name_;
  pid_t pid_;  // -1: reaped
  UniqueFd output_;
  std::string said_;
};

// A port of 127.0.0.1 that was free a moment ago.
[[nodiscard]] absl::StatusOr<int> FreePort();

}  // namespace ckptd::bench

#endif  // CKPTD_TOOLS_BENCH_PROGRAM_H_
