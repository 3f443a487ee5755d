// Input from a newer version, and from strangers: the agent lives, says what is wrong and what to do, and loses
// nothing.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "client/core/copy/crc32c.h"
#include "proto/local/messages.h"
#include "tests/integration/harness.h"

namespace ckptd::harness {
namespace {

namespace fs = std::filesystem;

void ExpectSays(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "expected \"" << part << "\" in: " << text;
}

// ---------------------------------------------------------------------------------------------------- newer versions

// The manifest as a newer ckptd would write it: another major, a member whose type changed, its checksum right.
void MakeNewer(const std::string& manifest) {
  std::string text = FileContent(manifest);
  const auto replace = [&text](const std::string& from, const std::string& to) {
    const size_t at = text.find(from);
    ASSERT_NE(at, text.npos) << from << " in " << text;
    text.replace(at, from.size(), to);
  };
  replace("\"format_major\":1,", "\"format_major\":2,");
  replace("\"world_size\":1,", "\"world_size\":[1],");
  const size_t mark = text.rfind("\"crc32c\":");
  ASSERT_NE(mark, text.npos);
  text = text.substr(0, mark) + "\"crc32c\":" + std::to_string(Crc32c(0, text.data(), mark)) + "}";
  fs::remove(manifest);
  std::ofstream(manifest, std::ios::binary) << text;
}

class Newer : public ::testing::Test {
 protected:
  Newer() : node_({.region = "", .storage = "", .settings = {{"retention.keep_last", "2"}}}) {}

  // Steps up to 20 are durable, and the newest is of a newer format; memory is gone, as after a reboot.
  void SetUp() override {
    ASSERT_TRUE(node_.StartAgent());
    auto trainer = node_.Train(Args("--steps 20 --every 5 --step-ms 10"));
    ASSERT_EQ(trainer->Wait(), 0) << trainer->Errors();
    const auto whole = WholeSteps(node_);
    ASSERT_GE(whole.size(), 2u);
    older_ = whole[whole.size() - 2].first;
    newest_ = whole.back().second + "/manifest.json";
    node_.KillAgent();
    node_.LoseRegion();
    ASSERT_NO_FATAL_FAILURE(MakeNewer(newest_));
    before_ = FileContent(newest_);
    ASSERT_TRUE(node_.StartAgent()) << node_.AgentLog();
  }

  Node node_;
  uint64_t older_ = 0;
  std::string newest_;
  std::string before_;
};

TEST_F(Newer, ACheckpointOfANewerFormatIsAnErrorThatNamesTheWayOut) {
  auto refused = node_.Train(Args("--steps 30 --restore-ms 5000"));
  EXPECT_EQ(refused->Wait(), 1);
  ExpectSays(refused->Errors(), "step 20.a1 was committed by a newer ckptd");
  ExpectSays(refused->Errors(), "restore(step=" + std::to_string(older_) + ")");
  EXPECT_EQ(FileContent(newest_), before_);
}

// The user goes on from the older one; what the newer ckptd saved is never deleted by this one.
TEST_F(Newer, AnOlderStepIsTakenOnRequestAndTheNewerOneStays) {
  auto trainer = node_.Train(Args("--steps 100000 --every 5 --step-ms 2 --want " + std::to_string(older_)));
  EXPECT_EQ(NumberField(Restored(*trainer), "step"), older_) << node_.AgentLog();
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(trainer->WaitFor("DURABLE")) << node_.AgentLog();
  trainer->Kill();
  EXPECT_EQ(FileContent(newest_), before_);
  EXPECT_TRUE(fs::exists(fs::path(newest_).parent_path() / "rank-00000-of-00001.safetensors"));
}

TEST(NewerRegion, IsLeftUntouchedAndSaidSo) {
  Node node;
  ASSERT_TRUE(node.StartAgent());
  auto first = node.Train(Args("--steps 20 --every 5 --step-ms 10"));
  ASSERT_EQ(first->Wait(), 0);
  node.KillAgent();
  for (const std::string& name : FilesWith(node.region(), "/ctl.")) {
    std::fstream ctl(node.region() + "/" + name, std::ios::in | std::ios::out | std::ios::binary);
    ctl.seekp(offsetof(Superblock, major));
    ctl.put(static_cast<char>(kRegionMajor + 1));
  }
  std::map<std::string, std::string> before;
  for (const std::string& name : FilesWith(node.region(), "/trainer/"))
    before[name] = FileContent(node.region() + "/" + name);
  ASSERT_TRUE(node.StartAgent()) << node.AgentLog();
  ExpectSays(node.AgentLog(), "region.untouched");
  auto refused = node.Train(Args("--steps 30 --restore-ms 3000"));
  EXPECT_EQ(refused->Wait(), 1);
  ExpectSays(refused->Errors(), "written by a newer agent");
  auto other = node.Train(Args("--job other --steps 20 --every 5 --step-ms 5"));
  EXPECT_EQ(other->Wait(), 0) << other->Errors();
  EXPECT_EQ(node.StopAgent(), 0);
  for (const auto& [name, content] : before) EXPECT_TRUE(FileContent(node.region() + "/" + name) == content) << name;
}

// ------------------------------------------------------------------------------------------------------- the socket

class RawTrainer {
 public:
  explicit RawTrainer(const Node& node) : fd_(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    node.socket().copy(address.sun_path, sizeof address.sun_path - 1);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    timeval limit{10, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }
  ~RawTrainer() { close(fd_); }
  RawTrainer(const RawTrainer&) = delete;
  RawTrainer& operator=(const RawTrainer&) = delete;

  void Hello(uint16_t min_major, uint16_t max_major) const {
    HelloMessage hello{};
    Say(MessageType::kHello, hello, [&] {
      hello.min_major = min_major;
      hello.max_major = max_major;
      strcpy(hello.library, "9.9");
    });
  }
  void Join(const std::string& job) const {
    JoinMessage join{};
    Say(MessageType::kJoin, join, [&] {
      job.copy(join.job, sizeof join.job - 1);
      join.world = 1;
      join.ticket = 77;
      join.timeout_ms = 30'000;
    });
  }
  // The headers of a layout in a sealed memfd.
  void Layout(const std::string& header) const {
    const int memory = memfd_create("headers", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ASSERT_EQ(write(memory, header.data(), header.size()), static_cast<ssize_t>(header.size()));
    ASSERT_EQ(fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL), 0);
    LayoutMessage layout{};
    layout.head = HeadOf(MessageType::kLayout, sizeof layout);
    layout.ticket = 77;
    layout.header_bytes = header.size();
    layout.image_count = 1;
    layout.header_crc = Crc32c(0, header.data(), header.size());
    iovec part{&layout, sizeof layout};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(rights), &memory, sizeof memory);
    EXPECT_EQ(sendmsg(fd_, &message, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof layout));
    close(memory);
  }
  // The sentence of the next ERROR; "" when none came.
  [[nodiscard]] std::string NextError() const {
    alignas(8) char packet[kMaxPacketBytes];
    for (ssize_t got = 0; (got = recv(fd_, packet, sizeof packet, 0)) > 0;) {
      ErrorMessage error{};
      if (got < static_cast<ssize_t>(sizeof error)) continue;
      std::memcpy(&error, packet, sizeof error);
      if (error.head.type == static_cast<uint16_t>(MessageType::kError)) return error.sentence;
    }
    return "";
  }

