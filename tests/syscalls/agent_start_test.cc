// The start of an agent over a region that a killed one left: SIGKILL at every system call of its main thread, an error
// at every one. (Its other threads have nothing to do with the region before it is adopted.) The next agent has every
// sealed slot, and a trainer gets from memory, bit for bit, what was captured last.
//
// After an error the agent starts, or ends by itself and says what is wrong. By day every 3rd call, and a part of the
// errors (ErrorStride); by night all.
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/integration/harness.h"
#include "tests/syscalls/strace.h"
#include "tests/syscalls/sweep.h"

namespace ckptd::syscalls {
namespace {

namespace fs = std::filesystem;
using harness::Args;
using harness::Child;
using harness::Millis;

constexpr char kTraining[] = "--steps 20 --every 5 --step-ms 2";
constexpr Millis kLimit{10'000};
constexpr char kMissed[] = "nobody was hit";

// Of other processes, whose number is the machine's: a few are enough.
bool OfAnotherProcess(const Call& call) { return absl::StrContains(call.line, "/comm"); }

// They cannot fail so; or they are the word to systemd that it is ready, which nobody can hear then.
bool NeverFails(const Call& call) {
  if (absl::StrContains(call.line, "SOCK_DGRAM") || absl::StrContains(call.line, "READY=1")) return true;
  static const std::set<std::string> never = {"rt_sigprocmask", "rt_sigaction", "futex", "getpid",
                                              "geteuid",        "uname",        "prctl", "getrandom"};
  return never.contains(call.name);
}

class AgentStart : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNoStrace(); !why.empty()) GTEST_SKIP() << "skipped: " << why;
    ASSERT_TRUE(node_.StartAgent()) << node_.AgentLog();
    auto trainer = node_.Train(Args(kTraining));
    ASSERT_EQ(trainer->Wait(), 0) << trainer->Errors();
    captured_ = trainer->Last("CAPTURED");
    ASSERT_GT(captured_, 0u);
    node_.KillAgent();
    ASSERT_TRUE(fs::is_socket(node_.socket()));
    fs::create_directory(saved_);
    Copy(node_.region(), saved_ + "/region");
    Copy(node_.storage(), saved_ + "/storage");
    notify_ = Bound(SOCK_DGRAM, Notify());
    ASSERT_GE(notify_, 0);
  }
  void TearDown() override {
    if (notify_ >= 0) close(notify_);
  }

  // A socket of that path; < 0: there is none.
  static int Bound(int type, const std::string& path) {
    const int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    return bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 ? fd : -1;
  }
  static void Copy(const std::string& from, const std::string& to) {
    fs::remove_all(to);
    fs::copy(from, to, fs::copy_options::recursive);
  }
  void AsTheKilledOneLeftIt() const {
    Copy(saved_ + "/region", node_.region());
    Copy(saved_ + "/storage", node_.storage());
    // Who ends in order takes its socket away; whoever follows asks a socket that is there whether somebody lives.
    fs::remove(node_.socket());
    close(Bound(SOCK_SEQPACKET, node_.socket()));
  }
  [[nodiscard]] std::string Notify() const { return node_.base() + "/sweep-notify"; }

