#include "daemon/membership/member.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"

namespace ckptd::membership {
namespace {

constexpr size_t kShownBytes = 80;

bool AllOf(absl::string_view text, absl::string_view also) {
  return std::all_of(text.begin(), text.end(), [also](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || also.find(c) != absl::string_view::npos;
  });
}

absl::Status Invalid(absl::string_view message) { return Error(ErrorCode::INVALID_ARGUMENT, message); }

absl::Status CheckLabelPart(absl::string_view part) {
  if (!part.empty() && part.size() <= kMaxLabelBytes && AllOf(part, "._-/")) return absl::OkStatus();
  return Invalid(absl::StrCat("label \"", Shown(part), "\": expected 1 to ", kMaxLabelBytes,
                              " of A-Z a-z 0-9 . _ - / on each side of the ="));
}

absl::Status CheckLabels(const Labels& labels) {
  if (labels.size() > kMaxLabels) return Invalid(absl::StrCat(labels.size(), " labels; at most ", kMaxLabels));
  for (const auto& [key, value] : labels) {
    CKPTD_RETURN_IF_ERROR(CheckLabelPart(key));
    CKPTD_RETURN_IF_ERROR(CheckLabelPart(value));
  }
  return absl::OkStatus();
}

}  // namespace

std::string Shown(absl::string_view text) {
  std::string out(text.substr(0, kShownBytes));
  for (char& c : out) c = absl::ascii_isprint(static_cast<unsigned char>(c)) ? c : '?';
  return text.size() > kShownBytes ? out + "..." : out;
}

absl::Status CheckName(absl::string_view name) {
  const bool plain = !name.empty() && name.size() <= kMaxNameBytes && AllOf(name, "._-:");
  if (plain && name[0] != '.' && name[0] != '-') return absl::OkStatus();
  return Invalid(absl::StrCat("node name \"", Shown(name), "\": expected 1 to ", kMaxNameBytes,
                              " of A-Z a-z 0-9 . _ - : and neither . nor - first"));
}

absl::Status CheckMember(const Member& member) {
  CKPTD_RETURN_IF_ERROR(CheckName(member.name));
  absl::Status wrong = ParseAddress(member.address).status();
  if (wrong.ok()) wrong = CheckLabels(member.domains);
  if (wrong.ok()) return wrong;
  return Invalid(absl::StrCat("node ", member.name, ": ", wrong.message()));
}

absl::StatusOr<HostPort> ParseAddress(absl::string_view text) {
  auto wrong = [text] {
    return Invalid(absl::StrCat("address \"", Shown(text), "\": expected HOST:PORT or [IPv6]:PORT, port 1 to 65535"));
  };
  const size_t colon = text.rfind(':');
  if (text.size() > kMaxAddressBytes || colon == absl::string_view::npos) return wrong();
  absl::string_view host = text.substr(0, colon);
  const absl::string_view port = text.substr(colon + 1);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  uint32_t number = 0;
  const bool digits = !port.empty() && std::all_of(port.begin(), port.end(), absl::ascii_isdigit);
  if (!digits || !absl::SimpleAtoi(port, &number) || number == 0 || number > 65535) return wrong();
  if (host.empty() || host.size() > kMaxNameBytes || !AllOf(host, bracketed ? ".:%" : "._-")) return wrong();
  return HostPort{std::string(host), static_cast<uint16_t>(number)};
}

std::string JoinAddress(absl::string_view host, uint16_t port) {
  const bool ipv6 = host.find(':') != absl::string_view::npos;
  return ipv6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

absl::StatusOr<Labels> ParseLabels(absl::string_view text) {
  Labels labels;
  for (absl::string_view pair : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    const size_t equals = pair.find('=');
    if (equals == absl::string_view::npos)
      return Invalid(absl::StrCat("label \"", Shown(pair), "\": expected KEY=VALUE, such as rack=r3"));
    const std::string key(pair.substr(0, equals));
    const std::string value(pair.substr(equals + 1));
    CKPTD_RETURN_IF_ERROR(CheckLabelPart(key));
    CKPTD_RETURN_IF_ERROR(CheckLabelPart(value));
    if (!labels.emplace(key, value).second) return Invalid(absl::StrCat("label ", key, " is given twice"));
    if (labels.size() > kMaxLabels) return Invalid(absl::StrCat("more than ", kMaxLabels, " labels"));
  }
  return labels;
}

}  // namespace ckptd::membership
