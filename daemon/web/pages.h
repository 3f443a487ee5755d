// What the agent shows over HTTP: GET /metrics, /healthz, /status.json, and / that names them.
#ifndef CKPTD_DAEMON_WEB_PAGES_H_
#define CKPTD_DAEMON_WEB_PAGES_H_

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "daemon/metrics/agent_metrics.h"
#include "daemon/web/server.h"

namespace ckptd::v1 {
class StatusView;
}

namespace ckptd {

// All are called on the loop's thread, once a request.
struct PageSources {
  AgentMetrics* metrics;                                          // outlives the pages
  std::function<void()> refresh_metrics;                          // sets what is only read at a scrape; may be empty
  std::function<std::shared_ptr<const v1::StatusView>()> status;  // the newest view, never null
  std::function<absl::Status()> health;                           // OK, or why this agent cannot do its work
};

[[nodiscard]] HttpHandler MakePages(PageSources sources);

// The process_* metrics, from the system.
void RefreshProcessMetrics(AgentMetrics* metrics);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_WEB_PAGES_H_
