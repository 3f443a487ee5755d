// A job that starts afresh (CKPT_RESTART) and calls no restore: nobody who trains waits for the others.
#include "client/src/test_trainer.h"

namespace ckptd {
namespace {

class RestartTest : public ::testing::Test {
 protected:
  void Open(uint32_t world) {
    trainer =
        std::make_unique<TestTrainer>(agent.socket(), uint64_t{0}, uint32_t{CKPT_PUSH}, uint32_t{CKPT_RESTART}, world);
    trainer->MakeTensors({1000});
  }

  FakeAgent agent;
  std::unique_ptr<TestTrainer> trainer;
};

TEST_F(RestartTest, TheSessionThreadJoinsAfresh) {
  agent.Start();
  Open(1);
  ASSERT_EQ(trainer->Register(), 0) << ckpt_error();
  trainer->WaitReady();
  EXPECT_EQ(agent.last_join().want, static_cast<uint32_t>(Want::kFresh));
  EXPECT_EQ(agent.last_join().implicit, 0u) << "that is refused where snapshots exist";
  agent.Grant(0);
  EXPECT_EQ(trainer->Save(1), 0) << ckpt_error();
}

TEST_F(RestartTest, WhoTrainsDoesNotWaitForMissingRanks) {
  agent.hold_go = true;
  agent.Start();
  Open(2);
  ASSERT_EQ(trainer->Register(), 0) << ckpt_error();
  agent.WaitForCount(MessageType::kLoaded, 1);
  uint64_t step = 0;
  auto longest = std::chrono::nanoseconds(0);
  auto dropped_as = [&] {
    auto begin = std::chrono::steady_clock::now();
    ckpt_status status = trainer->Save(++step);
    longest = std::max<std::chrono::nanoseconds>(longest, std::chrono::steady_clock::now() - begin);
    return status;
  };
  EXPECT_EQ(dropped_as(), CKPT_E_LAYOUT_PREPARING) << "not missing yet";
  ASSERT_TRUE(Eventually([&] { return dropped_as() == CKPT_E_RANKS_MISSING; }));
  EXPECT_NE(std::string(ckpt_error()).find("for the other ranks, of 2 in all"), std::string::npos) << ckpt_error();
  EXPECT_LT(longest, std::chrono::seconds(1));
  agent.hold_go = false;
  agent.OfferAgain();  // the missing one has come
  trainer->WaitReady();
  agent.Grant(0);
  EXPECT_EQ(trainer->Save(++step), 0) << ckpt_error();
}

TEST_F(RestartTest, ARestoreThatFailedDoesNotKeepItFromJoining) {
  Open(1);
  ckpt_want want = {};
  want.struct_bytes = sizeof want;
  want.want = CKPT_WANT_FRESH;
  want.connect_timeout_ns = 20 * kMs;
  ckpt_restored restored = {};
  restored.struct_bytes = sizeof restored;
  ASSERT_EQ(ckpt_restore_begin(trainer->handle, &want, &restored), CKPT_E_AGENT_UNREACHABLE);
  ASSERT_EQ(trainer->Register(), 0) << ckpt_error();
  agent.Start();
  trainer->WaitReady();
  EXPECT_EQ(agent.last_join().want, static_cast<uint32_t>(Want::kFresh));
  agent.Grant(0);
  EXPECT_EQ(trainer->Save(1), 0) << ckpt_error();
}

// The pause after a refusal and the one before a reconnection share a timer.
TEST_F(RestartTest, WhoWasRefusedAsksTheNextAgentAtOnce) {
  agent.refuse_with = CKPT_E_STORAGE_READ_ONLY * -1;
  agent.Start();
  Open(1);
  ASSERT_EQ(trainer->Register(), 0) << ckpt_error();
  ASSERT_TRUE(Eventually([&] { return trainer->Save(trainer->Info().saves + 1) == CKPT_E_STORAGE_READ_ONLY; }));
  agent.Kill();
  agent.refuse_with = 0;
  agent.Start();
  trainer->WaitReady();
  EXPECT_EQ(agent.Count(MessageType::kJoin), 2);
  agent.Grant(0);
  EXPECT_EQ(trainer->Save(trainer->Info().saves + 1), 0) << ckpt_error();
}

}  // namespace
}  // namespace ckptd
