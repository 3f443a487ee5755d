#include "daemon/transport/transfer_token.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/ids.h"
#include "daemon/base/status_macros.h"

namespace ckptd::transport {
namespace {

absl::Status Refused(const TransferName& name, absl::string_view why) {
  return Error(ErrorCode::PERMISSION, absl::StrCat(ToString(name), ": the token ", why, "; ask for a new one"));
}

}  // namespace

TransferToken RandomToken() {
  const uint64_t halves[2] = {RandomId(), RandomId()};
  TransferToken token;
  static_assert(sizeof(halves) == sizeof(token));
  std::memcpy(token.data(), halves, sizeof(halves));
  return token;
}

bool SameToken(const TransferToken& a, const TransferToken& b) {
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned>(a[i] ^ b[i]);
  return difference == 0;
}

void TokenTable::Expire(Nanos now) {
  std::erase_if(issued_, [&](const Issued& one) { return one.deadline <= now; });
}

absl::Status TokenTable::Issue(const TransferToken& token, const TransferName& name, Nanos deadline, Nanos now) {
  CKPTD_RETURN_IF_ERROR(CheckTransferName(name));
  Expire(now);
  if (issued_.size() >= capacity_)
    return Error(ErrorCode::BUSY, absl::StrCat(ToString(name), ": ", capacity_, " transfers wait to begin already"));
  const auto its = static_cast<size_t>(
      std::count_if(issued_.begin(), issued_.end(), [&](const Issued& one) { return one.name.peer == name.peer; }));
  if (its >= of_one_peer_)
    return Error(ErrorCode::BUSY,
                 absl::StrCat(ToString(name), ": ", its, " transfers of node ", name.peer, " wait to begin already"));
  const bool known =
      std::any_of(issued_.begin(), issued_.end(), [&](const Issued& one) { return SameToken(one.token, token); });
  if (known) return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat(ToString(name), ": this token is out already"));
  issued_.push_back({token, name, deadline});
  return absl::OkStatus();
}

absl::Status TokenTable::Redeem(const TransferToken& token, const TransferName& name, Nanos now) {
  // All are looked at, so that the time taken does not say which of them came close.
  size_t found = issued_.size();
  for (size_t i = 0; i < issued_.size(); ++i) found = SameToken(issued_[i].token, token) ? i : found;
  if (found == issued_.size()) return Refused(name, "is not known, or was used already");
  const Issued issued = std::exchange(issued_[found], issued_.back());
  issued_.pop_back();
  if (issued.deadline <= now) return Refused(name, "has passed its deadline");
  if (!(issued.name == name)) return Refused(name, "was made for another transfer");
  return absl::OkStatus();
}

void TokenTable::Revoke(const TransferName& name) {
  std::erase_if(issued_, [&](const Issued& one) { return one.name == name; });
}

}  // namespace ckptd::transport
