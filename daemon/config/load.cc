#include "daemon/config/load.h"

#include <arpa/inet.h>
#include <toml++/toml.h>

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/config/keys.h"

namespace ckptd {
namespace {

// Eight times what all keys with their help need. The library destroys tables within tables by recursion: a key of a
// hundred thousand dots ends the agent, also at a reload.
constexpr size_t kFileBytes = 32 << 10;

// Levenshtein, one row at a time.
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

absl::string_view LastPart(absl::string_view name) {
  size_t dot = name.rfind('.');
  return dot == absl::string_view::npos ? name : name.substr(dot + 1);
}

// The right word in the wrong section counts as one mistake.
size_t Distance(absl::string_view given, absl::string_view known) {
  return std::min(EditDistance(given, known), EditDistance(LastPart(given), LastPart(known)) + 1);
}

std::string NearestKey(absl::string_view given) {
  auto nearer = [&](const Key& a, const Key& b) { return Distance(given, a.name) < Distance(given, b.name); };
  return std::min_element(Keys().begin(), Keys().end(), nearer)->name;
}

const Key* FindKey(absl::string_view name) {
  auto found = std::find_if(Keys().begin(), Keys().end(), [&](const Key& key) { return key.name == name; });
  return found == Keys().end() ? nullptr : &*found;
}

bool IsSection(absl::string_view name) {
  return std::any_of(Sections().begin(), Sections().end(), [&](const Section& known) { return known.name == name; });
}

class Loader {
 public:
  Loader(absl::string_view file, const Config& defaults) : file_(file), config_(defaults) {}

  absl::StatusOr<Config> Load(const toml::table& root) {
    for (const auto& [key, node] : root) LoadSection(key.str(), node);
    if (errors_.empty()) {
      absl::Status whole = CheckConfig(config_);
      if (!whole.ok()) errors_.push_back(absl::StrCat(file_, ": ", whole.message()));
    }
    if (errors_.empty()) return config_;
    return Error(ErrorCode::INVALID_ARGUMENT, absl::StrJoin(errors_, "\n"));
  }

 private:
  void LoadSection(std::string_view key, const toml::node& node) {
    std::string name(key);
    const toml::table* table = node.as_table();
    if (!IsSection(name)) return Unknown(node, table == nullptr ? "key " : "section ", name);
    if (table == nullptr) return Complain(node, absl::StrCat(name, " is a section: write [", name, "]"));
    for (const auto& [leaf, value] : *table) LoadKey(absl::StrCat(name, ".", std::string(leaf.str())), value);
  }

  void LoadKey(const std::string& name, const toml::node& node) {
    const Key* key = FindKey(name);
    if (key == nullptr) return Unknown(node, "key ", name);
    absl::Status status = Set(*key, node);
    if (!status.ok()) Complain(node, absl::StrCat(name, ": ", status.message()));
  }

  absl::Status Set(const Key& key, const toml::node& node) {
    if (const auto* text = node.as_string()) return key.set(TomlScalar(text->get()), &config_);
    if (const auto* number = node.as_integer()) return key.set(TomlScalar(number->get()), &config_);
    return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat("expected ", key.type));
  }

  void Unknown(const toml::node& node, absl::string_view what, absl::string_view name) {
    Complain(node, absl::StrCat("unknown ", what, name, "; did you mean ", Suggestion(what, name), "?"));
  }

  static std::string Suggestion(absl::string_view what, absl::string_view name) {
    constexpr size_t kCompared = 64;  // no key is half as long, and comparing takes time
    name = name.substr(0, kCompared);
    if (what == "key ") return NearestKey(name);
    auto nearer = [&](const Section& a, const Section& b) {
      return EditDistance(name, a.name) < EditDistance(name, b.name);
    };
    return absl::StrCat("[", std::min_element(Sections().begin(), Sections().end(), nearer)->name, "]");
  }

  void Complain(const toml::node& node, absl::string_view what) {
    errors_.push_back(absl::StrCat(file_, ":", node.source().begin.line, ": ", what));
  }

  const absl::string_view file_;
  Config config_;
  std::vector<std::string> errors_;
};

}  // namespace

absl::StatusOr<Config> LoadConfig(absl::string_view text, absl::string_view file, const Config& defaults) {
  if (text.size() > kFileBytes)
    return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat(file, ": ", text.size(), " bytes; at most ", kFileBytes));
  try {  // the library's only way to report; nothing of it leaves this function
    return Loader(file, defaults).Load(toml::parse(std::string_view(text.data(), text.size())));
  } catch (const toml::parse_error& error) {
    return Error(ErrorCode::INVALID_ARGUMENT,
                 absl::StrCat(file, ":", error.source().begin.line, ": ", std::string(error.description())));
  }
}

