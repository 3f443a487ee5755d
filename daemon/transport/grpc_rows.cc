#include "daemon/transport/grpc_rows.h"

#include "absl/strings/string_view.h"

namespace ckptd::transport {
namespace {

std::optional<ErrorCode> RowByName(absl::string_view name) {
#define CKPTD_ERROR(row, number, absl_code, exit_code, exception, next_step) \
  if (name == #row) return ErrorCode::row;
#include "proto/local/errors.def"
#undef CKPTD_ERROR
  return std::nullopt;
}

}  // namespace

std::optional<ErrorCode> RowSaid(const grpc::ClientContext& context) {
  const auto& metadata = context.GetServerTrailingMetadata();
  const auto found = metadata.find(kErrorMetadata);
  if (found == metadata.end()) return std::nullopt;
  return RowByName({found->second.data(), found->second.size()});
}

ErrorCode RowByCode(grpc::StatusCode code) {
  switch (code) {
    case grpc::StatusCode::UNAVAILABLE:
      return ErrorCode::AGENT_UNREACHABLE;
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return ErrorCode::TIMEOUT;
    case grpc::StatusCode::UNAUTHENTICATED:
    case grpc::StatusCode::PERMISSION_DENIED:
      return ErrorCode::PERMISSION;
    case grpc::StatusCode::CANCELLED:
      return ErrorCode::CANCELLED;
    default:
      return ErrorCode::PROTOCOL;
  }
}

}  // namespace ckptd::transport
