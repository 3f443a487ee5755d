// The storage is slower than the saves: what each policy does. Two ranks; the writes of both are slowed by a failpoint.
#include <signal.h>

#include <algorithm>

#include "tests/integration/harness.h"

namespace ckptd::harness {
namespace {

constexpr char kSlow[] = "CKPTD_FAILPOINTS=flush.chunk=sleep:40";

class BackPressure : public testing::Test {
 protected:
  void SetUp() override {
#ifndef CKPTD_FAILPOINTS
    GTEST_SKIP() << "skipped: this build has no failpoints";
#endif
  }

  void Start(const std::string& policy, int every, int slots) {
    NodeOptions options;
    options.settings = {{"durability.back_pressure", "\"" + policy + "\""},
                        {"durability.flush_every", std::to_string(every)},
                        {"region.slots", std::to_string(slots)},
                        {"region.chunk_bytes", "\"64 KiB\""},
                        {"retention.keep_last", "1000"}};
    node_ = std::make_unique<Node>(options);
    ASSERT_TRUE(node_->StartAgent({kSlow})) << node_->AgentLog();
  }

  // Rank 1 has five times the bytes of rank 0: it flushes five times as long.
  void Train(const std::string& line) {
    for (int rank = 0; rank < 2; ++rank) {
      std::string whole = line + " --tensors 2 --world 2";
      whole += rank == 0 ? " --rank 0 --bytes 200000" : " --rank 1 --bytes 1000000";
      arguments_.push_back(Args(whole));
      trainers_.push_back(node_->Train(arguments_.back()));
    }
  }

  // `all`: every rank captured the last step, and close() waited for it to be durable.
  void ExpectRightEnd(bool all = true) {
    for (size_t rank = 0; rank < trainers_.size(); ++rank) {
      EXPECT_EQ(trainers_[rank]->Wait(), 0) << trainers_[rank]->Errors() << Tail(rank) << node_->AgentLog();
      EXPECT_EQ(trainers_[rank]->lines().back(), node_->ExpectedDigest(arguments_[rank]));
      EXPECT_TRUE(!all || Said(rank, "CLOSED OK") == 1) << Tail(rank);
    }
  }

  // Its last words, for failures.
  std::string Tail(size_t rank) const {
    const auto& lines = trainers_[rank]->lines();
    std::string text = "rank " + std::to_string(rank) + ": ";
    for (size_t i = lines.size() < 30 ? 0 : lines.size() - 30; i < lines.size(); ++i) text += lines[i] + "; ";
    return text + "\n";
  }

  size_t Said(size_t rank, const std::string& begin) const {
    const auto& lines = trainers_[rank]->lines();
    return static_cast<size_t>(
        std::count_if(lines.begin(), lines.end(), [&](const auto& line) { return line.rfind(begin, 0) == 0; }));
  }
  size_t Dropped(size_t rank, const std::string& code) const {
    const auto& lines = trainers_[rank]->lines();
    return static_cast<size_t>(std::count_if(lines.begin(), lines.end(), [&](const auto& line) {
      return line.rfind("DROPPED", 0) == 0 && line.find(code) != line.npos;
    }));
  }
  size_t Committed() const { return FilesWith(node_->storage(), "manifest.json").size(); }
  // Of committed steps.
  uint64_t Newest() const {
    uint64_t newest = 0;
    for (const std::string& name : FilesWith(node_->storage(), "manifest.json"))
      newest = std::max<uint64_t>(newest, strtoull(name.c_str() + name.find("step-") + 5, nullptr, 10));
    return newest;
  }
  size_t Superseded() const {
    std::string log = node_->AgentLog();
    size_t count = 0;
    for (size_t at = log.find("flush.superseded"); at != log.npos; at = log.find("flush.superseded", at + 1)) ++count;
    return count;
  }

  // All memory is lost: what was durable is what comes back.
  void ExpectDurable(uint64_t step) {
    node_->KillAgent();
    node_->LoseRegion();
    ASSERT_TRUE(node_->StartAgent()) << node_->AgentLog();
    std::vector<std::unique_ptr<Child>> again;
    for (const auto& arguments : arguments_) again.push_back(node_->Train(arguments));
    for (const auto& trainer : again) EXPECT_EQ(NumberField(Restored(*trainer), "step"), step);
    for (const auto& trainer : again) EXPECT_EQ(trainer->Wait(), 0) << trainer->Errors();
  }