  [[nodiscard]] std::unique_ptr<Child> Start(const std::vector<std::string>& options) const {
    const Program program{.argv = {harness::BinaryDirectory() + "/ckptd", "--config", node_.base() + "/ckptd.toml"},
                          .folder = node_.base()};
    fs::remove(node_.base() + "/stderr");
    return std::make_unique<Child>(
        Child::Spec{StraceArgv(program, options), {"NOTIFY_SOCKET=" + Notify()}, node_.base() + "/stderr"});
  }
  // It says that it is ready; false: it ended, or hangs.
  [[nodiscard]] bool Ready(const Child& agent) const {
    pollfd fds[] = {{notify_, POLLIN, 0}, {agent.pidfd(), POLLIN, 0}};
    const harness::TimePoint deadline = std::chrono::steady_clock::now() + kLimit;
    while (std::chrono::steady_clock::now() < deadline && poll(fds, 2, static_cast<int>(kLimit.count())) > 0) {
      char text[512] = {};
      if (fds[0].revents == 0) return false;
      if (recv(notify_, text, sizeof text - 1, 0) > 0 && absl::StrContains(text, "READY=1")) return true;
    }
    return false;
  }
  void ForgetReady() const {
    char text[512];
    while (recv(notify_, text, sizeof text, MSG_DONTWAIT) > 0) continue;
  }
  // SIGTERM to the agent under strace, or SIGKILL.
  static void Signal(const Child& strace, int signal) {
    std::ifstream children(absl::StrCat("/proc/", strace.pid(), "/task/", strace.pid(), "/children"));
    for (pid_t pid = 0; children >> pid;) kill(pid, signal);
  }
  static int End(Child& strace) {
    Signal(strace, SIGTERM);
    const int status = strace.Wait(kLimit);
    if (status == Child::kHangs) Signal(strace, SIGKILL);
    return status;
  }

  // From the configuration to the word that it is ready.
  std::vector<Call> Calls() {
    AsTheKilledOneLeftIt();
    auto agent = Start({});
    EXPECT_TRUE(Ready(*agent)) << agent->Errors();
    EXPECT_EQ(End(*agent), 0);
    std::vector<Call> calls;
    size_t others = 0;
    bool begun = false;
    for (const Call& call : ReadTrace(node_.base()).calls) {
      begun = begun || (call.name == "openat" && absl::StrContains(call.line, "/ckptd.toml"));
      if (!begun || OfTheAllocator(call) || (OfAnotherProcess(call) && ++others > 8)) continue;
      calls.push_back(call);
      if (absl::StrContains(call.line, "READY=1")) return calls;
    }
    ADD_FAILURE() << "never told that it is ready";
    return {};
  }

  // A fresh agent serves what the killed ones left. Empty, or what is wrong.
  std::string WrongNext() {
    if (!node_.StartAgent()) return "the next agent does not start: " + node_.AgentLog();
    auto trainer = node_.Train(Args(absl::StrCat("--steps ", captured_, " --every 5")));
    const std::string restored = trainer->WaitFor("RESTORED", kLimit).value_or("nothing");
    const int status = trainer->Wait(kLimit);
    const bool same = !trainer->lines().empty() &&
                      trainer->lines().back() == node_.ExpectedDigest(Args(absl::StrCat("--steps ", captured_)));
    node_.KillAgent();
    if (!absl::StrContains(restored, absl::StrCat(" step=", captured_, " source=1"))) return "lost: " + restored;
    return status == 0 && same ? "" : absl::StrCat("other bytes, status ", status, ": ", trainer->Errors());
  }

  // How many calls come before some is decided by the number of other processes: then the list is made anew.
  std::string Look(std::vector<Call>& calls, size_t i, const std::function<std::string(const Call&)>& look) {
    std::string wrong = look(calls[i]);
    for (int tries = 0; tries < 3 && absl::StartsWith(wrong, kMissed); ++tries) {
      calls = Calls();
      wrong = look(calls[i]);
    }
    return wrong;
  }

  std::string Killed(const Call& call) {
    AsTheKilledOneLeftIt();
    auto agent = Start(
        {absl::StrCat("--trace=", call.name), absl::StrCat("--inject=", call.name, ":signal=KILL:when=", call.number)});
    const int status = agent->Wait(kLimit);
    ForgetReady();
    if (status != -SIGKILL || !ReadTrace(node_.base()).killed) {
      Signal(*agent, SIGKILL);
      return absl::StrCat(kMissed, ": status ", status);
    }
    return WrongNext();
  }

