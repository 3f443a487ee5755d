#include "daemon/app/admin.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/app/admin_commands.h"
#include "daemon/app/status_view.h"
#include "daemon/base/status_macros.h"
#include "proto/local/version.h"

namespace ckptd {
namespace {

constexpr size_t kWorkers = 4;  // three may be busy with long streams, and list still answers
static_assert(size_t{AdminLimits().streams} < kWorkers);
constexpr size_t kQueue = 32;
constexpr Nanos kPatience = std::chrono::seconds(1);  // a worker that is not in the storage ends sooner

v1::VersionResponse ThisVersion() {
  v1::VersionResponse response;
  response.set_version(kVersion);
  response.set_protocol_min(kProtocolMajorMin);
  response.set_protocol_max(kProtocolMajorMax);
  response.set_region_major(kRegionMajor);
  response.set_format_major(kFormatMajor);
  response.set_format_minor(kFormatMinor);
  return response;
}

absl::StatusOr<v1::StatusView> StatusOf(Agent& agent, const std::string& job) {
  v1::StatusView view = BuildStatus(agent);
  if (job.empty()) return view;
  v1::StatusView one = view;
  one.clear_jobs();
  for (v1::JobStatus& each : *view.mutable_jobs()) {
    if (each.name() == job) *one.add_jobs() = std::move(each);
  }
  if (one.jobs_size() == 1) return one;
  return Error(ErrorCode::NOT_FOUND, absl::StrCat("job ", job, " is not known to this agent"));
}

}  // namespace

Admin::Admin(Agent& agent)
    : agent_(agent),
      gate_(agent.loop()),
      reads_(agent.services().clock, agent.services().store, agent.config().storage.root, readers_),
      context_{agent, gate_, agent.services().store, reads_},
      waits_(agent),
      readers_("ckptd-adm-read", kWorkers, kQueue),
      workers_("ckptd-admin", kWorkers, kQueue) {}

absl::StatusOr<std::unique_ptr<Admin>> Admin::Start(Agent& agent) {
  std::unique_ptr<Admin> admin(new Admin(agent));
  ListenOptions listen;
  listen.path = agent.config().agent.admin_socket;
  listen.mode = agent.config().security.socket_mode;
  CKPTD_ASSIGN_OR_RETURN(listen.group, SocketGroup(agent.config()));
  CKPTD_ASSIGN_OR_RETURN(admin->server_, AdminServer::Start(agent.loop(), *admin, listen));
  return admin;
}

bool Admin::Stop() {
  if (server_) server_->StopListening();
  gate_.Close();
  waits_.Close();
  reads_.Close();
  const bool answered = workers_.StopWithin(kPatience);
  return readers_.StopWithin(kPatience) && answered;
}

// Whoever waits is let go first: the server's end waits for every call's answer.
Admin::~Admin() {
  gate_.Close();
  waits_.Close();
  reads_.Close();
  if (server_) server_->Stop(Nanos(0));
  workers_.Stop();
  readers_.Stop();
}

void Admin::OnControl(std::function<void()> work, const std::function<void(absl::Status)>& failed) {
  gate_.Post(std::move(work), [failed] { failed(Error(ErrorCode::CANCELLED, "the agent is stopping")); });
}

template <typename Request, typename Response>
void Admin::OnWorker(const AdminCallPtr& call, Request request, Done<Response> done,
                     absl::StatusOr<Response> (*work)(AdminContext&, const AdminCall&, const Request&)) {
  bool taken =
      workers_.Run([this, call, request = std::move(request), done, work] { done(work(context_, *call, request)); });
  if (!taken) done(Error(ErrorCode::BUSY, "too many ckptctl wait for the storage; ask again"));
}

template <typename Request, typename Message>
void Admin::StreamOnWorker(const AdminStreamPtr<Message>& stream, Request request, const Ended& ended,
                           absl::Status (*work)(AdminContext&, AdminStream<Message>&, const Request&)) {
  bool taken = workers_.Run(
      [this, stream, request = std::move(request), ended, work] { ended(work(context_, *stream, request)); });
  if (!taken) ended(Error(ErrorCode::BUSY, "too many ckptctl wait for the storage; ask again"));
}

void Admin::Status(AdminCallPtr, v1::StatusRequest request, Done<v1::StatusView> done) {
  OnControl([this, request, done] { done(StatusOf(agent_, request.job())); }, done);
}
void Admin::Flush(AdminCallPtr call, v1::FlushRequest request, Done<v1::FlushResponse> done) {
  OnControl([this, call, request, done] { waits_.Flush(call, request, done); }, done);
}
void Admin::Drain(AdminCallPtr call, v1::DrainRequest, Done<v1::DrainResponse> done) {
  OnControl([this, call, done] { waits_.Drain(call, done); }, done);
}
void Admin::Version(AdminCallPtr, v1::VersionRequest, Done<v1::VersionResponse> done) { done(ThisVersion()); }

void Admin::List(AdminCallPtr call, v1::ListRequest request, Done<v1::ListResponse> done) {
  OnWorker(call, std::move(request), std::move(done), &ListSteps);
}
void Admin::Pin(AdminCallPtr call, v1::PinRequest request, Done<v1::PinResponse> done) {
  OnWorker(call, std::move(request), std::move(done), &PinStep);
}
void Admin::Unpin(AdminCallPtr call, v1::UnpinRequest request, Done<v1::UnpinResponse> done) {
  OnWorker(call, std::move(request), std::move(done), &UnpinStep);
}
void Admin::Remove(AdminCallPtr call, v1::RemoveRequest request, Done<v1::RemoveResponse> done) {
  OnWorker(call, std::move(request), std::move(done), &RemoveStep);
}
void Admin::Gc(AdminCallPtr call, v1::GcRequest request, Done<v1::GcResponse> done) {
  OnWorker(call, std::move(request), std::move(done), &CollectGarbage);
}
void Admin::Trace(AdminCallPtr call, v1::TraceRequest request, Done<v1::TraceResponse> done) {
  OnWorker(call, std::move(request), std::move(done), &TraceStep);
}
void Admin::Inspect(AdminStreamPtr<v1::InspectResponse> stream, v1::InspectRequest request, Ended ended) {
  StreamOnWorker(stream, std::move(request), ended, &InspectStep);
}
void Admin::Verify(AdminStreamPtr<v1::VerifyProgress> stream, v1::VerifyRequest request, Ended ended) {
  StreamOnWorker(stream, std::move(request), ended, &VerifyStep);
}
void Admin::Restore(AdminStreamPtr<v1::RestoreResponse> stream, v1::RestoreRequest request, Ended ended) {
  StreamOnWorker(stream, std::move(request), ended, &RestoreStep);
}

}  // namespace ckptd
