// A reader holds a snapshot longer than training waits: two slots, and the saves go on all the same.
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <thread>

#include "tests/integration/harness.h"

namespace ckptd::harness {
namespace {

namespace fs = std::filesystem;

class Pins : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/ckptd-pins-XXXXXX";
    dir_ = mkdtemp(name);
    NodeOptions options;
    options.settings["agent.admin_socket"] = "\"" + dir_ + "/admin.sock\"";
    options.settings["retention.keep_last"] = "1000";
    node_ = std::make_unique<Node>(options);
    ASSERT_TRUE(node_->StartAgent()) << node_->AgentLog();
  }
  void TearDown() override {
    node_.reset();
    fs::remove_all(dir_);
  }

  // `ckptctl restore`, stopped as soon as it has made its file: its snapshot is chosen and pinned by then.
  std::unique_ptr<Child> StoppedReader() {
    auto reader =
        std::make_unique<Child>(Child::Spec{{BinaryDirectory() + "/ckptctl", "restore", "trainer", "--to", Out()},
                                            {"CKPTD_ADMIN_SOCKET=" + dir_ + "/admin.sock"},
                                            Errors()});
    const TimePoint deadline = std::chrono::steady_clock::now() + kLong;
    while (ListFiles(Out()).empty() && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(Millis(1));
    reader->Signal(SIGSTOP);
    return reader;
  }
  [[nodiscard]] std::string Out() const { return dir_ + "/out"; }
  [[nodiscard]] std::string Errors() const { return dir_ + "/stderr"; }
  static std::string Content(const std::string& file) { return FileContent(file); }

  std::string dir_;
  std::unique_ptr<Node> node_;
};

constexpr uint64_t kBytes = 64 << 20;
constexpr char kImage[] = "/rank-00000-of-00001.safetensors";

TEST_F(Pins, AStoppedReaderKeepsItsSnapshotAndTrainingItsSlots) {
  auto trainer = node_->Train(Args("--steps 100000 --every 5 --step-ms 20 --bytes " + std::to_string(kBytes)));
  ASSERT_TRUE(trainer->WaitFor("CAPTURED")) << trainer->Errors() << node_->AgentLog();
  auto reader = StoppedReader();
  ASSERT_EQ(ListFiles(Out()).size(), 1u) << Content(Errors());
  ASSERT_FALSE(fs::exists(Out() + kImage)) << "the reader was through before it was stopped: the test shows nothing";
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(trainer->WaitFor("CAPTURED")) << "saves ended while a reader held a slot";
  reader->Signal(SIGCONT);
  ASSERT_EQ(reader->Wait(), 0) << Content(Errors());
  uint64_t step = 0;
  for (const std::string& line : reader->lines()) {
    char* rest = nullptr;
    const uint64_t number = line.rfind("step ", 0) == 0 ? strtoull(line.c_str() + 5, &rest, 10) : 0;
    if (rest != nullptr && std::string(rest).rfind(" of attempt 1 from region", 0) == 0) step = number;
  }
  ASSERT_GT(step, 0u) << testing::PrintToString(reader->lines());
  EXPECT_LT(step, trainer->Last("CAPTURED"));
  trainer->Kill();
  char folder[64];
  snprintf(folder, sizeof folder, "/trainer/step-%010llu.a0001", static_cast<unsigned long long>(step));
  EXPECT_EQ(Content(Out() + kImage).size(), Content(node_->storage() + folder + kImage).size());
  EXPECT_TRUE(Content(Out() + kImage) == Content(node_->storage() + folder + kImage))
      << "the slot was written while it was read";
}

}  // namespace
}  // namespace ckptd::harness
