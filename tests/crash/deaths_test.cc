// Trainers that are killed while they save, each with a worker that outlives it and holds everything open, as those of
// data loaders do: the agent notices each death at once, and in the end nothing has grown.
//
// CKPTD_KILLS changes how many (by night 1000).
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "absl/strings/str_join.h"
#include "tests/integration/harness.h"
#include "tests/integration/sanitized.h"

namespace ckptd::harness {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr double kAtOnce = 0.1;  // seconds
constexpr uint64_t kMostResidentKib = 30 * 1024;

class Deaths : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(node_.StartAgent()) << node_.AgentLog();
    log_.open(node_.base() + "/agent.log");
  }
  ~Deaths() override { EndWorker(0); }

  // The worker before goes when the next trainer has saved: its open descriptors keep nobody from the slots.
  void KillOne() {
    auto trainer = node_.Train(Args("--steps 100000 --every 2 --step-ms 1 --fork-after 3"));
    ASSERT_TRUE(trainer->WaitFor("FORKED")) << trainer->Errors() << node_.AgentLog();
    ASSERT_TRUE(trainer->WaitFor("CAPTURED")) << trainer->Errors() << node_.AgentLog();
    EndWorker(static_cast<pid_t>(trainer->Last("FORKED")));
    const auto begin = Clock::now();
    trainer->Signal(SIGKILL);
    ASSERT_TRUE(Logged("op=trainer.died job=trainer pid=" + std::to_string(trainer->pid()))) << node_.AgentLog();
    noticed_.push_back(Seconds(Clock::now() - begin).count());
    trainer->Kill();
  }
  void EndWorker(pid_t next) {
    if (worker_ != 0) kill(worker_, SIGKILL);
    worker_ = next;
  }
  // Reads on in the agent's log until `text`.
  bool Logged(const std::string& text) {
    const auto deadline = Clock::now() + kLong;
    for (std::string line; Clock::now() < deadline;) {
      if (!std::getline(log_, line)) {
        log_.clear();
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      } else if (line.find(text) != line.npos) {
        return true;
      }
    }
    return false;
  }

  struct Held {
    Usage usage;
    std::vector<std::string> descriptors;  // but for those of slots: their number changes while one is being replaced
    size_t files = 0;
  };
  // Flushes under way hold descriptors: the least of a second without a trainer.
  Held AtRest() {
    const auto descriptors = [this] { return DescriptorsOf(node_.agent()->pid(), node_.region()); };
    Held least{UsageOf(node_.agent()->pid()), descriptors(), ListFiles(node_.region()).size()};
    for (int i = 0; i < 20; ++i) {
      std::this_thread::sleep_for(Millis(50));
      std::vector<std::string> now = descriptors();
      if (now.size() < least.descriptors.size()) least.descriptors = std::move(now);
    }
    return least;
  }

  Node node_;
  std::ifstream log_;
  pid_t worker_ = 0;
  std::vector<double> noticed_;
};

TEST_F(Deaths, AreNoticedAndLeaveNothing) {
  const char* given = getenv("CKPTD_KILLS");
  const uint64_t kills = given == nullptr ? 100 : std::max(40UL, strtoul(given, nullptr, 10));
  Held early;
  for (uint64_t i = 0; i < kills; ++i) {
    ASSERT_NO_FATAL_FAILURE(KillOne());
    if (i == 20) early = AtRest();
  }
  EndWorker(0);
  const Held late = AtRest();
  std::sort(noticed_.begin(), noticed_.end());
  const double p99 = noticed_[(noticed_.size() * 99 + 99) / 100 - 1];  // nearest rank: of 100 the last but one
  printf("%lu deaths noticed: p50 %.1f ms, p99 %.1f ms, at most %.1f ms\n", kills, noticed_[noticed_.size() / 2] * 1e3,
         p99 * 1e3, noticed_.back() * 1e3);
  printf("after 21 and all: %zu and %zu descriptors, %lu and %lu threads, %lu and %lu KiB, %zu and %zu region files\n",
         early.descriptors.size(), late.descriptors.size(), early.usage.threads, late.usage.threads,
         early.usage.anonymous_kib, late.usage.anonymous_kib, early.files, late.files);
  EXPECT_LE(late.descriptors.size(), early.descriptors.size())
      << absl::StrJoin(early.descriptors, "\n") << "\n---- and then\n"
      << absl::StrJoin(late.descriptors, "\n");
  EXPECT_LE(late.usage.threads, early.usage.threads);
  EXPECT_LE(late.files, early.files + 2);  // a slot that is being replaced has two files
  if (kSanitized) return;                  // its own memory grows, and it is slow
  EXPECT_LE(p99, kAtOnce);
  EXPECT_LE(late.usage.anonymous_kib, early.usage.anonymous_kib + 4096);
  EXPECT_LT(late.usage.resident_kib, kMostResidentKib);
}

}  // namespace
}  // namespace ckptd::harness
