// What the admin service asks of the agent, without gRPC: one method per call of proto/ckptd/v1/admin.proto.
//
// Methods are called on gRPC's threads and must return at once: post to the control thread, run what blocks on an
// executor. Each takes a completion that must be called exactly once, on any thread. Requests have only been parsed:
// whatever they name is still to be checked.
#ifndef CKPTD_DAEMON_RPC_ADMIN_BACKEND_H_
#define CKPTD_DAEMON_RPC_ADMIN_BACKEND_H_

#include <atomic>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/clock.h"
#include "proto/ckptd/v1/admin.pb.h"
#include "proto/ckptd/v1/status.pb.h"

namespace ckptd {

// One call, as long as anybody still works for it. Any thread.
class AdminCall {
 public:
  explicit AdminCall(Nanos time_left) : time_left_(time_left) {}
  virtual ~AdminCall() = default;

  // The client has gone, or its deadline has passed: nobody waits for the answer.
  [[nodiscard]] bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }
  [[nodiscard]] const std::atomic<bool>& cancel_flag() const { return cancelled_; }
  // When the call came in; Nanos::max() without a deadline.
  [[nodiscard]] Nanos time_left() const { return time_left_; }

 protected:
  void MarkCancelled() { cancelled_.store(true, std::memory_order_relaxed); }

 private:
  const Nanos time_left_;
  std::atomic<bool> cancelled_{false};
};
using AdminCallPtr = std::shared_ptr<AdminCall>;

// A call with many answers. One thread writes.
template <typename Message>
class AdminStream : public AdminCall {
 public:
  using AdminCall::AdminCall;
  // Waits while the client is slow: one message is on its way, one is being made. False: cancelled, stop.
  [[nodiscard]] virtual bool Write(Message message) = 0;
};
template <typename Message>
using AdminStreamPtr = std::shared_ptr<AdminStream<Message>>;

// Above every message of the service, with room for its frame (admin.proto: at most 1 MiB).
inline constexpr int kMaxAdminMessage = 1 << 20;

class AdminBackend {
 public:
  template <typename Response>
  using Done = std::function<void(absl::StatusOr<Response>)>;
  using Ended = std::function<void(absl::Status)>;

  virtual ~AdminBackend() = default;

  virtual void Status(AdminCallPtr call, v1::StatusRequest request, Done<v1::StatusView> done) = 0;
  virtual void List(AdminCallPtr call, v1::ListRequest request, Done<v1::ListResponse> done) = 0;
  virtual void Flush(AdminCallPtr call, v1::FlushRequest request, Done<v1::FlushResponse> done) = 0;
  virtual void Drain(AdminCallPtr call, v1::DrainRequest request, Done<v1::DrainResponse> done) = 0;
  virtual void Pin(AdminCallPtr call, v1::PinRequest request, Done<v1::PinResponse> done) = 0;
  virtual void Unpin(AdminCallPtr call, v1::UnpinRequest request, Done<v1::UnpinResponse> done) = 0;
  virtual void Remove(AdminCallPtr call, v1::RemoveRequest request, Done<v1::RemoveResponse> done) = 0;
  virtual void Gc(AdminCallPtr call, v1::GcRequest request, Done<v1::GcResponse> done) = 0;
  virtual void Version(AdminCallPtr call, v1::VersionRequest request, Done<v1::VersionResponse> done) = 0;
  virtual void Trace(AdminCallPtr call, v1::TraceRequest request, Done<v1::TraceResponse> done) = 0;

  virtual void Inspect(AdminStreamPtr<v1::InspectResponse> stream, v1::InspectRequest request, Ended ended) = 0;
  virtual void Verify(AdminStreamPtr<v1::VerifyProgress> stream, v1::VerifyRequest request, Ended ended) = 0;
  virtual void Restore(AdminStreamPtr<v1::RestoreResponse> stream, v1::RestoreRequest request, Ended ended) = 0;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_RPC_ADMIN_BACKEND_H_
