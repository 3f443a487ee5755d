#include "daemon/config/keys.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/config/key_builders.h"
#include "daemon/config/peers_keys.h"
#include "proto/local/region.h"

namespace ckptd {
namespace {

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
  keys->push_back(Count("region.populate_threads", Key::kRestart, CKPTD_FIELD(region.populate_threads), 0, 64,
                        "Threads that prepare memory when a job registers; 0 is a quarter of the cores that its "
                        "affinity and its CPU quota leave it, 2 to 16, or 1 of one core."));
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
                       "Where /metrics, /healthz and /status.json are served; while the port is taken, status says so, "
                       "and it is tried again."));
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
    for (auto add : {AddAgentKeys, AddRegionKeys, AddStorageKeys, AddPolicyKeys, AddScrubKeys, AddPeersKeys, AddGpuKeys,
                     AddOutsideKeys})
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
