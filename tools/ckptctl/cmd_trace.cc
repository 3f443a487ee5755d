// ckptctl trace JOB@STEP
#include "daemon/base/status_macros.h"
#include "tools/ckptctl/client.h"
#include "tools/ckptctl/command.h"
#include "tools/ckptctl/formats.h"
#include "tools/ckptctl/output.h"

namespace ckptd {

absl::StatusOr<int> RunTrace(const Args& args) {
  CKPTD_ASSIGN_OR_RETURN(bool json, args.Json());
  v1::TraceRequest request;
  CKPTD_ASSIGN_OR_RETURN(*request.mutable_target(), ParseTarget(args.word(0)));
  CKPTD_ASSIGN_OR_RETURN(auto client, Client::Connect(args.Get("--agent")));
  CKPTD_ASSIGN_OR_RETURN(v1::TraceResponse trace, client->Trace(request));
  if (json) {
    PrintJson(trace);
  } else {
    Print(FormatTrace(trace));
  }
  return kYes;
}

}  // namespace ckptd
