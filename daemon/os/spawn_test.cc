#include "daemon/os/spawn.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/os/pidfd.h"
#include "daemon/os/process_list.h"

namespace ckptd {
namespace {

using ::testing::HasSubstr;

class SpawnTest : public ::testing::Test {
 protected:
  SpawnTest() {
    options_.program = "/bin/sh";
    options_.uid = geteuid();
    options_.gid = getegid();
  }

  // What `script` writes to its socket.
  std::string Run(const std::string& script) {
    options_.arguments = {"sh", "-c", script};
    auto child = Spawn(options_);
    if (!child.ok()) return std::string(child.status().message());
    std::string said;
    char packet[4096];
    for (ssize_t got = 0; (got = recv(child->socket.get(), packet, sizeof packet, 0)) > 0;)
      said.append(packet, static_cast<size_t>(got));
    EXPECT_TRUE(Await(child->outcome.get()));
    EXPECT_TRUE(ReadSpawnOutcome(child->outcome.get(), options_.program).ok());
    EXPECT_TRUE(Await(child->pidfd.get()));
    end_ = ReapChild(child->pidfd.get());
    return said;
  }
  static bool Await(int fd) {
    pollfd wait{fd, POLLIN, 0};
    return poll(&wait, 1, 10'000) == 1;
  }

  // As an agent of its unit file: what `check` returns in a process of this user with these capabilities, also ambient.
  static int WithCapabilities(uid_t uid, const std::vector<int>& capabilities, const std::function<int()>& check) {
    const pid_t child = fork();
    if (child == 0) _exit(Become(uid, capabilities) ? check() : 99);
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 98;
  }
  static bool Become(uid_t uid, const std::vector<int>& capabilities) {
    if (prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) != 0 || setresgid(uid, uid, uid) != 0 || setresuid(uid, uid, uid) != 0) {
      return false;
    }
    __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3] = {};
    for (const int each : capabilities) sets[0].effective |= CAP_TO_MASK(each);
    sets[0].permitted = sets[0].inheritable = sets[0].effective;
    if (syscall(SYS_capset, &header, sets) != 0) return false;
    return std::all_of(capabilities.begin(), capabilities.end(),
                       [](int each) { return prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, each, 0, 0) == 0; });
  }

  SpawnOptions options_;
  std::optional<ProcessEnd> end_;
};

constexpr uid_t kAgent = 45678;

TEST_F(SpawnTest, TheProgramHasItsSocketAndNothingElseOfOurs) {
  UniqueFd leak(dup(2));  // without close-on-exec
  const std::string fds = Run("ls /proc/self/fd >&3; readlink /proc/self/fd/0 /proc/self/fd/1 >&3; exit 7");
  // ls opens one more to read the folder.
  EXPECT_THAT(fds, HasSubstr("0\n1\n2\n3\n4\n/dev/null\n"));
  ASSERT_TRUE(end_.has_value());
  EXPECT_EQ(end_->code, 7);
}

TEST_F(SpawnTest, ItsEnvironmentIsWhatWasGiven) {
  options_.environment = {"ONE=1"};
  const std::string environment = Run("tr '\\0' '\\n' < /proc/$$/environ >&3");
  EXPECT_EQ(environment, "ONE=1\n");
}

TEST_F(SpawnTest, ItHasNoPrivilegesCoresOrBlockedSignals) {
  sigset_t all;
  sigfillset(&all);
  sigset_t before;
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const std::string status = Run("ulimit -c >&3; exec cat /proc/self/status >&3");
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  EXPECT_THAT(status, HasSubstr("NoNewPrivs:\t1"));
  EXPECT_THAT(status, HasSubstr("SigBlk:\t0000000000000000"));
  EXPECT_EQ(status.substr(0, 2), "0\n");
}

TEST_F(SpawnTest, ItHasNoCapabilitiesWhoeverRunsIt) {
  const std::string status = Run("exec cat /proc/self/status >&3");  // a second program: they do not come back
  for (const char* set : {"CapInh", "CapPrm", "CapEff", "CapAmb"})
    EXPECT_THAT(status, HasSubstr(std::string(set) + ":\t0000000000000000"));
}

TEST_F(SpawnTest, RootStartsItAsAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  options_.uid = 12345;
  options_.gid = 23456;
  options_.groups = {34567, 45678};
  const std::string status = Run("cat /proc/$$/status >&3");
  EXPECT_THAT(status, HasSubstr("Uid:\t12345\t12345\t12345\t12345"));
  EXPECT_THAT(status, HasSubstr("Gid:\t23456\t23456\t23456\t23456"));
  EXPECT_THAT(status, HasSubstr("Groups:\t34567 45678"));
  for (const char* set : {"CapPrm", "CapEff", "CapAmb"})
    EXPECT_THAT(status, HasSubstr(std::string(set) + ":\t0000000000000000"));
}

