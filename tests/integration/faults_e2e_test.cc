// What networks and machines do to a job whose nodes hold copies for each other: real agents with mutual TLS in network
// namespaces, real trainers. Whatever happens between the nodes, training never stops, what was told as protected comes
// back bit for bit when a node is lost after all that, and protection returns by itself.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "tests/integration/clock_jump.h"
#include "tests/integration/network_fixture.h"

namespace ckptd::harness {
namespace {

struct Fault {
  const char* name;
  std::vector<std::string> begin;  // command lines on node b
  std::vector<std::string> end;
  int stop = 0;  // signals to the agent of node b instead
  int go_on = 0;
  int64_t jump = 0;  // seconds by which the wall clock of node b is wrong; then as many the other way
};

// Less than by what certificates begin before they are made.
constexpr int64_t kJump = 3000;

// Node b's side of it: packets that come in, or go out, are dropped.
const std::vector<Fault>& Faults() {
  static const auto* const faults = new std::vector<Fault>{
      {"partition", {"iptables -A INPUT -i eth0 -j DROP", "iptables -A OUTPUT -o eth0 -j DROP"}, {"iptables -F"}},
      {"hears_nothing", {"iptables -A INPUT -i eth0 -j DROP"}, {"iptables -F"}},
      {"is_not_heard", {"iptables -A OUTPUT -o eth0 -j DROP"}, {"iptables -F"}},
      {"slow_link",
       {"tc qdisc add dev eth0 root tbf rate 2mbit burst 32kbit latency 400ms"},
       {"tc qdisc del dev eth0 root"}},
      {"loses_30_percent",
       {"iptables -A INPUT -i eth0 -m statistic --mode random --probability 0.3 -j DROP"},
       {"iptables -F"}},
      {"paused", {}, {}, SIGSTOP, SIGCONT},
      {"killed", {}, {}, SIGKILL, 0},
      {"clock_jump", {}, {}, 0, 0, kJump},
  };
  return *faults;
}

class FaultsTest : public NetworkTest, public testing::WithParamInterface<Fault> {
 protected:
  void SetUp() override {
    char name[] = "/tmp/ckptd-clock-XXXXXX";
    const int fd = mkstemp(name);
    jump_file_ = name;
    ASSERT_EQ(ftruncate(fd, sizeof(ClockJump)), 0);
    void* mapped = mmap(nullptr, sizeof(ClockJump), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    ASSERT_NE(mapped, MAP_FAILED);
    jump_ = static_cast<ClockJump*>(mapped);
  }
  void TearDown() override {
    NetworkTest::TearDown();
    if (jump_ != nullptr) munmap(jump_, sizeof(ClockJump));
    unlink(jump_file_.c_str());
  }
  [[nodiscard]] std::vector<std::string> AgentPrefix(size_t number) const override {
    std::vector<std::string> prefix = NetworkTest::AgentPrefix(number);
    if (GetParam().jump != 0 && number == 1)
      prefix.insert(prefix.end(), {"env", "LD_PRELOAD=" + BinaryDirectory() + "/libckpt-clock-jump.so",
                                   std::string(kClockJumpVariable) + "=" + jump_file_});
    return prefix;
  }
  void Begin(const Fault& fault) {
    jump_->seconds = fault.jump;
    for (const std::string& line : fault.begin) ASSERT_TRUE(network_.On(1, line)) << line;
    if (fault.stop == SIGKILL) return cluster_->node(1).KillAgent();
    if (fault.stop != 0) kill(cluster_->node(1).agent()->pid(), fault.stop);
  }
  void End(const Fault& fault) {
    EXPECT_EQ(jump_->shifted > 0, fault.jump != 0) << "whether it read a wrong time";
    jump_->seconds = -fault.jump;
    for (const std::string& line : fault.end) ASSERT_TRUE(network_.On(1, line)) << line;
    if (fault.stop == SIGKILL) {
      ASSERT_TRUE(cluster_->node(1).StartAgent()) << cluster_->Logs();
    }
    if (fault.go_on != 0) kill(cluster_->node(1).agent()->pid(), fault.go_on);
  }
  // Steps go on as if nothing were; a save is captured, or told as dropped.
  void ExpectTraining(const Ranks& ranks, int steps) {
    for (int i = 0; i < steps; ++i) {
      for (size_t rank = 0; rank < ranks.size(); ++rank)
        ASSERT_TRUE(ranks[rank]->WaitFor("STEP")) << "rank " << rank << " stands still" << cluster_->Logs();
    }
  }
  static size_t CountOf(const Child& rank, const std::string& word) {
    return static_cast<size_t>(std::count_if(rank.lines().begin(), rank.lines().end(),
                                             [&](const std::string& line) { return line.rfind(word, 0) == 0; }));
  }

  std::string jump_file_;
  ClockJump* jump_ = nullptr;  // of node b's agent
};

INSTANTIATE_TEST_SUITE_P(Of, FaultsTest, testing::ValuesIn(Faults()),
                         [](const auto& fault) { return std::string(fault.param.name); });

// Longer than a node may be silent before others hold in its place, where it is night.
int StepsOfAFault() { return ByNight() ? 6000 : 1000; }

TEST_P(FaultsTest, TrainingGoesOnAndWhatIsProtectedComesBack) {
  if (!network_.why_not().empty()) GTEST_SKIP() << "skipped: " << network_.why_not();
  ASSERT_NO_FATAL_FAILURE(MakeNodes());
  Ranks ranks = TrainUntilProtected({0, 1});
  ASSERT_FALSE(HasFailure());
  const uint64_t told = LastOf(ranks, "PROTECTED");
  ASSERT_NO_FATAL_FAILURE(Begin(GetParam()));
  ASSERT_NO_FATAL_FAILURE(ExpectTraining(ranks, StepsOfAFault()));
  ASSERT_NO_FATAL_FAILURE(End(GetParam()));
  const auto over = std::chrono::steady_clock::now();
  const uint64_t before = LastOf(ranks, "STEP");  // of a step that was saved after the end of it
  while (LastOf(ranks, "PROTECTED") <= before) ASSERT_NO_FATAL_FAILURE(AwaitProtected(ranks, 1));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - over;
  const size_t saves = CountOf(*ranks[0], "SAVE");
  const size_t dropped = CountOf(*ranks[0], "DROPPED");
  LoseNode(1);
  KillAll(ranks);
  const uint64_t promised = LastOf(ranks, "PROTECTED");
  ASSERT_GT(promised, told);
  const Rest rest = TrainToTheEnd({0, 2}, LastOf(ranks, "STEP") + 30);
  EXPECT_GE(rest.step, promised) << cluster_->Logs();
  EXPECT_EQ(rest.sources[1], kReplica) << cluster_->Logs();
  if (HasFailure()) return;
  std::printf("fault %s for %d steps: %zu saves, %zu dropped; protected again %.1f s after it; step %lu back\n",
              GetParam().name, StepsOfAFault(), saves, dropped, took.count(), rest.step);
}

// The firewall between the nodes lets the first port pass and not the one for copies (peers.bulk_port): nobody answers
// there. They go over the first one, and training does not notice.
class ShutPort : public NetworkTest {};

TEST_F(ShutPort, CopiesGoOverTheOtherOne) {
  if (!network_.why_not().empty()) GTEST_SKIP() << "skipped: " << network_.why_not();
  std::map<std::string, std::string> settings = MemoryOnly();
  settings["agent.log_level"] = Quoted("debug");
  ASSERT_NO_FATAL_FAILURE(MakeNodes(settings));
  for (size_t node = 0; node < 3; ++node)
    ASSERT_TRUE(network_.On(node, "iptables -A INPUT -i eth0 -p tcp --dport 9466 -j DROP"));
  const auto begin = std::chrono::steady_clock::now();
  Ranks ranks = TrainUntilProtected({0, 1});
  ASSERT_FALSE(HasFailure());
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(took.count(), 15) << cluster_->Logs();
  EXPECT_EQ(cluster_->Logs().find("op=tls.came"), std::string::npos) << "it is not shut";
  EXPECT_EQ(cluster_->Logs().find("op=peers.no_tls"), std::string::npos) << "nobody tried";
  const uint64_t promised = LastOf(ranks, "PROTECTED");
  LoseNode(1);
  KillAll(ranks);
  const Rest rest = TrainToTheEnd({0, 2}, LastOf(ranks, "STEP") + 30);
  EXPECT_GE(rest.step, promised) << cluster_->Logs();
  EXPECT_EQ(rest.sources[1], kReplica) << cluster_->Logs();
  std::printf("protected after %.1f s\n", took.count());
}

}  // namespace
}  // namespace ckptd::harness
