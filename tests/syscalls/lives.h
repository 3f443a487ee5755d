// The lives of a node whose system calls are swept.
#ifndef CKPTD_TESTS_SYSCALLS_LIVES_H_
#define CKPTD_TESTS_SYSCALLS_LIVES_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/crash/crash_node.h"

namespace ckptd::syscalls {

struct Life {
  std::string name;
  crash::NodeOptions options;
  std::function<void(crash::Node&)> script;
  bool links = true;  // hard links: else every link() says EPERM
};
[[nodiscard]] const std::vector<Life>& Lives();
[[nodiscard]] const Life* FindLife(const std::string& name);

// The agent starts over what another left, and every rank restores.
inline constexpr char kRecovery[] = "recovery";

}  // namespace ckptd::syscalls

#endif  // CKPTD_TESTS_SYSCALLS_LIVES_H_
