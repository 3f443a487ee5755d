#include "daemon/membership/etcd_registration.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/membership/etcd_mirror.h"

namespace ckptd::membership {
namespace {

constexpr int kKeepAlivesPerTtl = 3;
constexpr Nanos kShortestRetry = std::chrono::milliseconds(200);
constexpr Nanos kLongestRetry = std::chrono::seconds(2);

std::string Taken(const EtcdEntry& holder) {
  return absl::StrCat("another process registered under this name (generation ", holder.revision, ", at ",
                      Shown(DecodeMember("", holder).address),
                      "): stop one of the two, or give each its own agent.node_name");
}

}  // namespace

std::optional<Registration::Next> Registration::Due(Nanos now) {
  if (open_ || now < due_) return std::nullopt;
  open_ = true;
  if (lease_ == 0) return Next{Call::kGrant, 0, Taking::kIfFree};
  if (generation_ != 0) return Next{Call::kKeepAlive, lease_, Taking::kIfFree};
  return Next{Call::kClaim, lease_, was_member_ ? Taking::kIfFree : Taking::kAnyway};
}

Nanos Registration::RetryDelay() const { return std::clamp(wanted_ttl_ / 6, kShortestRetry, kLongestRetry); }

void Registration::Retry(const absl::Status& why, Nanos now) {
  last_error_ = why;
  due_ = now + RetryDelay();
}

void Registration::Lose(Nanos now, std::string why) {
  lease_ = 0;
  generation_ = 0;
  lost_ = std::move(why);
  due_ = now;
}

void Registration::Granted(const absl::StatusOr<EtcdLease>& lease, Nanos sent, Nanos now) {
  open_ = false;
  if (!lease.ok()) return Retry(lease.status(), now);
  if (lease->id == 0 || lease->ttl_seconds <= 0)
    return Retry(Error(ErrorCode::CORRUPT, "etcd granted a lease without a number or without time"), now);
  last_error_ = absl::OkStatus();
  lease_ = lease->id;
  ttl_ = std::chrono::seconds(std::min<int64_t>(lease->ttl_seconds, 3600));
  deadline_ = sent + ttl_;
  due_ = now;
}

// A claim whose answer was lost may have succeeded: then the key is there under this very lease.
void Registration::Claimed(const absl::StatusOr<EtcdClaim>& claim, Nanos now) {
  open_ = false;
  if (CodeOf(claim.status()) == ErrorCode::NOT_FOUND) return Lose(now, "its lease ran out while it registered");
  if (!claim.ok()) return Retry(claim.status(), now);
  last_error_ = absl::OkStatus();
  const bool mine = claim->taken || claim->holder.lease == lease_;
  if (!mine) {
    Lose(now, Taken(claim->holder));
    due_ = now + wanted_ttl_;
    return;
  }
  generation_ = static_cast<uint64_t>(claim->taken ? claim->revision : claim->holder.revision);
  was_member_ = true;
  lost_.clear();
  due_ = now + ttl_ / kKeepAlivesPerTtl;
}

void Registration::KeptAlive(const absl::StatusOr<int64_t>& seconds, Nanos sent, Nanos now) {
  open_ = false;
  if (lease_ == 0) return;  // lost meanwhile: due_ stands
  if (!seconds.ok()) return Retry(seconds.status(), now);
  last_error_ = absl::OkStatus();
  if (*seconds <= 0) return Lose(now, "its lease ran out");
  ttl_ = std::chrono::seconds(std::min<int64_t>(*seconds, 3600));
  deadline_ = sent + ttl_;
  due_ = std::max(now, sent + ttl_ / kKeepAlivesPerTtl);
}

void Registration::Seen(const std::optional<EtcdEntry>& entry, int64_t revision, Nanos now) {
  if (generation_ == 0 || revision < static_cast<int64_t>(generation_)) return;  // before this registration
  if (!entry) {
    Lose(now, "its key was taken out of etcd");
  } else if (entry->lease != lease_) {
    Lose(now, Taken(*entry));
    due_ = now + wanted_ttl_;
  }
}

std::optional<Nanos> Registration::Deadline() const {
  if (generation_ == 0) return std::nullopt;
  return deadline_;
}

Standing Registration::StandingAt(Nanos now) const {
  Standing standing{name_, generation_, absl::OkStatus()};
  const std::string error = last_error_.ok() ? "" : absl::StrCat(": ", last_error_.message());
  if (generation_ != 0 && now >= deadline_ && last_error_.ok()) {
    standing.status = Error(ErrorCode::FENCED, absl::StrCat("node ", name_, ", generation ", generation_,
                                                            ": its lease was over before etcd was asked again (this "
                                                            "agent stood still); etcd is asked now"));
  } else if (generation_ == 0 && was_member_) {
    standing.status = Error(ErrorCode::FENCED, absl::StrCat("node ", name_, " is no member any more: ", lost_, error));
  } else if (generation_ == 0) {
    standing.status = Error(ErrorCode::REFUSED, absl::StrCat("node ", name_, " is not registered yet", error));
  }
  return standing;
}

}  // namespace ckptd::membership