TEST_F(SpawnTest, WhoHasTheCapabilitiesStartsItAsAnotherUserWithout) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  for (const uid_t uid : {12345U, 0U}) {
    options_.uid = uid;
    options_.gid = 23456;
    options_.groups = {34567};
    const int result = WithCapabilities(kAgent, {CAP_SETUID, CAP_SETGID, CAP_KILL}, [this, uid] {
      const std::string status = Run("exec cat /proc/self/status >&3");
      const std::string id = std::to_string(uid);
      EXPECT_THAT(status, HasSubstr(absl::StrCat("Uid:\t", id, "\t", id, "\t", id, "\t", id)));
      EXPECT_THAT(status, HasSubstr("Gid:\t23456\t23456\t23456\t23456"));
      EXPECT_THAT(status, HasSubstr("Groups:\t34567"));
      for (const char* set : {"CapInh", "CapPrm", "CapEff", "CapAmb"})
        EXPECT_THAT(status, HasSubstr(std::string(set) + ":\t0000000000000000"));
      return HasFailure() ? 1 : 0;
    });
    EXPECT_EQ(result, 0) << uid;
  }
}

TEST_F(SpawnTest, WhoHasTheCapabilitiesEndsWhatItStartedAsAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  options_.uid = options_.gid = 12345;
  options_.arguments = {"sh", "-c", "read x <&3"};
  const int result = WithCapabilities(kAgent, {CAP_SETUID, CAP_SETGID, CAP_KILL}, [this] {
    auto child = Spawn(options_);
    if (!child.ok() || !Await(child->outcome.get())) return 1;
    if (!KillProcess(child->pidfd.get()).ok() || !Await(child->pidfd.get())) return 2;
    return ReapChild(child->pidfd.get())->signal == SIGKILL ? 0 : 3;
  });
  EXPECT_EQ(result, 0);
}

// Also root itself, which may have been started without.
TEST_F(SpawnTest, WithoutOneOfTheCapabilitiesTheMissingOneIsNamed) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  options_.uid = 12345;
  const std::vector<std::pair<std::string, std::vector<int>>> cases = {{"CAP_SETUID", {CAP_SETGID, CAP_KILL}},
                                                                       {"CAP_SETGID", {CAP_SETUID, CAP_KILL}},
                                                                       {"CAP_KILL", {CAP_SETUID, CAP_SETGID}}};
  for (const uid_t uid : {kAgent, uid_t{0}}) {
    for (const auto& [missing, held] : cases) {
      const int result = WithCapabilities(uid, held, [this, &missing = missing] {
        const absl::Status refused = Spawn(options_).status();
        EXPECT_EQ(CodeOf(refused), ErrorCode::PERMISSION) << refused;
        EXPECT_THAT(std::string(refused.message()), ::testing::EndsWith("which lacks " + missing));
        return HasFailure() ? 1 : 0;
      });
      EXPECT_EQ(result, 0) << uid << " without " << missing;
    }
  }
}

TEST_F(SpawnTest, AnotherUserNeedsCapabilities) {
  const pid_t user = fork();
  if (user == 0) {
    if (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0) _exit(3);
    options_.arguments = {"sh", "-c", "exit 0"};
    options_.uid = geteuid() + 1;
    if (CodeOf(Spawn(options_).status()) != ErrorCode::PERMISSION) _exit(1);
    options_.uid = geteuid();
    auto own = Spawn(options_);
    _exit(own.ok() && Await(own->outcome.get()) && ReadSpawnOutcome(own->outcome.get(), "sh").ok() ? 0 : 2);
  }
  int status = 0;
  ASSERT_EQ(waitpid(user, &status, 0), user);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(SpawnTest, AProgramThatIsNotThereIsNamed) {
  options_.program = "/no/such/program";
  options_.arguments = {"program"};
  auto child = Spawn(options_);
  ASSERT_TRUE(child.ok()) << child.status();
  ASSERT_TRUE(Await(child->outcome.get()));
  const absl::Status outcome = ReadSpawnOutcome(child->outcome.get(), options_.program);
  EXPECT_EQ(CodeOf(outcome), ErrorCode::NOT_FOUND);
  EXPECT_THAT(std::string(outcome.message()), HasSubstr("/no/such/program"));
  ASSERT_TRUE(Await(child->pidfd.get()));
  EXPECT_EQ(ReapChild(child->pidfd.get())->code, 127);
}

// The child is a copy of this thread alone: whatever the others held at that moment is held for ever in it.
TEST_F(SpawnTest, StartsWhateverOtherThreadsAreAt) {
  std::atomic<bool> over{false};
  const auto work = [&over] {
    for (uint64_t size = 1; !over; size = size % 100'000 + 1) {
      const std::string some(size, 'x');
      const UniqueFd file(open("/dev/null", O_RDONLY | O_CLOEXEC));
    }
  };
  std::array<std::thread, 3> busy = {std::thread(work), std::thread(work), std::thread(work)};
  options_.arguments = {"sh", "-c", "exit 0"};
  // 200 starts, or fewer in five seconds: each copies the page tables, and a sanitizer's shadow has many.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  for (int i = 0; i < 200 && std::chrono::steady_clock::now() < end && !HasFailure(); ++i) {
    auto child = Spawn(options_);
    EXPECT_TRUE(child.ok()) << child.status();
    if (!child.ok()) break;
    EXPECT_TRUE(Await(child->outcome.get())) << "start " << i << " hangs";
    EXPECT_TRUE(HasFailure() || Await(child->pidfd.get()));
    (void)KillProcess(child->pidfd.get());
    EXPECT_EQ(ReapChild(child->pidfd.get()).value_or(ProcessEnd{}).code, 0) << "start " << i;
  }
  over = true;
  for (std::thread& thread : busy) thread.join();
}

