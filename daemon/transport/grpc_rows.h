// Which row of proto/local/errors.def a failed gRPC call is.
#ifndef CKPTD_DAEMON_TRANSPORT_GRPC_ROWS_H_
#define CKPTD_DAEMON_TRANSPORT_GRPC_ROWS_H_

#include <grpcpp/grpcpp.h>

#include <optional>

#include "daemon/base/errors.h"

namespace ckptd::transport {

inline constexpr char kErrorMetadata[] = "ckptd-error";  // trailing, as peer.proto and admin.proto say

// What the agent that was called names. Nothing: no agent of ours made this status, or one of another version.
[[nodiscard]] std::optional<ErrorCode> RowSaid(const grpc::ClientContext& context);

// Of such a status: AGENT_UNREACHABLE, TIMEOUT, PERMISSION, CANCELLED or PROTOCOL.
[[nodiscard]] ErrorCode RowByCode(grpc::StatusCode code);

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_GRPC_ROWS_H_
