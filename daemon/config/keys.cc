#include "daemon/config/keys.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "daemon/base/errors.h"
#include "proto/local/region.h"

namespace ckptd {
namespace {

constexpr size_t kSocketPathBytes = 107;  // sockaddr_un.sun_path less its NUL
constexpr size_t kPathBytes = 1024;       // leaves room for our names below PATH_MAX

absl::Status Expected(absl::string_view what) {
  return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat("expected ", what));
}

struct Unit {
  const char* name;
  uint64_t factor;
};

// In the largest unit that divides it: what is printed reads back as the same number.
template <size_t kCount>
std::string ExactText(uint64_t value, const std::array<Unit, kCount>& units) {
  for (const Unit& unit : units)
    if (value != 0 && value % unit.factor == 0) return absl::StrCat(value / unit.factor, unit.name);
  return absl::StrCat(value, units.back().name);
}

std::string ExactBytes(uint64_t bytes) {
  constexpr std::array<Unit, 5> kUnits = {
      {{" TiB", 1024 * kGiB}, {" GiB", kGiB}, {" MiB", kMiB}, {" KiB", kKiB}, {" B", 1}}};
  return ExactText(bytes, kUnits);
}

std::string ExactDuration(Nanos duration) {
  constexpr std::array<Unit, 6> kUnits = {{{"h", 3'600'000'000'000},
                                           {"m", 60'000'000'000},
                                           {"s", 1'000'000'000},
                                           {"ms", 1'000'000},
                                           {"us", 1000},
                                           {"ns", 1}}};
  if (duration == Nanos(0)) return "0s";
  return ExactText(static_cast<uint64_t>(duration.count()), kUnits);
}

bool IsPath(absl::string_view text, size_t limit) {
  return text.size() > 1 && text.size() <= limit && text[0] == '/' &&
         !absl::StrContains(text, absl::string_view("\0", 1));
}

// 127.0.0.1:PORT or [::1]:PORT. Nothing else: the page has no login.
bool IsLoopback(absl::string_view text) {
  size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) return false;
  absl::string_view host = text.substr(0, colon);
  absl::string_view port = text.substr(colon + 1);
  uint32_t number = 0;
  bool digits = !port.empty() && std::all_of(port.begin(), port.end(), absl::ascii_isdigit);
  bool loopback = host == "[::1]" || host == "127.0.0.1";
  return loopback && digits && absl::SimpleAtoi(port, &number) && number <= 65535;
}

bool IsName(absl::string_view text) {
  auto plain = [](unsigned char c) { return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-'; };
  return text.size() <= 253 && std::all_of(text.begin(), text.end(), plain);
}

// The builders below make one Key for one type of member. `field` is a generic lambda that names the member in a Config
// or a const Config.

template <typename Field, typename Valid>
Key Text(std::string name, Key::Effect effect, Field field, std::string type, Valid valid, std::string help) {
  auto set = [field, valid, type](const TomlScalar& value, Config* config) -> absl::Status {
    const auto* text = std::get_if<std::string>(&value);
    if (text == nullptr || !valid(*text)) return Expected(absl::StrCat("a string: ", type));
    field(*config) = *text;
    return absl::OkStatus();
  };
  auto get = [field](const Config& config) { return TomlScalar(field(config)); };
  return {std::move(name), effect, std::move(type), std::move(help), set, get};
}

template <typename Field>
Key Count(std::string name, Key::Effect effect, Field field, uint64_t low, uint64_t high, std::string help) {
  std::string type = absl::StrCat(low, " to ", high);
  auto set = [field, low, high, type](const TomlScalar& value, Config* config) -> absl::Status {
    const auto* number = std::get_if<int64_t>(&value);
    bool fits = number != nullptr && *number >= 0 && std::in_range<uint64_t>(*number) &&
                static_cast<uint64_t>(*number) >= low && static_cast<uint64_t>(*number) <= high;
    if (!fits) return Expected(absl::StrCat("an integer from ", type));
    field(*config) = static_cast<uint64_t>(*number);
    return absl::OkStatus();
  };
  auto get = [field](const Config& config) { return TomlScalar(static_cast<int64_t>(field(config))); };
  return {std::move(name), effect, type, std::move(help), set, get};
}

enum class Shape { kAny, kPowerOfTwo };

template <typename Field>
Key Size(std::string name, Field field, Key::Effect effect, Shape shape, uint64_t low, uint64_t high,
         std::string help) {
  std::string type = absl::StrCat(shape == Shape::kPowerOfTwo ? "power of two, " : "", ExactBytes(low), " to ",
                                  ExactBytes(high), ", or auto");
  auto set = [=](const TomlScalar& value, Config* config) -> absl::Status {
    const auto* text = std::get_if<std::string>(&value);
    if (text != nullptr && *text == "auto") return field(*config).bytes = 0, absl::OkStatus();
    auto bytes = ParseBytes(text == nullptr ? "" : *text);
    bool fits = bytes.ok() && *bytes >= low && *bytes <= high;
    if (fits && shape == Shape::kPowerOfTwo) fits = std::has_single_bit(*bytes);
    if (!fits) return Expected(absl::StrCat("a size in quotes, such as \"64 MiB\": ", type));
    field(*config).bytes = *bytes;
    return absl::OkStatus();
  };
  auto get = [field](const Config& config) {
    uint64_t bytes = field(config).bytes;
    return TomlScalar(bytes == 0 ? "auto" : ExactBytes(bytes));
  };
  return {std::move(name), effect, type, std::move(help), set, get};
}

template <typename Field>
Key Duration(std::string name, Key::Effect effect, Field field, Nanos low, Nanos high, std::string help) {
  std::string type = absl::StrCat(ExactDuration(low), " to ", ExactDuration(high));
  auto set = [=](const TomlScalar& value, Config* config) -> absl::Status {
    const auto* text = std::get_if<std::string>(&value);
    auto duration = ParseDuration(text == nullptr ? "" : *text);
    if (!duration.ok() || *duration < low || *duration > high)
      return Expected(absl::StrCat("a duration in quotes, such as \"30s\": ", type));
    field(*config) = *duration;
    return absl::OkStatus();
  };
  auto get = [field](const Config& config) { return TomlScalar(ExactDuration(field(config))); };
  return {std::move(name), effect, type, std::move(help), set, get};
}

template <typename Field, typename Enum>
Key Choice(std::string name, Key::Effect effect, Field field, std::vector<std::pair<const char*, Enum>> values,
           std::string help) {
  std::string type = absl::StrJoin(values, " | ", [](std::string* out, const auto& value) { *out += value.first; });
  auto set = [=](const TomlScalar& value, Config* config) -> absl::Status {
    const auto* text = std::get_if<std::string>(&value);
    for (const auto& [word, meaning] : values)
      if (text != nullptr && *text == word) return field(*config) = meaning, absl::OkStatus();
    return Expected(absl::StrCat("one of ", type));
  };
  auto get = [=](const Config& config) {
    for (const auto& [word, meaning] : values)
      if (meaning == field(config)) return TomlScalar(std::string(word));
    return TomlScalar(std::string());
  };
  return {std::move(name), effect, type, std::move(help), set, get};
}

// Octal in quotes: TOML's own 0o660 would print back as 432.
template <typename Field>
Key Mode(std::string name, Key::Effect effect, Field field, std::string help) {
  auto set = [=](const TomlScalar& value, Config* config) -> absl::Status {
    const auto* text = std::get_if<std::string>(&value);
    uint32_t mode = 0;
    bool fits = text != nullptr && (text->size() == 3 || (text->size() == 4 && (*text)[0] == '0'));
    if (fits) {
      auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), mode, 8);
      fits = error == std::errc() && end == text->data() + text->size();
    }
    if (!fits) return Expected("permission bits in quotes, such as \"0660\"");
    field(*config) = mode;
    return absl::OkStatus();
  };
  auto get = [field](const Config& config) { return TomlScalar(absl::StrFormat("%04o", field(config))); };
  return {std::move(name), effect, "octal mode", std::move(help), set, get};
}

#define CKPTD_FIELD(member) \
  [](auto& config) -> auto& { return config.member; }

void AddAgentKeys(std::vector<Key>* keys) {
  auto socket = [](absl::string_view text) { return IsPath(text, kSocketPathBytes); };
  auto socket_or_off = [socket](absl::string_view text) { return text == "off" || socket(text); };
  keys->push_back(
      Text("agent.socket", Key::kRestart, CKPTD_FIELD(agent.socket), "absolute path", socket, "Socket for trainers."));
  keys->push_back(Text("agent.admin_socket", Key::kRestart, CKPTD_FIELD(agent.admin_socket), "absolute path, or off",
                       socket_or_off, "Socket for ckptctl (gRPC)."));
  keys->push_back(Text("agent.node_name", Key::kRestart, CKPTD_FIELD(agent.node_name), "A-Z a-z 0-9 . _ -", IsName,
                       "Name of this node in status and logs; empty is the host name."));
  keys->push_back(Text(
      "agent.state_dir", Key::kRestart, CKPTD_FIELD(agent.state_dir), "absolute path",
      [](absl::string_view text) { return IsPath(text, kPathBytes); },
      "Directory on this node's own disk for the number of its next start, by which other nodes tell "
      "it from its past. Used where peers.tls lets it speak to them."));
  keys->push_back(Choice("agent.log_level", Key::kLive, CKPTD_FIELD(agent.log_level),
                         std::vector<std::pair<const char*, LogLevel>>{
                             {"error", kError}, {"warning", kWarning}, {"info", kInfo}, {"debug", kDebug}},
                         "Least important log lines to write."));
  keys->push_back(Duration("agent.drain_timeout", Key::kLive, CKPTD_FIELD(agent.drain_timeout), std::chrono::seconds(0),
                           std::chrono::hours(24),
                           "How long SIGTERM waits for flushes; what is left stays in the region."));
  keys->push_back(Duration("agent.decide_timeout", Key::kRestart, CKPTD_FIELD(agent.decide_timeout),
                           std::chrono::milliseconds(100), std::chrono::minutes(10),
                           "How long a restore waits for the inventory of other agents."));
}

void AddRegionKeys(std::vector<Key>* keys) {
  auto path = [](absl::string_view text) { return IsPath(text, kPathBytes); };
  keys->push_back(Text("region.dir", Key::kRestart, CKPTD_FIELD(region.dir), "absolute path", path,
                       "Directory on a tmpfs that holds the snapshots in memory."));
  keys->push_back(Size("region.size", CKPTD_FIELD(region.size), Key::kRestart, Shape::kAny, kMiB, 1024 * 1024 * kGiB,
                       "Memory for all jobs of this node; auto is what the tmpfs holds."));
  keys->push_back(Size("region.job_quota", CKPTD_FIELD(region.job_quota), Key::kRestart, Shape::kAny, kMiB,
                       1024 * 1024 * kGiB, "Memory for one job on this node; auto is region.size."));
  keys->push_back(Count("region.slots", Key::kRestart, CKPTD_FIELD(region.slots), 2, 8,
                        "Snapshots held per rank: one to keep, the others to fill and to flush."));
  keys->push_back(
      Size("region.chunk_bytes", CKPTD_FIELD(region.chunk_bytes), Key::kRestart, Shape::kPowerOfTwo, kMinChunkBytes,
           kMaxChunkBytes,
           "Unit of checksums, flushes and progress; auto goes by the size of the snapshot, and is 4 MiB with "
           "peers.parity, whose groups need one for all."));
  keys->push_back(Count("region.populate_threads", Key::kRestart, CKPTD_FIELD(region.populate_threads), 1, 64,
                        "Threads that prepare memory when a job registers."));
}

void AddStorageKeys(std::vector<Key>* keys) {
  auto path = [](absl::string_view text) { return IsPath(text, kPathBytes); };
  keys->push_back(Text("storage.root", Key::kRestart, CKPTD_FIELD(storage.root), "absolute path", path,
                       "Directory for committed checkpoints, one folder per job. No symbolic link in it is followed."));
  keys->push_back(Choice("storage.io", Key::kRestart, CKPTD_FIELD(storage.io),
                         std::vector<std::pair<const char*, IoChoice>>{
                             {"auto", IoChoice::kAuto}, {"uring", IoChoice::kUring}, {"threads", IoChoice::kThreads}},
                         "How files are written: io_uring, or worker threads where it is blocked."));
  keys->push_back(Choice(
      "storage.direct", Key::kRestart, CKPTD_FIELD(storage.direct),
      std::vector<std::pair<const char*, DirectChoice>>{{"auto", DirectChoice::kAuto}, {"off", DirectChoice::kOff}},
      "O_DIRECT: past the page cache; auto uses it where the file system can."));
  keys->push_back(Count("storage.write_depth", Key::kRestart, CKPTD_FIELD(storage.write_depth), 1, 256,
                        "Reads and writes in flight."));
  keys->push_back(Duration(
      "storage.timeout", Key::kLive, CKPTD_FIELD(storage.timeout), std::chrono::seconds(1), std::chrono::hours(1),
      "A call to the storage that hears nothing for so long is reported as hung; a restore that waits for it fails."));
}

void AddPolicyKeys(std::vector<Key>* keys) {
  keys->push_back(Choice(
      "durability.back_pressure", Key::kRestart, CKPTD_FIELD(durability.back_pressure),
      std::vector<std::pair<const char*, BackPressureChoice>>{{"skip", BackPressureChoice::kSkip},
                                                              {"wait", BackPressureChoice::kWait},
                                                              {"replace-queued", BackPressureChoice::kReplaceQueued}},
      "What a save does when the storage is slower than the saves: it is dropped; it waits for a "
      "free slot, at most gate_timeout; or only the newest step waits for the storage, which needs "
      "region.slots of at least 3."));
  keys->push_back(Count("durability.flush_every", Key::kRestart, CKPTD_FIELD(durability.flush_every), 1, 1'000'000,
                        "Flush every so many captured steps; those between live in memory only. close(), a wait for a "
                        "durable step, ckptctl flush and ckptctl drain make the newest one durable all the same."));
  keys->push_back(Count("retention.keep_last", Key::kLive, CKPTD_FIELD(retention.keep_last), 1, 1'000'000,
                        "Newest committed steps to keep."));
  keys->push_back(Count("retention.keep_every", Key::kLive, CKPTD_FIELD(retention.keep_every), 0, 1'000'000'000,
                        "Also keep steps divisible by this; 0 none."));
}

void AddScrubKeys(std::vector<Key>* keys) {
  constexpr Nanos kYear = std::chrono::hours(8760);
  keys->push_back(Duration("scrub.region_every", Key::kLive, CKPTD_FIELD(scrub.region_every), Nanos(0), kYear,
                           "A snapshot that lies in memory for so long is read again; 0s never."));
  keys->push_back(Duration("scrub.storage_every", Key::kLive, CKPTD_FIELD(scrub.storage_every), Nanos(0), kYear,
                           "The same for files of committed steps; what is bad is put back from memory where it is "
                           "still there; 0s never."));
  keys->push_back(Size("scrub.rate", CKPTD_FIELD(scrub.rate), Key::kLive, Shape::kAny, kMiB, 1024 * kGiB,
                       "Bytes per second that are read for it; auto is 100 MiB."));
}

// Printable and short here; what it must be is for daemon/membership to say.
bool IsLine(absl::string_view text) {
  constexpr size_t kLineBytes = 16 << 10;  // half of what a file may be
  return text.size() <= kLineBytes && std::all_of(text.begin(), text.end(), absl::ascii_isprint);
}

void AddPeersKeys(std::vector<Key>* keys) {
  auto host = [](absl::string_view text) { return IsName(text) || (IsLine(text) && text.size() <= 45); };
  keys->push_back(
      Choice("peers.membership", Key::kRestart, CKPTD_FIELD(peers.membership),
             std::vector<std::pair<const char*, MembershipChoice>>{{"static", MembershipChoice::kStatic},
                                                                   {"dns", MembershipChoice::kDns},
                                                                   {"slurm", MembershipChoice::kSlurm},
                                                                   {"etcd", MembershipChoice::kEtcd}},
             "Who says which nodes belong together: peers.members; a DNS name, such as a Kubernetes headless "
             "service; the Slurm job that the agent runs in; etcd."));
  keys->push_back(Text("peers.members", Key::kRestart, CKPTD_FIELD(peers.members), "groups: n[01-64] rack=r1; n65",
                       IsLine, "All nodes, where membership is static; empty is this one alone."));
  keys->push_back(Text("peers.address", Key::kRestart, CKPTD_FIELD(peers.address), "host name or IP address", host,
                       "Where other nodes reach this one; empty is agent.node_name."));
  keys->push_back(Count("peers.port", Key::kRestart, CKPTD_FIELD(peers.port), 1, 65535, "The port for it."));
  keys->push_back(Text("peers.labels", Key::kRestart, CKPTD_FIELD(peers.labels), "rack=r3 zone=b", IsLine,
                       "Failure domains of this node: what fails together has the same value."));
  keys->push_back(Text("peers.dns_name", Key::kRestart, CKPTD_FIELD(peers.dns_name), "DNS name", IsName,
                       "Name that has the addresses of all nodes; SRV records where it begins with _."));
  keys->push_back(Text("peers.dns_server", Key::kRestart, CKPTD_FIELD(peers.dns_server), "IPv4:PORT, or empty", IsLine,
                       "DNS server to ask; empty is those of /etc/resolv.conf."));
  keys->push_back(Duration("peers.dns_refresh", Key::kRestart, CKPTD_FIELD(peers.dns_refresh), std::chrono::seconds(1),
                           std::chrono::hours(1), "How often it is asked."));
}

void AddEtcdKeys(std::vector<Key>* keys) {
  auto path = [](absl::string_view text) { return text.empty() || IsPath(text, kPathBytes); };
  auto prefix = [](absl::string_view text) { return !text.empty() && text.size() <= 256 && IsLine(text); };
  keys->push_back(Text("peers.etcd_endpoints", Key::kRestart, CKPTD_FIELD(peers.etcd_endpoints),
                       "http://HOST:PORT or https://HOST:PORT, separated by commas", IsLine, "Servers of one etcd."));
  keys->push_back(Text("peers.etcd_prefix", Key::kRestart, CKPTD_FIELD(peers.etcd_prefix), "1 to 256 characters",
                       prefix, "What the keys of this cluster's nodes begin with."));
  keys->push_back(Duration("peers.etcd_ttl", Key::kRestart, CKPTD_FIELD(peers.etcd_ttl), std::chrono::seconds(2),
                           std::chrono::minutes(10),
                           "A node that etcd has not heard for so long is no member any more."));
  keys->push_back(Text("peers.etcd_ca", Key::kRestart, CKPTD_FIELD(peers.etcd_ca), "absolute path, or empty", path,
                       "PEM file of who signed the servers' certificates; empty is the system's."));
  keys->push_back(Text("peers.etcd_cert", Key::kRestart, CKPTD_FIELD(peers.etcd_cert), "absolute path, or empty", path,
                       "PEM file of this node's certificate, where etcd wants one."));
  keys->push_back(Text("peers.etcd_key", Key::kRestart, CKPTD_FIELD(peers.etcd_key), "absolute path, or empty", path,
                       "PEM file of its key."));
}

void AddTlsKeys(std::vector<Key>* keys) {
  auto path = [](absl::string_view text) { return text.empty() || IsPath(text, kPathBytes); };
  auto name = [](absl::string_view text) { return !text.empty() && IsName(text); };
  keys->push_back(Text("peers.cluster", Key::kRestart, CKPTD_FIELD(peers.cluster), "A-Z a-z 0-9 . _ -", name,
                       "Name of this cluster: nodes of another are refused, and certificates name it, as "
                       "spiffe://CLUSTER/ckptd/NODE."));
  keys->push_back(
      Choice("peers.tls", Key::kRestart, CKPTD_FIELD(peers.tls),
             std::vector<std::pair<const char*, PeersTlsChoice>>{
                 {"mutual", PeersTlsChoice::kMutual}, {"plaintext-on-loopback", PeersTlsChoice::kPlaintextOnLoopback}},
             "How nodes prove who they are: by certificates; or not at all, between agents of one machine "
             "whose addresses are all 127.x.x.x or ::1."));
  keys->push_back(Text("peers.tls_ca", Key::kRestart, CKPTD_FIELD(peers.tls_ca), "absolute path, or empty", path,
                       "PEM file of the authorities that sign nodes' certificates. What is in this file and the next "
                       "two may change at any time; empty is a node that speaks to no other."));
  keys->push_back(Text("peers.tls_cert", Key::kRestart, CKPTD_FIELD(peers.tls_cert), "absolute path, or empty", path,
                       "PEM file of this node's certificate: for the URI spiffe://CLUSTER/ckptd/NODE, or the DNS name "
                       "NODE."));
  keys->push_back(Text("peers.tls_key", Key::kRestart, CKPTD_FIELD(peers.tls_key), "absolute path, or empty", path,
                       "PEM file of its key."));
}

void AddCopiesKeys(std::vector<Key>* keys) {
  keys->push_back(Count("peers.copies", Key::kRestart, CKPTD_FIELD(peers.copies), 1, 16,
                        "Nodes that hold each snapshot in memory, its own among them, where peers.tls lets them speak: "
                        "one fewer may be lost at once. What the agent of rank 0 says counts; 1 is no copies."));
  keys->push_back(Count("peers.parity", Key::kRestart, CKPTD_FIELD(peers.parity), 0, 8,
                        "Parity instead of copies: of each group of peers.data + peers.parity nodes, any peers.parity "
                        "may be lost, for peers.parity / peers.data of the memory of a copy. 0 is copies."));
  keys->push_back(Count("peers.data", Key::kRestart, CKPTD_FIELD(peers.data), 1, 64,
                        "Where peers.parity is on; with fewer nodes than both together a group has less data."));
  keys->push_back(Size("peers.memory", CKPTD_FIELD(peers.memory), Key::kRestart, Shape::kAny, kMiB, 1024 * 1024 * kGiB,
                       "Memory of this node for what it holds for others, within region.size; auto is half of that."));
  keys->push_back(Choice(
      "peers.bulk", Key::kRestart, CKPTD_FIELD(peers.bulk),
      std::vector<std::pair<const char*, PeersBulkChoice>>{{"grpc", PeersBulkChoice::kGrpc},
                                                           {"tls", PeersBulkChoice::kTls},
                                                           {"ucx", PeersBulkChoice::kUcx},
                                                           {"auto", PeersBulkChoice::kAuto}},
      "How the bytes of copies move: over gRPC, encrypted by peers.tls; over connections of TLS 1.3 "
      "with the same certificates where both nodes say so, faster; or over UCX where both have it, "
      "not encrypted, for which peers.ucx_network must be trusted; auto is whichever of those that may be used was "
      "the fastest to that node lately."));
  keys->push_back(
      Count("peers.bulk_port", Key::kRestart, CKPTD_FIELD(peers.bulk_port), 0, 65535,
            "Where other nodes reach this one for copies, with peers.bulk = tls or auto; 0 is any free port. They "
            "hear it from this node, so each may have its own."));
  keys->push_back(
      Count("peers.dscp", Key::kRestart, CKPTD_FIELD(peers.dscp), 0, 63,
            "Marks the packets of copies over TLS, with peers.bulk = tls or auto, such as 8 (CS1) for below "
            "everything else; 0 does not."));
  keys->push_back(Choice(
      "peers.ucx_network", Key::kRestart, CKPTD_FIELD(peers.ucx_network),
      std::vector<std::pair<const char*, UcxNetworkChoice>>{{"untrusted", UcxNetworkChoice::kUntrusted},
                                                            {"trusted", UcxNetworkChoice::kTrusted}},
      "trusted says of the network that UCX uses: nobody but this cluster's own nodes reaches it, nobody reads it. "
      "Whoever does reach it can read copies and write to the agent's memory."));
  keys->push_back(Text(
      "peers.ucx_library", Key::kRestart, CKPTD_FIELD(peers.ucx_library), "absolute path, or empty",
      [](absl::string_view text) { return text.empty() || IsPath(text, kPathBytes); },
      "libucp.so.0 of the UCX to load, 1.14 or newer, where it is not the system's; it finds its other parts beside "
      "it."));
}

void AddGpuKeys(std::vector<Key>* keys) {
  auto path = [](absl::string_view text) { return text.empty() || text == "off" || IsPath(text, kPathBytes); };
  keys->push_back(Text("gpu.copier", Key::kRestart, CKPTD_FIELD(gpu.copier), "absolute path, off, or empty", path,
                       "Program that copies from GPUs for trainers that choose pull; empty is ckptd-copier beside "
                       "ckptd, off refuses them one."));
}

void AddOutsideKeys(std::vector<Key>* keys) {
  auto listen = [](absl::string_view text) { return text == "off" || IsLoopback(text); };
  keys->push_back(Mode("security.socket_mode", Key::kRestart, CKPTD_FIELD(security.socket_mode),
                       "Permissions of both sockets: who may save, restore and administrate."));
  keys->push_back(Text("security.socket_group", Key::kRestart, CKPTD_FIELD(security.socket_group), "A-Z a-z 0-9 . _ -",
                       IsName, "Group of both sockets; empty is the agent's own."));
  keys->push_back(Text("metrics.listen", Key::kRestart, CKPTD_FIELD(metrics.listen),
                       "127.0.0.1:PORT, [::1]:PORT, or off", listen,
                       "Where /metrics, /healthz and /status.json are served."));
}

}  // namespace

