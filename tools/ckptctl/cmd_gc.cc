// ckptctl gc [JOB] [--dry-run] [--force]
#include <chrono>

#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "tools/ckptctl/client.h"
#include "tools/ckptctl/command.h"
#include "tools/ckptctl/formats.h"
#include "tools/ckptctl/output.h"

namespace ckptd {

absl::StatusOr<int> RunGc(const Args& args) {
  CKPTD_ASSIGN_OR_RETURN(bool json, args.Json());
  CKPTD_ASSIGN_OR_RETURN(Nanos timeout, args.GetDuration("--timeout", std::chrono::minutes(10)));
  v1::GcRequest request;
  request.set_job(args.word(0));
  request.set_dry_run(args.Has("--dry-run"));
  request.set_force(args.Has("--force"));
  if (request.force() && request.job().empty())
    return Error(ErrorCode::INVALID_ARGUMENT, "name the job: ckptctl gc JOB --force");
  CKPTD_ASSIGN_OR_RETURN(auto client, Client::Connect(args.Get("--agent")));
  CKPTD_ASSIGN_OR_RETURN(v1::GcResponse gc, client->Gc(request, timeout));
  if (json) {
    PrintJson(gc);
  } else {
    Print(FormatGc(gc, request.dry_run()));
  }
  for (const std::string& error : gc.errors()) Complain(error);
  return gc.errors().empty() ? kYes : kNo;
}

}  // namespace ckptd