TEST_F(SpawnTest, ReapingDoesNotWaitAndTellsTheSignal) {
  options_.arguments = {"sh", "-c", "read x <&3"};
  auto child = Spawn(options_);
  ASSERT_TRUE(child.ok()) << child.status();
  EXPECT_FALSE(ReapChild(child->pidfd.get()).has_value());
  kill(child->pid, SIGKILL);
  ASSERT_TRUE(Await(child->pidfd.get()));
  const auto end = ReapChild(child->pidfd.get());
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->signal, SIGKILL);
}

TEST_F(SpawnTest, IsFoundByItsNameAndEndedByItsPidFd) {
  options_.arguments = {"ckptd-a-name", "-c", "echo >&3; read x <&3; :"};
  auto child = Spawn(options_);
  ASSERT_TRUE(child.ok()) << child.status();
  char line[8];
  ASSERT_GT(recv(child->socket.get(), line, sizeof line, 0), 0);
  const std::vector<ListedProcess> processes = ListProcesses({"sh", "no such name"});
  const auto found =
      std::find_if(processes.begin(), processes.end(), [&](const auto& each) { return each.id.pid == child->pid; });
  ASSERT_NE(found, processes.end());
  EXPECT_EQ(found->id.start_time, *ProcessStartTime(child->pid));
  ASSERT_GE(found->command_line.size(), 3u);
  EXPECT_EQ(found->command_line[0], "ckptd-a-name");
  EXPECT_EQ(found->command_line[1], "-c");
  for (const ListedProcess& each : ListProcesses({"ckptd-a-name"})) EXPECT_NE(each.id.pid, child->pid);
  EXPECT_TRUE(KillProcess(found->pidfd.get()).ok());
  ASSERT_TRUE(Await(child->pidfd.get()));
  EXPECT_EQ(ReapChild(child->pidfd.get())->signal, SIGKILL);
  EXPECT_TRUE(KillProcess(found->pidfd.get()).ok()) << "it has ended, as it was to";
}

// As the agent's end: whoever started it is gone without having said anything.
TEST_F(SpawnTest, ItEndsWithWhoStartedIt) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t agent = fork();
  if (agent == 0) {
    options_.arguments = {"sh", "-c", "trap '' TERM HUP; echo $$ >&3; while :; do sleep 1; done"};
    auto child = Spawn(options_);
    char said[32];
    const ssize_t got = child.ok() ? recv(child->socket.get(), said, sizeof said, 0) : 0;
    if (got <= 0 || write(ends[1], said, static_cast<size_t>(got)) != got) _exit(1);
    for (;;) pause();
  }
  char said[32] = {};
  close(ends[1]);
  ASSERT_GT(read(ends[0], said, sizeof said - 1), 0);
  close(ends[0]);
  auto pidfd = OpenPidFd(static_cast<pid_t>(strtol(said, nullptr, 10)));
  ASSERT_TRUE(pidfd.ok()) << pidfd.status();
  EXPECT_FALSE(HasExited(pidfd->get()));
  kill(agent, SIGKILL);
  waitpid(agent, nullptr, 0);
  EXPECT_TRUE(Await(pidfd->get()));
}

}  // namespace
}  // namespace ckptd
