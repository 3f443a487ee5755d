// The agent's settings as one value. Made once by load.h from defaults and file, then passed down by const reference;
// a reload makes a new one. Defaults here are those of the system service; DefaultConfig() changes what differs for a
// per-user agent. What each key means to an operator stands in keys.cc, beside its range.
#ifndef CKPTD_DAEMON_CONFIG_CONFIG_H_
#define CKPTD_DAEMON_CONFIG_CONFIG_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/base/units.h"

namespace ckptd {

enum class BackPressureChoice { kSkip, kWait, kReplaceQueued };
enum class IoChoice { kAuto, kUring, kThreads };
enum class DirectChoice { kAuto, kOff };
enum class MembershipChoice { kStatic, kDns, kSlurm, kEtcd };
enum class PeersBulkChoice { kGrpc, kTls, kTcp, kUcx, kAuto };
enum class BulkNetworkChoice { kUntrusted, kTrusted };
enum class PeersTlsChoice { kMutual, kPlaintextOnLoopback };

// A number of bytes that the agent chooses itself when it is 0 ("auto" in the file).
struct AutoBytes {
  uint64_t bytes = 0;
  bool operator==(const AutoBytes&) const = default;
};

struct AgentConfig {
  std::string socket = "/run/ckptd/ckptd.sock";        // absolute path, at most 107 bytes
  std::string admin_socket = "/run/ckptd/admin.sock";  // absolute path, or "off"
  std::string node_name;                               // empty = the host name
  std::string state_dir = "/var/lib/ckptd-agent";      // absolute path; of what outlives a reboot
  LogLevel log_level = kInfo;
  Nanos drain_timeout = std::chrono::seconds(60);
  Nanos decide_timeout = std::chrono::seconds(10);
  bool operator==(const AgentConfig&) const = default;
};

struct RegionConfig {
  std::string dir = "/run/ckptd/region";  // absolute path on a tmpfs
  AutoBytes size;                         // of all jobs; auto = what the tmpfs holds
  AutoBytes job_quota;                    // of one job on this node; auto = size
  uint64_t slots = 2;                     // per rank
  AutoBytes chunk_bytes;                  // power of two; auto = by slot size; kMinChunkBytes to kMaxChunkBytes
  uint64_t populate_threads = 0;          // 0: by the cores
  bool operator==(const RegionConfig&) const = default;
};

struct StorageConfig {
  std::string root = "/var/lib/ckptd";  // absolute path
  IoChoice io = IoChoice::kAuto;
  DirectChoice direct = DirectChoice::kAuto;
  uint64_t write_depth = 8;  // I/O operations in flight
  Nanos timeout = std::chrono::seconds(60);
  bool operator==(const StorageConfig&) const = default;
};

struct DurabilityConfig {
  BackPressureChoice back_pressure = BackPressureChoice::kSkip;
  uint64_t flush_every = 1;  // captured steps
  bool operator==(const DurabilityConfig&) const = default;
};

struct RetentionConfig {
  uint64_t keep_last = 2;   // committed steps
  uint64_t keep_every = 0;  // also steps divisible by this; 0 = none
  bool operator==(const RetentionConfig&) const = default;
};

// What lies still is read again after so long; 0 = never.
struct ScrubConfig {
  Nanos region_every = std::chrono::hours(24);
  Nanos storage_every = std::chrono::hours(168);
  AutoBytes rate;  // bytes per second; auto = 100 MiB
  bool operator==(const ScrubConfig&) const = default;
};

// Who the other nodes are, and where this one is reached. daemon/membership says what the texts may be.
struct PeersConfig {
  MembershipChoice membership = MembershipChoice::kStatic;
  std::string members;  // of kStatic; empty = this node alone
  std::string address;  // host name or IP address; empty = agent.node_name
  uint64_t port = 9465;
  std::string labels;      // "rack=r3 zone=b"
  std::string dns_name;    // of kDns
  std::string dns_server;  // "IPv4:PORT"; empty = /etc/resolv.conf
  Nanos dns_refresh = std::chrono::seconds(30);
  std::string etcd_endpoints;  // of kEtcd: "http://HOST:PORT,https://HOST:PORT"
  std::string etcd_prefix = "/ckptd/default/";
  Nanos etcd_ttl = std::chrono::seconds(10);
  std::string etcd_ca;    // absolute paths of PEM files, or empty
  std::string etcd_cert;  // this node's, and
  std::string etcd_key;   // its key
  std::string cluster = "default";
  PeersTlsChoice tls = PeersTlsChoice::kMutual;
  std::string tls_ca;  // of kMutual: absolute paths of PEM files; all empty = this node speaks to no other
  std::string tls_cert;
  std::string tls_key;
  uint64_t copies = 2;  // nodes that hold each snapshot, its own among them; 1 = no copies
  uint64_t parity = 0;  // instead of copies: of data + parity nodes any so many may be lost; 0 = copies
  uint64_t data = 3;
  AutoBytes memory;                               // of this node, for what it holds for others; 0 = half of the region
  PeersBulkChoice bulk = PeersBulkChoice::kAuto;  // how the bytes of copies move
  uint64_t bulk_port = 9466;                      // of kTls, kTcp and kAuto; 0 = any free one
  uint64_t dscp = 0;                              // of the same: marks their packets; 0 = does not
  BulkNetworkChoice bulk_network = BulkNetworkChoice::kUntrusted;  // kTrusted is what kUcx and kTcp need
  std::string ucx_library;                                         // path; empty: the system's
  bool operator==(const PeersConfig&) const = default;
};

struct GpuConfig {
  std::string copier;  // absolute path, "off", or empty = beside the agent's own executable
  bool operator==(const GpuConfig&) const = default;
};

struct SecurityConfig {
  uint32_t socket_mode = 0660;  // permission bits of both sockets
  std::string socket_group;     // of both sockets; empty = the agent's own
  bool operator==(const SecurityConfig&) const = default;
};

struct MetricsConfig {
  std::string listen = "127.0.0.1:9464";  // loopback address and port, or "off"
  bool operator==(const MetricsConfig&) const = default;
};

struct Config {
  AgentConfig agent;
  RegionConfig region;
  StorageConfig storage;
  DurabilityConfig durability;
  RetentionConfig retention;
  ScrubConfig scrub;
  PeersConfig peers;
  GpuConfig gpu;
  SecurityConfig security;
  MetricsConfig metrics;
  bool operator==(const Config&) const = default;
};

enum class ConfigMode { kSystem, kUser };

// Where the process runs. Passed in, so that this room reads no environment and tests need none.
struct Surroundings {
  std::function<std::optional<std::string>(absl::string_view name)> environment;  // getenv
  std::string uid;                                                                // decimal
};

struct Defaults {
  Config config;
  std::vector<std::string> notes;  // sentences for the log: a fallback that was taken
};

// kUser takes its socket from $XDG_RUNTIME_DIR, else from /tmp/ckptd-$UID, and its storage from $HOME; without HOME
// storage.root is empty, and loading fails unless the file gives it.
[[nodiscard]] Defaults DefaultConfig(ConfigMode mode, const Surroundings& surroundings);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_CONFIG_CONFIG_H_
