#include "tools/ckptctl/peers_line.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/base/units.h"
#include "tools/ckptctl/output.h"

namespace ckptd {
namespace {

constexpr double kDay = 86'400;
constexpr double kEndsSoon = 30 * kDay;  // from then on the agent says it

// Which ways copies take: "; copies over tls to 3 nodes, 412.0 MiB/s and more".
std::string PathsText(const v1::PeersStatus& peers) {
  struct Use {
    uint64_t nodes = 0;
    double slowest = 0;  // bytes a second
  };
  std::map<std::string, Use> ways;
  for (const v1::MemberStatus& member : peers.members()) {
    for (const v1::PathStatus& path : member.link().paths()) {
      if (!path.in_use()) continue;
      Use& use = ways[path.way()];
      use.slowest = use.nodes++ == 0 ? path.bytes_per_second() : std::min(use.slowest, path.bytes_per_second());
    }
  }
  std::string out;
  for (const auto& [way, use] : ways)
    absl::StrAppend(&out, "; copies over ", Clean(way), " to ", Count(use.nodes, "node"), ", ",
                    FormatBytes(static_cast<uint64_t>(use.slowest)), "/s", use.nodes > 1 ? " and more" : "");
  return out;
}

// Seconds, of the certificate that ends first.
double LeastLeft(const v1::PeersStatus& peers) {
  double least = kEndsSoon;
  for (const v1::CertificateStatus& each : peers.certificates()) least = std::min(least, each.seconds_left());
  return least;
}

}  // namespace

std::string PeersLine(const v1::PeersStatus& peers) {
  if (peers.member_count() <= 1 && peers.membership() == "static") return "";
  std::string out = absl::StrCat("peers    ", Count(peers.member_count(), "node"), " by ", peers.membership());
  if (!peers.self().empty()) absl::StrAppend(&out, "; this one is ", Clean(peers.self()));
  if (peers.membership() == "etcd" && peers.generation() != 0)
    absl::StrAppend(&out, ", generation ", peers.generation());
  const auto reached = std::count_if(peers.members().begin(), peers.members().end(),
                                     [](const v1::MemberStatus& each) { return each.link().connected(); });
  if (peers.linked()) absl::StrAppend(&out, ", linked to ", reached, PathsText(peers));
  if (!peers.speaks()) absl::StrAppend(&out, "  ", Coloured(Tone::kBad, "may not write to others"));
  if (const double left = LeastLeft(peers); left < kEndsSoon) {
    const std::string text =
        left > 0 ? absl::StrCat("a certificate ends in ", Count(static_cast<uint64_t>(left / kDay), "day"))
                 : std::string("a certificate is over");
    absl::StrAppend(&out, "  ", Coloured(Tone::kWarn, text));
  }
  if (!peers.source_ok()) {
    absl::StrAppend(&out, "  ", Coloured(Tone::kWarn, "not heard for "),
                    FormatDuration(Seconds(peers.source_seconds())));
  }
  return out + "\n";
}

std::string HeldLines(const v1::PeersStatus& peers) {
  std::string out;
  for (const v1::HeldJob& held : peers.held()) {
    if (!held.ended()) continue;
    absl::StrAppend(&out, "held     ", FormatBytes(held.bytes()), " for other nodes, of job ", Clean(held.job()));
    if (held.ranks_size() != 0) absl::StrAppend(&out, " ranks ", absl::StrJoin(held.ranks(), " "));
    if (held.step() != 0)
      absl::StrAppend(&out, ", step ", held.step(),
                      held.on_storage() ? ", on storage" : ", not known to be on storage");
    absl::StrAppend(&out, ", not heard of for ", FormatDuration(Seconds(held.heard_seconds())),
                    "\n           next: ", Clean(held.next_step()), "\n");
  }
  return out;
}

}  // namespace ckptd
