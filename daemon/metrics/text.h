// Metrics as Prometheus reads them: the text format 0.0.4.
#ifndef CKPTD_DAEMON_METRICS_TEXT_H_
#define CKPTD_DAEMON_METRICS_TEXT_H_

#include <string>

#include "daemon/metrics/agent_metrics.h"

namespace ckptd {

// Prometheus 3 refuses a page without it.
inline constexpr char kMetricsContentType[] = "text/plain; version=0.0.4; charset=utf-8";

// All families with HELP and TYPE, also those without a series yet. Any thread.
[[nodiscard]] std::string MetricsText(const AgentMetrics& metrics);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_METRICS_TEXT_H_
