// A rank's snapshot that two other nodes hold comes from both of them at once, whatever one of them does meanwhile.
#include <signal.h>

#include <chrono>
#include <cstdio>
#include <filesystem>

#include "tests/integration/network_fixture.h"

namespace ckptd::harness {
namespace {

std::map<std::string, std::string> ThreeCopies() {
  std::map<std::string, std::string> settings = MemoryOnly();
  settings["peers.copies"] = "3";
  settings["region.chunk_bytes"] = Quoted("64 KiB");
  return settings;
}

// Bytes that the agent says came from there.
uint64_t BroughtFrom(const std::string& log, const std::string& source) {
  uint64_t bytes = 0;
  for (size_t at = log.find("op=copy.fetched"); at != std::string::npos; at = log.find("op=copy.fetched", at + 1)) {
    const std::string line = log.substr(at, log.find('\n', at) - at);
    if (line.find("source=\"" + source) == std::string::npos) continue;
    bytes += std::strtoull(line.c_str() + line.find("bytes=") + 6, nullptr, 10);
  }
  return bytes;
}

// All ranks, mostly one, run on node a, and b and c hold their snapshots.
class SourcesTest : public CopiesTest {
 protected:
  static constexpr char kImage[] = " --bytes 8388608";
  // Few steps: while ranks wait for something they would compute, and there are six.
  static constexpr char kCalm[] = "--every 2 --step-ms 25 --steps 100000";

  // `at_b`, `at_c`: what happens there when a chunk is sent to another node (failpoint copy.send).
  void MakeNodes(const std::string& at_b, const std::string& at_c, size_t ranks = 1) {
    const auto failpoint = [](const std::string& what) { return "CKPTD_FAILPOINTS=copy.send=" + what; };
    where_.assign(ranks, 0);
    cluster_ = std::make_unique<Cluster>(ClusterOptions{3, ThreeCopies(), {}});
    ASSERT_TRUE(cluster_->node(0).StartAgent()) << cluster_->Logs();
    ASSERT_TRUE(cluster_->node(1).StartAgent({failpoint(at_b)})) << cluster_->Logs();
    ASSERT_TRUE(cluster_->node(2).StartAgent({failpoint(at_c)})) << cluster_->Logs();
    ranks_ = cluster_->Train(where_, kCalm + std::string(kImage));
    ASSERT_NO_FATAL_FAILURE(AwaitProtected(ranks_, 1));
  }
  // Everything that node a had.
  void LoseItsNode() {
    LoseNode(0);
    KillAll(ranks_);
    for (const size_t holder : {1, 2})
      ASSERT_FALSE(FilesWith(cluster_->node(holder).region(), "peer-00000").empty()) << "node " << holder;
  }
  // The node is back with nothing.
  void ExpectRestored() {
    ASSERT_TRUE(cluster_->node(0).StartAgent()) << cluster_->Logs();
    const std::string line = LineTo(LastOf(ranks_, "STEP") + 30) + kImage;
    const Ranks ranks = cluster_->Train(where_, line);
    const Rest rest = Finish(ranks, where_, line);
    EXPECT_GE(rest.step, LastOf(ranks_, "PROTECTED")) << cluster_->Logs();
    EXPECT_EQ(rest.sources, std::vector<uint64_t>(where_.size(), kReplica)) << cluster_->Logs();
  }
  [[nodiscard]] std::string Log() { return cluster_->node(0).AgentLog(); }