  std::unique_ptr<Node> node_;
  std::vector<std::vector<std::string>> arguments_;
  std::vector<std::unique_ptr<Child>> trainers_;
};

TEST_F(BackPressure, SkipDropsWhatFindsNoSlot) {
  Start("skip", 1, 2);
  Train("--steps 150 --every 3 --step-ms 20");
  ExpectRightEnd(false);
  const std::string log = node_->AgentLog();
  EXPECT_NE(log.find("flush.given_up"), log.npos) << "a flush of what another rank dropped";
  EXPECT_EQ(log.find("flush.failed"), log.npos) << "which nobody has to look at";
  EXPECT_GT(Dropped(1, "NO_FREE_SLOT") + Dropped(0, "BELOW_FLOOR"), 3u);
  EXPECT_GT(Committed(), 1u) << "ranks of different speed commit in the middle of the run too: " << node_->AgentLog();
  ExpectDurable(Newest());
}

TEST_F(BackPressure, WaitDropsNothing) {
  Start("wait", 1, 2);
  Train("--steps 30 --every 3 --step-ms 20 --gate-ms 20000 --await-at 3");
  ExpectRightEnd();
  for (size_t rank : {0, 1}) {
    EXPECT_EQ(Said(rank, "SAVE"), 10u);
    EXPECT_EQ(Said(rank, "DROPPED"), 0u) << Tail(rank) << node_->AgentLog();
  }
  EXPECT_EQ(Committed(), 10u) << "every step is on storage";
  ExpectDurable(30);
}

TEST_F(BackPressure, AWaitThatIsTooLongIsADrop) {
  Start("wait", 1, 2);
  Train("--steps 30 --every 1 --step-ms 5 --gate-ms 30");
  ExpectRightEnd(false);
  EXPECT_GT(Dropped(1, "NO_FREE_SLOT"), 0u);
  ExpectDurable(Newest());
}

TEST_F(BackPressure, ReplaceQueuedFlushesTheNewestAndDropsNothing) {
  Start("replace-queued", 1, 3);
  Train("--steps 60 --every 3 --step-ms 40");
  ExpectRightEnd();
  EXPECT_LT(Dropped(0, "NO_FREE_SLOT") + Dropped(1, "NO_FREE_SLOT"), 3u) << "the storage holds no slot but one";
  EXPECT_GT(Superseded(), 4u);
  EXPECT_GT(Committed(), 2u);
  EXPECT_LT(Committed(), 20u) << "the storage was not slow, nothing was tested";
  EXPECT_GT(Said(0, "SUPERSEDED"), 2u) << "the trainer is told";
  ExpectDurable(60);
}

TEST_F(BackPressure, EveryFourthCaptureIsFlushedAndTheLast) {
  Start("skip", 4, 3);
  Train("--steps 66 --every 3 --step-ms 60");
  ExpectRightEnd();
  EXPECT_GT(Committed(), 3u);
  EXPECT_LT(Committed(), 9u);
  EXPECT_GT(Superseded(), 10u);
  ExpectDurable(66);
}

// The end of the agent is not the end of what only memory holds.
TEST_F(BackPressure, AStoppingAgentFlushesTheNewest) {
  Start("skip", 1000, 2);
  Train("--steps 40 --every 3 --step-ms 10 --close-ms 0");
  for (auto& trainer : trainers_) EXPECT_EQ(trainer->Wait(), 0) << trainer->Errors();
  uint64_t captured = std::min(trainers_[0]->Last("CAPTURED"), trainers_[1]->Last("CAPTURED"));
  EXPECT_EQ(Committed(), 0u);
  EXPECT_EQ(node_->StopAgent(), 0);
  node_->LoseRegion();
  ASSERT_TRUE(node_->StartAgent()) << node_->AgentLog();
  std::vector<std::unique_ptr<Child>> again;
  for (const auto& arguments : arguments_) again.push_back(node_->Train(arguments));
  for (const auto& trainer : again) EXPECT_GE(NumberField(Restored(*trainer), "step"), captured);
  for (const auto& trainer : again) EXPECT_EQ(trainer->Wait(), 0) << trainer->Errors();
}

}  // namespace
}  // namespace ckptd::harness
