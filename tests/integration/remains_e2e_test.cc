// A storage that is full for a while: what one rank had written of steps that the other could not write goes again.
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>

#include "tests/integration/harness.h"
#include "tests/integration/tmpfs.h"

namespace ckptd::harness {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kImage = 8'000'000;

class RemainsE2eTest : public testing::Test {
 protected:
  void Start(const std::string& storage) {
    NodeOptions options;
    options.storage = storage;
    options.settings = {{"retention.keep_last", "1"}};
    node_ = std::make_unique<Node>(options);
    ASSERT_TRUE(node_->StartAgent()) << node_->AgentLog();
  }
  void Train() {
    const std::string meet = node_->base() + "/meet";
    for (const char* rank : {"0", "1"}) {
      trainers_.push_back(
          node_->Train(Args("--tensors 2 --world 2 --steps 400 --every 5 --step-ms 20 --rank " + std::string(rank) +
                            " --bytes " + std::to_string(kImage) + " --meet " + meet)));
    }
  }
  // Room for the image of one rank and a half.
  void Fill() const {
    const uint64_t room = fs::space(node_->storage()).available;
    ASSERT_GT(room, 3 * kImage / 2);
    std::ofstream(Filler()) << std::string(room - 3 * kImage / 2, 'x');
  }
  [[nodiscard]] std::string Filler() const { return node_->storage() + "/filler"; }

  // Steps of which the storage has a sidecar and no manifest.
  [[nodiscard]] size_t Incomplete() const {
    size_t incomplete = 0;
    for (const std::string& sidecar : FilesWith(node_->storage(), ".json")) {
      const fs::path step = fs::path(node_->storage()) / fs::path(sidecar).parent_path();
      const bool rank = sidecar.find("/rank-") != std::string::npos;
      incomplete += rank && !fs::exists(step / "manifest.json") ? 1 : 0;
    }
    return incomplete;
  }
  template <typename Done>
  static bool Await(const Done& done) {
    const TimePoint deadline = std::chrono::steady_clock::now() + kLong;
    while (!done() && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(Millis(5));
    return done();
  }

  std::unique_ptr<Node> node_;
  std::vector<std::unique_ptr<Child>> trainers_;
};

TEST_F(RemainsE2eTest, OfAFullStorageGo) {
  Tmpfs tmpfs("60m");
  if (!tmpfs.mounted()) GTEST_SKIP() << kNoMount;
  ASSERT_NO_FATAL_FAILURE(Start(tmpfs.path()));
  Train();
  ASSERT_TRUE(trainers_[0]->WaitFor("DURABLE")) << node_->AgentLog();
  ASSERT_NO_FATAL_FAILURE(Fill());
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(trainers_[0]->WaitFor("CAPTURED")) << node_->AgentLog();
  fs::remove(Filler());
  EXPECT_NE(node_->AgentLog().find("No space left"), std::string::npos);
  for (const auto& trainer : trainers_) EXPECT_EQ(trainer->Wait(), 0) << trainer->Errors() << node_->AgentLog();
  EXPECT_EQ(trainers_[0]->Last("DURABLE"), 400u);
  EXPECT_TRUE(Await([&] { return Incomplete() == 0; })) << testing::PrintToString(ListFiles(node_->storage()));
}

}  // namespace
}  // namespace ckptd::harness
