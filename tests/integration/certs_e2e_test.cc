// Agents of several nodes that know each other by certificates of `ckptctl certs`, as a user makes them.
#include <poll.h>
#include <sys/socket.h>

#include "daemon/membership/testing/dns_server.h"
#include "daemon/os/socket_address.h"
#include "daemon/os/testing/mounted_dir.h"
#include "daemon/transport/hello.h"
#include "daemon/transport/move_frame.h"
#include "proto/ckptd/v1/copy.pb.h"
#include "tests/integration/cluster.h"

namespace ckptd::harness {
namespace {

class CertsTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/ckptd-certs-XXXXXX";
    dir_ = mkdtemp(name);
  }
  void TearDown() override {
    cluster_.reset();
    std::filesystem::remove_all(dir_);
  }

  // Without an agent.
  Said Certs(const std::string& line) {
    std::vector<std::string> argv = {BinaryDirectory() + "/ckptctl", "certs"};
    for (const std::string& word : Args(line)) argv.push_back(word);
    Child child({argv, {"NO_COLOR=1"}, dir_ + "/stderr"});
    Said said;
    said.code = child.Wait();
    for (const std::string& each : child.lines()) said.out += each + "\n";
    return said;
  }
  void MakeAuthority(const std::string& name, const std::string& nodes, const std::string& more = "") {
    const std::string dir = " --dir " + dir_ + "/" + name;
    Said said = Certs("init --cluster ml" + dir);
    ASSERT_EQ(said.code, 0) << said;
    said = Certs("node " + nodes + dir + more);
    ASSERT_EQ(said.code, 0) << said;
    ASSERT_TRUE(said.Has("[peers]\ncluster = \"ml\"\ntls_ca = ")) << said;
  }
  // A node's settings with the files of that authority; peers.tls is what it is when nobody says anything.
  [[nodiscard]] std::map<std::string, std::string> Settings(const std::string& authority, size_t number) const {
    return SettingsOf(authority, Cluster::NameOf(number));
  }
  [[nodiscard]] std::map<std::string, std::string> SettingsOf(const std::string& authority,
                                                              const std::string& name) const {
    const std::string folder = dir_ + "/" + authority;
    return SettingsIn(folder, folder + "/nodes/" + name);
  }
  [[nodiscard]] static std::map<std::string, std::string> SettingsIn(const std::string& folder,
                                                                     const std::string& stem) {
    return {{"peers.tls", Quoted("mutual")},
            {"peers.cluster", Quoted("ml")},
            {"peers.tls_ca", Quoted(folder + "/ca.pem")},
            {"peers.tls_cert", Quoted(stem + ".pem")},
            {"peers.tls_key", Quoted(stem + ".key")}};
  }
  // Node i with a certificate of authorities[i].
  void Make(const std::vector<std::string>& authorities, std::map<std::string, std::string> settings = {}) {
    ClusterOptions options;
    options.nodes = authorities.size();
    options.settings = std::move(settings);
    options.more = [&](size_t number) { return Settings(authorities[number], number); };
    cluster_ = std::make_unique<Cluster>(options);
    ASSERT_TRUE(cluster_->Start()) << cluster_->Logs();
  }
  // A job with a rank on each of these nodes saves what all of them have, in time.
  void ExpectCaptures(const std::vector<size_t>& where) {
    Ranks ranks = cluster_->Train(where, "--every 5 --step-ms 5 --steps 100000");
    for (auto& rank : ranks) EXPECT_TRUE(rank->WaitFor("CAPTURED")) << rank->Errors() << cluster_->Logs();
    for (auto& rank : ranks) rank->Kill();
  }

  std::string dir_;
  std::unique_ptr<Cluster> cluster_;
};

TEST_F(CertsTest, AJobRunsOnNodesOfOneAuthorityAndAfterARotation) {
  ASSERT_NO_FATAL_FAILURE(MakeAuthority("ours", "node-a,node-b"));
  ASSERT_NO_FATAL_FAILURE(Make({"ours", "ours"}));
  ExpectCaptures({0, 1});
  EXPECT_TRUE(cluster_->Ctl(0, "status").Has("2 nodes by static; this one is node-a, linked to 1\n"))
      << cluster_->Ctl(0, "status");
  const std::string ours = " --dir " + dir_ + "/ours";
  EXPECT_TRUE(Certs("rotate --within 30d" + ours).Has("0 of 2 renewed\n"));
  const Said rotated = Certs("rotate" + ours);
  EXPECT_EQ(rotated.code, 0) << rotated;
  EXPECT_TRUE(rotated.Has("2 of 2 renewed\n")) << rotated;
  // One agent has the new files from its start, the other looks at them by itself.
  ASSERT_EQ(cluster_->node(1).StopAgent(), 0);
  ASSERT_TRUE(cluster_->node(1).StartAgent()) << cluster_->Logs();
  const Said said = cluster_->AwaitStatus(0, [](const Said& each) { return each.Has("linked to 1\n"); });
  EXPECT_TRUE(said.Has("linked to 1\n")) << said;
  ExpectCaptures({0, 1});
}

