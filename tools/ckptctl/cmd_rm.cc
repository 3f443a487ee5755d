// ckptctl rm JOB@STEP [--force]
#include <chrono>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/base/units.h"
#include "tools/ckptctl/client.h"
#include "tools/ckptctl/command.h"
#include "tools/ckptctl/output.h"

namespace ckptd {

absl::StatusOr<int> RunRm(const Args& args) {
  CKPTD_ASSIGN_OR_RETURN(bool json, args.Json());
  CKPTD_ASSIGN_OR_RETURN(Nanos timeout, args.GetDuration("--timeout", std::chrono::minutes(10)));
  v1::RemoveRequest request;
  CKPTD_ASSIGN_OR_RETURN(*request.mutable_target(), ParseTarget(args.word(0)));
  if (!request.target().has_step()) {
    return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat("name the step: ", request.target().job(), "@STEP"));
  }
  request.set_force(args.Has("--force"));
  CKPTD_ASSIGN_OR_RETURN(auto client, Client::Connect(args.Get("--agent")));
  CKPTD_ASSIGN_OR_RETURN(v1::RemoveResponse response, client->Remove(request, timeout));
  if (json) {
    PrintJson(response);
  } else {
    const v1::RemovedEntry& removed = response.removed();
    Print(absl::StrCat("job ", removed.job(), ": step ", removed.step(), " (attempt ", removed.attempt(),
                       ") is deleted, ", FormatBytes(removed.bytes()), " freed\n"));
  }
  return kYes;
}

}  // namespace ckptd
