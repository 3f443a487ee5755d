#include "daemon/placement/scheme.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/placement/roster.h"

namespace ckptd::placement {
namespace {

constexpr std::array<std::pair<Kind, const char*>, 6> kNames = {{{Kind::kNone, "none"},
                                                                 {Kind::kGroup, "group"},
                                                                 {Kind::kRing, "ring"},
                                                                 {Kind::kMixed, "mixed"},
                                                                 {Kind::kXor, "xor"},
                                                                 {Kind::kReedSolomon, "rs"}}};

absl::Status Bad(absl::string_view text) { return Error(ErrorCode::INVALID_ARGUMENT, text); }

absl::Status CheckCopies(const Scheme& scheme, size_t members) {
  if (scheme.copies < 2 || scheme.copies > kMaxCopies) {
    return Bad(absl::StrCat(scheme.copies, " copies, its own included: 2 to ", kMaxCopies,
                            " are possible; 1 is the scheme none"));
  }
  if (scheme.kind == Kind::kGroup && members % scheme.copies != 0) {
    return Bad(absl::StrCat("groups of ", scheme.copies, " do not divide ", members,
                            " nodes: the scheme mixed takes any number, and is the same where they do"));
  }
  return absl::OkStatus();
}

absl::Status CheckCode(const Scheme& scheme) {
  if (scheme.data < 1 || scheme.parity < 1) {
    return Bad(absl::StrCat("a code of ", scheme.data, " data and ", scheme.parity, " parity: both begin at 1"));
  }
  if (scheme.kind == Kind::kXor && scheme.parity != 1) {
    return Bad(absl::StrCat("xor has 1 parity, not ", scheme.parity, ": the scheme rs has more"));
  }
  if (scheme.data > kMaxCodeWidth || scheme.parity > kMaxCodeWidth || scheme.width() > kMaxCodeWidth) {
    return Bad(absl::StrCat("a code of ", scheme.data, " data and ", scheme.parity, " parity: together at most ",
                            kMaxCodeWidth));
  }
  return absl::OkStatus();
}

}  // namespace

const char* KindName(Kind kind) {
  for (const auto& [each, name] : kNames) {
    if (each == kind) return name;
  }
  return "?";
}

absl::StatusOr<Kind> ParseKind(absl::string_view name) {
  std::string known;
  for (const auto& [kind, each] : kNames) {
    if (name == each) return kind;
    absl::StrAppend(&known, " ", each);
  }
  return Bad(absl::StrCat("unknown scheme \"", name, "\"; there are", known));
}

std::string ToString(const Scheme& scheme) {
  std::string out = KindName(scheme.kind);
  if (scheme.is_copies()) absl::StrAppend(&out, ", ", scheme.copies, " copies");
  if (scheme.is_code()) absl::StrAppend(&out, " ", scheme.data, "+", scheme.parity);
  return out;
}

absl::Status CheckScheme(const Scheme& scheme, size_t members) {
  if (scheme.is_copies()) CKPTD_RETURN_IF_ERROR(CheckCopies(scheme, members));
  if (scheme.is_code()) CKPTD_RETURN_IF_ERROR(CheckCode(scheme));
  if (members > kMaxMembers) return Bad(absl::StrCat(members, " nodes; a placement has at most ", kMaxMembers));
  if (members >= scheme.width()) return absl::OkStatus();
  return Bad(absl::StrCat(ToString(scheme), " needs at least ", scheme.width(), " nodes; there are ", members));
}

Cost CostOf(const Scheme& scheme, size_t members, uint64_t bytes, uint32_t slots) {
  Cost cost{slots * bytes, 0, 0};
  if (scheme.is_copies()) {
    cost = {slots * scheme.copies * bytes, (scheme.copies - 1) * bytes, bytes};
  } else if (scheme.is_code()) {
    const uint64_t groups = members / scheme.width();
    const uint64_t fewest = members / groups - scheme.parity;  // data of the narrowest group
    const uint64_t most = (members + groups - 1) / groups - scheme.parity;
    const uint64_t block = (bytes + fewest - 1) / fewest;
    cost = {slots * (bytes + scheme.parity * block), scheme.parity * bytes, most * bytes};
  }
  return cost;
}

}  // namespace ckptd::placement
