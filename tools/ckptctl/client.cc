#include "tools/ckptctl/client.h"

#include <grpcpp/create_channel_posix.h>
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/os/unix_listener.h"
#include "daemon/transport/grpc_rows.h"
#include "proto/ckptd/v1/admin.grpc.pb.h"
#include "tools/ckptctl/sockets.h"

namespace ckptd {
namespace {

constexpr Nanos kQuick = std::chrono::seconds(30);

absl::Status FromGrpc(const grpc::Status& status, const grpc::ClientContext& context) {
  if (status.ok()) return absl::OkStatus();
  const std::optional<ErrorCode> row = transport::RowSaid(context);
  if (row) return Error(*row, status.error_message());
  return Error(transport::RowByCode(status.error_code()),
               absl::StrCat("the agent did not answer: ", status.error_message()));
}

void SetTimeout(grpc::ClientContext& context, Nanos timeout) {
  if (timeout == Nanos::max()) return;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::duration_cast<std::chrono::system_clock::duration>(timeout));
}

template <typename Response, typename Request>
absl::StatusOr<Response> Call(v1::Admin::Stub& stub,
                              grpc::Status (v1::Admin::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                              const Request& request, Nanos timeout) {
  grpc::ClientContext context;
  SetTimeout(context, timeout);
  Response response;
  grpc::Status status = (stub.*method)(&context, request, &response);
  if (absl::Status failed = FromGrpc(status, context); !failed.ok()) return failed;
  return response;
}

template <typename Message>
absl::Status ReadAll(grpc::ClientContext& context, grpc::ClientReader<Message>& reader,
                     const Client::Receiver<Message>& receive) {
  Message message;
  absl::Status received;
  while (received.ok() && reader.Read(&message)) received = receive(message);
  if (!received.ok()) context.TryCancel();
  grpc::Status status = reader.Finish();
  return received.ok() ? FromGrpc(status, context) : received;
}

absl::StatusOr<UniqueFd> ConnectAdmin(const std::string& socket) {
  auto fd = ConnectUnixStream(socket);
  // The trainers' socket was named, which is of another type: the admin socket stands beside it.
  if (CodeOf(fd.status()) != ErrorCode::INVALID_ARGUMENT || AdminBeside(socket) == socket) return fd;
  auto beside = ConnectUnixStream(AdminBeside(socket));
  return beside.ok() ? std::move(beside) : std::move(fd);
}

}  // namespace

struct Client::Stub {
  std::unique_ptr<v1::Admin::Stub> admin;
};

Client::Client(std::string socket, std::unique_ptr<Stub> stub) : socket_(std::move(socket)), stub_(std::move(stub)) {}
Client::~Client() = default;

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const std::vector<std::string>& sockets) {
  absl::Status failed;
  for (const std::string& socket : sockets) {
    auto fd = ConnectAdmin(socket);
    if (fd.ok()) {
      auto channel = grpc::CreateInsecureChannelFromFd("ckptd", fd->Release());
      auto stub = std::make_unique<Stub>(Stub{v1::Admin::NewStub(channel)});
      return std::unique_ptr<Client>(new Client(socket, std::move(stub)));
    }
    // A socket that is there and refuses us says more than one that is missing.
    if (failed.ok() || CodeOf(failed) == ErrorCode::AGENT_UNREACHABLE) failed = fd.status();
  }
  return failed;
}

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const std::string& agent_flag) {
  auto environment = [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
  return Connect(AdminSockets(agent_flag, environment, geteuid()));
}

absl::StatusOr<v1::StatusView> Client::Status(const v1::StatusRequest& request) {
  return Call(*stub_->admin, &v1::Admin::Stub::Status, request, kQuick);
}
absl::StatusOr<v1::ListResponse> Client::List(const v1::ListRequest& request) {
  return Call(*stub_->admin, &v1::Admin::Stub::List, request, 2 * kQuick);
}
absl::StatusOr<v1::FlushResponse> Client::Flush(const v1::FlushRequest& request, Nanos timeout) {
  return Call(*stub_->admin, &v1::Admin::Stub::Flush, request, timeout);
}
absl::StatusOr<v1::DrainResponse> Client::Drain(Nanos timeout) {
  return Call(*stub_->admin, &v1::Admin::Stub::Drain, v1::DrainRequest(), timeout);
}
absl::StatusOr<v1::PinResponse> Client::Pin(const v1::PinRequest& request) {
  return Call(*stub_->admin, &v1::Admin::Stub::Pin, request, 2 * kQuick);
}
absl::StatusOr<v1::UnpinResponse> Client::Unpin(const v1::UnpinRequest& request) {
  return Call(*stub_->admin, &v1::Admin::Stub::Unpin, request, 2 * kQuick);
}
absl::StatusOr<v1::RemoveResponse> Client::Remove(const v1::RemoveRequest& request, Nanos timeout) {
  return Call(*stub_->admin, &v1::Admin::Stub::Remove, request, timeout);
}
absl::StatusOr<v1::GcResponse> Client::Gc(const v1::GcRequest& request, Nanos timeout) {
  return Call(*stub_->admin, &v1::Admin::Stub::Gc, request, timeout);
}
absl::StatusOr<v1::VersionResponse> Client::Version() {
  return Call(*stub_->admin, &v1::Admin::Stub::Version, v1::VersionRequest(), kQuick);
}
absl::StatusOr<v1::TraceResponse> Client::Trace(const v1::TraceRequest& request) {
  return Call(*stub_->admin, &v1::Admin::Stub::Trace, request, 2 * kQuick);
}

absl::Status Client::Inspect(const v1::InspectRequest& request, const Receiver<v1::InspectResponse>& receive) {
  grpc::ClientContext context;
  return ReadAll(context, *stub_->admin->Inspect(&context, request), receive);
}
absl::Status Client::Verify(const v1::VerifyRequest& request, const Receiver<v1::VerifyProgress>& receive) {
  grpc::ClientContext context;
  return ReadAll(context, *stub_->admin->Verify(&context, request), receive);
}
absl::Status Client::Restore(const v1::RestoreRequest& request, const Receiver<v1::RestoreResponse>& receive) {
  grpc::ClientContext context;
  return ReadAll(context, *stub_->admin->Restore(&context, request), receive);
}

}  // namespace ckptd
