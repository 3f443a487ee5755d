// The admin service as gRPC sees it: a thin adapter from its callback interface to an AdminBackend.
//
// An absl::Status becomes a gRPC status of the same code and sentence; the row of proto/local/errors.def that it was
// made from travels beside it in the trailing metadata kErrorMetadata.
#ifndef CKPTD_DAEMON_RPC_ADMIN_SERVICE_H_
#define CKPTD_DAEMON_RPC_ADMIN_SERVICE_H_

#include <memory>

#include "daemon/rpc/admin_backend.h"

namespace grpc {
class Service;
}

namespace ckptd {

inline constexpr char kErrorMetadata[] = "ckptd-error";

struct AdminLimits {
  int calls = 64;   // at a time; further ones are answered BUSY
  int streams = 3;  // of those with many answers, which may take long
};

// `backend` outlives it.
[[nodiscard]] std::unique_ptr<grpc::Service> MakeAdminService(AdminBackend& backend, const AdminLimits& limits);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_RPC_ADMIN_SERVICE_H_
