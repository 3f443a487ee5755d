// The admin service's backend over the agent: every call of ckptctl ends here.
//
// What can be answered from memory is answered on the control thread. What blocks runs on a few workers of its own, so
// that an operator's questions never stand behind a flush; a full queue is BUSY.
#ifndef CKPTD_DAEMON_APP_ADMIN_H_
#define CKPTD_DAEMON_APP_ADMIN_H_

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/app/admin_catalog.h"
#include "daemon/app/admin_flush.h"
#include "daemon/app/admin_reads.h"
#include "daemon/app/agent.h"
#include "daemon/app/control_gate.h"
#include "daemon/os/thread.h"
#include "daemon/rpc/admin_backend.h"
#include "daemon/rpc/server.h"

namespace ckptd {

class Admin final : public AdminBackend {
 public:
  // Control thread. Listens on agent.admin_socket; `agent` outlives it.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Admin>> Start(Agent& agent);
  // Control thread. Lets go whoever waits. False: a worker hangs in a storage operation, and so would the destructor.
  [[nodiscard]] bool Stop();
  // Control thread. Ends every call; waits for a worker that is inside a storage operation.
  ~Admin() override;

  void Status(AdminCallPtr call, v1::StatusRequest request, Done<v1::StatusView> done) override;
  void List(AdminCallPtr call, v1::ListRequest request, Done<v1::ListResponse> done) override;
  void Flush(AdminCallPtr call, v1::FlushRequest request, Done<v1::FlushResponse> done) override;
  void Drain(AdminCallPtr call, v1::DrainRequest request, Done<v1::DrainResponse> done) override;
  void Pin(AdminCallPtr call, v1::PinRequest request, Done<v1::PinResponse> done) override;
  void Unpin(AdminCallPtr call, v1::UnpinRequest request, Done<v1::UnpinResponse> done) override;
  void Remove(AdminCallPtr call, v1::RemoveRequest request, Done<v1::RemoveResponse> done) override;
  void Gc(AdminCallPtr call, v1::GcRequest request, Done<v1::GcResponse> done) override;
  void Version(AdminCallPtr call, v1::VersionRequest request, Done<v1::VersionResponse> done) override;
  void Trace(AdminCallPtr call, v1::TraceRequest request, Done<v1::TraceResponse> done) override;
  void Inspect(AdminStreamPtr<v1::InspectResponse> stream, v1::InspectRequest request, Ended ended) override;
  void Verify(AdminStreamPtr<v1::VerifyProgress> stream, v1::VerifyRequest request, Ended ended) override;
  void Restore(AdminStreamPtr<v1::RestoreResponse> stream, v1::RestoreRequest request, Ended ended) override;

 private:
  explicit Admin(Agent& agent);

  // `work` on the control thread, or `failed` when the agent is stopping.
  void OnControl(std::function<void()> work, const std::function<void(absl::Status)>& failed);
  template <typename Request, typename Response>
  void OnWorker(const AdminCallPtr& call, Request request, Done<Response> done,
                absl::StatusOr<Response> (*work)(AdminContext&, const AdminCall&, const Request&));
  template <typename Request, typename Message>
  void StreamOnWorker(const AdminStreamPtr<Message>& stream, Request request, const Ended& ended,
                      absl::Status (*work)(AdminContext&, AdminStream<Message>&, const Request&));

  Agent& agent_;
  ControlGate gate_;
  AdminReads reads_;
  AdminContext context_;
  FlushWaits waits_;
  ThreadPool readers_;  // what a worker asked of them may hang, and the worker goes on
  ThreadPool workers_;
  std::unique_ptr<AdminServer> server_;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_APP_ADMIN_H_
