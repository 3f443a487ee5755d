// The admin socket: a unix socket that speaks gRPC. Who may connect is told by its owner, group and mode.
//
// The socket is made by room os (stale ones replaced, living ones refused, never open to more people than asked for);
// each accepted connection is handed to gRPC.
#ifndef CKPTD_DAEMON_RPC_SERVER_H_
#define CKPTD_DAEMON_RPC_SERVER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "daemon/base/clock.h"
#include "daemon/os/loop.h"
#include "daemon/os/unix_listener.h"
#include "daemon/rpc/admin_backend.h"
#include "daemon/rpc/admin_service.h"

namespace ckptd {

// On the loop's thread.
class AdminServer {
 public:
  // `loop` and `backend` outlive it. `listen.stream` is set here.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<AdminServer>> Start(Loop& loop, AdminBackend& backend,
                                                                          ListenOptions listen,
                                                                          const AdminLimits& limits = {});
  ~AdminServer();  // Stop(0)

  // No new connections, and the path is free for another server. Idempotent.
  void StopListening();
  // The same; calls go on for at most `grace`, then they are cancelled. Returns when all have ended, so the
  // backend must complete every call that is cancelled. Idempotent.
  void Stop(Nanos grace);

 private:
  struct Impl;
  explicit AdminServer(std::unique_ptr<Impl> impl);
  void AcceptAll();

  std::unique_ptr<Impl> impl_;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_RPC_SERVER_H_