  std::string Failed(const Call& call, const std::string& error) {
    AsTheKilledOneLeftIt();
    auto agent = Start({absl::StrCat("--trace=", call.name),
                        absl::StrCat("--inject=", call.name, ":error=", error, ":when=", call.number)});
    const bool ready = Ready(*agent);
    const int status = ready ? End(*agent) : agent->Wait(Millis(100));
    ForgetReady();
    if (InjectedAt(ReadTrace(node_.base()), call).empty()) return kMissed;
    if (status == Child::kHangs) Signal(*agent, SIGKILL);
    if (status == Child::kHangs) return ready ? "hangs at its end" : "hangs";
    if (status < 0 || status > 128) return absl::StrCat("crashed: status ", status, ": ", agent->Errors());
    if (ready && status != 0) return absl::StrCat("ended with ", status, ": ", agent->Errors());
    if (!ready && !absl::StrContains(agent->Errors(), "next: ")) return "does not start, and says nothing";
    (ready ? started_ : refused_) += 1;
    return WrongNext();
  }

  harness::Node node_{{.region = "", .storage = "", .settings = {{"storage.io", "\"threads\""}}}};
  const std::string saved_ = node_.base() + "/saved";
  int notify_ = -1;
  uint64_t captured_ = 0;
  uint64_t started_ = 0, refused_ = 0;
};

TEST_F(AgentStart, KilledAtEverySyscallTheNextOneHasItAll) {
  std::vector<Call> calls = Calls();
  const size_t stride = Night() ? 1 : 3;
  uint64_t tried = 0, lost = 0;
  for (size_t i = 0; i < calls.size(); i += stride) {
    const std::string wrong = Look(calls, i, [this](const Call& call) { return Killed(call); });
    EXPECT_EQ(wrong, "") << calls[i].name << " " << calls[i].number << ": " << calls[i].line;
    lost += wrong.empty() ? 0 : 1;
    ++tried;
  }
  std::printf("start: %lu calls, each killed; %lu lost or torn\n", tried, lost);
}

TEST_F(AgentStart, AnErrorAtEverySyscallStartsOrIsTold) {
  std::vector<Call> calls = Calls();
  const uint64_t stride = ErrorStride();
  uint64_t tried = 0, bad = 0;
  size_t number = 0;
  for (size_t i = 0; i < calls.size(); ++i) {
    if (NeverFails(calls[i])) continue;
    for (const char* error : kErrors) {
      if (number++ % stride != 0) continue;
      const std::string wrong = Look(calls, i, [&](const Call& call) { return Failed(call, error); });
      EXPECT_EQ(wrong, "") << error << " at " << calls[i].name << " " << calls[i].number << ": " << calls[i].line;
      bad += wrong.empty() ? 0 : 1;
      ++tried;
    }
  }
  std::printf("start: %lu errors (every %lu. one): %lu started, %lu said why not, %lu crashes, hangs or lost slots\n",
              tried, stride, started_, refused_, bad);
}

// By name, whatever a day's stride leaves out.
TEST_F(AgentStart, WithoutAThreadItSaysSoAndEnds) {
  for (const Call& call : Calls()) {
    if (!absl::StartsWith(call.name, "clone")) continue;
    EXPECT_EQ(Failed(call, "EAGAIN"), "") << call.line;
  }
  EXPECT_GT(refused_, 0u);
  EXPECT_EQ(started_, 0u);
}

// Each try begins the same, also after an agent that ended in order and took its socket away.
TEST_F(AgentStart, EachTryAsksTheSocketThatWasLeft) {
  for (int tries = 0; tries < 2; ++tries) {
    const std::vector<Call> calls = Calls();
    EXPECT_TRUE(std::any_of(
        calls.begin(), calls.end(),
        [this](const Call& call) { return call.name == "connect" && absl::StrContains(call.line, node_.socket()); }))
        << "try " << tries;
  }
}

// The check proves itself: a slot whose file went is lost.
TEST_F(AgentStart, ALostSlotIsNoticed) {
  EXPECT_EQ(WrongNext(), "");
  AsTheKilledOneLeftIt();
  for (const std::string& slot : harness::FilesWith(node_.region(), "/slot-")) fs::remove(node_.region() + "/" + slot);
  EXPECT_NE(WrongNext(), "");
}

}  // namespace
}  // namespace ckptd::syscalls
