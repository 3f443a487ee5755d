#include "daemon/session/server.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <functional>

#include "daemon/base/errors.h"

namespace ckptd {
namespace {

struct Recorder final : SessionHandler {
  void OnRequest(SessionId session, const Peer& peer, Request request, std::vector<UniqueFd>) override {
    last_session = session;
    last_peer = peer;
    requests.push_back(std::move(request));
  }
  void OnDisconnected(SessionId) override { ++disconnected; }
  void OnProcessDead(const ProcessId& process) override { dead.push_back(process); }

  SessionId last_session = 0;
  Peer last_peer;
  std::vector<Request> requests;
  int disconnected = 0;
  std::vector<ProcessId> dead;
};

int Connect(const std::string& path) {
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof(address.sun_path), "%s", path.c_str());
  return connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 ? fd : -1;
}

template <typename Message>
void SendTo(int fd, MessageType type, Message message) {
  message.head.magic = kMessageMagic;
  message.head.type = static_cast<uint16_t>(type);
  message.head.size = sizeof(message);
  ASSERT_EQ(send(fd, &message, sizeof(message), MSG_NOSIGNAL), static_cast<ssize_t>(sizeof(message)));
}

HelloMessage Hello(uint16_t min, uint16_t max) {
  HelloMessage hello{};
  hello.min_major = min;
  hello.max_major = max;
  return hello;
}

class ServerTest : public testing::Test {
 protected:
  void SetUp() override {
    char dir[] = "/tmp/ckptd-session-XXXXXX";
    ASSERT_NE(mkdtemp(dir), nullptr);
    dir_ = dir;
    loop_ = Loop::Create(SystemClock(), 64).value();
    StartServer();
  }
  void StartServer() {
    ServerOptions options;
    options.listen.path = dir_ + "/s";
    options.max_sessions = 3;
    options.max_sessions_of_user = most_of_user_;
    options.max_processes_of_user = 1;
    options.hello_timeout = hello_timeout_;
    options.accept_pause = std::chrono::milliseconds(100);
    server_ = std::make_unique<Server>(*loop_, recorder_, closer_, options);
    ASSERT_TRUE(server_->Open().ok());
  }
  void TearDown() override {
    server_.reset();
    rmdir(dir_.c_str());
  }
  void Turn(int turns = 5) {
    for (int i = 0; i < turns; ++i) ASSERT_TRUE(loop_->RunOnce(std::chrono::milliseconds(20)).ok());
  }
  template <typename Message>
  Message Receive(int fd) {
    Message message{};
    EXPECT_GE(recv(fd, &message, sizeof(message), MSG_DONTWAIT), static_cast<ssize_t>(sizeof(MessageHead)));
    return message;
  }

  // Turns until `done`, for a second at most.
  void TurnUntil(const std::function<bool()>& done) {
    for (int i = 0; i < 50 && !done(); ++i) Turn(1);
  }
  std::string Sentence(int fd) { return Receive<ErrorMessage>(fd).sentence; }

