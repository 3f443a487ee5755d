// Nodes in network namespaces, whose agents speak mutual TLS: what networks do to them is done to real packets.
#ifndef CKPTD_TESTS_INTEGRATION_NETWORK_FIXTURE_H_
#define CKPTD_TESTS_INTEGRATION_NETWORK_FIXTURE_H_

#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "tests/integration/copies_fixture.h"
#include "tests/integration/namespaces.h"

namespace ckptd::harness {

class NetworkTest : public CopiesTest {
 protected:
  void TearDown() override {
    cluster_.reset();
    std::error_code ignored;
    std::filesystem::remove_all(dir_, ignored);
  }
  // What an agent's command line begins with.
  [[nodiscard]] virtual std::vector<std::string> AgentPrefix(size_t number) const { return network_.Prefix(number); }
  // Names and certificates of three nodes in the namespaces; agents that run.
  void MakeNodes(std::map<std::string, std::string> settings = MemoryOnly()) {
    char name[] = "/tmp/ckptd-faults-XXXXXX";
    dir_ = mkdtemp(name);
    for (const char* line : {"certs init --cluster faults", "certs node node-a node-b node-c"}) {
      std::vector<std::string> argv = Args(line);
      argv.insert(argv.begin(), BinaryDirectory() + "/ckptctl");
      argv.insert(argv.end(), {"--dir", dir_});
      Child child({argv, {}, dir_ + "/stderr"});
      ASSERT_EQ(child.Wait(), 0) << child.Errors();
    }
    ClusterOptions options{3, std::move(settings), [this](size_t number) { return Tls(number); }};
    options.address = Namespaces::AddressOf;
    options.prefix = [this](size_t number) { return AgentPrefix(number); };
    cluster_ = std::make_unique<Cluster>(options);
    ASSERT_TRUE(cluster_->Start()) << cluster_->Logs();
  }
  [[nodiscard]] std::map<std::string, std::string> Tls(size_t number) const {
    const std::string stem = dir_ + "/nodes/" + Cluster::NameOf(number);
    return {{"peers.tls", Quoted("mutual")},
            {"peers.cluster", Quoted("faults")},
            {"peers.tls_ca", Quoted(dir_ + "/ca.pem")},
            {"peers.tls_cert", Quoted(stem + ".pem")},
            {"peers.tls_key", Quoted(stem + ".key")}};
  }

  Namespaces network_{3};
  std::string dir_;
};

}  // namespace ckptd::harness

#endif  // CKPTD_TESTS_INTEGRATION_NETWORK_FIXTURE_H_
