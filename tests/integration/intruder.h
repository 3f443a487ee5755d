// A process of another user that does its worst to the agent, forked from the test: what it holds stays open until it
// is ended, and what it heard is told to the test.
#ifndef CKPTD_TESTS_INTEGRATION_INTRUDER_H_
#define CKPTD_TESTS_INTEGRATION_INTRUDER_H_

#include <sys/types.h>

#include <functional>
#include <string>

#include "tests/integration/process.h"

namespace ckptd::harness {

class Intruder {
 public:
  static constexpr uid_t kUser = 61'234;  // nobody's

  // `act` runs at once, without groups and capabilities; what it made on its heap lives as long as the process.
  explicit Intruder(const std::function<std::string()>& act, uid_t user = kUser);
  ~Intruder();  // End()
  Intruder(const Intruder&) = delete;
  Intruder& operator=(const Intruder&) = delete;

  // Readable when `act` has ended, or the process has.
  [[nodiscard]] int said_fd() const { return said_; }
  // What `act` returned; "died" when the process ended before, "silent" at the deadline.
  [[nodiscard]] std::string Said(Millis timeout = kLong);
  // SIGKILL, reaped.
  void End();
  [[nodiscard]] pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  int said_ = -1;
};

}  // namespace ckptd::harness

#endif  // CKPTD_TESTS_INTEGRATION_INTRUDER_H_
