// What keeps this agent from doing its work, each with its reason and its next step: `ckptctl status` prints it and
// exits 1, /status.json lists it. Control thread only.
#ifndef CKPTD_DAEMON_APP_HEALTH_H_
#define CKPTD_DAEMON_APP_HEALTH_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "daemon/app/agent.h"

namespace ckptd {

struct Problem {
  absl::Status what;   // never OK; its code has the next step
  std::string job;     // empty: the node's
  std::string next{};  // in place of the code's
};

// Storage that cannot be written or does not answer, a region that is damaged or not ours to touch, slots whose bytes
// went bad, layouts that found no memory, pages that are not served.
[[nodiscard]] std::vector<Problem> ProblemsOf(Agent& agent);

// "Is this agent well?" for probes that restart what is not: OK, or why it cannot do its work.
[[nodiscard]] absl::Status HealthOf(Agent& agent);

// How it goes, in one line.
[[nodiscard]] std::string StatusLine(Agent& agent);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_APP_HEALTH_H_
