// ckptctl certs init | node NAME... | rotate [NAME...] | show [FILE...]: a small authority for those who have none. The
// certificates are made in tools/certs; here is what is asked for and what is said.
#include <algorithm>
#include <ctime>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "daemon/base/clock.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/membership/hostlist.h"
#include "daemon/membership/member.h"
#include "daemon/os/posix_files.h"
#include "proto/ckptd/v1/certs.pb.h"
#include "tools/certs/cert_files.h"
#include "tools/certs/certificates.h"
#include "tools/ckptctl/command.h"
#include "tools/ckptctl/output.h"
#include "tools/ckptctl/output_files.h"

namespace ckptd {
namespace {

constexpr char kDefaultDir[] = "ckptd-certs";
constexpr char kDefaultCluster[] = "default";  // as of peers.cluster
constexpr int64_t kSoon = 7 * certs::kDay;
constexpr char kInstalled[] = "/etc/ckptd/tls";

absl::Status WrongCerts(absl::string_view text) { return Error(ErrorCode::INVALID_ARGUMENT, text); }

int64_t Now() { return std::chrono::duration_cast<std::chrono::seconds>(SystemClock().Wall()).count(); }

std::string Absolute(const std::string& path) {
  std::string out = std::filesystem::absolute(path).lexically_normal().string();
  if (out.size() > 1 && out.back() == '/') out.pop_back();
  return out;
}

std::string DirOf(const Args& args) { return Absolute(args.Has("--dir") ? args.Get("--dir") : kDefaultDir); }

std::string OutOf(const Args& args) { return args.Has("--out") ? Absolute(args.Get("--out")) : DirOf(args) + "/nodes"; }

// "2027-02-22 06:20 UTC"
std::string TimeText(int64_t unix_seconds) {
  const auto time = static_cast<time_t>(unix_seconds);
  std::tm parts{};
  if (gmtime_r(&time, &parts) == nullptr) return "?";
  return absl::StrFormat("%04d-%02d-%02d %02d:%02d UTC", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday,
                         parts.tm_hour, parts.tm_min);
}

absl::Status RefuseThese(const Args& args, const std::vector<std::string>& flags) {
  for (const std::string& flag : flags) {
    if (args.Has(flag)) return WrongCerts(absl::StrCat("certs ", args.word(0), " takes no ", flag));
  }
  return absl::OkStatus();
}

absl::StatusOr<int> Days(const Args& args, int otherwise) {
  CKPTD_ASSIGN_OR_RETURN(auto days, args.GetNumber("--days", 1, certs::kMaxDays));
  return days ? static_cast<int>(*days) : otherwise;
}

// "30d", or a duration that ckptd has everywhere: "12h".
absl::StatusOr<int64_t> Within(const Args& args) {
  const std::string whole = args.Get("--within");
  absl::string_view text = whole;
  uint64_t days = 0;
  if (absl::ConsumeSuffix(&text, "d")) {
    if (absl::SimpleAtoi(text, &days) && days <= certs::kMaxDays) return static_cast<int64_t>(days) * certs::kDay;
    return WrongCerts(absl::StrCat("--within wants a time such as 30d, not ", whole));
  }
  CKPTD_ASSIGN_OR_RETURN(const Nanos time, args.GetDuration("--within", {}));
  return std::chrono::duration_cast<std::chrono::seconds>(time).count();
}

// The words behind the first, hostlists written out.
absl::StatusOr<std::vector<std::string>> NamesOf(const Args& args) {
  std::vector<std::string> names;
  std::set<std::string> seen;
  for (size_t i = 1; i < args.words().size(); ++i) {
    CKPTD_ASSIGN_OR_RETURN(auto some, membership::ExpandHostlist(args.word(i), membership::kMaxMembers));
    for (std::string& name : some) {
      CKPTD_RETURN_IF_ERROR(certs::CheckNode(name));
      if (!seen.insert(name).second) return WrongCerts(absl::StrCat("node ", name, " is named twice"));
      names.push_back(std::move(name));
    }
    if (names.size() > membership::kMaxMembers)
      return WrongCerts(absl::StrCat("more than ", membership::kMaxMembers, " nodes: no cluster has as many"));
  }
  return names;
}

// The authority's own; where it names none (it was made by another tool), what is asked for.
absl::StatusOr<std::string> ClusterOf(const certs::Authority& authority, const Args& args) {
  const std::string& own = authority.about().cluster;
  const std::string asked = args.Get("--cluster");
  if (own.empty()) return args.Has("--cluster") ? asked : std::string(kDefaultCluster);
  if (!args.Has("--cluster") || asked == own) return own;
  return Error(ErrorCode::REFUSED, absl::StrCat("the authority in ", DirOf(args), " is of cluster ", own, ", not of ",
                                                asked, ": make another for it (ckptctl certs init --dir OTHER)"));
}

// Where the files of a node go, and what is in its ckptd.toml; the same text for every node.
std::string NextSteps(const Args& args, const std::string& cluster) {
  std::string out =
      absl::StrCat("\nTo each node, the key first; readable to the account its agent runs as:\n", "  ", OutOf(args),
                   "/NAME.key  as ", kInstalled, "/node.key  (mode 0600)\n", "  ", OutOf(args), "/NAME.pem  as ",
                   kInstalled, "/node.pem\n", "  ", DirOf(args), "/ca.pem  as ", kInstalled, "/ca.pem\n", DirOf(args),
                   "/ca.key never leaves.\n", "\nIn its ckptd.toml:\n\n[peers]\n");
  if (cluster != kDefaultCluster) absl::StrAppend(&out, "cluster = \"", cluster, "\"\n");
  return absl::StrCat(out, "tls_ca = \"", kInstalled, "/ca.pem\"\ntls_cert = \"", kInstalled,
                      "/node.pem\"\ntls_key = \"", kInstalled, "/node.key\"\n");
}

absl::Status IssueOne(const certs::Authority& authority, const std::string& cluster, const std::string& out,
                      const std::string& node, int days) {
  CKPTD_ASSIGN_OR_RETURN(const certs::KeyPair pair, authority.Issue(cluster, node, Now(), days));
  CKPTD_RETURN_IF_ERROR(certs::WriteNode(PosixFiles(), out, node, pair));
  CKPTD_ASSIGN_OR_RETURN(const certs::About about, certs::Read(pair.certificate));
  Print(absl::StrCat("node ", node, " of cluster ", cluster, ": ", certs::CertificatePath(out, node), ", until ",
                     TimeText(about.end), "\n"));
  return absl::OkStatus();
}

absl::StatusOr<int> InitCerts(const Args& args) {
  CKPTD_RETURN_IF_ERROR(RefuseThese(args, {"--out", "--within", "-o"}));
  if (args.words().size() > 1)
    return WrongCerts(absl::StrCat("certs init takes no ", args.word(1), ": --dir names the place"));
  CKPTD_ASSIGN_OR_RETURN(const int days, Days(args, certs::kAuthorityDays));
  const std::string cluster = args.Has("--cluster") ? args.Get("--cluster") : kDefaultCluster;
  const std::string dir = DirOf(args);
  CKPTD_ASSIGN_OR_RETURN(const certs::KeyPair pair, certs::Authority::Make(cluster, Now(), days));
  CKPTD_RETURN_IF_ERROR(MakeDirectories(PosixFiles(), ParentOf(dir)));
  CKPTD_RETURN_IF_ERROR(certs::MakeAuthority(PosixFiles(), dir, pair));
  CKPTD_ASSIGN_OR_RETURN(const certs::About about, certs::Read(pair.certificate));
  Print(absl::StrCat("authority of cluster ", cluster, ": ", certs::CertificatePath(dir, certs::kCa), ", until ",
                     TimeText(about.end), "\n", "Whoever has ", certs::KeyPath(dir, certs::kCa),
                     " is every node: keep it on this machine, and a copy where nobody reads it.\n",
                     "Next: ckptctl certs node NAME --dir ", dir, "\n"));
  return kYes;
}

absl::StatusOr<int> NodeCerts(const Args& args) {
  CKPTD_RETURN_IF_ERROR(RefuseThese(args, {"--within", "-o"}));
  CKPTD_ASSIGN_OR_RETURN(const auto names, NamesOf(args));
  if (names.empty())
    return WrongCerts("certs node wants the names of nodes, as agent.node_name or the membership has them");
  CKPTD_ASSIGN_OR_RETURN(const int days, Days(args, certs::kNodeDays));
  CKPTD_ASSIGN_OR_RETURN(const certs::Authority authority, certs::LoadAuthority(PosixFiles(), DirOf(args)));
  CKPTD_ASSIGN_OR_RETURN(const std::string cluster, ClusterOf(authority, args));
  const std::string out = OutOf(args);
  for (const std::string& name : names) CKPTD_RETURN_IF_ERROR(certs::CheckNone(PosixFiles(), out, name));
  CKPTD_RETURN_IF_ERROR(MakeDirectories(PosixFiles(), ParentOf(out)));
  for (const std::string& name : names) CKPTD_RETURN_IF_ERROR(IssueOne(authority, cluster, out, name, days));
  Print(NextSteps(args, cluster));
  return kYes;
}

// Of those found or named: each is what it should be, before any is renewed.
absl::StatusOr<std::vector<std::string>> ToRenew(const std::vector<std::string>& names, const std::string& out,
                                                 const std::string& cluster, std::optional<int64_t> within) {
  std::vector<std::string> renew;
  for (const std::string& name : names) {
    CKPTD_ASSIGN_OR_RETURN(const certs::NodeFiles found, certs::ReadNode(PosixFiles(), out, name));
    if (found.about.cluster != cluster)
      return Error(ErrorCode::REFUSED,
                   absl::StrCat(certs::CertificatePath(out, name), ": is of cluster ", found.about.cluster,
                                ", and the authority signs for ", cluster, ": name the right --dir"));
    // What a rotation that was cut off left is made anew however long it lasts.
    if (!within || !found.fits || found.about.end - Now() <= *within) renew.push_back(name);
  }
  return renew;
}

absl::StatusOr<int> RotateCerts(const Args& args) {
  CKPTD_RETURN_IF_ERROR(RefuseThese(args, {"-o"}));
  CKPTD_ASSIGN_OR_RETURN(auto names, NamesOf(args));
  CKPTD_ASSIGN_OR_RETURN(const int days, Days(args, certs::kNodeDays));
  std::optional<int64_t> within;
  if (args.Has("--within")) {
    CKPTD_ASSIGN_OR_RETURN(within, Within(args));
  }
  CKPTD_ASSIGN_OR_RETURN(const certs::Authority authority, certs::LoadAuthority(PosixFiles(), DirOf(args)));
  CKPTD_ASSIGN_OR_RETURN(const std::string cluster, ClusterOf(authority, args));
  const std::string out = OutOf(args);
  if (names.empty()) {
    CKPTD_ASSIGN_OR_RETURN(names, certs::NodesIn(PosixFiles(), out));
  }
  if (names.empty()) return Error(ErrorCode::NOT_FOUND, absl::StrCat(out, ": has no certificates of nodes"));
  CKPTD_ASSIGN_OR_RETURN(const auto renew, ToRenew(names, out, cluster, within));
  for (const std::string& name : renew) CKPTD_RETURN_IF_ERROR(IssueOne(authority, cluster, out, name, days));
  Print(absl::StrCat(renew.size(), " of ", names.size(), " renewed\n"));
  if (!renew.empty())
    Print(
        absl::StrCat("Next: to each of these nodes its key, then its certificate, each by renaming it over the old\n"
                     "(",
                     kInstalled, "/node.key, node.pem); its agent takes them without a restart.\n"));
  return kYes;
}

std::string ProblemOf(const certs::NodeFiles& found, int64_t now) {
  if (now > found.about.end) return "is over";
  if (found.about.end - now <= kSoon) return "ends soon";
  if (now < found.about.begin) return "has not begun";
  return found.has_key && !found.fits ? "the key beside it is another's" : "";
}

v1::Certificate Shown(const std::string& file, const certs::NodeFiles& found, int64_t now) {
  v1::Certificate out;
  out.set_file(file);
  out.set_authority(found.about.authority);
  out.set_cluster(found.about.cluster);
  out.set_node(found.about.node);
  // Whoever made it wrote what he liked there.
  for (const std::string& uri : found.about.names.uris) out.add_uris(Clean(uri));
  for (const std::string& dns : found.about.names.dns) out.add_dns(Clean(dns));
  out.set_begin_unix_s(found.about.begin);
  out.set_end_unix_s(found.about.end);
  out.set_days_left(static_cast<double>(found.about.end - now) / certs::kDay);
  out.set_problem(ProblemOf(found, now));
  return out;
}

std::string WhoText(const v1::Certificate& one) {
  if (one.authority()) return "the authority";
  if (!one.node().empty()) return one.node();
  const std::string names = absl::StrCat(absl::StrJoin(one.uris(), " "), " ", absl::StrJoin(one.dns(), " "));
  return names == " " ? "nobody" : std::string(absl::StripAsciiWhitespace(names)).substr(0, 80);
}

std::string CertificatesTable(const v1::Certificates& all) {
  Table table({"WHO", "CLUSTER", "UNTIL", "DAYS", "", "FILE"});
  for (const v1::Certificate& one : all.certificates())
    table.Add({WhoText(one), one.cluster().empty() ? "-" : one.cluster(), TimeText(one.end_unix_s()),
               absl::StrFormat("%.1f", one.days_left()), one.problem(), Clean(one.file())});
  return table.Text();
}

// Those named, else ca.pem of --dir and the nodes of --out.
absl::StatusOr<std::vector<std::string>> FilesToShow(const Args& args) {
  std::vector<std::string> files(args.words().begin() + 1, args.words().end());
  if (!files.empty()) {
    CKPTD_RETURN_IF_ERROR(RefuseThese(args, {"--dir", "--out"}));
    std::transform(files.begin(), files.end(), files.begin(), &Absolute);
    return files;
  }
  const std::string ca = certs::CertificatePath(DirOf(args), certs::kCa);
  CKPTD_ASSIGN_OR_RETURN(const bool has_ca, Exists(PosixFiles(), ca));
  if (has_ca) files.push_back(ca);
  CKPTD_ASSIGN_OR_RETURN(const bool has_nodes, Exists(PosixFiles(), OutOf(args)));
  if (has_nodes) {
    CKPTD_ASSIGN_OR_RETURN(const auto names, certs::NodesIn(PosixFiles(), OutOf(args)));
    for (const std::string& name : names) files.push_back(certs::CertificatePath(OutOf(args), name));
  }
  if (!files.empty()) return files;
  return Error(ErrorCode::NOT_FOUND,
               absl::StrCat("no certificates in ", DirOf(args), ": --dir DIR, or name the files"));
}

absl::StatusOr<int> ShowCerts(const Args& args) {
  CKPTD_RETURN_IF_ERROR(RefuseThese(args, {"--cluster", "--days", "--within"}));
  CKPTD_ASSIGN_OR_RETURN(const bool json, args.Json());
  CKPTD_ASSIGN_OR_RETURN(const auto files, FilesToShow(args));
  v1::Certificates all;
  for (const std::string& file : files) {
    CKPTD_ASSIGN_OR_RETURN(const certs::NodeFiles found, certs::ReadCertificate(PosixFiles(), file));
    *all.add_certificates() = Shown(file, found, Now());
  }
  if (json) {
    PrintJson(all);
  } else {
    Print(CertificatesTable(all));
  }
  const bool good = std::all_of(all.certificates().begin(), all.certificates().end(),
                                [](const v1::Certificate& one) { return one.problem().empty(); });
  return good ? kYes : kNo;
}

}  // namespace

absl::StatusOr<int> RunCerts(const Args& args) {
  if (args.word(0) == "init") return InitCerts(args);
  if (args.word(0) == "node") return NodeCerts(args);
  if (args.word(0) == "rotate") return RotateCerts(args);
  if (args.word(0) == "show") return ShowCerts(args);
  const auto near = Nearest(args.word(0), {"init", "node", "rotate", "show"});
  return WrongCerts(absl::StrCat("certs has init, node, rotate and show, not ", args.word(0),
                                 near ? absl::StrCat("; did you mean ", *near, "?") : ""));
}

}  // namespace ckptd
