// The node's agent and the user's own: which one a trainer goes to, and stays with.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "client/src/test_trainer.h"

namespace ckptd {
namespace {

// What an agent that was killed leaves behind.
void LeaveSocket(const std::string& path) {
  UniqueFd listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path, path.data(), path.size());
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
}

// Neither runs yet. The folder of the node's agent is there, as systemd leaves it.
class ChooseAgentTest : public ::testing::Test {
 protected:
  ChooseAgentTest() {
    char folder[] = "/tmp/ckpt-choose-XXXXXX";
    runtime_ = mkdtemp(folder);
    std::filesystem::create_directory(runtime_ / "ckptd");
    std::filesystem::create_symlink(own.socket(), runtime_ / "ckptd" / "ckptd.sock");
    unsetenv("CKPTD_SOCKET");
    setenv("XDG_RUNTIME_DIR", runtime_.c_str(), 1);
    setenv("CKPTD_SYSTEM_SOCKET", node.socket().c_str(), 1);
  }

  ~ChooseAgentTest() override {
    trainer.reset();
    unsetenv("XDG_RUNTIME_DIR");
    unsetenv("CKPTD_SYSTEM_SOCKET");
    std::filesystem::remove_all(runtime_);
  }

  void Open() { trainer = std::make_unique<TestTrainer>(""); }

  ckpt_status Begin(uint64_t connect_ns, uint64_t timeout_ns = kLong) {
    ckpt_want want = {sizeof(ckpt_want), CKPT_WANT_NEWEST, 0, timeout_ns, connect_ns};
    restored.struct_bytes = sizeof restored;
    const auto begun = std::chrono::steady_clock::now();
    ckpt_status status = ckpt_restore_begin(trainer->handle, &want, &restored);
    const auto took = std::chrono::steady_clock::now() - begun;
    took_ns = static_cast<uint64_t>(std::chrono::nanoseconds(took).count());
    return status;
  }

  // With whoever answers.
  void Train() {
    ASSERT_EQ(Begin(100 * kMs), 0) << ckpt_error();
    ASSERT_EQ(ckpt_restore_end(trainer->handle, 0, nullptr, &restored), 0) << ckpt_error();
    trainer->MakeTensors({1000});
    ASSERT_EQ(trainer->Register(), 0) << ckpt_error();
    trainer->WaitReady();
  }

  FakeAgent node;
  FakeAgent own;
  std::unique_ptr<TestTrainer> trainer;
  ckpt_restored restored = {};
  uint64_t took_ns = 0;

 private:
  std::filesystem::path runtime_;
};

TEST_F(ChooseAgentTest, ARestoreWaitsForTheNodesAgent) {
  own.Start();
  Open();
  std::thread late([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    node.Start();
  });
  EXPECT_EQ(Begin(kLong), 0) << ckpt_error();
  late.join();
  EXPECT_EQ(node.Count(MessageType::kJoin), 1);
  EXPECT_EQ(own.Count(MessageType::kHello), 0);
}

TEST_F(ChooseAgentTest, AnAgentThatWasKilledIsWaitedForAsWell) {
  LeaveSocket(node.socket());
  own.Start();
  Open();
  EXPECT_EQ(Begin(300 * kMs), 0) << ckpt_error();
  EXPECT_GE(took_ns, 250 * kMs);
  std::filesystem::remove(node.socket());
}

TEST_F(ChooseAgentTest, WhoTrainsStaysWithItsAgent) {
  node.Start();
  own.Start();
  Open();
  ASSERT_NO_FATAL_FAILURE(Train());
  node.Kill();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));  // longer than the connect timeout
  node.Start();
  ASSERT_TRUE(Eventually([&] { return node.Count(MessageType::kResume) == 1; }));
  node.Grant(0);
  EXPECT_EQ(trainer->Save(1), 0) << ckpt_error();
  EXPECT_EQ(own.Count(MessageType::kHello), 0);
}

TEST_F(ChooseAgentTest, WhoJoinedTheUsersAgentStaysThere) {
  own.Start();
  Open();
  ASSERT_NO_FATAL_FAILURE(Train());
  node.Start();
  own.Kill();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  own.Start();
  ASSERT_TRUE(Eventually([&] { return own.Count(MessageType::kResume) == 1; }));
  EXPECT_EQ(node.Count(MessageType::kHello), 0);
}

TEST_F(ChooseAgentTest, TheUsersAgentIsMetAfterTheConnectTimeout) {
  own.Start();
  Open();
  EXPECT_EQ(Begin(300 * kMs), 0) << ckpt_error();
  EXPECT_GE(took_ns, 300 * kMs);
  EXPECT_EQ(own.Count(MessageType::kJoin), 1);
}

TEST_F(ChooseAgentTest, TheUsersAgentIsMetWithinAShortTimeout) {
  own.Start();
  Open();
  EXPECT_EQ(Begin(kLong, 2000 * kMs), 0) << ckpt_error();
}

TEST_F(ChooseAgentTest, WhereNoAgentOfTheNodeCanBeTheUsersIsMetAtOnce) {
  setenv("CKPTD_SYSTEM_SOCKET", "/nonexistent/ckptd/ckptd.sock", 1);
  own.Start();
  Open();
  EXPECT_EQ(Begin(kLong), 0) << ckpt_error();
  EXPECT_LT(took_ns, kLong / 4);
}

TEST_F(ChooseAgentTest, BothAreNamedWhereNeitherAnswers) {
  Open();
  EXPECT_EQ(Begin(300 * kMs), CKPT_E_AGENT_UNREACHABLE);
  EXPECT_GE(took_ns, 300 * kMs);
  const std::string said = ckpt_error();
  EXPECT_NE(said.find(node.socket() + " (No such file or directory)"), std::string::npos) << said;
  EXPECT_NE(said.find("/ckptd/ckptd.sock (No such file or directory)"), std::string::npos) << said;
}

}  // namespace
}  // namespace ckptd
