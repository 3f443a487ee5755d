#include "daemon/rpc/server.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/server_posix.h>
#include <sys/epoll.h>

#include <chrono>
#include <optional>
#include <utility>

#include "daemon/base/errors.h"
#include "daemon/base/log.h"
#include "daemon/base/status_macros.h"

namespace ckptd {
namespace {

constexpr int kStreamsPerConnection = 16;
constexpr int kIdleMs = 10 * 60 * 1000;

std::unique_ptr<grpc::Server> BuildServer(grpc::Service* service) {
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(kMaxAdminMessage);
  builder.SetMaxSendMessageSize(kMaxAdminMessage);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreamsPerConnection);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleMs);
  builder.RegisterService(service);
  return builder.BuildAndStart();
}

}  // namespace

struct AdminServer::Impl {
  Loop& loop;
  std::optional<UnixListener> listener;
  std::unique_ptr<grpc::Service> service;
  std::unique_ptr<grpc::Server> server;
  bool stopped = false;
};

AdminServer::AdminServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
AdminServer::~AdminServer() { Stop(Nanos(0)); }

absl::StatusOr<std::unique_ptr<AdminServer>> AdminServer::Start(Loop& loop, AdminBackend& backend, ListenOptions listen,
                                                                const AdminLimits& limits) {
  listen.stream = true;
  CKPTD_ASSIGN_OR_RETURN(UnixListener listener, UnixListener::Listen(listen));
  auto service = MakeAdminService(backend, limits);
  auto server = BuildServer(service.get());
  if (server == nullptr) return Error(ErrorCode::INTERNAL, "the admin service did not start");
  std::unique_ptr<AdminServer> out(new AdminServer(
      std::unique_ptr<Impl>(new Impl{loop, std::move(listener), std::move(service), std::move(server)})));
  CKPTD_RETURN_IF_ERROR(
      loop.Watch(out->impl_->listener->fd(), EPOLLIN, [self = out.get()](uint32_t) { self->AcceptAll(); }));
  return out;
}

void AdminServer::AcceptAll() {
  for (;;) {
    auto accepted = impl_->listener->Accept();
    if (!accepted.ok()) Log(kWarning, "admin.accept").Error(accepted.status());
    if (!accepted.ok() || !accepted->has_value()) return;
    grpc::AddInsecureChannelFromFd(impl_->server.get(), (*accepted)->fd.Release());
  }
}

void AdminServer::StopListening() {
  if (!impl_->listener) return;
  impl_->loop.Unwatch(impl_->listener->fd());
  impl_->listener.reset();
}

void AdminServer::Stop(Nanos grace) {
  if (impl_->stopped) return;
  impl_->stopped = true;
  StopListening();
  impl_->server->Shutdown(std::chrono::system_clock::now() + grace);
  impl_->server->Wait();
}

}  // namespace ckptd
