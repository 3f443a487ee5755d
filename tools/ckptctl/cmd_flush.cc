// ckptctl flush JOB [--wait]
#include <chrono>

#include "daemon/base/status_macros.h"
#include "tools/ckptctl/client.h"
#include "tools/ckptctl/command.h"
#include "tools/ckptctl/formats.h"
#include "tools/ckptctl/output.h"

namespace ckptd {

absl::StatusOr<int> RunFlush(const Args& args) {
  CKPTD_ASSIGN_OR_RETURN(bool json, args.Json());
  CKPTD_ASSIGN_OR_RETURN(Nanos timeout, args.GetDuration("--timeout", std::chrono::minutes(10)));
  CKPTD_RETURN_IF_ERROR(CheckJobName(args.word(0)));
  CKPTD_ASSIGN_OR_RETURN(auto client, Client::Connect(args.Get("--agent")));
  v1::FlushRequest request;
  request.set_job(args.word(0));
  request.set_wait(args.Has("--wait"));
  CKPTD_ASSIGN_OR_RETURN(v1::FlushResponse flush, client->Flush(request, timeout));
  if (json) {
    PrintJson(flush);
  } else {
    Print(FormatFlush(args.word(0), flush));
  }
  // Without --wait the answer is that the flush is under way, and it is.
  return flush.durable() || !request.wait() ? kYes : kNo;
}

}  // namespace ckptd
