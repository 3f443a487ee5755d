#include "daemon/membership/fence.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"

namespace ckptd::membership {
namespace {

absl::Status OutOfDate(const std::string& name, uint64_t generation, absl::string_view why,
                       absl::string_view next = "it must register again before it is believed") {
  return Error(ErrorCode::FENCED,
               absl::StrCat("node ", Shown(name), ", generation ", generation, ": ", why, "; ", next));
}

// The two cannot be told apart from here, and an old process must not come back by itself.
constexpr char kNextOfOlder[] =
    "stop it, if it is an older process of that name; if its clock was behind when it started without its "
    "agent.state_dir, set the clock and restart it";

}  // namespace

absl::Status Fence::CheckAgainst(const std::string& name, uint64_t generation) const {
  const auto found = records_.find(name);
  const uint64_t ended = found == records_.end() ? floor_ : found->second.ended;
  if (generation <= ended) return OutOfDate(name, generation, absl::StrCat("it ended with generation ", ended));
  if (found != records_.end() && generation < found->second.named)
    return OutOfDate(name, generation, absl::StrCat("generation ", found->second.named, " has taken its place"));
  return absl::OkStatus();
}

absl::Status Fence::Named(const std::string& name, uint64_t generation) {
  if (generation != 0) CKPTD_RETURN_IF_ERROR(CheckAgainst(name, generation));
  Record& record = records_[name];
  if (!record.present) departed_.erase({record.ended, name});
  record.present = true;
  record.named = std::max(record.named, generation);
  return absl::OkStatus();
}

void Fence::Left(const std::string& name) {
  const auto found = records_.find(name);
  if (found == records_.end() || !found->second.present) return;
  found->second.present = false;
  found->second.ended = std::max(found->second.ended, found->second.named);
  departed_.emplace(found->second.ended, name);
  Forget();
}

absl::Status Fence::WouldClaim(const std::string& name, uint64_t generation) const {
  if (generation == 0)
    return Error(ErrorCode::INVALID_ARGUMENT,
                 absl::StrCat("node ", Shown(name), " claims generation 0; the first is 1"));
  CKPTD_RETURN_IF_ERROR(CheckAgainst(name, generation));
  const auto found = records_.find(name);
  if (found == records_.end() || !found->second.present)
    return Error(ErrorCode::NOT_FOUND, absl::StrCat("node ", Shown(name), " is not a member"));
  if (generation < found->second.claimed)
    return OutOfDate(name, generation, absl::StrCat("generation ", found->second.claimed, " was here already"),
                     kNextOfOlder);
  return absl::OkStatus();
}

absl::Status Fence::Claimed(const std::string& name, uint64_t generation) {
  CKPTD_RETURN_IF_ERROR(WouldClaim(name, generation));
  records_[name].claimed = generation;
  return absl::OkStatus();
}

void Fence::Forget() {
  while (departed_.size() > max_departed_) {
    const auto lowest = departed_.begin();
    floor_ = std::max(floor_, lowest->first);
    records_.erase(lowest->second);
    departed_.erase(lowest);
  }
}

}  // namespace ckptd::membership
