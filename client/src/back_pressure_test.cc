// A save that finds no free slot, and steps that are not flushed.
#include <thread>

#include "client/core/threads/sync.h"
#include "client/src/test_trainer.h"

namespace ckptd {
namespace {

class BackPressureTest : public TrainerTest {
 protected:
  void StartWaiting(uint64_t gate_timeout_ns) {
    agent.back_pressure = BackPressure::kWait;
    agent.Start();
    trainer = std::make_unique<TestTrainer>(agent.socket(), gate_timeout_ns);
    Register({100'000});
  }
};

TEST_F(BackPressureTest, ASaveWaitsForASlot) {
  StartWaiting(10'000'000'000);
  std::thread later([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    agent.Grant(0);
  });
  EXPECT_EQ(trainer->Save(1), 0) << ckpt_error();
  later.join();
  EXPECT_EQ(agent.bell().pos, 1u);
}

TEST_F(BackPressureTest, ACallerMayAskToWaitForASlot) {
  Start({100'000});
  std::thread later([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_EQ(agent.bell().pos, 0u) << "a step that was passed is dropped on all ranks";
    agent.Grant(0);
  });
  EXPECT_EQ(trainer->Save(1, CKPT_WAIT_FOR_SLOT), 0) << ckpt_error();
  later.join();
  EXPECT_EQ(agent.bell().pos, 1u);
}

TEST_F(BackPressureTest, AWaitingSaveEndsAtTheDeadlineAndHasPassedNothingBefore) {
  StartWaiting(300'000'000);
  std::thread looker([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_EQ(agent.bell().pos, 0u) << "a step that was passed is dropped on all ranks";
  });
  uint64_t begin = MonotonicNs();
  EXPECT_EQ(trainer->Save(1), CKPT_E_NO_FREE_SLOT);
  EXPECT_GE(MonotonicNs() - begin, 300'000'000u);
  looker.join();
  EXPECT_EQ(agent.bell().pos, 1u);
}

TEST_F(BackPressureTest, WaitingForADurableStepAsksForIt) {
  Start({100'000});
  agent.Grant(0);
  ASSERT_EQ(trainer->Save(1), 0) << ckpt_error();
  EXPECT_EQ(ckpt_wait(trainer->handle, 1, CKPT_CAPTURED, 1'000'000), CKPT_E_TIMEOUT);
  EXPECT_EQ(agent.bell().wanted, 0u);
  EXPECT_EQ(ckpt_wait(trainer->handle, 1, CKPT_DURABLE, 1'000'000), CKPT_E_TIMEOUT);
  EXPECT_EQ(agent.bell().wanted, 1u);
}

TEST_F(BackPressureTest, ASupersededStepIsNeverDurable) {
  Start({100'000});
  agent.Grant(0);
  ASSERT_EQ(trainer->Save(1), 0) << ckpt_error();
  NewsMessage news = {};
  news.attempt = agent.ready().attempt;
  news.captured_step = 2;
  news.outcome_count = 1;
  news.outcomes[0] = {1, kStepCaptured, static_cast<uint32_t>(-CKPT_E_SUPERSEDED)};
  agent.SendNews(news);
  EXPECT_EQ(ckpt_wait(trainer->handle, 1, CKPT_CAPTURED, 10'000'000'000), 0) << ckpt_error();
  EXPECT_EQ(ckpt_wait(trainer->handle, 1, CKPT_DURABLE, 10'000'000'000), CKPT_E_SUPERSEDED);
}

}  // namespace
}  // namespace ckptd
