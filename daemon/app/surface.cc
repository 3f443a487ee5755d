#include "daemon/app/surface.h"

#include <optional>
#include <set>
#include <utility>

#include "daemon/app/copier_runner.h"
#include "daemon/app/health.h"
#include "daemon/app/status_view.h"
#include "daemon/base/log.h"
#include "daemon/base/status_macros.h"
#include "daemon/web/pages.h"
#include "daemon/web/server.h"
#ifdef CKPTD_GRPC
#include "daemon/app/admin.h"
#endif

namespace ckptd {
namespace {

void RefreshGpuMetrics(Agent& agent) {
  AgentMetrics& metrics = agent.metrics();
  metrics.copiers.With({}).Set(static_cast<double>(agent.services().copiers.running()));
  for (const auto& [name, job] : agent.jobs()) {
    double pinned = 0;
    double push = 0;
    double pull = 0;
    for (const auto& [number, rank] : job->ranks()) {
      const DevicesRequest* devices = rank->devices();
      if (devices == nullptr) continue;
      pinned += static_cast<double>(devices->pinned_bytes);
      for (const GpuReport& gpu : devices->gpus) (gpu.path == CapturePath::kPull ? pull : push) += 1;
    }
    metrics.pinned.With({name}).Set(pinned);
    metrics.gpus.With({name, "push"}).Set(push);
    metrics.gpus.With({name, "pull"}).Set(pull);
  }
}

void RefreshPeersMetrics(Agent& agent) {
  AgentMetrics& metrics = agent.metrics();
  const membership::Membership& membership = agent.peers().membership();
  metrics.members.With({}).Set(static_cast<double>(membership.view()->members.size()));
  metrics.members_source_up.With({}).Set(membership.view()->source.ok() ? 1 : 0);
  metrics.may_speak.With({}).Set(membership.self().status.ok() ? 1 : 0);
  const PeerLinks::Count links = agent.links().count();
  metrics.peers_memory_used.With({}).Set(static_cast<double>(agent.services().region.peers().Usage().held));
  ShowSpeeds(agent.links().Speeds(), &metrics.path_speed);
  metrics.links.With({"up"}).Set(static_cast<double>(links.connected));
  metrics.certificate_left.Retain([](const LabelValues&) { return false; });
  for (const CertificateWatch::End& end : agent.certificates().ends())
    metrics.certificate_left.With({end.key}).Set(static_cast<double>(agent.certificates().SecondsLeft(end)));
  metrics.links.With({"down"}).Set(static_cast<double>(links.wanted - links.connected));
}

void RefreshMetrics(Agent& agent) {
  AgentMetrics& metrics = agent.metrics();
  RefreshProcessMetrics(&metrics);
  metrics.clients.With({}).Set(static_cast<double>(agent.services().server.sessions()));
  metrics.flushes_queued.With({}).Set(static_cast<double>(agent.services().flusher.active()));
  metrics.log_lines_dropped.With({}).RaiseTo(static_cast<double>(DroppedLogLines()));
  RefreshGpuMetrics(agent);
  RefreshPeersMetrics(agent);
  auto usage = agent.services().region.Usage();
  if (!usage.ok()) return;
  metrics.region_size.With({}).Set(static_cast<double>(usage->size_limit != 0 ? usage->size_limit : usage->total));
  metrics.region_used.With({}).Set(static_cast<double>(usage->held));
}

// The pages at metrics.listen. Any process may have that port: the agent goes on without them, and tries again.
class PagePort {
 public:
  explicit PagePort(Agent& agent) : agent_(agent) {}
  ~PagePort() { Close(); }
  PagePort(const PagePort&) = delete;
  PagePort& operator=(const PagePort&) = delete;

  void TryToOpen() {
    retry_.reset();
    auto web = HttpServer::Start(&agent_.loop(), agent_.config().metrics.listen, HttpLimits(), Pages());
    const absl::Status before = agent_.no_pages();
    agent_.SetNoPages(web.status());
    if (web.ok()) {
      web_ = *std::move(web);
      if (!before.ok()) Log(kInfo, "metrics.listening").Field("address", agent_.config().metrics.listen);
      return;
    }
    if (before != web.status()) Log(kError, "metrics.no_pages").Error(web.status());
    retry_ = agent_.loop().After(kRetry, [this] { TryToOpen(); });
  }
  void Close() {
    if (retry_) agent_.loop().CancelTimer(*retry_);
    retry_.reset();
    web_.reset();
  }

 private:
  HttpHandler Pages() {
    PageSources sources;
    sources.metrics = &agent_.metrics();
    sources.refresh_metrics = [&agent = agent_] { RefreshMetrics(agent); };
    sources.status = [&agent = agent_] { return std::make_shared<const v1::StatusView>(BuildStatus(agent)); };
    sources.health = [&agent = agent_] { return HealthOf(agent); };
    return MakePages(std::move(sources));
  }

  static constexpr Nanos kRetry = std::chrono::seconds(5);

  Agent& agent_;
  std::unique_ptr<HttpServer> web_;
  std::optional<Loop::TimerId> retry_;
};

class RealSurface final : public Surface {
 public:
  explicit RealSurface(Agent& agent) : pages_(agent) {
    if (agent.config().metrics.listen != "off") pages_.TryToOpen();
  }

  bool Stop() override {
    pages_.Close();
#ifdef CKPTD_GRPC
    if (admin_) return admin_->Stop();
#endif
    return true;
  }

  absl::Status StartAdmin([[maybe_unused]] Agent& agent) {
#ifdef CKPTD_GRPC
    if (agent.config().agent.admin_socket == "off") return absl::OkStatus();
    CKPTD_ASSIGN_OR_RETURN(admin_, Admin::Start(agent));
#endif
    return absl::OkStatus();
  }

 private:
  PagePort pages_;
#ifdef CKPTD_GRPC
  std::unique_ptr<Admin> admin_;
#endif
};

}  // namespace

void ShowSpeeds(const std::vector<transport::PathChoice::Speed>& speeds, Family<Gauge>* shown) {
  std::set<LabelValues> known;
  for (const transport::PathChoice::Speed& speed : speeds) {
    const LabelValues labels{speed.peer, transport::NameOf(speed.way)};
    shown->With(labels).Set(speed.bytes_per_second);
    known.insert(labels);
  }
  shown->Retain([&](const LabelValues& labels) { return known.count(labels) != 0; });
}

absl::StatusOr<std::unique_ptr<Surface>> Surface::Start(Agent& agent) {
  auto surface = std::make_unique<RealSurface>(agent);
  CKPTD_RETURN_IF_ERROR(surface->StartAdmin(agent));
  return surface;
}

}  // namespace ckptd
