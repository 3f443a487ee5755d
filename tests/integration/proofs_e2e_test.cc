// Before older steps go, the newest one is read back: on two nodes, each reads the images of its own ranks only.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/integration/cluster.h"
#include "tests/integration/http.h"

namespace ckptd::harness {
namespace {

namespace fs = std::filesystem;

class ProofsE2eTest : public testing::Test {
 protected:
  void Make(const std::string& keep_last) {
    for (uint16_t& port : ports_) port = FreePort();
    const auto more = [&](size_t node) {
      return std::map<std::string, std::string>{
          {"metrics.listen", Quoted("127.0.0.1:" + std::to_string(ports_[node]))}};
    };
    cluster_ = std::make_unique<Cluster>(ClusterOptions{2, {{"retention.keep_last", keep_last}}, more});
    ASSERT_TRUE(cluster_->Start()) << cluster_->Logs();
  }

  [[nodiscard]] std::string Root() { return cluster_->node(0).storage() + "/trainer"; }
  // Committed, oldest first.
  [[nodiscard]] std::vector<uint64_t> Steps() {
    std::vector<uint64_t> steps;
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(Root(), ignored)) {
      std::error_code none;
      const std::string name = entry.path().filename();
      if (fs::exists(entry.path() / "manifest.json", none)) steps.push_back(strtoull(name.c_str() + 5, nullptr, 10));
    }
    std::sort(steps.begin(), steps.end());
    return steps;
  }
  [[nodiscard]] std::string ImageOf(uint64_t step, size_t rank) {
    for (const auto& entry : fs::directory_iterator(Root())) {
      const std::string name = entry.path().filename();
      if (name.rfind("step-", 0) == 0 && strtoull(name.c_str() + 5, nullptr, 10) == step)
        return entry.path() / ("rank-0000" + std::to_string(rank) + "-of-00002.safetensors");
    }
    return "";
  }
  [[nodiscard]] uint64_t Proven(size_t node) const {
    const std::string name = "\nckptd_proven_bytes_total ";
    const std::string said = Get(ports_[node], "/metrics").body;
    const size_t at = said.find(name);
    return at == said.npos ? 0 : strtoull(said.c_str() + at + name.size(), nullptr, 10);
  }
  template <typename Done>
  static bool Await(const Done& done) {
    const auto deadline = std::chrono::steady_clock::now() + kLong;
    while (!done() && std::chrono::steady_clock::now() < deadline) usleep(20'000);
    return done();
  }
  // The trainers stand still, and what was begun ends.
  static void Pause(Ranks& ranks) {
    for (const auto& rank : ranks) rank->Signal(SIGSTOP);
    usleep(1'000'000);
  }
  void KeepOne(const std::string& before) {
    const std::string file = cluster_->node(0).base() + "/ckptd.toml";
    std::ifstream in(file);
    std::string text{std::istreambuf_iterator<char>(in), {}};
    const std::string line = "keep_last = " + before;
    ASSERT_NE(text.find(line), text.npos);
    std::ofstream(file) << text.replace(text.find(line), line.size(), "keep_last = 1");
    cluster_->node(0).agent()->Signal(SIGHUP);
  }

  uint16_t ports_[2] = {};
  std::unique_ptr<Cluster> cluster_;
};

TEST_F(ProofsE2eTest, EachNodeReadsItsOwnRanksAndOlderStepsGo) {
  ASSERT_NO_FATAL_FAILURE(Make("50"));
  Ranks ranks = cluster_->Train({0, 1}, "--every 5 --step-ms 5 --steps 100000");
  ASSERT_TRUE(Await([&] { return Steps().size() >= 5; })) << cluster_->Logs();
  Pause(ranks);
  EXPECT_EQ(Proven(0) + Proven(1), 0u) << "nothing is to go";
  const uint64_t newest = Steps().back();
  KeepOne("50");
  EXPECT_TRUE(Await([&] { return Steps().size() == 1; })) << cluster_->Ctl(0, "status") << cluster_->Logs();
  EXPECT_EQ(Steps().back(), newest);
  for (const size_t node : {0, 1}) {
    EXPECT_EQ(Proven(node), fs::file_size(ImageOf(newest, node))) << "node " << node << cluster_->Logs();
  }
  EXPECT_EQ(cluster_->Ctl(0, "status").code, 0) << cluster_->Ctl(0, "status");
  KillAll(ranks);
}

TEST_F(ProofsE2eTest, OneRanksDamagedImageKeepsAllAndIsNamed) {
  ASSERT_NO_FATAL_FAILURE(Make("50"));
  Ranks ranks = cluster_->Train({0, 1}, "--every 5 --step-ms 5 --steps 100000");
  ASSERT_TRUE(Await([&] { return Steps().size() >= 3; })) << cluster_->Logs();
  Pause(ranks);
  const std::vector<uint64_t> steps = Steps();
  for (size_t i = 1; i < steps.size(); ++i) FlipByte(ImageOf(steps[i], 1), 20000);
  KeepOne("50");
  const std::string damaged = "step " + std::to_string(steps.back()) + " is damaged on the storage";
  const Said said = cluster_->AwaitStatus(0, [&](const Said& each) { return each.Has(damaged); });
  EXPECT_TRUE(said.Has(damaged)) << said << cluster_->Logs();
  EXPECT_TRUE(said.Has("rank 1, read back by agent node-b")) << said;
  EXPECT_EQ(said.code, 1) << said;
  EXPECT_TRUE(Await([&] { return cluster_->Logs().find("op=job.storage") != std::string::npos; }));
  EXPECT_EQ(Steps(), steps);
  KillAll(ranks);
}

}  // namespace
}  // namespace ckptd::harness
