// What a save costs once its layout is warm: page faults, memory and system calls of the agent's threads and of
// libckpt's, counted over many saves by processes that do nothing else.
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <regex>
#include <sstream>

#include "tests/integration/harness.h"

namespace ckptd::harness {
namespace {

// The sum over the threads of `pid` whose name begins with `name`: minor and major page faults.
uint64_t FaultsOf(pid_t pid, const std::string& name) {
  uint64_t faults = 0;
  for (int tid = pid; tid < pid + 64; ++tid) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/task/" + std::to_string(tid) + "/stat");
    std::string text((std::istreambuf_iterator<char>(file)), {});
    size_t open = text.find('(');
    size_t close = text.rfind(')');
    if (open == text.npos || text.compare(open + 1, name.size(), name) != 0) continue;
    std::istringstream fields(text.substr(close + 2));
    std::vector<std::string> words{std::istream_iterator<std::string>(fields), {}};  // words[0] is field 3
    faults += strtoull(words[7].c_str(), nullptr, 10) + strtoull(words[9].c_str(), nullptr, 10);
  }
  return faults;
}

// Counts what comes until `saves` more steps were captured.
uint64_t Saves(Child& trainer, int captures) {
  auto before = static_cast<uint64_t>(std::count_if(trainer.lines().begin(), trainer.lines().end(),
                                                    [](const auto& line) { return line.rfind("SAVE", 0) == 0; }));
  for (int i = 0; i < captures; ++i) EXPECT_TRUE(trainer.WaitFor("CAPTURED"));
  auto after = static_cast<uint64_t>(std::count_if(trainer.lines().begin(), trainer.lines().end(),
                                                   [](const auto& line) { return line.rfind("SAVE", 0) == 0; }));
  return std::max<uint64_t>(1, after - before);
}

constexpr char kRun[] = "--bytes 4000000 --steps 1000000 --every 4 --step-ms 5 --tensors ";

#if defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif
#else
constexpr bool kSanitized = false;
#endif

TEST(HotPath, NoPageFaultsOfTheCopyAndSessionThreads) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's shadow memory faults in pages of its own";
  Node node;
  ASSERT_TRUE(node.StartAgent());
  auto trainer = node.Train(Args(kRun + std::string("100")));
  Saves(*trainer, 10);  // both slots, and what is lazily made
  uint64_t copy = FaultsOf(trainer->pid(), "ckpt-copy");
  uint64_t session = FaultsOf(trainer->pid(), "ckpt-session");
  uint64_t flush = FaultsOf(node.agent()->pid(), "ckptd-flush");
  uint64_t agent = UsageOf(node.agent()->pid()).minor_faults;
  uint64_t saves = Saves(*trainer, 40);
  copy = FaultsOf(trainer->pid(), "ckpt-copy") - copy;
  session = FaultsOf(trainer->pid(), "ckpt-session") - session;
  flush = FaultsOf(node.agent()->pid(), "ckptd-flush") - flush;
  agent = UsageOf(node.agent()->pid()).minor_faults - agent;
  printf(
      "%lu saves of 4 MB: page faults copy thread %lu, session thread %lu, flush threads %lu, agent %lu (a slot has %d "
      "pages)\n",
      saves, copy, session, flush, agent, 4'000'000 / 4096);
  EXPECT_LE(copy, 2u);
  EXPECT_LE(session, 4u);
  EXPECT_LE(flush, saves) << "flushing faults in the slot's pages";
  // What is left is the reading back of a checkpoint before its predecessor is deleted: one buffer for each.
  EXPECT_LE(agent, 1200 * saves);
}

// System calls of `pid` (all threads) while `captures` steps are captured, by strace.
uint64_t SystemCalls(Node& node, Child& traced, Child& trainer, int captures, uint64_t* saves) {
  std::string out = node.base() + "/strace.txt";
  Child strace(Child::Spec{
      {"strace", "-f", "-c", "-U", "calls,name", "-o", out, "-p", std::to_string(traced.pid())}, {}, out + ".log"});
  EXPECT_TRUE(trainer.WaitFor("CAPTURED"));
  *saves = Saves(trainer, captures);
  strace.Signal(SIGINT);
  strace.Wait();
  std::ifstream file(out);
  uint64_t total = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    uint64_t calls = 0;
    std::string name;
    if (words >> calls >> name && name == "total") total = calls;
  }
  return total;
}

struct PerSave {
  double agent = 0;
  double trainer = 0;
};

PerSave CallsPerSave(int tensors) {
  Node node;
  EXPECT_TRUE(node.StartAgent());
  auto trainer = node.Train(Args(kRun + std::to_string(tensors)));
  Saves(*trainer, 10);
  uint64_t saves = 1;
  auto agent = static_cast<double>(SystemCalls(node, *node.agent(), *trainer, 15, &saves));
  PerSave out;
  out.agent = agent / static_cast<double>(saves);
  auto own = static_cast<double>(SystemCalls(node, *trainer, *trainer, 15, &saves));
  out.trainer = own / static_cast<double>(saves);
  return out;
}

TEST(HotPath, NoSystemCallPerTensor) {
  if (geteuid() != 0 || access("/usr/bin/strace", X_OK) != 0) GTEST_SKIP() << "skipped: needs root and strace";
  PerSave few = CallsPerSave(10);
  PerSave many = CallsPerSave(2000);
  printf("system calls for each save: 10 tensors: agent %.0f, trainer %.0f; 2000 tensors: agent %.0f, trainer %.0f\n",
         few.agent, few.trainer, many.agent, many.trainer);
  ASSERT_GT(few.agent, 0) << "strace counted nothing";
  // One call a tensor would be 1990 more. With I/O by threads, how often they wake each other varies by some hundreds.
  double slack = std::getenv("CKPTD_TEST_IO") != nullptr ? 800 : 200;
  EXPECT_LT(many.agent, few.agent + slack);
  EXPECT_LT(many.trainer, few.trainer + 200);
}

}  // namespace
}  // namespace ckptd::harness
