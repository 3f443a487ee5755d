#include "daemon/base/ids.h"

#include <sys/random.h>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"

namespace ckptd {

std::string ToString(const SnapshotId& id) { return id.none() ? "none" : absl::StrCat(id.step, ".a", id.attempt); }

absl::Status CheckJobName(absl::string_view job) {
  auto allowed = [](char c) { return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-'; };
  bool ok = !job.empty() && job.size() <= 128 && job[0] != '.' && job[0] != '-';
  for (char c : job) ok = ok && allowed(c);
  if (ok) return absl::OkStatus();
  return Error(ErrorCode::INVALID_ARGUMENT,
               "job name must be 1 to 128 characters of A-Z a-z 0-9 . _ - and start with a letter, digit or _");
}

absl::StatusOr<JobStep> ParseJobStep(absl::string_view text) {
  JobStep out;
  size_t at = text.find('@');
  out.job = std::string(text.substr(0, at));
  if (absl::Status status = CheckJobName(out.job); !status.ok()) return status;
  if (at == absl::string_view::npos) return out;
  StepId step = 0;
  if (!absl::SimpleAtoi(text.substr(at + 1), &step)) {
    return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat("not JOB@STEP: ", text));
  }
  out.step = step;
  return out;
}

uint64_t RandomId() {
  uint64_t id = 0;
  while (id == 0) {
    if (getrandom(&id, sizeof(id), 0) != sizeof(id)) id = 0;
  }
  return id;
}

}  // namespace ckptd
