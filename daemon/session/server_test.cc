#include "daemon/session/server.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>

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
    ServerOptions options;
    options.listen.path = dir_ + "/s";
    options.max_sessions = 3;
    server_ = Server::Start(*loop_, recorder_, options).value();
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

  std::string dir_;
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
  for (int i = 0; i < 8; ++i) fds.push_back(Connect(dir_ + "/s"));
  Turn();
  EXPECT_EQ(server_->sessions(), 3u);
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
  kill(trainer, SIGKILL);
  waitpid(trainer, nullptr, 0);
  Turn(10);
  ASSERT_EQ(recorder_.dead.size(), 1u);
  EXPECT_EQ(recorder_.dead[0].pid, trainer);
  EXPECT_EQ(server_->sessions(), 1u);
  kill(-trainer, SIGKILL);
}

}  // namespace
}  // namespace ckptd
