// ckptctl version
#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "tools/ckptctl/client.h"
#include "tools/ckptctl/command.h"
#include "tools/ckptctl/output.h"

namespace ckptd {
namespace {

constexpr char kToolVersion[] = "0.1.0";

}  // namespace

absl::StatusOr<int> RunVersion(const Args& args) {
  CKPTD_ASSIGN_OR_RETURN(bool json, args.Json());
  if (!json) Print(absl::StrCat("ckptctl  ", kToolVersion, "\n"));
  CKPTD_ASSIGN_OR_RETURN(auto client, Client::Connect(args.Get("--agent")));
  CKPTD_ASSIGN_OR_RETURN(v1::VersionResponse agent, client->Version());
  if (json) {
    PrintJson(agent);
  } else {
    Print(absl::StrCat("ckptd    ", agent.version(), agent.revision().empty() ? "" : " ", agent.revision(),
                       "  socket protocol ", agent.protocol_min(), " to ", agent.protocol_max(), ", region ",
                       agent.region_major(), ", format ", agent.format_major(), ".", agent.format_minor(), "\n"));
  }
  return kYes;
}

}  // namespace ckptd
