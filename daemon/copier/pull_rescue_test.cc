// What libckpt publishes for the copier that shall capture it post mortem: the words of proto/local/rescue.h, in a
// process that does not die. That a dead one is captured is shown by rescue_test.cc and
// tests/python/test_gpu_rescue.py.
#include <fstream>
#include <memory>
#include <sstream>

#include "daemon/copier/pull_test_util.h"
#include "proto/local/rescue.h"

namespace ckptd {
namespace {

// The newest mapping of this name; null: there is none.
RescuePage* FindPage() {
  std::ifstream lines("/proc/self/maps");
  RescuePage* found = nullptr;
  for (std::string line; std::getline(lines, line);) {
    if (line.find("memfd:rescue page") == std::string::npos) continue;
    uint64_t begin = 0;
    std::istringstream(line) >> std::hex >> begin;
    found = reinterpret_cast<RescuePage*>(begin);
  }
  return found;
}

class RescuableTest : public PullTest {
 protected:
  RescuableTest() { open_flags = CKPT_POSTMORTEM; }

  void TearDown() override {
    trainer.reset();
    EXPECT_TRUE(StreamPasses());  // a launched update writes the memory
    memory_.reset();
    PullTest::TearDown();
  }

  void MakeShareable(const std::vector<uint64_t>& sizes) {
    memory_ = std::make_unique<ShareableMemory>(40);
    memory_->Place(*trainer, sizes);
  }

  // Up to a copier that watches.
  void Arm() {
    Register();
    ASSERT_TRUE(Eventually([&] { return FindPage() != nullptr && Why().empty(); })) << Why();
    page_ = FindPage();
  }

  [[nodiscard]] std::string Why() const { return trainer->Info().rescue_why; }

  ckpt_status Step(uint64_t step, uint32_t flags = 0, const char* extra = "{}") {
    int32_t saved = 0;
    const uint64_t bytes = extra == nullptr ? 0 : strlen(extra);
    return ckpt_step(trainer->handle, step, extra, bytes, nullptr, flags, &saved);
  }

  // A whole step: gate, update, publication.
  void Train(uint64_t step) {
    ASSERT_EQ(Gate(), 0);
    Launch(0, static_cast<int>(step));
    ASSERT_EQ(Step(step), 0);
  }

  [[nodiscard]] uint64_t NewestBegun() const {
    uint64_t newest = 0;
    for (const auto& begun : page_->begun) newest = std::max(newest, begun.load());
    return newest;
  }
  // The GPU has come to the end; then: the step that would be captured, 0: none.
  [[nodiscard]] uint64_t Left() {
    EXPECT_TRUE(StreamPasses());
    const uint64_t done = page_->done.load();
    const RescueArea& area = page_->areas[done % kRescueAreas];
    const bool left = page_->armed.load() == 1 && done != 0 && NewestBegun() <= done && area.serial.load() == done;
    EXPECT_EQ(trainer->Info().rescuable, page_->armed.load());
    return left ? area.step.load() : 0;
  }

