// ckptctl drain
#include <algorithm>
#include <chrono>

#include "daemon/base/status_macros.h"
#include "tools/ckptctl/client.h"
#include "tools/ckptctl/command.h"
#include "tools/ckptctl/formats.h"
#include "tools/ckptctl/output.h"

namespace ckptd {

absl::StatusOr<int> RunDrain(const Args& args) {
  CKPTD_ASSIGN_OR_RETURN(bool json, args.Json());
  CKPTD_ASSIGN_OR_RETURN(Nanos timeout, args.GetDuration("--timeout", std::chrono::minutes(10)));
  CKPTD_ASSIGN_OR_RETURN(auto client, Client::Connect(args.Get("--agent")));
  CKPTD_ASSIGN_OR_RETURN(v1::DrainResponse drain, client->Drain(timeout));
  if (json) {
    PrintJson(drain);
  } else {
    for (const v1::DrainedJob& job : drain.jobs()) Print(FormatFlush(job.job(), job.last()));
    Print("the agent refuses new saves until it is restarted\n");
  }
  bool all = std::all_of(drain.jobs().begin(), drain.jobs().end(),
                         [](const auto& job) { return job.last().step() == 0 || job.last().durable(); });
  return all ? kYes : kNo;
}

}  // namespace ckptd
