// Other processes: pidfds, signals, who connects.
#include <gmock/gmock.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <fstream>

#include "daemon/base/errors.h"
#include "daemon/os/group.h"
#include "daemon/os/pidfd.h"
#include "daemon/os/signal.h"
#include "daemon/os/testing/temp_dir.h"
#include "daemon/os/thread.h"
#include "daemon/os/unix_listener.h"

namespace ckptd {
namespace {

using ::testing::HasSubstr;

// A child that waits to be killed.
class Child {
 public:
  Child() : pid_(fork()) {
    if (pid_ == 0) {
      prctl(PR_SET_NAME, "a ) R 1 (");  // a name made to confuse a parser of /proc/<pid>/stat
      for (;;) pause();
    }
  }
  ~Child() { End(); }
  void End() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

TEST(Group, ByName) {
  EXPECT_EQ(*FindGroup("root"), 0u);
  EXPECT_EQ(CodeOf(FindGroup("no-such-group-here").status()), ErrorCode::NOT_FOUND);
}

TEST(PidFd, TellsTheEndOfExactlyThatProcess) {
  Child child;
  auto start = ProcessStartTime(child.pid());
  ASSERT_TRUE(start.ok()) << start.status();
  EXPECT_GE(*start, *ProcessStartTime(getpid()));
  auto pidfd = OpenProcess({child.pid(), *start});
  ASSERT_TRUE(pidfd.ok());
  EXPECT_FALSE(HasExited(pidfd->get()));
  EXPECT_TRUE(absl::IsNotFound(OpenProcess({child.pid(), *start + 1}).status())) << "another process with that pid";
  pid_t pid = child.pid();
  child.End();
  EXPECT_TRUE(HasExited(pidfd->get()));
  EXPECT_TRUE(absl::IsNotFound(ProcessStartTime(pid).status()));
  EXPECT_TRUE(absl::IsNotFound(OpenPidFd(pid).status()));
}

TEST(SignalFd, DeliversBlockedSignals) {
  auto signals = SignalFd::Create({SIGHUP});
  ASSERT_TRUE(signals.ok());
  EXPECT_EQ(signals->Read(), std::nullopt);
  kill(getpid(), SIGHUP);
  EXPECT_EQ(signals->Read(), SIGHUP);
  EXPECT_EQ(std::signal(SIGPIPE, SIG_IGN), SIG_IGN);
}

TEST(Thread, IsNamedAndBlocksSignals) {
  bool blocked = false;
  BoundedQueue<int> named(1);
  std::string name;
  Thread thread("a-name-longer-than-15", [&] {
    (void)named.Pop();
    char text[16] = {};
    prctl(PR_GET_NAME, text);
    name = text;
    sigset_t set;
    pthread_sigmask(SIG_SETMASK, nullptr, &set);
    blocked = sigismember(&set, SIGTERM) == 1;
  });
  ASSERT_TRUE(named.TryPush(1));
  thread.Join();
  EXPECT_TRUE(blocked);
  EXPECT_EQ(name, "a-name-longer-t");
}

UniqueFd ConnectTo(const std::string& path) {
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) fd.Reset();
  return fd;
}

TEST(UnixListener, SaysWhoConnected) {
  TempDir dir;
  const std::string path = dir.path() + "/sock";
  {
    auto listener = UnixListener::Listen({.path = path, .mode = 0660, .group = getgid()});
    ASSERT_TRUE(listener.ok()) << listener.status();
    struct stat info {};
    ASSERT_EQ(stat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777u, 0660u) << "whatever the umask";
    EXPECT_FALSE(listener->Accept()->has_value());
    UniqueFd client = ConnectTo(path);
    ASSERT_TRUE(client.valid());
    auto accepted = listener->Accept();
    ASSERT_TRUE(accepted.ok() && accepted->has_value()) << accepted.status();
    EXPECT_EQ((*accepted)->peer.pid, getpid());
    EXPECT_EQ((*accepted)->peer.uid, getuid());
    EXPECT_FALSE(HasExited((*accepted)->pidfd.get()));
    EXPECT_EQ(CodeOf(UnixListener::Listen({.path = path}).status()), ErrorCode::REFUSED) << "someone listens";
  }
  EXPECT_NE(access(path.c_str(), F_OK), 0) << "removed with the listener";
}

TEST(UnixListener, PidFdOutlivesAPeerThatDiedBeforeAccept) {
  TempDir dir;
  auto listener = *UnixListener::Listen({.path = dir.path() + "/sock"});
  pid_t pid = fork();
  if (pid == 0) {
    UniqueFd client = ConnectTo(dir.path() + "/sock");
    _exit(client.valid() ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  ASSERT_EQ(status, 0);
  auto accepted = listener.Accept();
  ASSERT_TRUE(accepted.ok()) << accepted.status();
  EXPECT_TRUE(!accepted->has_value() || HasExited((*accepted)->pidfd.get()));
}

TEST(UnixListener, ReplacesWhatADeadAgentLeftOnly) {
  TempDir dir;
  const std::string path = dir.path() + "/sock";
  {
    // Bound and closed without unlink, as a killed agent leaves it.
    UniqueFd dead(socket(AF_UNIX, SOCK_SEQPACKET, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    ASSERT_EQ(bind(dead.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  EXPECT_TRUE(UnixListener::Listen({.path = path}).ok());
  std::ofstream(dir.path() + "/file") << "precious";
  EXPECT_EQ(CodeOf(UnixListener::Listen({.path = dir.path() + "/file"}).status()), ErrorCode::REFUSED);
  EXPECT_EQ(access((dir.path() + "/file").c_str(), F_OK), 0);
}

TEST(UnixListener, TooLongAPathIsSaidClearly) {
  auto listener = UnixListener::Listen({.path = "/tmp/" + std::string(110, 'x')});
  EXPECT_EQ(CodeOf(listener.status()), ErrorCode::INVALID_ARGUMENT);
  EXPECT_THAT(std::string(listener.status().message()), HasSubstr("107 are possible"));
}

TEST(UnixListener, PeersAreKnownWithAllTheirGroups) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to be in many groups";
  const pid_t child = fork();
  if (child == 0) {
    std::vector<gid_t> groups;
    for (gid_t group = 1; group <= 100; ++group) groups.push_back(5000 + group);
    int ends[2];
    if (setgroups(groups.size(), groups.data()) != 0 || socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0) _exit(2);
    auto peer = PeerOf(ends[0]);
    _exit(peer.ok() && peer->groups == groups ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace ckptd