  std::unique_ptr<ShareableMemory> memory_;
  RescuePage* page_ = nullptr;
};

TEST_F(RescuableTest, EachStepIsLeftFromItsEndToTheNextUpdate) {
  MakeShareable({300'000, 5000});
  Arm();
  EXPECT_EQ(Left(), 0u);
  for (uint64_t step = 1; step <= 9; ++step) {
    Train(step);
    EXPECT_EQ(Left(), step);
    EXPECT_EQ(page_->areas[step % kRescueAreas].attempt.load(), 1u);
    ASSERT_EQ(Gate(), 0);
    EXPECT_EQ(Left(), 0u) << "an update may be under way";
    ASSERT_EQ(Step(step), 0);  // what there is to update was none
  }
}

TEST_F(RescuableTest, TheWordsFollowTheStreamAndNotTheHost) {
  MakeShareable({300'000});
  Arm();
  Train(1);
  ASSERT_EQ(Left(), 1u);
  Launch(0, 7, 300);  // the update's kernel takes a while
  ASSERT_EQ(Gate(), 0);
  ASSERT_EQ(Step(2), 0);
  EXPECT_EQ(page_->done.load(), 1u);
  EXPECT_LE(NewestBegun(), 1u);
  EXPECT_EQ(page_->areas[0].serial.load(), 2u) << "the host has published";
  EXPECT_EQ(Left(), 2u);
}

TEST_F(RescuableTest, AnUpdateOnAnotherStreamCounts) {
  MakeShareable({300'000});
  Arm();
  Train(1);
  ASSERT_EQ(Left(), 1u);
  CUstream other = nullptr;
  ASSERT_EQ(cuStreamCreateWithPriority(&other, CU_STREAM_NON_BLOCKING, 0), CUDA_SUCCESS);
  ASSERT_EQ(ckpt_gate_stream(trainer->handle, other, 0), 0);
  ASSERT_EQ(cuStreamSynchronize(other), CUDA_SUCCESS);
  EXPECT_EQ(Left(), 0u);
  ASSERT_EQ(Step(2), 0);
  EXPECT_EQ(Left(), 2u);
  ASSERT_EQ(cuStreamDestroy(other), CUDA_SUCCESS);
}

TEST_F(RescuableTest, AnUpdateByTheCpuCounts) {
  MakeShareable({300'000});
  Arm();
  Train(1);
  ASSERT_EQ(Left(), 1u);
  ASSERT_EQ(ckpt_gate(trainer->handle, 0), 0);
  EXPECT_EQ(Left(), 0u);
}

TEST_F(RescuableTest, AStepWithoutAGateLeavesNothing) {
  MakeShareable({300'000});
  Arm();
  Train(1);
  ASSERT_EQ(Step(2), 0);
  EXPECT_EQ(Left(), 0u);
  Train(3);
  EXPECT_EQ(Left(), 3u);
}

TEST_F(RescuableTest, AMicroBatchLeavesTheStepBefore) {
  MakeShareable({300'000});
  Arm();
  Train(1);
  ASSERT_EQ(Step(2, CKPT_UNCHANGED), 0);
  EXPECT_EQ(Left(), 1u);
  Train(3);
  EXPECT_EQ(Left(), 3u);
}

TEST_F(RescuableTest, AStepWithoutItsExtraStateLeavesNothing) {
  MakeShareable({300'000});
  Arm();
  Train(1);
  ASSERT_EQ(Gate(), 0);
  ASSERT_EQ(Step(2, 0, nullptr), 0);
  EXPECT_EQ(Left(), 0u);
}

TEST_F(RescuableTest, ASavedStepIsLeftTooWhetherItIsCapturedOrNot) {
  MakeShareable({300'000, 5000});
  trainer->flags[1] |= CKPT_EAGER;
  Arm();
  agent.Grant(0);
  ASSERT_EQ(Gate(), 0);
  ASSERT_EQ(trainer->Save(10), 0) << ckpt_error();
  EXPECT_EQ(Left(), 10u);
  ASSERT_TRUE(trainer->Copied(10));
  ASSERT_EQ(Gate(), 0);
  EXPECT_EQ(trainer->Save(20), CKPT_E_NO_FREE_SLOT);
  EXPECT_EQ(Left(), 20u);
}

TEST_F(RescuableTest, AnotherRegistrationIsPreparedAnew) {
  MakeShareable({300'000});
  Arm();
  Train(1);
  ASSERT_EQ(Left(), 1u);
  ASSERT_EQ(trainer->Register(), 0) << ckpt_error();
  EXPECT_EQ(trainer->Info().rescuable, 0u);
  Arm();
  Train(2);
  EXPECT_EQ(Left(), 2u);
}

TEST_F(RescuableTest, OtherMemoryAtTheSameAddressIsNotLeftBeforeItIsExported) {
  MakeShareable({300'000});
  Arm();
  Train(1);
  ASSERT_EQ(Left(), 1u);
  memory_->ReplaceFirst();
  Train(2);
  EXPECT_EQ(trainer->Info().rescuable, 0u);
  ASSERT_TRUE(Eventually([&] { return Why().empty(); })) << Why();
  page_ = FindPage();
  Train(3);
  EXPECT_EQ(Left(), 3u);
}

TEST_F(RescuableTest, TensorsThatMovedAreNotLeft) {
  MakeShareable({300'000});
  Arm();
  Train(1);
  ASSERT_EQ(Left(), 1u);
  ASSERT_EQ(Gate(), 0);
  const void* moved = static_cast<const char*>(trainer->data[0]) + 512;
  ASSERT_EQ(ckpt_step(trainer->handle, 2, "{}", 2, &moved, 0, nullptr), 0);
  EXPECT_EQ(Left(), 0u);
}

TEST_F(RescuableTest, MemoryThatIsTakenBackIsNotLeft) {
  MakeShareable({300'000});
  Arm();
  Train(1);
  ASSERT_EQ(ckpt_unexport(trainer->handle, kLong), 0) << ckpt_error();
  EXPECT_EQ(trainer->Info().rescuable, 0u);
  EXPECT_EQ(Why(), "its memory was taken back");
  EXPECT_EQ(page_->armed.load(), 0u) << "the copier would take it";
}

TEST_F(RescuableTest, AfterAnErrorOfTheGpuNothingIsLeft) {
  MakeShareable({300'000});
  Arm();
  Train(1);
  fakecuda_fail("cuStreamWriteValue64", CUDA_ERROR_LAUNCH_FAILED, 0, 1);
  ASSERT_EQ(Gate(), 0);
  Train(2);
  Train(3);
  EXPECT_EQ(page_->armed.load(), 0u);
}

TEST_F(RescuableTest, MoreStreamsThanWordsLeaveNothing) {
  MakeShareable({300'000});
  Arm();
  std::vector<CUstream> streams(kRescueStreams);
  for (CUstream& each : streams) {
    ASSERT_EQ(cuStreamCreateWithPriority(&each, CU_STREAM_NON_BLOCKING, 0), CUDA_SUCCESS);
  }
  Train(1);
  ASSERT_EQ(Left(), 1u);
  for (CUstream each : streams) ASSERT_EQ(ckpt_gate_stream(trainer->handle, each, 0), 0);
  EXPECT_EQ(page_->armed.load(), 0u);
  Train(2);
  EXPECT_EQ(page_->armed.load(), 0u);
  for (CUstream each : streams) ASSERT_EQ(cuStreamDestroy(each), CUDA_SUCCESS);
}

TEST_F(RescuableTest, MemoryThatMayGoWithTheProcessIsRefused) {
  MakeTensors({300'000});
  Register();
  EXPECT_TRUE(Eventually([&] { return Why().find("expandable_segments") != std::string::npos; })) << Why();
}

TEST_F(RescuableTest, MuchHostMemoryIsRefused) {
  MakeShareable({300'000, 64 * kMiB});
  trainer->data[1] = trainer->tensors[1].data();
  trainer->flags[1] = 0;
  Register();
  EXPECT_TRUE(Eventually([&] { return Why().find("64 MiB") != std::string::npos; })) << Why();
}

TEST_F(RescuableTest, WithoutAGpuThereIsNothingToHold) {
  trainer->MakeTensors({300'000});
  Register();
  EXPECT_TRUE(Eventually([&] { return Why() == "none of its tensors is on a GPU"; })) << Why();
}

// Nothing is saved meanwhile: the next death would find nobody.
TEST_F(RescuableTest, ACopierThatDiesIsToldAndReplacedByItself) {
  MakeShareable({300'000});
  Arm();
  Train(1);
  ASSERT_EQ(Left(), 1u);
  const auto armed = [&] { return agent.last_rescue().hold_ns > 0; };
  EXPECT_TRUE(Eventually(armed));
  copiers.Signal(SIGKILL);
  EXPECT_TRUE(Eventually([&] { return !armed(); })) << "the agent would hold up a restart for nobody";
  EXPECT_STREQ(agent.last_rescue().why, "there is no copier");
  EXPECT_EQ(trainer->Info().rescuable, 0u);
  ASSERT_TRUE(Eventually([&] { return copiers.started() == 2 && Why().empty(); })) << Why();
  page_ = FindPage();
  Train(2);
  EXPECT_EQ(Left(), 2u);
  EXPECT_TRUE(Eventually(armed));
}

class PushedRescuableTest : public RescuableTest {
 protected:
  PushedRescuableTest() { gpu_path = CKPT_PUSH; }
};

TEST_F(PushedRescuableTest, SavesArePushedAndACopierHoldsTheMemory) {
  MakeShareable({300'000});
  Arm();
  Train(1);
  EXPECT_EQ(Left(), 1u);
  agent.Grant(0);
  ASSERT_EQ(Gate(), 0);
  ASSERT_EQ(trainer->Save(10), 0) << ckpt_error();
  ASSERT_EQ(Gate(), 0);
  ASSERT_TRUE(trainer->Copied(10));
  EXPECT_EQ(trainer->Info().pulled, 0u);
  EXPECT_EQ(trainer->Info().gpu_path, static_cast<uint32_t>(CKPT_PUSH));
}

}  // namespace
}  // namespace ckptd