 private:
  static MessageHead HeadOf(MessageType type, size_t size) {
    MessageHead head{};
    head.magic = kMessageMagic;
    head.type = static_cast<uint16_t>(type);
    head.size = static_cast<uint32_t>(size);
    return head;
  }
  template <typename Message, typename Fill>
  void Say(MessageType type, Message& message, const Fill& fill) const {
    fill();
    message.head = HeadOf(type, sizeof message);
    EXPECT_EQ(send(fd_, &message, sizeof message, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof message));
  }

  int fd_;
};

TEST(Socket, ANewerProtocolIsRefusedWithBothVersions) {
  Node node;
  ASSERT_TRUE(node.StartAgent());
  auto trainer = node.Train(Args("--steps 100000 --every 5 --step-ms 5"));
  ASSERT_TRUE(trainer->WaitFor("CAPTURED"));
  RawTrainer newer(node);
  newer.Hello(kProtocolMajorMax + 1, kProtocolMajorMax + 3);
  const std::string said = newer.NextError();
  ExpectSays(said, "libckpt 9.9 speaks protocol " + std::to_string(kProtocolMajorMax + 1));
  ExpectSays(said, "this agent");
  RawTrainer both(node);  // one that also speaks ours is taken
  both.Hello(1, 200);
  both.Join("raw");
  both.Layout("{}");
  EXPECT_EQ(both.NextError().find("speaks protocol"), std::string::npos);
  EXPECT_TRUE(trainer->WaitFor("CAPTURED"));
}

TEST(Socket, AnUnknownDtypeIsRefusedByName) {
  Node node;
  ASSERT_TRUE(node.StartAgent());
  RawTrainer trainer(node);
  trainer.Hello(1, 1);
  trainer.Join("raw");
  std::string json = R"({"weight":{"dtype":"F7","shape":[4],"data_offsets":[0,4]}})";
  json.resize(4096 - 8, ' ');
  const uint64_t length = json.size();
  std::string header(reinterpret_cast<const char*>(&length), 8);
  trainer.Layout(header + json);
  const std::string said = trainer.NextError();
  ExpectSays(said, "tensor \"weight\"");
  ExpectSays(said, "unknown dtype \"F7\"");
  EXPECT_TRUE(node.agent()->running());
}

// ------------------------------------------------------------------------------------------------------- permissions

TEST(Permissions, ARegionThatOthersMayWriteIsRefused) {
  Node node;
  fs::create_directories(node.region() + "/r");
  chmod((node.region() + "/r").c_str(), 0777);
  EXPECT_FALSE(node.StartAgent());
  EXPECT_GT(node.agent()->Wait(), 0);
  ExpectSays(node.AgentLog(), node.region() + "/r");
  ExpectSays(node.AgentLog(), "next: ");
}

TEST(Permissions, AStorageThatTheAgentMayNotWriteIsNamed) {
  if (geteuid() != 0) GTEST_SKIP() << "skipped: needs root, to become another user";
  Node node;
  fs::create_directories(node.storage());
  chmod(node.storage().c_str(), 0755);
  chmod(node.base().c_str(), 0777);    // socket and log
  chmod(node.region().c_str(), 0777);  // makes its own directory there
  Child agent({{"setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", BinaryDirectory() + "/ckptd",
                "--config", node.base() + "/ckptd.toml"},
               {},
               node.base() + "/agent.log"});
  for (int i = 0; i < 100 && !fs::exists(node.socket()); ++i) usleep(50'000);
  auto trainer = node.Train(Args("--steps 5 --restore-ms 3000"), AsUser("65534", "65534"));
  EXPECT_EQ(trainer->Wait(), 1);
  ExpectSays(trainer->Errors(), "Permission denied");
  ExpectSays(trainer->Errors(), node.storage());
  EXPECT_TRUE(agent.running());
}

}  // namespace
}  // namespace ckptd::harness