absl::Span<const Section> Sections() {
  static constexpr std::array<Section, 10> kSections = {
      {{"agent", "The process and its sockets."},
       {"region", "Memory for snapshots."},
       {"storage", "Where checkpoints become durable."},
       {"durability", "What is flushed, and what saves do meanwhile."},
       {"retention", "Which committed steps are kept."},
       {"scrub", "Looking for what went bad while it lay still."},
       {"peers", "Other nodes: who they are, and how they prove it."},
       {"gpu", "Trainers with tensors on GPUs."},
       {"security", "Who may connect."},
       {"metrics", "Prometheus and the status page."}}};
  return kSections;
}

absl::Span<const Key> Keys() {
  static const std::vector<Key>* const keys = [] {
    auto* all = new std::vector<Key>;  // never destroyed: used until the last instruction of main
    for (auto add : {AddAgentKeys, AddRegionKeys, AddStorageKeys, AddPolicyKeys, AddScrubKeys, AddPeersKeys,
                     AddEtcdKeys, AddTlsKeys, AddCopiesKeys, AddGpuKeys, AddOutsideKeys})
      add(all);
    return all;
  }();
  return *keys;
}

std::string TomlText(const TomlScalar& value) {
  if (const auto* number = std::get_if<int64_t>(&value)) return absl::StrCat(*number);
  std::string text = "\"";
  for (unsigned char c : std::get<std::string>(value)) {
    if (c == '"' || c == '\\') text += '\\';
    if (c < 0x20 || c == 0x7F)
      absl::StrAppend(&text, "\\u", absl::Hex(c, absl::kZeroPad4));
    else
      text += static_cast<char>(c);
  }
  return text + "\"";
}

}  // namespace ckptd
