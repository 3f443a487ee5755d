#include "daemon/web/server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

namespace ckptd {
namespace {

using ::testing::EndsWith;
using ::testing::StartsWith;

constexpr char kRequest[] = "GET /page HTTP/1.1\r\nHost: localhost\r\n\r\n";
constexpr size_t kLarge = 16 << 20;  // more than a socket holds

class ServerTest : public ::testing::Test {
 protected:
  ServerTest() : loop_(*Loop::Create(clock_, 4)) {
    HttpLimits limits;
    limits.connections = 2;
    limits.exchange = std::chrono::seconds(10);
    auto server = HttpServer::Start(loop_.get(), "127.0.0.1:0", limits, [](absl::string_view path) {
      if (path == "/large") return HttpResponse{200, "text/plain", std::string(kLarge, 'x')};
      return HttpResponse{200, "text/plain", "answer"};
    });
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  UniqueFd Connect() {
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(server_->port());
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    return fd;
  }

  void Say(const UniqueFd& fd, absl::string_view text) {
    EXPECT_EQ(send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
  }

  void Turn() { ASSERT_TRUE(loop_->RunOnce(std::chrono::milliseconds(20)).ok()); }

  // Everything until the server closes; turns the loop meanwhile. "TIMEOUT" when it does not.
  std::string Hear(const UniqueFd& fd) {
    std::string text;
    char buffer[65536];
    for (int turns = 0; turns < 100'000; ++turns) {
      EXPECT_TRUE(loop_->RunOnce(Nanos(0)).ok());
      ssize_t got = recv(fd.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
      if (got == 0) return text;
      if (got > 0) text.append(buffer, static_cast<size_t>(got));
    }
    return "TIMEOUT";
  }

  FakeClock clock_;
  std::unique_ptr<Loop> loop_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(ServerTest, Answers) {
  UniqueFd client = Connect();
  Say(client, kRequest);
  EXPECT_THAT(Hear(client), EndsWith("\r\n\r\nanswer"));
  EXPECT_EQ(server_->connections(), 0U);
}

TEST_F(ServerTest, RequestsMayComeInPieces) {
  UniqueFd client = Connect();
  for (char c : std::string(kRequest)) {
    Say(client, absl::string_view(&c, 1));
    Turn();
  }
  EXPECT_THAT(Hear(client), EndsWith("answer"));
}

TEST_F(ServerTest, LargeAnswersGoOutAsTheSocketTakesThem) {
  UniqueFd client = Connect();
  Say(client, "GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n");
  for (int i = 0; i < 5; ++i) Turn();
  EXPECT_EQ(server_->connections(), 1U) << "the socket cannot hold all";
  EXPECT_GT(Hear(client).size(), kLarge);
}

TEST_F(ServerTest, BadRequestsAreAnsweredAndClosed) {
  UniqueFd client = Connect();
  Say(client, "PUT / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(Hear(client), StartsWith("HTTP/1.1 405 "));
}

TEST_F(ServerTest, SilentClientsAreClosedAfterTheDeadline) {
  UniqueFd client = Connect();
  Say(client, "GET ");
  Turn();
  EXPECT_EQ(server_->connections(), 1U);
  clock_.Advance(std::chrono::seconds(11));
  EXPECT_EQ(Hear(client), "");
  EXPECT_EQ(server_->connections(), 0U);
}

TEST_F(ServerTest, ClientsThatDoNotReadAreClosedAfterTheDeadline) {
  UniqueFd client = Connect();
  Say(client, "GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n");
  for (int i = 0; i < 5; ++i) Turn();
  clock_.Advance(std::chrono::seconds(11));
  Turn();
  EXPECT_EQ(server_->connections(), 0U);
}

TEST_F(ServerTest, MoreClientsThanTheLimitWaitTheirTurn) {
  std::array<UniqueFd, 5> clients;
  for (UniqueFd& client : clients) client = Connect();
  for (int i = 0; i < 5; ++i) Turn();
  EXPECT_EQ(server_->connections(), 2U);
  for (UniqueFd& client : clients) Say(client, kRequest);
  for (UniqueFd& client : clients) EXPECT_THAT(Hear(client), EndsWith("answer"));
}

TEST_F(ServerTest, WithoutDescriptorsItPausesInsteadOfSpinning) {
  UniqueFd client = Connect();
  Say(client, kRequest);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = static_cast<rlim_t>(UniqueFd(dup(0)).get());  // the lowest free number
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  Turn();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  Turn();
  EXPECT_EQ(server_->connections(), 0U) << "still pausing";
  clock_.Advance(std::chrono::seconds(1));
  EXPECT_THAT(Hear(client), EndsWith("answer"));
}

TEST_F(ServerTest, ClientsThatLeaveAreForgotten) {
  {
    UniqueFd client = Connect();
    Say(client, "GET ");
    Turn();
  }
  Turn();
  Turn();
  EXPECT_EQ(server_->connections(), 0U);
}

TEST_F(ServerTest, DestructionWithOpenConnectionsIsClean) {
  UniqueFd client = Connect();
  Turn();
  server_.reset();
  Turn();
  char byte;
  EXPECT_EQ(recv(client.get(), &byte, 1, 0), 0);
}

}  // namespace
}  // namespace ckptd