namespace {

// An address of this machine alone; a name may lead anywhere.
bool IsLoopbackHost(const std::string& host) {
  in_addr four{};
  if (inet_pton(AF_INET, host.c_str(), &four) == 1) return ntohl(four.s_addr) >> 24 == IN_LOOPBACKNET;
  return host == "::1";
}

// That the members' addresses are loopback too, the agent looks at when it hears of them.
absl::Status CheckPeersTls(const PeersConfig& peers) {
  const bool some = !peers.tls_ca.empty() || !peers.tls_cert.empty() || !peers.tls_key.empty();
  const bool all = !peers.tls_ca.empty() && !peers.tls_cert.empty() && !peers.tls_key.empty();
  if (some && !all)
    return Error(ErrorCode::INVALID_ARGUMENT,
                 "peers.tls_ca, peers.tls_cert and peers.tls_key are of use together only");
  if (peers.tls == PeersTlsChoice::kMutual) return absl::OkStatus();
  if (some)
    return Error(ErrorCode::INVALID_ARGUMENT,
                 "peers.tls is plaintext-on-loopback, and peers.tls_ca is given: set peers.tls to mutual, or leave "
                 "peers.tls_ca, peers.tls_cert and peers.tls_key empty");
  if (IsLoopbackHost(peers.address)) return absl::OkStatus();
  return Error(ErrorCode::INVALID_ARGUMENT,
               absl::StrCat("peers.tls is plaintext-on-loopback, and peers.address \"", peers.address,
                            "\" is not 127.x.x.x or ::1: set it to one of them, or peers.tls to mutual with "
                            "peers.tls_ca, peers.tls_cert and peers.tls_key"));
}

// What is not encrypted wants to be told so, but on loopback, where nothing else is either.
absl::Status CheckPeersNetwork(const PeersConfig& peers) {
  const bool tcp = peers.bulk == PeersBulkChoice::kTcp && peers.tls != PeersTlsChoice::kPlaintextOnLoopback;
  if (tcp && peers.bulk_network != BulkNetworkChoice::kTrusted)
    return Error(
        ErrorCode::INVALID_ARGUMENT,
        "peers.bulk is tcp: copies then pass unencrypted, whatever peers.tls is, and whoever is on that "
        "network can read and change them. Where it is the cluster's alone, set peers.bulk_network to trusted; "
        "else peers.bulk to tls or grpc");
  if (peers.bulk == PeersBulkChoice::kUcx && peers.bulk_network != BulkNetworkChoice::kTrusted)
    return Error(
        ErrorCode::INVALID_ARGUMENT,
        "peers.bulk is ucx: copies then pass unencrypted, whatever peers.tls is, and whoever reaches UCX's ports "
        "can write to the agent's memory. Where that network is the cluster's alone, set peers.bulk_network to "
        "trusted; else peers.bulk to tls or grpc");
  return absl::OkStatus();
}

absl::Status CheckPeersBulk(const PeersConfig& peers) {
  CKPTD_RETURN_IF_ERROR(CheckPeersNetwork(peers));
  const bool certificates = peers.tls == PeersTlsChoice::kMutual && !peers.tls_ca.empty();
  if (peers.bulk == PeersBulkChoice::kTls && !certificates)
    return Error(ErrorCode::INVALID_ARGUMENT,
                 "peers.bulk is tls, and needs certificates: set peers.tls to mutual and give peers.tls_ca, "
                 "peers.tls_cert and peers.tls_key (ckptctl certs makes them), or set peers.bulk to grpc");
  const bool own_port = peers.bulk != PeersBulkChoice::kGrpc && peers.bulk != PeersBulkChoice::kUcx;
  if (own_port && peers.bulk_port == peers.port)
    return Error(ErrorCode::INVALID_ARGUMENT,
                 "peers.bulk_port and peers.port are the same: set peers.bulk_port to another one, or to 0");
  if (peers.dscp != 0 && !own_port)
    return Error(
        ErrorCode::INVALID_ARGUMENT,
        "peers.dscp marks the connections of peers.bulk = tls, tcp or auto only: set peers.bulk to one of them, or "
        "peers.dscp to 0");
  return absl::OkStatus();
}

absl::Status CheckPeers(const PeersConfig& peers) {
  if (peers.membership == MembershipChoice::kDns && peers.dns_name.empty())
    return Error(ErrorCode::INVALID_ARGUMENT, "peers.membership is dns: give peers.dns_name");
  if (peers.membership == MembershipChoice::kEtcd && peers.etcd_endpoints.empty())
    return Error(ErrorCode::INVALID_ARGUMENT, "peers.membership is etcd: give peers.etcd_endpoints");
  if (peers.etcd_cert.empty() != peers.etcd_key.empty())
    return Error(ErrorCode::INVALID_ARGUMENT, "peers.etcd_cert and peers.etcd_key are of use together only");
  CKPTD_RETURN_IF_ERROR(CheckPeersTls(peers));
  return CheckPeersBulk(peers);
}

}  // namespace

absl::Status CheckConfig(const Config& config) {
  if (config.storage.root.empty())
    return Error(ErrorCode::INVALID_ARGUMENT, "storage.root: HOME is not set, so the key must be given");
  if (config.agent.socket == config.agent.admin_socket)
    return Error(ErrorCode::INVALID_ARGUMENT, "agent.socket and agent.admin_socket are the same path");
  if (config.region.dir == config.storage.root)
    return Error(ErrorCode::INVALID_ARGUMENT, "region.dir and storage.root are the same path");
  uint64_t size = config.region.size.bytes;
  if (size != 0 && config.region.job_quota.bytes > size)
    return Error(ErrorCode::INVALID_ARGUMENT, "region.job_quota is larger than region.size");
  if (config.durability.back_pressure == BackPressureChoice::kReplaceQueued && config.region.slots < 3)
    return Error(
        ErrorCode::INVALID_ARGUMENT,
        absl::StrCat("durability.back_pressure replace-queued needs region.slots of at least 3: one is flushed, "
                     "one holds the newest snapshot, one is filled; it is ",
                     config.region.slots, ": set region.slots = 3 or more, or another back_pressure"));
  return CheckPeers(config.peers);
}

std::string PrintConfig(const Config& config) {
  std::string text;
  for (const Section& section : Sections()) {
    absl::StrAppend(&text, text.empty() ? "" : "\n", "[", section.name, "]\n");
    for (const Key& key : Keys())
      if (absl::StartsWith(key.name, absl::StrCat(section.name, ".")))
        absl::StrAppend(&text, LastPart(key.name), " = ", TomlText(key.get(config)), "\n");
  }
  return text;
}

}  // namespace ckptd
