// The commands: what each is called, takes and does. A command gets its arguments and gives its exit code, or a Status
// whose row in errors.def is the exit code.
//
// Exit codes: 0 yes · 1 no (not durable, failed verification, unhealthy) · 2 usage · 3 agent not reachable · 4 not
// found · 5 corrupt · 6 refused.
#ifndef CKPTD_TOOLS_CKPTCTL_COMMAND_H_
#define CKPTD_TOOLS_CKPTCTL_COMMAND_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/ckptctl/args.h"

namespace ckptd {

inline constexpr int kYes = 0;
inline constexpr int kNo = 1;

struct Command {
  std::string name;
  std::string takes;    // "JOB[@STEP] | PATH"
  std::string summary;  // half a line
  std::string help;     // what else there is to know
  size_t min_words = 0;
  size_t max_words = 0;
  std::vector<Flag> flags;
  absl::StatusOr<int> (*run)(const Args& args) = nullptr;
};

[[nodiscard]] const std::vector<Command>& Commands();
// All commands, or one.
[[nodiscard]] std::string HelpText();
[[nodiscard]] std::string HelpText(const Command& command);

// `words`: without the program's name. The process' exit code.
[[nodiscard]] int RunCommandLine(const std::vector<std::string>& words);

// One cmd_*.cc each.
[[nodiscard]] absl::StatusOr<int> RunStatus(const Args& args);
[[nodiscard]] absl::StatusOr<int> RunList(const Args& args);
[[nodiscard]] absl::StatusOr<int> RunInspect(const Args& args);
[[nodiscard]] absl::StatusOr<int> RunVerify(const Args& args);
[[nodiscard]] absl::StatusOr<int> RunFlush(const Args& args);
[[nodiscard]] absl::StatusOr<int> RunDrain(const Args& args);
[[nodiscard]] absl::StatusOr<int> RunRestore(const Args& args);
[[nodiscard]] absl::StatusOr<int> RunTrace(const Args& args);
[[nodiscard]] absl::StatusOr<int> RunSalvage(const Args& args);
[[nodiscard]] absl::StatusOr<int> RunPin(const Args& args);
[[nodiscard]] absl::StatusOr<int> RunUnpin(const Args& args);
[[nodiscard]] absl::StatusOr<int> RunRm(const Args& args);
[[nodiscard]] absl::StatusOr<int> RunGc(const Args& args);
[[nodiscard]] absl::StatusOr<int> RunPlan(const Args& args);
[[nodiscard]] absl::StatusOr<int> RunCerts(const Args& args);
[[nodiscard]] absl::StatusOr<int> RunVersion(const Args& args);

}  // namespace ckptd

#endif  // CKPTD_TOOLS_CKPTCTL_COMMAND_H_
