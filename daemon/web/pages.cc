#include "daemon/web/pages.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/log.h"
#include "daemon/json/printer.h"
#include "daemon/metrics/text.h"
#include "daemon/os/process_stats.h"
#include "proto/ckptd/v1/status.pb.h"

namespace ckptd {
namespace {

HttpResponse MetricsPage(const PageSources& sources) {
  RefreshProcessMetrics(sources.metrics);
  if (sources.refresh_metrics) sources.refresh_metrics();
  return {200, kMetricsContentType, MetricsText(*sources.metrics)};
}

HttpResponse HealthPage(const PageSources& sources) {
  absl::Status health = sources.health();
  HttpResponse response;
  response.status = health.ok() ? 200 : 503;
  response.body = health.ok() ? "ok\n" : absl::StrCat(health.message(), "\n");
  return response;
}

HttpResponse StatusPage(const PageSources& sources) {
  return {200, "application/json", PrintJson(*sources.status(), JsonStyle::kIndented)};
}

HttpResponse Page(const PageSources& sources, absl::string_view path) {
  if (path == "/metrics") return MetricsPage(sources);
  if (path == "/healthz") return HealthPage(sources);
  if (path == "/status.json") return StatusPage(sources);
  HttpResponse response;
  response.status = path == "/" ? 200 : 404;
  response.body = "ckptd\n/metrics\n/healthz\n/status.json\n";
  return response;
}

}  // namespace

HttpHandler MakePages(PageSources sources) {
  return [sources = std::move(sources)](absl::string_view path) { return Page(sources, path); };
}

void RefreshProcessMetrics(AgentMetrics* metrics) {
  ProcessStats stats = ReadProcessStats();
  metrics->process_cpu.With({}).RaiseTo(stats.cpu_seconds);
  metrics->process_resident.With({}).Set(static_cast<double>(stats.resident_bytes));
  metrics->process_fds.With({}).Set(static_cast<double>(stats.open_fds));
  metrics->process_start.With({}).Set(stats.start_unix_seconds);
  metrics->log_lines_dropped.With({}).RaiseTo(static_cast<double>(DroppedLogLines()));
}

}  // namespace ckptd
