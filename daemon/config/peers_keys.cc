#include "daemon/config/peers_keys.h"

#include <chrono>
#include <utility>

#include "daemon/config/key_builders.h"

namespace ckptd {
namespace {

void AddMembershipKeys(std::vector<Key>* keys) {
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
                       "PEM file of who signed the servers' certificates; empty is the system's. What is in this file "
                       "and the next two may change at any time."));
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
      std::vector<std::pair<const char*, PeersBulkChoice>>{{"auto", PeersBulkChoice::kAuto},
                                                           {"grpc", PeersBulkChoice::kGrpc},
                                                           {"tls", PeersBulkChoice::kTls},
                                                           {"tcp", PeersBulkChoice::kTcp},
                                                           {"ucx", PeersBulkChoice::kUcx}},
      "How the bytes of copies move: over gRPC, encrypted by peers.tls; over connections of TLS 1.3 with the same "
      "certificates where both nodes say so, faster; over plain TCP where both say so, the fastest, or over UCX where "
      "both have it, neither encrypted, for which peers.bulk_network must be trusted; auto is whichever of those that "
      "may be used was the fastest to that node lately, and none that is not encrypted unless it may."));
  keys->push_back(
      Count("peers.bulk_port", Key::kRestart, CKPTD_FIELD(peers.bulk_port), 0, 65535,
            "Where other nodes reach this one for copies, with peers.bulk = tls, tcp or auto; 0 is any free port. They "
            "hear it from this node, so each may have its own."));
  keys->push_back(Count(
      "peers.dscp", Key::kRestart, CKPTD_FIELD(peers.dscp), 0, 63,
      "Marks the packets of copies, with peers.bulk = tls, tcp or auto, such as 8 (CS1) for below everything else; 0 "
      "does not."));
  keys->push_back(Choice(
      "peers.bulk_network", Key::kRestart, CKPTD_FIELD(peers.bulk_network),
      std::vector<std::pair<const char*, BulkNetworkChoice>>{{"untrusted", BulkNetworkChoice::kUntrusted},
                                                             {"trusted", BulkNetworkChoice::kTrusted}},
      "trusted says of the network that plain TCP and UCX use: nobody but this cluster's own nodes reaches it. "
      "Whoever does can read copies, and change them on their way; over UCX he can write to the agent's memory."));
  keys->push_back(Text(
      "peers.ucx_library", Key::kRestart, CKPTD_FIELD(peers.ucx_library), "absolute path, or empty",
      [](absl::string_view text) { return text.empty() || IsPath(text, kPathBytes); },
      "libucp.so.0 of the UCX to load, 1.14 or newer, where it is not the system's; it finds its other parts beside "
      "it."));
}

}  // namespace

void AddPeersKeys(std::vector<Key>* keys) {
  for (auto add : {AddMembershipKeys, AddEtcdKeys, AddTlsKeys, AddCopiesKeys}) add(keys);
}

}  // namespace ckptd
