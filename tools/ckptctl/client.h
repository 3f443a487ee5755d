// The agent, over its admin socket. One connection; calls block. Errors carry the row of errors.def that the agent made
// them from; AGENT_UNREACHABLE, PERMISSION or TIMEOUT when it did not answer.
#ifndef CKPTD_TOOLS_CKPTCTL_CLIENT_H_
#define CKPTD_TOOLS_CKPTCTL_CLIENT_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/clock.h"
#include "proto/ckptd/v1/admin.pb.h"
#include "proto/ckptd/v1/status.pb.h"

namespace ckptd {

class Client {
 public:
  // The first of `sockets` where an agent answers.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Client>> Connect(const std::vector<std::string>& sockets);
  // From --agent and the environment.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Client>> Connect(const std::string& agent_flag);
  ~Client();

  [[nodiscard]] absl::StatusOr<v1::StatusView> Status(const v1::StatusRequest& request);
  [[nodiscard]] absl::StatusOr<v1::ListResponse> List(const v1::ListRequest& request);
  // `timeout` of what waits: the agent answers shortly before it is over.
  [[nodiscard]] absl::StatusOr<v1::FlushResponse> Flush(const v1::FlushRequest& request, Nanos timeout);
  [[nodiscard]] absl::StatusOr<v1::DrainResponse> Drain(Nanos timeout);
  [[nodiscard]] absl::StatusOr<v1::PinResponse> Pin(const v1::PinRequest& request);
  [[nodiscard]] absl::StatusOr<v1::UnpinResponse> Unpin(const v1::UnpinRequest& request);
  [[nodiscard]] absl::StatusOr<v1::RemoveResponse> Remove(const v1::RemoveRequest& request, Nanos timeout);
  [[nodiscard]] absl::StatusOr<v1::GcResponse> Gc(const v1::GcRequest& request, Nanos timeout);
  [[nodiscard]] absl::StatusOr<v1::VersionResponse> Version();
  [[nodiscard]] absl::StatusOr<v1::TraceResponse> Trace(const v1::TraceRequest& request);

  // An error of the receiver ends the call, and is returned.
  template <typename Message>
  using Receiver = std::function<absl::Status(const Message&)>;
  [[nodiscard]] absl::Status Inspect(const v1::InspectRequest& request, const Receiver<v1::InspectResponse>& receive);
  [[nodiscard]] absl::Status Verify(const v1::VerifyRequest& request, const Receiver<v1::VerifyProgress>& receive);
  [[nodiscard]] absl::Status Restore(const v1::RestoreRequest& request, const Receiver<v1::RestoreResponse>& receive);

  [[nodiscard]] const std::string& socket() const { return socket_; }

 private:
  struct Stub;
  Client(std::string socket, std::unique_ptr<Stub> stub);

  const std::string socket_;
  std::unique_ptr<Stub> stub_;
};

}  // namespace ckptd

#endif  // CKPTD_TOOLS_CKPTCTL_CLIENT_H_