TEST_F(CertsTest, ACertificateThatEndsSoonIsTold) {
  ASSERT_NO_FATAL_FAILURE(MakeAuthority("ours", "node-a", " --days 5"));
  ASSERT_NO_FATAL_FAILURE(MakeAuthority("long", "node-b", " --days 90"));
  ASSERT_NO_FATAL_FAILURE(Make({"ours", "long"}));
  const auto told = [](const Said& each) { return each.Has("ends in 4 days and 2"); };
  const Said said = cluster_->AwaitStatus(0, told);
  EXPECT_EQ(said.code, 1) << said;
  EXPECT_TRUE(told(said)) << said << cluster_->Logs();
  EXPECT_TRUE(said.Has("a certificate ends in 4 days")) << said;
  EXPECT_TRUE(said.Has("peers.tls_cert, " + dir_ + "/ours/nodes/node-a.pem")) << said;
  EXPECT_TRUE(said.Has("ckptctl certs rotate")) << said;
  EXPECT_FALSE(said.Has("peers.tls_ca")) << said;
  EXPECT_NE(cluster_->node(0).AgentLog().find("op=peers.certificate_ends"), std::string::npos) << cluster_->Logs();
  EXPECT_TRUE(cluster_->Ctl(1, "status -o json").Has("\"key\": \"peers.tls_ca\""))
      << cluster_->Ctl(1, "status -o json");
  EXPECT_FALSE(cluster_->Ctl(1, "status").Has("certificate ends")) << cluster_->Ctl(1, "status");
  EXPECT_EQ(cluster_->node(1).AgentLog().find("op=peers.certificate_ends"), std::string::npos) << cluster_->Logs();
}

// The new certificate comes without its key: what ends soon is still what is in use.
TEST_F(CertsTest, ACertificateWithoutItsKeyIsTold) {
  ASSERT_NO_FATAL_FAILURE(MakeAuthority("ours", "node-a,node-b", " --days 5"));
  ASSERT_NO_FATAL_FAILURE(Make({"ours", "ours"}));
  Said said = cluster_->AwaitStatus(0, [](const Said& each) { return each.Has("a certificate ends in 4 days"); });
  ASSERT_TRUE(said.Has("a certificate ends in 4 days")) << said << cluster_->Logs();
  std::filesystem::copy(dir_ + "/ours", dir_ + "/next", std::filesystem::copy_options::recursive);
  said = Certs("rotate --dir " + dir_ + "/next");
  ASSERT_EQ(said.code, 0) << said;
  const std::string key = dir_ + "/ours/nodes/node-a.key";
  std::filesystem::rename(dir_ + "/next/nodes/node-a.pem", dir_ + "/ours/nodes/node-a.pem");
  const std::string other = "peers.tls_key: " + key + ": is not the key of peers.tls_cert";
  said = cluster_->AwaitStatus(0, [&](const Said& each) { return each.Has(other); });
  EXPECT_TRUE(said.Has(other)) << said << cluster_->Logs();
  EXPECT_TRUE(said.Has("a certificate ends in 4 days")) << said;
  EXPECT_EQ(said.code, 1) << said;
  EXPECT_FALSE(cluster_->Ctl(1, "status").Has("peers.tls_key")) << cluster_->Ctl(1, "status");
  std::filesystem::remove(key);
  said = cluster_->AwaitStatus(0, [](const Said& each) { return each.Has("No such file"); });
  EXPECT_TRUE(said.Has("peers.tls_key: ") && said.Has(key + ": No such file")) << said;
  EXPECT_TRUE(said.Has("a certificate ends in 4 days")) << said;
  std::filesystem::rename(dir_ + "/next/nodes/node-a.key", key);
  said = cluster_->AwaitStatus(0, [](const Said& each) { return !each.Has("peers.tls_"); });
  EXPECT_FALSE(said.Has("peers.tls_")) << said << cluster_->Logs();
  ExpectCaptures({0, 1});
}

