// ckptctl list [JOB]
#include "daemon/base/clock.h"
#include "daemon/base/status_macros.h"
#include "tools/ckptctl/client.h"
#include "tools/ckptctl/command.h"
#include "tools/ckptctl/formats.h"
#include "tools/ckptctl/output.h"

namespace ckptd {

absl::StatusOr<int> RunList(const Args& args) {
  CKPTD_ASSIGN_OR_RETURN(bool json, args.Json());
  CKPTD_ASSIGN_OR_RETURN(auto client, Client::Connect(args.Get("--agent")));
  v1::ListRequest request;
  request.set_job(args.word(0));
  request.set_off_lineage(args.Has("--off-lineage"));
  CKPTD_ASSIGN_OR_RETURN(v1::ListResponse list, client->List(request));
  if (json) {
    PrintJson(list);
  } else {
    Print(FormatList(list, SystemClock().Wall().count()));
  }
  for (const std::string& error : list.errors()) Complain(error);
  return list.errors().empty() ? kYes : kNo;
}

}  // namespace ckptd
