// ckptctl verify JOB[@STEP] | PATH
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/base/units.h"
#include "daemon/os/posix_files.h"
#include "tools/ckptctl/client.h"
#include "tools/ckptctl/command.h"
#include "tools/ckptctl/formats.h"
#include "tools/ckptctl/local_step.h"
#include "tools/ckptctl/output.h"
#include "tools/ckptctl/progress.h"

namespace ckptd {
namespace {

constexpr int kMaxDamage = 100000;

absl::StatusOr<v1::VerifyProgress> AskAgent(const Args& args, Progress& progress) {
  v1::VerifyRequest request;
  CKPTD_ASSIGN_OR_RETURN(*request.mutable_target(), ParseTarget(args.word(0)));
  CKPTD_ASSIGN_OR_RETURN(auto client, Client::Connect(args.Get("--agent")));
  v1::VerifyProgress check;
  CKPTD_RETURN_IF_ERROR(client->Verify(request, [&](const v1::VerifyProgress& part) {
    if (check.damage_size() < kMaxDamage) check.MergeFrom(part);
    check.set_done(part.done());
    progress.Update(part.bytes_done(), part.bytes_total());
    return absl::OkStatus();
  }));
  if (!check.done()) return Error(ErrorCode::PROTOCOL, "the agent ended the check half way");
  return check;
}

std::string Verdict(const v1::VerifyProgress& result) {
  const int damage = result.damage_size();
  if (damage == 0) return Coloured(Tone::kGood, "good");
  if (result.uncommitted() && damage == 1) return Coloured(Tone::kBad, "NOT COMMITTED");
  return absl::StrCat(Coloured(Tone::kBad, "DAMAGED"), " in ", damage, " places");
}

std::string Summary(const std::string& what, const v1::VerifyProgress& result) {
  std::string out;
  for (const v1::Damage& damage : result.damage()) absl::StrAppend(&out, FormatDamage(damage), "\n");
  absl::StrAppend(&out, what);
  if (result.attempt() != 0) absl::StrAppend(&out, ": step ", result.step(), " of attempt ", result.attempt());
  absl::StrAppend(&out, ": ", Verdict(result), ", ", FormatBytes(result.bytes_done()), " read\n");
  if (!result.note().empty()) absl::StrAppend(&out, "note: ", Clean(result.note()), "\n");
  return out;
}

}  // namespace

absl::StatusOr<int> RunVerify(const Args& args) {
  CKPTD_ASSIGN_OR_RETURN(bool json, args.Json());
  Progress progress("verify", json);
  auto update = [&](uint64_t done, uint64_t total) { progress.Update(done, total); };
  auto check = IsPath(args.word(0)) ? VerifyPath(PosixFiles(), args.word(0), update) : AskAgent(args, progress);
  if (!check.ok()) return check.status();
  if (json) {
    PrintJson(*check);
  } else {
    Print(Summary(args.word(0), *check));
  }
  return check->damage().empty() ? kYes : kNo;
}

}  // namespace ckptd