// As Kubernetes mounts them: all that an agent has at first is of an authority that node c does not believe, and the
// other way round.
TEST_F(CertsTest, CertificatesBehindLinksAreExchangedByOne) {
  for (const char* each : {"ours", "next"})
    ASSERT_NO_FATAL_FAILURE(MakeAuthority(each, "node-a,node-b,node-c", " --out " + dir_ + "/" + each));
  const MountedDir mounted({"ca.pem", "node-a.pem", "node-a.key", "node-b.pem", "node-b.key"}, dir_ + "/ours");
  ClusterOptions options;
  options.nodes = 3;
  options.settings = {{"agent.decide_timeout", Quoted("2s")}};
  options.more = [&](size_t number) {
    const std::string folder = number == 2 ? dir_ + "/next" : mounted.path();
    return SettingsIn(folder, folder + "/" + Cluster::NameOf(number));
  };
  cluster_ = std::make_unique<Cluster>(options);
  ASSERT_TRUE(cluster_->Start()) << cluster_->Logs();
  ExpectCaptures({0, 1});
  Said said = cluster_->AwaitStatus(0, [](const Said& each) { return each.Has("node node-c is not reached: "); });
  EXPECT_TRUE(said.Has("certificate verify failed")) << said;
  mounted.Switch(dir_ + "/next");
  said = cluster_->AwaitStatus(0, [](const Said& each) { return each.Has("linked to 2\n"); });
  EXPECT_TRUE(said.Has("linked to 2\n")) << said;
  Ranks ranks = cluster_->Train({0, 1, 2}, "--job three --every 5 --step-ms 5 --steps 100000");
  for (auto& rank : ranks) EXPECT_TRUE(rank->WaitFor("CAPTURED")) << rank->Errors() << cluster_->Logs();
  KillAll(ranks);
  cluster_.reset();
}

// As behind a headless service: nodes are named by their addresses, which they know before DNS answers. Ranks begin
// while it is still silent.
TEST_F(CertsTest, NodesThatDnsNamesByAddressRunAJob) {
  membership::DnsServer dns;
  dns.Behave(membership::DnsServer::kSilent);
  dns.Set("nodes.test", membership::kDnsA,
          {membership::AddressData(Cluster::LoopbackOf(0)), membership::AddressData(Cluster::LoopbackOf(1))});
  ASSERT_NO_FATAL_FAILURE(MakeAuthority("ours", Cluster::LoopbackOf(0) + "," + Cluster::LoopbackOf(1)));
  ClusterOptions options;
  options.settings = {{"peers.membership", Quoted("dns")},
                      {"peers.members", Quoted("")},
                      {"peers.dns_name", Quoted("nodes.test")},
                      {"peers.dns_server", Quoted(dns.address())},
                      {"peers.dns_refresh", Quoted("1s")}};
  options.more = [&](size_t number) { return SettingsOf("ours", Cluster::LoopbackOf(number)); };
  cluster_ = std::make_unique<Cluster>(options);
  ASSERT_TRUE(cluster_->Start()) << cluster_->Logs();
  Ranks ranks = cluster_->Train({0, 1}, "--every 5 --step-ms 5 --steps 100000");
  dns.Behave(membership::DnsServer::kProper);
  for (auto& rank : ranks) EXPECT_TRUE(rank->WaitFor("CAPTURED")) << rank->Errors() << cluster_->Logs();
  const Said said = cluster_->Ctl(0, "status");
  EXPECT_TRUE(said.Has("2 nodes by dns; this one is " + Cluster::LoopbackOf(0) + ", linked to 1\n")) << said;
  for (auto& rank : ranks) rank->Kill();
}

