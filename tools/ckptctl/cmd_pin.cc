// ckptctl pin JOB@STEP, ckptctl unpin JOB@STEP
#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "tools/ckptctl/client.h"
#include "tools/ckptctl/command.h"
#include "tools/ckptctl/output.h"

namespace ckptd {
namespace {

absl::StatusOr<v1::Target> NamedStep(const Args& args) {
  CKPTD_ASSIGN_OR_RETURN(v1::Target target, ParseTarget(args.word(0)));
  if (target.has_step()) return target;
  return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat("name the step: ", target.job(), "@STEP"));
}

template <typename Response>
void Tell(const std::string& job, const Response& response, bool json, const char* what) {
  if (json) {
    PrintJson(response);
  } else {
    Print(absl::StrCat("job ", job, ": step ", response.step(), " (attempt ", response.attempt(), ") ", what, "\n"));
  }
}

}  // namespace

absl::StatusOr<int> RunPin(const Args& args) {
  CKPTD_ASSIGN_OR_RETURN(bool json, args.Json());
  v1::PinRequest request;
  CKPTD_ASSIGN_OR_RETURN(*request.mutable_target(), NamedStep(args));
  CKPTD_ASSIGN_OR_RETURN(auto client, Client::Connect(args.Get("--agent")));
  CKPTD_ASSIGN_OR_RETURN(v1::PinResponse pin, client->Pin(request));
  Tell(request.target().job(), pin, json, "stays until it is unpinned");
  return kYes;
}

absl::StatusOr<int> RunUnpin(const Args& args) {
  CKPTD_ASSIGN_OR_RETURN(bool json, args.Json());
  v1::UnpinRequest request;
  CKPTD_ASSIGN_OR_RETURN(*request.mutable_target(), NamedStep(args));
  CKPTD_ASSIGN_OR_RETURN(auto client, Client::Connect(args.Get("--agent")));
  CKPTD_ASSIGN_OR_RETURN(v1::UnpinResponse unpin, client->Unpin(request));
  Tell(request.target().job(), unpin, json, unpin.was_pinned() ? "is no longer pinned" : "was not pinned");
  return kYes;
}

}  // namespace ckptd
