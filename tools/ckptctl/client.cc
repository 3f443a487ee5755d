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
#include "daemon/base/units.h"
#include "daemon/os/unix_listener.h"
#include "daemon/transport/grpc_rows.h"
#include "proto/ckptd/v1/admin.grpc.pb.h"
#include "tools/ckptctl/sockets.h"

namespace ckptd {
namespace {

constexpr Nanos kQuick = std::chrono::seconds(30);
constexpr Nanos kAtAll = std::chrono::seconds(5);  // an agent that runs tells its version at once

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

// An agent that hangs or is stopped has a socket all the same.
absl::Status CheckThatItRuns(v1::Admin::Stub& stub, const std::string& socket, Nanos timeout) {
  grpc::ClientContext context;
  SetTimeout(context, timeout);
  v1::VersionResponse response;
  const grpc::Status status = stub.Version(&context, v1::VersionRequest(), &response);
  if (status.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED) return absl::OkStatus();
  return Error(ErrorCode::AGENT_UNREACHABLE,
               absl::StrCat(socket, ": the agent does not answer: it hangs or is stopped"));
}

// Nothing came in time.
absl::Status WhyNothingCame(v1::Admin::Stub& stub, const std::string& socket, Nanos timeout) {
  CKPTD_RETURN_IF_ERROR(CheckThatItRuns(stub, socket, kAtAll));
  return Error(ErrorCode::TIMEOUT,
               absl::StrCat(socket, ": the agent runs, and did not answer this within ", FormatDuration(timeout)));
}

template <typename Response, typename Request>
absl::StatusOr<Response> Call(v1::Admin::Stub& stub,
                              grpc::Status (v1::Admin::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                              const std::string& socket, const Request& request, Nanos timeout) {
  grpc::ClientContext context;
  SetTimeout(context, timeout);
  Response response;
  grpc::Status status = (stub.*method)(&context, request, &response);
  const bool late = status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
  if (late && !transport::RowSaid(context)) return WhyNothingCame(stub, socket, timeout);
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
  return Call(*stub_->admin, &v1::Admin::Stub::Status, socket_, request, kQuick);
}
absl::StatusOr<v1::ListResponse> Client::List(const v1::ListRequest& request) {
  return Call(*stub_->admin, &v1::Admin::Stub::List, socket_, request, 2 * kQuick);
}
absl::StatusOr<v1::FlushResponse> Client::Flush(const v1::FlushRequest& request, Nanos timeout) {
  return Call(*stub_->admin, &v1::Admin::Stub::Flush, socket_, request, timeout);
}
absl::StatusOr<v1::DrainResponse> Client::Drain(Nanos timeout) {
  return Call(*stub_->admin, &v1::Admin::Stub::Drain, socket_, v1::DrainRequest(), timeout);
}
absl::StatusOr<v1::PinResponse> Client::Pin(const v1::PinRequest& request) {
  return Call(*stub_->admin, &v1::Admin::Stub::Pin, socket_, request, 2 * kQuick);
}
absl::StatusOr<v1::UnpinResponse> Client::Unpin(const v1::UnpinRequest& request) {
  return Call(*stub_->admin, &v1::Admin::Stub::Unpin, socket_, request, 2 * kQuick);
}
absl::StatusOr<v1::RemoveResponse> Client::Remove(const v1::RemoveRequest& request, Nanos timeout) {
  return Call(*stub_->admin, &v1::Admin::Stub::Remove, socket_, request, timeout);
}
absl::StatusOr<v1::GcResponse> Client::Gc(const v1::GcRequest& request, Nanos timeout) {
  return Call(*stub_->admin, &v1::Admin::Stub::Gc, socket_, request, timeout);
}
absl::StatusOr<v1::VersionResponse> Client::Version() {
  return Call(*stub_->admin, &v1::Admin::Stub::Version, socket_, v1::VersionRequest(), kQuick);
}
absl::StatusOr<v1::TraceResponse> Client::Trace(const v1::TraceRequest& request) {
  return Call(*stub_->admin, &v1::Admin::Stub::Trace, socket_, request, 2 * kQuick);
}

absl::Status Client::Inspect(const v1::InspectRequest& request, const Receiver<v1::InspectResponse>& receive) {
  CKPTD_RETURN_IF_ERROR(CheckThatItRuns(*stub_->admin, socket_, kQuick));
  grpc::ClientContext context;
  return ReadAll(context, *stub_->admin->Inspect(&context, request), receive);
}
absl::Status Client::Verify(const v1::VerifyRequest& request, const Receiver<v1::VerifyProgress>& receive) {
  CKPTD_RETURN_IF_ERROR(CheckThatItRuns(*stub_->admin, socket_, kQuick));
  grpc::ClientContext context;
  return ReadAll(context, *stub_->admin->Verify(&context, request), receive);
}
absl::Status Client::Restore(const v1::RestoreRequest& request, const Receiver<v1::RestoreResponse>& receive) {
  CKPTD_RETURN_IF_ERROR(CheckThatItRuns(*stub_->admin, socket_, kQuick));
  grpc::ClientContext context;
  return ReadAll(context, *stub_->admin->Restore(&context, request), receive);
}

}  // namespace ckptd
