#include "tests/integration/hostile.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <thread>

#include "tests/integration/sanitized.h"

namespace ckptd::harness {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kNeighbour[] = "--job neighbour --every 5 --step-ms 5 --steps 100000000 --close-ms 0";
constexpr char kNeighboursUser[] = "65534";
constexpr Millis kLongestGap{2000};
constexpr uint64_t kSlackKib = 8192;
constexpr size_t kBeingReplaced = 4;  // descriptors of slots that have a fresh file and their old one

}  // namespace

NodeOptions Hostile::Options() const {
  NodeOptions options;
  options.settings["security.socket_mode"] = "\"0666\"";
  return options;
}

void Hostile::SetUp() {
  if (geteuid() != 0) GTEST_SKIP() << "skipped: needs root, to become other users";
  NodeOptions options = Options();
  Configure(&options);
  node_ = std::make_unique<Node>(options);
  socket_ = node_->socket();
  ASSERT_TRUE(node_->StartAgent()) << node_->AgentLog();
  neighbour_ = node_->Train(Args(kNeighbour), AsUser(kNeighboursUser, kNeighboursUser));
  ASSERT_TRUE(neighbour_->WaitFor("DURABLE")) << neighbour_->Errors() << node_->AgentLog();
  before_ = AtRest();
}

void Hostile::TearDown() {
  if (!neighbour_) return;
  neighbour_->Kill();
  const uint64_t saved = neighbour_->Last(memory_lost_ ? "DURABLE" : "CAPTURED");
  auto again = node_->Train(Args(kNeighbour), AsUser(kNeighboursUser, kNeighboursUser));
  EXPECT_GE(NumberField(Restored(*again), "step"), saved) << node_->AgentLog();
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  printf("hostile %s: %lu acts tried, %lu wrong; the neighbour waited %ld ms at most\n", test->name(), tried_, wrong_,
         static_cast<long>(longest_gap_.count()));
}

std::vector<std::string> Hostile::NotOfRegion() const { return DescriptorsOf(node_->agent()->pid(), node_->region()); }

// The neighbour sleeps meanwhile. Flushes under way hold descriptors: the least of a while.
Hostile::Held Hostile::AtRest() {
  neighbour_->Signal(SIGSTOP);
  const pid_t agent = node_->agent()->pid();
  const auto look = [&] {
    Held held;
    held.usage = UsageOf(agent);
    held.descriptors = NotOfRegion().size();
    held.of_region = DescriptorsOf(agent, node_->region() + "/r/enemy").size() - held.descriptors;
    return held;
  };
  Held least = look();
  for (int i = 0; i < 10; ++i) {
    std::this_thread::sleep_for(Millis(30));
    const Held now = look();
    if (now.usage.fds < least.usage.fds) least = now;
  }
  neighbour_->Signal(SIGCONT);
  return least;
}

// Reads what the neighbour says until the intruder has said something.
void Hostile::WatchNeighbour(const std::string& name, Intruder& intruder) {
  auto last = Clock::now();
  const auto deadline = last + kLong;
  for (bool over = false; !over && Clock::now() < deadline;) {
    pollfd said{intruder.said_fd(), POLLIN, 0};
    over = poll(&said, 1, 0) > 0;
    const bool captured = neighbour_->WaitFor("CAPTURED", over ? kLong : Millis(20)).has_value();
    longest_gap_ = std::max(longest_gap_, std::chrono::duration_cast<Millis>(Clock::now() - last));
    if (captured) last = Clock::now();
  }
  const bool late = longest_gap_ > kLongestGap * (kSanitized ? 5 : 1);
  EXPECT_FALSE(late) << name << ": the neighbour waited " << longest_gap_.count() << " ms";
  wrong_ += late ? 1 : 0;
}

std::unique_ptr<Intruder> Hostile::Begin(const std::string& name, const std::function<std::string()>& act,
                                         std::string* said) {
  ++tried_;
  auto intruder = std::make_unique<Intruder>(act);
  WatchNeighbour(name, *intruder);
  *said = intruder->Said();
  Judge(name);
  return intruder;
}

void Hostile::Judge(const std::string& name) {
  const bool lives = kill(node_->agent()->pid(), 0) == 0 && neighbour_->WaitFor("CAPTURED").has_value();
  EXPECT_TRUE(lives) << name << ": " << node_->AgentLog();
  wrong_ += lives ? 0 : 1;
}

void Hostile::EndAndCount(std::unique_ptr<Intruder> intruder) {
  intruder.reset();
  Held now = AtRest();
  const auto grown = [&] {
    return now.descriptors > before_.descriptors || now.of_region > before_.of_region + kBeingReplaced ||
           now.usage.threads > before_.usage.threads ||
           (!kSanitized && now.usage.anonymous_kib > before_.usage.anonymous_kib + kSlackKib);
  };
  for (int i = 0; i < 20 && grown(); ++i) now = AtRest();
  EXPECT_LE(now.descriptors, before_.descriptors) << testing::PrintToString(NotOfRegion());
  EXPECT_LE(now.of_region, before_.of_region + kBeingReplaced)
      << testing::PrintToString(DescriptorsOf(node_->agent()->pid(), "/nothing"));
  EXPECT_LE(now.usage.threads, before_.usage.threads);
  wrong_ += grown() ? 1 : 0;
  if (kSanitized) return;  // its own memory grows
  EXPECT_LE(now.usage.anonymous_kib, before_.usage.anonymous_kib + kSlackKib);
}

std::string Hostile::Try(const std::string& name, const std::function<std::string()>& act) {
  std::string said;
  auto intruder = Begin(name, act, &said);
  return said;
}

void Hostile::ExpectHears(const std::string& name, const std::string& expected,
                          const std::function<std::string()>& act) {
  const std::string heard = Try(name, act);
  const bool right = heard.find(expected) != heard.npos;
  EXPECT_TRUE(right) << name << ": heard \"" << heard << "\", not \"" << expected << "\"\n" << node_->AgentLog();
  wrong_ += right ? 0 : 1;
}

}  // namespace ckptd::harness
