// Copiers that die, hang, fail or never come, before the gate and behind it.
#include "daemon/copier/pull_test_util.h"

namespace ckptd {
namespace {

TEST_F(PullTest, ACopierThatDiesBeforeTheGateLeavesTheSaveToAPush) {
  SlowCopier(4, 400);
  MakeTensors({2 * kMiB, 2 * kMiB});
  RegisterAndPull();
  uint64_t epoch = agent.Grant(0);
  ASSERT_EQ(trainer->Save(1), 0) << ckpt_error();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  copiers.Signal(SIGKILL);
  ASSERT_TRUE(trainer->Copied(1));
  ExpectChunks(agent, 0, epoch);
  ExpectImage(agent.SlotBytes(0), *trainer, "{}");
  EXPECT_EQ(trainer->Info().pulled, 0u);
}

TEST_F(PullTest, ACopierThatDiesBehindTheGateCostsThatSaveOnly) {
  SlowCopier(4, 400);
  MakeTensors({2 * kMiB, 2 * kMiB});
  RegisterAndPull();
  uint64_t epoch = agent.Grant(0);
  ASSERT_EQ(trainer->Save(1), 0) << ckpt_error();
  ASSERT_EQ(Gate(), 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  copiers.Signal(SIGKILL);
  EXPECT_TRUE(StreamPasses());
  EXPECT_TRUE(Eventually([&] { return trainer->Poll(1).code == CKPT_E_DEVICE; }));
  EXPECT_TRUE(Eventually([&] { return agent.bell_slot(0).ack == epoch; }));
  epoch = agent.Grant(1);
  ASSERT_EQ(trainer->Save(2), 0) << ckpt_error();
  ASSERT_EQ(Gate(), 0);
  ASSERT_TRUE(trainer->Copied(2));
  ExpectChunks(agent, 1, epoch);
  ASSERT_TRUE(Eventually([&] { return Pulls(); })) << "a new copier: " << trainer->Info().path_why;
  EXPECT_EQ(copiers.started(), 2u);
}

TEST_F(PullTest, ACopierThatDiesIdleIsReplacedAndCostsNoSave) {
  MakeTensors({2 * kMiB, 2 * kMiB});
  RegisterAndPull();
  copiers.Signal(SIGKILL);
  EXPECT_TRUE(Eventually([&] { return trainer->Info().path_why == std::string("the copier ended"); }))
      << trainer->Info().path_why;
  EXPECT_FALSE(Pulls());
  uint64_t epoch = agent.Grant(0);
  ASSERT_EQ(trainer->Save(1), 0) << ckpt_error();
  ASSERT_EQ(Gate(), 0);
  ASSERT_TRUE(trainer->Copied(1));
  ExpectChunks(agent, 0, epoch);
  EXPECT_EQ(trainer->Info().pulled, 0u);
  ASSERT_TRUE(Eventually([&] { return Pulls(); })) << "a new copier: " << trainer->Info().path_why;
  EXPECT_EQ(copiers.started(), 2u);
}

class ImpatientPullTest : public PullTest {
 protected:
  ImpatientPullTest() { gate_timeout_ns = 300 * kMs; }
};

TEST_F(ImpatientPullTest, AStoppedCopierHoldsTrainingUpToTheDeadline) {
  SlowCopier(4, 200);
  MakeTensors({2 * kMiB, 2 * kMiB});
  RegisterAndPull();
  uint64_t epoch = agent.Grant(0);
  copiers.Signal(SIGSTOP);
  ASSERT_EQ(trainer->Save(1), 0) << ckpt_error();
  auto began = std::chrono::steady_clock::now();
  ASSERT_EQ(Gate(), 0);
  EXPECT_TRUE(StreamPasses());
  auto held = std::chrono::steady_clock::now() - began;
  EXPECT_GE(held, std::chrono::milliseconds(250));
  EXPECT_LT(held, std::chrono::seconds(2));
  EXPECT_EQ(trainer->Poll(1).code, CKPT_E_GATE_DEADLINE);
  EXPECT_TRUE(Eventually([&] { return agent.bell_slot(0).ack == epoch; })) << "killed, then the slot is given back";
}

TEST_F(ImpatientPullTest, AReadyWordThatIsLateIsNoFaultOfTheCopier) {
  MakeTensors({300'000});
  RegisterAndPull();
  agent.Grant(0);
  Launch(0, 'u', 900);  // longer than a gate may wait, and nobody waits at one
  memset(trainer->tensors[0].data(), 'u', trainer->tensors[0].size());
  ASSERT_EQ(trainer->Save(1), 0) << ckpt_error();
  ASSERT_TRUE(trainer->Copied(1));
  ExpectImage(agent.SlotBytes(0), *trainer, "{}");
  EXPECT_EQ(trainer->Info().pulled, 1u);
}

class RefusedPullTest : public PullTest {
 protected:
  void BeforeStart() override {}
};

TEST_F(RefusedPullTest, WithoutACopierItPushesAndSaysWhy) {
  MakeTensors({300'000});
  Register();
  agent.WaitForCount(MessageType::kCopier, 1);
  ASSERT_TRUE(Eventually([&] { return std::string(trainer->Info().path_why) == "no copiers on this node"; }));
  agent.Grant(0);
  ASSERT_EQ(trainer->Save(1), 0) << ckpt_error();
  ASSERT_EQ(Gate(), 0);
  ASSERT_TRUE(trainer->Copied(1));
  ExpectImage(agent.SlotBytes(0), *trainer, "{}");
}

TEST_F(PullTest, ACopierWithoutAGpuIsRefusedWithItsSentence) {
  copiers.Set("FAKECUDA_EXCLUSIVE=1");
  MakeTensors({300'000});
  Register();
  ASSERT_TRUE(Eventually([&] { return strstr(trainer->Info().path_why, "exclusive") != nullptr; }))
      << trainer->Info().path_why;
  agent.Grant(0);
  ASSERT_EQ(trainer->Save(1), 0) << ckpt_error();
  ASSERT_EQ(Gate(), 0);
  ASSERT_TRUE(trainer->Copied(1));
}

TEST_F(PullTest, AnErrorOfTheCopiersGpuCostsThatSaveOnly) {
  copiers.SetOnce("FAKECUDA_FAIL=cuMemcpyDtoHAsync:700:2");
  MakeTensors({300'000, 4 * kMiB});
  RegisterAndPull();
  uint64_t epoch = agent.Grant(0);
  ASSERT_EQ(trainer->Save(1), 0) << ckpt_error();
  ASSERT_EQ(Gate(), 0);
  EXPECT_TRUE(StreamPasses());
  EXPECT_TRUE(Eventually([&] {
    ckpt_step_state state = trainer->Poll(1);
    return state.code == CKPT_E_DEVICE || (state.flags & CKPT_COPIED) != 0;
  })) << trainer->Poll(1).code
      << " " << trainer->Info().last_sentence << " " << trainer->Info().path_why;
  if (trainer->Poll(1).code == 0) ExpectChunks(agent, 0, epoch);
  agent.Grant(1);
  ASSERT_EQ(trainer->Save(2), 0) << ckpt_error();
  ASSERT_EQ(Gate(), 0);
  ASSERT_TRUE(trainer->Copied(2));
  ExpectImage(agent.SlotBytes(1), *trainer, "{}");
}

}  // namespace
}  // namespace ckptd