  std::vector<size_t> where_;  // the ranks are
  Ranks ranks_;
};

TEST_F(SourcesTest, BothHoldersBringIt) {
  ASSERT_NO_FATAL_FAILURE(MakeNodes("sleep:20", "sleep:20"));
  ASSERT_NO_FATAL_FAILURE(LoseItsNode());
  ASSERT_NO_FATAL_FAILURE(ExpectRestored());
  const uint64_t b = BroughtFrom(Log(), "agent node-b");
  const uint64_t c = BroughtFrom(Log(), "agent node-c");
  EXPECT_GT(b, 0u) << Log();
  EXPECT_GT(c, 0u) << Log();
  EXPECT_GE(b + c, uint64_t{8} << 20) << Log();
  std::printf("node-b brought %lu bytes, node-c %lu\n", b, c);
}

// More transfers than an agent has at once: they have their turns, and nobody is taken for slow.
TEST_F(SourcesTest, SixRanksOfANodeComeBackFromBothHolders) {
  ASSERT_NO_FATAL_FAILURE(MakeNodes("sleep:5", "sleep:5", 6));
  ASSERT_NO_FATAL_FAILURE(LoseItsNode());
  ASSERT_NO_FATAL_FAILURE(ExpectRestored());
  EXPECT_GT(BroughtFrom(Log(), "agent node-b"), uint64_t{6} << 20) << Log();
  EXPECT_GT(BroughtFrom(Log(), "agent node-c"), uint64_t{6} << 20) << Log();
  EXPECT_EQ(Log().find("op=copy.not_there"), std::string::npos) << Log();
}

// One of them dies, or stands still, while it reads its tenth chunk for it.
class HolderFails : public SourcesTest, public testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(By, HolderFails, testing::Values("kill", "stop"),
                         [](const auto& how) { return std::string(how.param); });

TEST_P(HolderFails, AndTheOtherOneBringsTheRest) {
  ASSERT_NO_FATAL_FAILURE(MakeNodes(std::string(GetParam()) + "@10", "sleep:10"));
  ASSERT_NO_FATAL_FAILURE(LoseItsNode());
  ASSERT_NO_FATAL_FAILURE(ExpectRestored());
  EXPECT_GT(BroughtFrom(Log(), "agent node-c"), uint64_t{4} << 20) << Log();
  const bool killed = std::string(GetParam()) == "kill";
  if (!killed) kill(cluster_->node(1).agent()->pid(), SIGCONT);
  const int status = killed ? cluster_->node(1).TakeAgent()->Wait() : -SIGKILL;
  EXPECT_EQ(status, -SIGKILL) << "it was not asked";
}

TEST_F(SourcesTest, AHolderWhoseCopyIsDamagedIsLeftOut) {
  ASSERT_NO_FATAL_FAILURE(MakeNodes("sleep:1", "sleep:1"));
  ASSERT_NO_FATAL_FAILURE(LoseItsNode());
  for (const std::string& file : FilesWith(cluster_->node(1).region(), "peer-00000/slot-")) {
    for (uint64_t chunk = 0; chunk < 128; ++chunk) FlipByte(cluster_->node(1).region() + "/" + file, chunk << 16);
  }
  ASSERT_NO_FATAL_FAILURE(ExpectRestored());
  EXPECT_EQ(BroughtFrom(Log(), "agent node-b"), 0u) << Log();
  EXPECT_GE(BroughtFrom(Log(), "agent node-c"), uint64_t{8} << 20) << Log();
  EXPECT_NE(Log().find("op=copy.not_there"), std::string::npos) << "it is named" << Log();
}

// One of them stands still, and the trainer dies and starts again before it is given up. The other one refuses to bring
// its part to an attempt that is over; the one after it gets the step from their memory all the same.
TEST_F(SourcesTest, ATrainerThatStartsAnewMeanwhileGetsItToo) {
  ASSERT_NO_FATAL_FAILURE(MakeNodes("stop@10", "sleep:30"));
  ASSERT_NO_FATAL_FAILURE(LoseItsNode());
  ASSERT_TRUE(cluster_->node(0).StartAgent()) << cluster_->Logs();
  const std::string line = LineTo(LastOf(ranks_, "STEP") + 30) + kImage;
  Ranks first = cluster_->Train(where_, line);
  for (int i = 0; i < 200 && FilesWith(cluster_->node(0).region(), "rank-00000/slot-").empty(); ++i) usleep(50'000);
  usleep(200'000);
  KillAll(first);
  const Ranks ranks = cluster_->Train(where_, line);
  const Rest rest = Finish(ranks, where_, line);
  kill(cluster_->node(1).agent()->pid(), SIGCONT);
  EXPECT_GE(rest.step, LastOf(ranks_, "PROTECTED")) << cluster_->Logs();
  EXPECT_EQ(rest.sources, std::vector<uint64_t>{kReplica}) << cluster_->Logs();
}

// One holder only, and what it holds is on storage too.
class StorageBeside : public SourcesTest {
 protected:
  static constexpr char kSlowSteps[] = "--every 1 --step-ms 3000";

  static std::map<std::string, std::string> TwoCopies() {
    return {{"agent.decide_timeout", Quoted("2s")}, {"peers.copies", "2"}, {"region.chunk_bytes", Quoted("64 KiB")}};
  }
  void MakeTwoNodes(const std::string& at_b) {
    where_ = {0};
    cluster_ = std::make_unique<Cluster>(ClusterOptions{2, TwoCopies(), {}});
    ASSERT_TRUE(cluster_->node(0).StartAgent()) << cluster_->Logs();
    ASSERT_TRUE(cluster_->node(1).StartAgent({"CKPTD_FAILPOINTS=copy.send=" + at_b})) << cluster_->Logs();
    ranks_ = cluster_->Train(where_, kSlowSteps + std::string(kImage));
    ASSERT_NO_FATAL_FAILURE(AwaitProtected(ranks_, 1));
    ASSERT_TRUE(ranks_[0]->WaitFor("DURABLE 1")) << cluster_->Logs();
    KillAll(ranks_);
  }
};

// The holder stops at its tenth chunk. It answers nobody, and is no reason to wait.
TEST_F(StorageBeside, BringsTheRestOfWhatAStoppedHolderHas) {
  ASSERT_NO_FATAL_FAILURE(MakeTwoNodes("stop@10"));
  LoseNode(0);
  ASSERT_TRUE(cluster_->node(0).StartAgent()) << cluster_->Logs();
  const std::string line = LineTo(30) + kImage;
  const auto begin = std::chrono::steady_clock::now();
  const Ranks ranks = cluster_->Train(where_, line);
  const Rest rest = Finish(ranks, where_, line);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  kill(cluster_->node(1).agent()->pid(), SIGCONT);
  EXPECT_EQ(rest.step, 1u) << cluster_->Logs();
  EXPECT_EQ(rest.sources, std::vector<uint64_t>{kReplica}) << cluster_->Logs();
  EXPECT_GT(BroughtFrom(Log(), "agent node-b"), 0u) << Log();
  EXPECT_GT(BroughtFrom(Log(), "the storage"), uint64_t{4} << 20) << Log();
  EXPECT_LT(took.count(), 9) << Log();
  std::printf("restored in %.2f s\n", took.count());
}

// Each holder sends through 200 Mbit/s: two bring twice as much.
class SlowLinks : public NetworkTest {
 protected:
  // What is the same for one and two takes a smaller part of a longer time.
  static std::string Image() { return " --bytes " + std::to_string(MiB() << 20); }
  static size_t MiB() { return ByNight() ? 384 : 96; }

  // Until rank 0, whose node lost all, is told that it is restored.
  double SecondsToRestore() {
    LoseNode(0);
    EXPECT_TRUE(cluster_->node(0).StartAgent()) << cluster_->Logs();
    const auto begin = std::chrono::steady_clock::now();
    ranks_ = cluster_->Train({0}, kForever + Image());
    const std::string restored = Restored(*ranks_[0]);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    EXPECT_EQ(NumberField(restored, "source"), kReplica) << restored << cluster_->Logs();
    return took.count();
  }
  Ranks ranks_;
};

TEST_F(SlowLinks, TwoHoldersTakeHalfTheTimeOfOne) {
  if (!network_.why_not().empty()) GTEST_SKIP() << "skipped: " << network_.why_not();
  std::map<std::string, std::string> settings = ThreeCopies();
  settings["region.chunk_bytes"] = Quoted("1 MiB");
  ASSERT_NO_FATAL_FAILURE(MakeNodes(settings));
  ranks_ = cluster_->Train({0}, kForever + Image());
  ASSERT_NO_FATAL_FAILURE(AwaitProtected(ranks_, 1));
  KillAll(ranks_);
  for (const size_t holder : {1, 2})
    ASSERT_TRUE(network_.On(holder, "tc qdisc add dev eth0 root tbf rate 200mbit burst 256kbit latency 50ms"));
  const double both = SecondsToRestore();
  EXPECT_GT(BroughtFrom(cluster_->node(0).AgentLog(), "agent node-b"), 0u);
  EXPECT_GT(BroughtFrom(cluster_->node(0).AgentLog(), "agent node-c"), 0u);
  KillAll(ranks_);
  LoseNode(2);
  ASSERT_TRUE(cluster_->node(2).StartAgent()) << cluster_->Logs();  // with nothing
  const std::filesystem::path storage = cluster_->node(0).storage();
  for (const std::string& file : FilesWith(storage, "/step-"))
    ASSERT_TRUE(std::filesystem::remove(storage / file)) << "what was read is on storage by now, and would be faster";
  const double one = SecondsToRestore();
  KillAll(ranks_);
  std::printf("%zu MiB through 200 Mbit/s: %.2f s from one holder, %.2f s from two: %.2f times as fast\n", MiB(), one,
              both, one / both);
  EXPECT_GT(one, 1.2 * both) << cluster_->Logs();
}

}  // namespace
}  // namespace ckptd::harness
