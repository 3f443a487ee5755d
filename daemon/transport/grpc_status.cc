#include "daemon/transport/grpc_status.h"

#include <optional>
#include <string>

#include "daemon/base/errors.h"
#include "daemon/transport/shown.h"

namespace ckptd::transport {
namespace {

constexpr char kErrorMetadata[] = "ckptd-error";
constexpr size_t kMostSaid = 1000;  // headers of HTTP/2 have 8 KiB

std::optional<ErrorCode> RowByName(absl::string_view name) {
#define CKPTD_ERROR(row, number, absl_code, exit_code, exception, next_step) \
  if (name == #row) return ErrorCode::row;
#include "proto/local/errors.def"
#undef CKPTD_ERROR
  return std::nullopt;
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

ErrorCode RowOf(const grpc::Status& status, const grpc::ClientContext& context) {
  const auto& metadata = context.GetServerTrailingMetadata();
  const auto found = metadata.find(kErrorMetadata);
  if (found == metadata.end()) return RowByCode(status.error_code());
  return RowByName({found->second.data(), found->second.size()}).value_or(RowByCode(status.error_code()));
}

}  // namespace

grpc::Status ToGrpc(const absl::Status& status, grpc::ServerContextBase* context) {
  if (status.ok()) return grpc::Status::OK;
  context->AddTrailingMetadata(kErrorMetadata, InfoOf(CodeOf(status)).name);
  return {static_cast<grpc::StatusCode>(status.code()), Shown(status.message(), kMostSaid)};
}

absl::Status FromGrpc(const grpc::Status& status, const grpc::ClientContext& context) {
  if (status.ok()) return absl::OkStatus();
  return Error(RowOf(status, context), Shown(status.error_message(), kMostSaid));
}

}  // namespace ckptd::transport
