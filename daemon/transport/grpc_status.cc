#include "daemon/transport/grpc_status.h"

#include "daemon/base/errors.h"
#include "daemon/transport/grpc_rows.h"
#include "daemon/transport/shown.h"

namespace ckptd::transport {
namespace {

constexpr size_t kMostSaid = 1000;  // headers of HTTP/2 have 8 KiB

}  // namespace

grpc::Status ToGrpc(const absl::Status& status, grpc::ServerContextBase* context) {
  if (status.ok()) return grpc::Status::OK;
  context->AddTrailingMetadata(kErrorMetadata, InfoOf(CodeOf(status)).name);
  return {static_cast<grpc::StatusCode>(status.code()), Shown(status.message(), kMostSaid)};
}

absl::Status FromGrpc(const grpc::Status& status, const grpc::ClientContext& context) {
  if (status.ok()) return absl::OkStatus();
  return Error(RowSaid(context).value_or(RowByCode(status.error_code())), Shown(status.error_message(), kMostSaid));
}

}  // namespace ckptd::transport
