// What people and scrapers see of the agent: the loopback web pages and the admin service. Both only read an immutable
// StatusView or post commands to the control thread.
#ifndef CKPTD_DAEMON_APP_SURFACE_H_
#define CKPTD_DAEMON_APP_SURFACE_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/app/agent.h"
#include "daemon/metrics/metrics.h"
#include "daemon/transport/path_choice.h"

namespace ckptd {

class Surface {
 public:
  // Control thread; `agent` outlives it.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Surface>> Start(Agent& agent);
  virtual ~Surface() = default;
  // First, before the agent's own workers are stopped: a successor may listen. False: somebody's question still hangs
  // in the storage, and the Surface cannot be destroyed.
  [[nodiscard]] virtual bool Stop() = 0;
};

// By peer and way: these and no others, since a node that left the membership has no speed.
void ShowSpeeds(const std::vector<transport::PathChoice::Speed>& speeds, Family<Gauge>* shown);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_APP_SURFACE_H_
