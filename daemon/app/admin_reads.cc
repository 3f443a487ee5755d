#include "daemon/app/admin_reads.h"

#include <chrono>

#include "absl/strings/str_cat.h"

namespace ckptd {

absl::Status AdminReads::Heard(Nanos patience) {
  const auto longest = calls_.Longest();
  if (!longest || longest->since < patience) return absl::OkStatus();
  return Error(ErrorCode::STORAGE_HUNG, absl::StrCat("hung: ", longest->ToString()));
}

absl::Status AdminReads::WaitMore(Nanos patience) {
  if (closed_) return Error(ErrorCode::CANCELLED, "the agent is stopping");
  CKPTD_RETURN_IF_ERROR(Heard(patience));
  const auto longest = calls_.Longest();
  const Nanos rest = longest ? patience - longest->since : patience;
  (void)changed_.WaitUntil(mutex_, std::chrono::steady_clock::now() + rest);
  return absl::OkStatus();
}

void AdminReads::Close() {
  MutexLock lock(mutex_);
  closed_ = true;
  changed_.NotifyAll();
}

}  // namespace ckptd
