// Copies of snapshots on each of the ways between nodes, and which of them is taken. Real agents over real sockets.
#include <gmock/gmock.h>

#include <cstdio>
#include <filesystem>

#include "tests/integration/copies_fixture.h"

namespace ckptd::harness {
namespace {

// Between the first two over UCX; the third has it not, and all work together.
TEST_F(CopiesTest, OverUcxTooAndWithANodeThatHasItNot) {
  ClusterOptions options{3, MemoryOnly(), [](size_t number) {
                           std::map<std::string, std::string> more{{"peers.bulk_network", Quoted("trusted")}};
                           more["peers.bulk"] = Quoted(number == 2 ? "grpc" : "ucx");
                           if (const char* newer = std::getenv("CKPTD_TEST_UCX"); newer != nullptr)
                             more["peers.ucx_library"] = Quoted(newer);
                           return more;
                         }};
  cluster_ = std::make_unique<Cluster>(options);
  ASSERT_TRUE(cluster_->Start()) << cluster_->Logs();
  ASSERT_NO_FATAL_FAILURE(ComesBackWithout(2, 1));
  if (cluster_->Logs().find("peers.no_ucx") != std::string::npos)
    GTEST_SKIP() << "skipped: no UCX here that can be used";
  EXPECT_NE(cluster_->Logs().find("peers.ucx"), std::string::npos) << cluster_->Logs();
}

// What `ckptctl certs` makes for the nodes of a cluster. Outlives its agents.
class CertsDir {
 public:
  explicit CertsDir(size_t nodes) {
    char name[] = "/tmp/ckptd-certs-XXXXXX";
    dir_ = mkdtemp(name);
    std::string names;
    for (size_t i = 0; i < nodes; ++i) names += " " + Cluster::NameOf(i);
    Run("init --cluster ml --dir " + dir_);
    Run("node" + names + " --dir " + dir_);
  }
  ~CertsDir() { std::filesystem::remove_all(dir_); }
  CertsDir(const CertsDir&) = delete;
  CertsDir& operator=(const CertsDir&) = delete;
  [[nodiscard]] std::map<std::string, std::string> SettingsOf(size_t number) const {
    const std::string stem = dir_ + "/nodes/" + Cluster::NameOf(number);
    return {{"peers.tls", Quoted("mutual")},
            {"peers.cluster", Quoted("ml")},
            {"peers.tls_ca", Quoted(dir_ + "/ca.pem")},
            {"peers.tls_cert", Quoted(stem + ".pem")},
            {"peers.tls_key", Quoted(stem + ".key")}};
  }

 private:
  void Run(const std::string& line) const {
    std::vector<std::string> argv = {BinaryDirectory() + "/ckptctl", "certs"};
    for (const std::string& word : Args(line)) argv.push_back(word);
    Child child({argv, {"NO_COLOR=1"}, dir_ + "/stderr"});
    EXPECT_EQ(child.Wait(), 0) << line;
  }
  std::string dir_;
};

// Between the first two over TLS of our own; the third has only gRPC's, and all work together.
TEST_F(CopiesTest, OverTlsTooAndWithANodeThatHasItNot) {
  const CertsDir certs(3);
  ClusterOptions options{3, MemoryOnly(), [&](size_t number) {
                           std::map<std::string, std::string> more = certs.SettingsOf(number);
                           more["peers.bulk"] = Quoted(number == 2 ? "grpc" : "tls");
                           if (number != 2) more["peers.dscp"] = "8";
                           more["agent.log_level"] = Quoted("debug");
                           return more;
                         }};
  cluster_ = std::make_unique<Cluster>(options);
  ASSERT_TRUE(cluster_->Start()) << cluster_->Logs();
  ASSERT_NO_FATAL_FAILURE(ComesBackWithout(2, 1));
  EXPECT_NE(cluster_->Logs().find("tls.came"), std::string::npos) << "nothing went over it\n" << cluster_->Logs();
  EXPECT_EQ(cluster_->Logs().find("peers.no_tls"), std::string::npos);
  cluster_.reset();
}

// Between the first two over plain TCP, the bytes taken out of the slots by the kernel.
TEST_F(CopiesTest, OverPlainTcpTooAndWithANodeThatHasItNot) {
  std::map<std::string, std::string> settings = MemoryOnly();
  settings["agent.log_level"] = Quoted("debug");
  cluster_ = std::make_unique<Cluster>(ClusterOptions{3, settings, [](size_t number) {
                                                        const std::string way = Quoted(number == 2 ? "grpc" : "tcp");
                                                        return std::map<std::string, std::string>{{"peers.bulk", way}};
                                                      }});
  ASSERT_TRUE(cluster_->Start()) << cluster_->Logs();
  ASSERT_NO_FATAL_FAILURE(ComesBackWithout(2, 1));
  EXPECT_NE(cluster_->Logs().find("tcp.came"), std::string::npos) << "nothing went over it\n" << cluster_->Logs();
  EXPECT_EQ(cluster_->Logs().find("peers.no_tcp"), std::string::npos);
}

// Whichever way is the fastest; which, and how fast, the status tells.
class FastestWay : public CopiesTest {
 protected:
  // Both ways are measured.
  void ExpectMeasured(const char* way, const std::function<std::map<std::string, std::string>(size_t)>& more) {
    std::map<std::string, std::string> settings = MemoryOnly();
    settings["peers.bulk"] = Quoted("auto");
    cluster_ = std::make_unique<Cluster>(ClusterOptions{3, settings, more});
    ASSERT_TRUE(cluster_->Start()) << cluster_->Logs();
    Ranks ranks = cluster_->Train({0, 1}, std::string(kForever) + " --bytes 16000000");
    AwaitProtected(ranks, 4);
    const Said said = cluster_->AwaitStatus(0, [](const Said& each) { return each.Has("; copies over "); });
    EXPECT_TRUE(said.Has("; copies over ")) << said << cluster_->Logs();
    const auto has_both = [way](const Said& json) {
      return json.Has("\"way\": \"" + std::string(way) + "\"") && json.Has("\"way\": \"grpc\"");
    };
    Said json = cluster_->Ctl(0, "status -o json");
    for (int i = 0; i < 300 && !has_both(json); ++i) {  // they take turns
      usleep(100'000);
      json = cluster_->Ctl(0, "status -o json");
    }
    EXPECT_TRUE(has_both(json)) << json << cluster_->Logs();
    KillAll(ranks);
    cluster_.reset();
  }
};

TEST_F(FastestWay, OfTls) {
  const CertsDir certs(3);
  ExpectMeasured("tls", [&](size_t number) { return certs.SettingsOf(number); });
}

TEST_F(FastestWay, OfPlainTcpWhereNothingNeedBeSecret) {
  ExpectMeasured("tcp", [](size_t) { return std::map<std::string, std::string>(); });
}

TEST_F(FastestWay, OfPlainTcpWhereTheNetworkIsTrusted) {
  const CertsDir certs(3);
  ExpectMeasured("tcp", [&](size_t number) {
    std::map<std::string, std::string> settings = certs.SettingsOf(number);
    settings["peers.bulk_network"] = Quoted("trusted");
    return settings;
  });
}

}  // namespace
}  // namespace ckptd::harness
