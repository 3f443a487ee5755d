// An error of ours over gRPC and back: the status code and sentence, and the name of its row of proto/local/errors.def
// in the trailing metadata "ckptd-error" (peer.proto).
#ifndef CKPTD_DAEMON_TRANSPORT_GRPC_STATUS_H_
#define CKPTD_DAEMON_TRANSPORT_GRPC_STATUS_H_

#include <grpcpp/grpcpp.h>

#include "absl/status/status.h"

namespace ckptd::transport {

// Before the call is finished: the metadata stands in front of the status.
[[nodiscard]] grpc::Status ToGrpc(const absl::Status& status, grpc::ServerContextBase* context);

// After the call has ended. What no agent of ours said is AGENT_UNREACHABLE, TIMEOUT, PERMISSION, CANCELLED or
// PROTOCOL.
[[nodiscard]] absl::Status FromGrpc(const grpc::Status& status, const grpc::ClientContext& context);

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_GRPC_STATUS_H_