  std::string dir_;
  size_t most_of_user_ = 100;
  Nanos hello_timeout_ = std::chrono::seconds(10);
  // Closes what it is given when it is told to.
  struct Closer final : Executor {
    bool Run(std::function<void()> work) override {
      waiting.push_back(std::move(work));
      return true;
    }
    void Wake() {
      for (auto& work : waiting) work();
      waiting.clear();
    }
    std::vector<std::function<void()>> waiting;
  } closer_;
  Recorder recorder_;
  std::unique_ptr<Loop> loop_;
  std::unique_ptr<Server> server_;
};

TEST_F(ServerTest, HelloThenRequests) {
  int fd = Connect(dir_ + "/s");
  SendTo(fd, MessageType::kHello, Hello(1, 1));
  SendTo(fd, MessageType::kBye, ByeMessage{});
  Turn();
  EXPECT_EQ(Receive<HelloReplyMessage>(fd).major, 1);
  ASSERT_EQ(recorder_.requests.size(), 1u);
  EXPECT_EQ(recorder_.last_peer.process.pid, getpid());
  EXPECT_EQ(recorder_.last_peer.uid, getuid());
  close(fd);
  Turn();
  EXPECT_EQ(recorder_.disconnected, 1);
}

TEST_F(ServerTest, OtherVersionIsRefusedWithASentence) {
  int fd = Connect(dir_ + "/s");
  SendTo(fd, MessageType::kHello, Hello(7, 9));
  Turn();
  auto error = Receive<ErrorMessage>(fd);
  EXPECT_EQ(error.code, static_cast<uint32_t>(ErrorCode::PROTOCOL));
  EXPECT_NE(std::string(error.sentence).find("protocol 7 to 9"), std::string::npos);
  EXPECT_EQ(server_->sessions(), 0u);
  close(fd);
}

TEST_F(ServerTest, GarbageEndsOnlyItsOwnConnection) {
  int good = Connect(dir_ + "/s");
  int bad = Connect(dir_ + "/s");
  SendTo(good, MessageType::kHello, Hello(1, 1));
  ASSERT_EQ(send(bad, "garbage", 7, 0), 7);
  Turn();
  EXPECT_EQ(server_->sessions(), 1u);
  SendTo(good, MessageType::kBye, ByeMessage{});
  Turn();
  EXPECT_EQ(recorder_.requests.size(), 1u);
  close(good);
  close(bad);
}

TEST_F(ServerTest, ConnectionsAreBounded) {
  std::vector<int> fds;
  fds.reserve(8);
  for (int i = 0; i < 8; ++i) fds.push_back(Connect(dir_ + "/s"));
  Turn();
  EXPECT_EQ(server_->sessions(), 3u);
  EXPECT_NE(Sentence(fds[7]).find("this agent has 3 connections, as many as it takes"), std::string::npos);
  for (int fd : fds) close(fd);
}

TEST_F(ServerTest, OneUserLeavesRoomForOthers) {
  server_.reset();
  most_of_user_ = 2;
  ASSERT_NO_FATAL_FAILURE(StartServer());
  std::vector<int> fds;
  fds.reserve(3);
  for (int i = 0; i < 3; ++i) fds.push_back(Connect(dir_ + "/s"));
  Turn(2);
  EXPECT_EQ(server_->sessions(), 2u);
  EXPECT_NE(Sentence(fds[2]).find("has 2 connections to this agent, as many as one user may have"), std::string::npos);
  close(fds[0]);
  Turn(2);
  fds[0] = Connect(dir_ + "/s");
  Turn(2);
  EXPECT_EQ(server_->sessions(), 2u) << "a connection that ended counts no more";
  for (int fd : fds) close(fd);
}

TEST_F(ServerTest, WhoSaysNoHelloIsDisconnected) {
  server_.reset();
  hello_timeout_ = std::chrono::milliseconds(200);
  ASSERT_NO_FATAL_FAILURE(StartServer());
  int silent = Connect(dir_ + "/s");
  int polite = Connect(dir_ + "/s");
  SendTo(polite, MessageType::kHello, Hello(1, 1));
  Turn();
  ASSERT_EQ(server_->sessions(), 2u);
  TurnUntil([this] { return server_->sessions() == 1; });
  Turn(15);
  EXPECT_EQ(server_->sessions(), 1u);
  EXPECT_EQ(recorder_.disconnected, 1);
  close(silent);
  close(polite);
}

TEST_F(ServerTest, WithoutDescriptorsItPausesAndThenGoesOn) {
  int fd = Connect(dir_ + "/s");
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  testing::internal::CaptureStderr();
  none.rlim_cur = static_cast<rlim_t>(UniqueFd(dup(0)).get());  // the lowest free number
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(loop_->RunOnce(std::chrono::microseconds(100)).ok());
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(log.find("session.accept"), log.rfind("session.accept")) << "it spins: " << log;
  TurnUntil([this] { return server_->sessions() == 1; });
  EXPECT_EQ(server_->sessions(), 1u);
  close(fd);
}

TEST_F(ServerTest, DescriptorsThatAreNotMemoryAreClosedElsewhere) {
  int fd = Connect(dir_ + "/s");
  HelloMessage hello = Hello(1, 1);
  hello.head = {kMessageMagic, static_cast<uint16_t>(MessageType::kHello), 0, sizeof(hello), 0, 0};
  const auto bytes = std::span(reinterpret_cast<const uint8_t*>(&hello), sizeof(hello));
  ASSERT_EQ(SendPacket(fd, bytes, std::vector<int>(kMaxPacketFds, STDERR_FILENO)), 0);
  Turn();
  EXPECT_EQ(closer_.waiting.size(), kMaxPacketFds);
  EXPECT_NE(Sentence(fd).find("received descriptor: is not memory"), std::string::npos);
  EXPECT_EQ(server_->sessions(), 0u);
  close(fd);
  // As long as those wait, the user's next ones are not even opened.
  fd = Connect(dir_ + "/s");
  ASSERT_EQ(SendPacket(fd, bytes, std::vector<int>(1, STDERR_FILENO)), 0);
  Turn();
  EXPECT_EQ(closer_.waiting.size(), kMaxPacketFds);
  EXPECT_EQ(server_->sessions(), 0u);
  close(fd);
  closer_.Wake();
  fd = Connect(dir_ + "/s");
  ASSERT_EQ(SendPacket(fd, bytes, std::vector<int>(1, STDERR_FILENO)), 0);
  Turn();
  EXPECT_EQ(closer_.waiting.size(), 1u);
  closer_.Wake();
  close(fd);
}

TEST_F(ServerTest, AUsersWatchedProcessesAreBounded) {
  std::vector<int> fds = {Connect(dir_ + "/s"), Connect(dir_ + "/s")};
  Turn();
  const pid_t other = fork();
  if (other == 0) {
    (void)Connect(dir_ + "/s");
    for (;;) pause();
  }
  TurnUntil([this] { return server_->sessions() == 3; });
  EXPECT_TRUE(server_->WatchPeer(1).ok());
  EXPECT_TRUE(server_->WatchPeer(2).ok()) << "the same process";
  EXPECT_EQ(CodeOf(server_->WatchPeer(3)), ErrorCode::REFUSED);
  kill(other, SIGKILL);
  waitpid(other, nullptr, 0);
  for (int fd : fds) close(fd);
}

TEST_F(ServerTest, DeathIsNoticedAlthoughAChildKeepsTheSocket) {
  pid_t trainer = fork();
  if (trainer == 0) {
    setpgid(0, 0);
    (void)Connect(dir_ + "/s");
    fork();
    sleep(30);
    _exit(0);
  }
  Turn(10);
  ASSERT_EQ(server_->sessions(), 1u);
  ASSERT_TRUE(server_->WatchPeer(1).ok());
  kill(trainer, SIGKILL);
  waitpid(trainer, nullptr, 0);
  Turn(10);
  ASSERT_EQ(recorder_.dead.size(), 1u);
  EXPECT_EQ(recorder_.dead[0].pid, trainer);
  EXPECT_EQ(server_->sessions(), 1u);
  kill(-trainer, SIGKILL);
}

TEST(SetText, CutsBetweenCharacters) {
  char field[5];
  SetText(field, "abcd");
  EXPECT_STREQ(field, "abcd");
  SetText(field, "abcde");
  EXPECT_STREQ(field, "abcd");
  SetText(field, "ab\u20ac");  // of three bytes
  EXPECT_STREQ(field, "ab");
  SetText(field, "a\u20ac");
  EXPECT_STREQ(field, "a\u20ac");
  SetText(field, "\x80\x80\x80\x80\x80");  // no text at all
  EXPECT_STREQ(field, "");
}

}  // namespace
}  // namespace ckptd
