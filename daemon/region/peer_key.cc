#include "daemon/region/peer_key.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "proto/local/messages.h"

namespace ckptd::region {
namespace {

constexpr absl::string_view kCopyPrefix = "peer-";
constexpr absl::string_view kParityPrefix = "parity-";

}  // namespace

std::string PeerDirName(const PeerKey& key) {
  return absl::StrFormat("%s%05u", key.kind == PeerKind::kCopy ? kCopyPrefix : kParityPrefix, key.number);
}

std::optional<PeerKey> ParsePeerDirName(absl::string_view name) {
  absl::string_view digits = name;
  PeerKey key;
  if (absl::ConsumePrefix(&digits, kParityPrefix))
    key.kind = PeerKind::kParity;
  else if (!absl::ConsumePrefix(&digits, kCopyPrefix))
    return std::nullopt;
  if (!absl::SimpleAtoi(digits, &key.number) || key.number >= kMaxRanks || PeerDirName(key) != name)
    return std::nullopt;
  return key;
}

std::string ToString(const PeerKey& key) {
  return absl::StrCat(key.kind == PeerKind::kCopy ? "rank " : "parity of group ", key.number);
}

}  // namespace ckptd::region