// What anybody may say to node b's port for plain TCP: that he is node a, in its last life, and a token of his own
// make. It hangs up then.
void KnockAsNodeA(const std::string& address) {
  using transport::FrameKind;
  v1::MoveHello hello;
  *hello.mutable_from() = transport::MakeHello({"ml", "node-a", "node-a", UINT64_MAX, 7}, "node-b");
  transport::Hello transfer{transport::RandomToken(), {"node-a", "trainer", 0, {1, 5}, 1}, 1 << 20, 1 << 20};
  hello.set_transfer(transport::EncodeHello(transfer));
  const std::string body = hello.SerializeAsString();
  const std::string frame = transport::FrameHead(FrameKind::kHello, body.size()) + body;
  const auto to = ParseSocketAddress(address, 9466);
  ASSERT_TRUE(to.ok()) << to.status();
  const auto fd = StartConnect(*to, 0);
  ASSERT_TRUE(fd.ok()) << fd.status();
  pollfd ready{fd->get(), POLLOUT, 0};
  ASSERT_EQ(poll(&ready, 1, static_cast<int>(kLong.count())), 1);
  ASSERT_EQ(send(fd->get(), frame.data(), frame.size(), MSG_NOSIGNAL), static_cast<ssize_t>(frame.size()));
  char byte = 0;
  ssize_t got = 1;
  for (ready.events = POLLIN; got > 0 && poll(&ready, 1, static_cast<int>(kLong.count())) == 1;)
    got = recv(fd->get(), &byte, 1, 0);
  ASSERT_LE(got, 0) << "it stays connected";
}

// The network is said to be trusted, and somebody is there all the same.
TEST_F(CertsTest, AStrangerAtThePortForCopiesFencesNobody) {
  ASSERT_NO_FATAL_FAILURE(MakeAuthority("ours", "node-a,node-b"));
  ASSERT_NO_FATAL_FAILURE(Make({"ours", "ours"}, {{"peers.bulk", Quoted("tcp")},
                                                  {"peers.bulk_network", Quoted("trusted")},
                                                  {"durability.flush_every", "1000000"}}));
  Ranks ranks = cluster_->Train({0, 1}, "--every 5 --step-ms 5 --steps 100000");
  const auto await_protected = [&] {
    for (const uint64_t before = LastOf(ranks, "STEP"); LastOf(ranks, "PROTECTED") <= before;) {
      for (auto& rank : ranks) ASSERT_TRUE(rank->WaitFor("PROTECTED")) << rank->Errors() << cluster_->Logs();
    }
  };
  ASSERT_NO_FATAL_FAILURE(await_protected());
  ASSERT_NO_FATAL_FAILURE(KnockAsNodeA(cluster_->AddressOf(1)));
  ASSERT_NO_FATAL_FAILURE(await_protected());
  cluster_->node(0).KillAgent();
  ASSERT_TRUE(cluster_->node(0).StartAgent()) << cluster_->Logs();
  ASSERT_NO_FATAL_FAILURE(await_protected()) << "a new life, and new links";
  for (const size_t number : {0, 1}) {
    const Said said = cluster_->AwaitStatus(number, [](const Said& each) { return each.Has("linked to 1\n"); });
    EXPECT_TRUE(said.Has("linked to 1\n")) << said << cluster_->Logs();
  }
  EXPECT_EQ(cluster_->Logs().find("code=FENCED"), std::string::npos) << cluster_->Logs();
  KillAll(ranks);
}

// Node c says that it is node c, and an authority says so too: not ours.
TEST_F(CertsTest, ANodeOfAnotherAuthorityIsNoPartOfAJob) {
  ASSERT_NO_FATAL_FAILURE(MakeAuthority("ours", "node-a,node-b"));
  ASSERT_NO_FATAL_FAILURE(MakeAuthority("theirs", "node-c"));
  ASSERT_NO_FATAL_FAILURE(Make({"ours", "ours", "theirs"}, {{"agent.decide_timeout", Quoted("2s")}}));
  Ranks ranks = cluster_->Train({0, 1, 2}, "--job three --restore-ms 8000 --steps 20");
  for (size_t i = 0; i < ranks.size(); ++i) EXPECT_EQ(ranks[i]->Wait(), 1) << "rank " << i << cluster_->Logs();
  for (size_t i : {0, 1})
    EXPECT_NE(ranks[i]->Errors().find("2 did not call restore()"), std::string::npos) << ranks[i]->Errors();
  // The coordinator's, which has something to say to every node.
  const Said said = cluster_->AwaitStatus(0, [](const Said& each) { return each.Has("node node-c is not reached: "); });
  EXPECT_TRUE(said.Has("node node-c is not reached: ")) << said;
  EXPECT_TRUE(said.Has("certificate verify failed")) << said;
  EXPECT_EQ(said.code, 1) << said;
  ExpectCaptures({0, 1});
}

}  // namespace
}  // namespace ckptd::harness
