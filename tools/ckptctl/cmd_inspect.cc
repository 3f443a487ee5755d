// ckptctl inspect JOB[@STEP] | PATH
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/os/posix_files.h"
#include "tools/ckptctl/client.h"
#include "tools/ckptctl/command.h"
#include "tools/ckptctl/formats.h"
#include "tools/ckptctl/local_step.h"
#include "tools/ckptctl/output.h"

namespace ckptd {
namespace {

constexpr int kMaxTensors = 4 << 20;  // in memory, for the table

absl::StatusOr<v1::InspectResponse> AskAgent(const Args& args, std::optional<Rank> rank) {
  v1::InspectRequest request;
  CKPTD_ASSIGN_OR_RETURN(*request.mutable_target(), ParseTarget(args.word(0)));
  if (rank) request.set_rank(*rank);
  CKPTD_ASSIGN_OR_RETURN(auto client, Client::Connect(args.Get("--agent")));
  v1::InspectResponse all;
  CKPTD_RETURN_IF_ERROR(client->Inspect(request, [&](const v1::InspectResponse& part) {
    if (all.tensors_size() + part.tensors_size() > kMaxTensors) {
      return Error(ErrorCode::REFUSED, "too many tensors to show: name one rank with --rank");
    }
    all.MergeFrom(part);
    return absl::OkStatus();
  }));
  return all;
}

}  // namespace

absl::StatusOr<int> RunInspect(const Args& args) {
  CKPTD_ASSIGN_OR_RETURN(bool json, args.Json());
  CKPTD_ASSIGN_OR_RETURN(auto rank, args.GetRank("--rank"));
  auto tensors = IsPath(args.word(0)) ? InspectPath(PosixFiles(), args.word(0), rank) : AskAgent(args, rank);
  if (!tensors.ok()) return tensors.status();
  if (json) {
    PrintJson(*tensors);
  } else {
    Print(FormatTensors(*tensors));
  }
  return kYes;
}

}  // namespace ckptd
