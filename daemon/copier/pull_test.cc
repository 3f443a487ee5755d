// Saves that a copier pulls.
#include "daemon/copier/pull_test_util.h"

namespace ckptd {
namespace {

TEST_F(PullTest, TheStreamWaitsForTheCopierAndTheHostDoesNot) {
  SlowCopier(4, 200);
  MakeTensors({2 * kMiB, 1000, 300'001, 2 * kMiB});
  RegisterAndPull();
  uint64_t epoch = agent.Grant(0);
  auto began = std::chrono::steady_clock::now();
  ASSERT_EQ(trainer->Save(1, 0, R"({"a":1})"), 0) << ckpt_error();
  ASSERT_EQ(Gate(), 0) << ckpt_error();
  auto blocked = std::chrono::steady_clock::now() - began;
  for (size_t i = 0; i < 4; ++i) Launch(i);
  EXPECT_LT(blocked, std::chrono::milliseconds(100)) << "less than the copy takes";
  ASSERT_TRUE(trainer->Copied(1));
  ExpectChunks(agent, 0, epoch);
  ExpectImage(agent.SlotBytes(0), *trainer, R"({"a":1})");
  EXPECT_EQ(trainer->Info().pulled, 1u);
  EXPECT_TRUE(StreamPasses());
}

TEST_F(PullTest, AStreamThatIsNotHeldTearsTheCopy) {
  SlowCopier(4, 200);
  MakeTensors({2 * kMiB, 2 * kMiB});
  RegisterAndPull();
  agent.Grant(0);
  ASSERT_EQ(trainer->Save(1), 0) << ckpt_error();
  Launch(1);
  ASSERT_TRUE(trainer->Copied(1));
  EXPECT_NE(agent.SlotBytes(0).find(std::string(1000, '\xee')), std::string::npos)
      << "the other tests of this file could not fail";
}

TEST_F(PullTest, WhatTheCallersStreamStillHasToDoIsCaptured) {
  MakeTensors({300'000, 5000});
  RegisterAndPull();
  agent.Grant(0);
  Launch(0, 'u', 60);
  memset(trainer->tensors[0].data(), 'u', trainer->tensors[0].size());
  ASSERT_EQ(trainer->Save(1), 0) << ckpt_error();
  ASSERT_EQ(Gate(), 0);
  Launch(0);
  ASSERT_TRUE(trainer->Copied(1));
  ExpectImage(agent.SlotBytes(0), *trainer, "{}");
  EXPECT_EQ(trainer->Info().pulled, 1u);
}

TEST_F(PullTest, HostAndDeviceLazyAndEagerTogether) {
  MakeTensors({200'000, 100, 300'000, 5000, 7, 4096});
  for (size_t i : {size_t{1}, size_t{2}}) {  // these are the host's
    trainer->data[i] = trainer->tensors[i].data();
    trainer->flags[i] = 0;
  }
  trainer->flags[2] |= CKPT_EAGER;
  trainer->flags[3] |= CKPT_EAGER;
  RegisterAndPull();
  uint64_t epoch = agent.Grant(1);
  ASSERT_EQ(trainer->Save(1), 0) << ckpt_error();
  ASSERT_EQ(Gate(), 0);
  for (size_t i : {size_t{0}, size_t{3}, size_t{4}}) Launch(i);
  std::vector<char> before = trainer->tensors[1];
  memset(trainer->tensors[1].data(), 1, before.size());  // after the gate it may
  ASSERT_TRUE(trainer->Copied(1));
  trainer->tensors[1] = before;
  ExpectChunks(agent, 1, epoch);
  ExpectImage(agent.SlotBytes(1), *trainer, "{}");
  EXPECT_EQ(trainer->Info().pulled, 1u);
}

TEST_F(PullTest, EagerTensorsWithoutRoomLeaveOnOurOwnStream) {
  MakeTensors({kMiB, 77, 300'000}, CKPT_EAGER);
  trainer->flags[2] = CKPT_DEVICE;
  fakecuda_fail("cuMemAlloc", CUDA_ERROR_OUT_OF_MEMORY, 0, 1);
  RegisterAndPull();
  uint64_t epoch = agent.Grant(0);
  Slow(kMiB, 50);
  ASSERT_EQ(trainer->Save(1), 0) << ckpt_error();
  for (size_t i = 0; i < 2; ++i) Launch(i);
  ASSERT_EQ(Gate(), 0);
  Launch(2);
  ASSERT_TRUE(trainer->Copied(1));
  ExpectChunks(agent, 0, epoch);
  ExpectImage(agent.SlotBytes(0), *trainer, "{}");
  EXPECT_EQ(trainer->Info().pulled, 1u);
}

// Memory of cuMemCreate outlives its process: what the copier has completes without libckpt.
TEST_F(PullTest, ExpandableSegmentsAreExportedChunkByChunk) {
  constexpr uint64_t kChunk = ShareableMemory::kChunk;
  MakeTensors({3 * kMiB, 5000});
  ShareableMemory memory(40);  // more than one batch of exports
  memory.Place(*trainer, {30 * kChunk, 300'000, 7 * kChunk});
  RegisterAndPull();
  uint64_t epoch = agent.Grant(0);
  ASSERT_EQ(trainer->Save(1), 0) << ckpt_error();
  ASSERT_EQ(Gate(), 0);
  for (size_t i = 0; i < 3; ++i) Launch(i);
  ASSERT_TRUE(trainer->Copied(1));
  ExpectChunks(agent, 0, epoch);
  ExpectImage(agent.SlotBytes(0), *trainer, "{}");
  EXPECT_EQ(trainer->Info().pulled, 1u);
  trainer.reset();
  cuStreamSynchronize(stream);
}

TEST_F(PullTest, ManySavesInATurn) {
  MakeTensors({300'000, 5000});
  RegisterAndPull();
  for (uint64_t step = 1; step <= 600; ++step) {  // more than the gate page has lines
    agent.Grant(step % 2);
    ASSERT_EQ(trainer->Save(step), 0) << ckpt_error();
    ASSERT_EQ(Gate(), 0);
    ASSERT_TRUE(trainer->Copied(step)) << step;
  }
  EXPECT_EQ(trainer->Info().pulled, 600u);
  EXPECT_EQ(copiers.started(), 1u);
  EXPECT_TRUE(StreamPasses());
}

TEST_F(PullTest, AnotherAllocationAtTheSameAddressIsPushedThenExported) {
  MakeTensors({3 * kMiB});
  RegisterAndPull();
  uint64_t exported = trainer->Info().exported;
  EXPECT_EQ(exported, trainer->Info().registered);
  ASSERT_EQ(cuMemFree(segments[0]), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAlloc(&segments[0], 3 * kMiB), CUDA_SUCCESS);
  ASSERT_EQ(reinterpret_cast<void*>(segments[0]), trainer->data[0]) << "the host device gave another address";
  memcpy(reinterpret_cast<void*>(segments[0]), trainer->tensors[0].data(), 3 * kMiB);
  agent.Grant(0);
  ASSERT_EQ(trainer->Save(1), 0) << ckpt_error();
  ASSERT_EQ(Gate(), 0);
  ASSERT_TRUE(trainer->Copied(1));
  ExpectImage(agent.SlotBytes(0), *trainer, "{}");
  EXPECT_EQ(trainer->Info().pulled, 0u);
  ASSERT_TRUE(Eventually([&] { return Pulls(); }));
  agent.Grant(1);
  ASSERT_EQ(trainer->Save(2), 0) << ckpt_error();
  ASSERT_EQ(Gate(), 0);
  ASSERT_TRUE(trainer->Copied(2));
  ExpectImage(agent.SlotBytes(1), *trainer, "{}");
  EXPECT_EQ(trainer->Info().pulled, 1u);
}

TEST_F(PullTest, ANewRegistrationIsExportedInPlaceOfTheOld) {
  MakeTensors({300'000, 5000});
  RegisterAndPull();
  MakeTensors({300'000, 5000});  // elsewhere
  Register();
  ASSERT_TRUE(Eventually([&] { return Pulls() && trainer->Info().exported == trainer->Info().registered; }));
  agent.Grant(0);
  ASSERT_EQ(trainer->Save(1), 0) << ckpt_error();
  ASSERT_EQ(Gate(), 0);
  ASSERT_TRUE(trainer->Copied(1));
  ExpectImage(agent.SlotBytes(0), *trainer, "{}");
  EXPECT_EQ(copiers.started(), 1u);
}

// The caller keeps its memory by the number of its own call.
TEST_F(PullTest, ALayoutThatGrewByItselfKeepsTheNumberOfItsRegistration) {
  MakeTensors({300'000, 5000});
  RegisterAndPull();
  agent.Grant(0);
  const std::string extra = "\"" + std::string(kMiB, 'x') + "\"";
  ASSERT_EQ(trainer->Save(1, 0, extra), CKPT_E_LAYOUT_PREPARING) << ckpt_error();
  agent.WaitForCount(MessageType::kLayout, 2);
  ASSERT_TRUE(Eventually([&] { return trainer->Info().ready != 0 && Pulls(); })) << trainer->Info().path_why;
  EXPECT_EQ(trainer->Info().registered, 1u);
  EXPECT_EQ(trainer->Info().exported, 1u);
  agent.Grant(0);
  ASSERT_EQ(trainer->Save(2, 0, extra), 0) << ckpt_error();
  ASSERT_EQ(Gate(), 0);
  ASSERT_TRUE(trainer->Copied(2));
  ExpectImage(agent.SlotBytes(0), *trainer, extra);
  EXPECT_EQ(trainer->Info().pulled, 1u);
}

TEST_F(PullTest, UnexportedMemoryMayBeFreed) {
  MakeTensors({300'000});
  RegisterAndPull();
  EXPECT_NE(trainer->Info().exported, 0u);
  ASSERT_EQ(ckpt_unexport(trainer->handle, kLong), 0) << ckpt_error();
  EXPECT_EQ(trainer->Info().exported, 0u);
  agent.Grant(0);
  ASSERT_EQ(trainer->Save(1), 0) << ckpt_error();
  ASSERT_EQ(Gate(), 0);
  ASSERT_TRUE(trainer->Copied(1));
  EXPECT_EQ(trainer->Info().pulled, 0u);
  Register();
  ASSERT_TRUE(Eventually([&] { return trainer->Info().exported == trainer->Info().registered; }));
}

TEST_F(PullTest, AReplacedSlotIsPulledInto) {
  MakeTensors({300'000});
  RegisterAndPull();
  agent.ReplaceSlot(0);
  agent.Grant(0);
  ASSERT_TRUE(Eventually([&] { return trainer->Save(trainer->Info().saves + 1) == 0; })) << ckpt_error();
  ASSERT_EQ(Gate(), 0);
  ASSERT_TRUE(trainer->Copied(trainer->Info().saves));
  ExpectImage(agent.SlotBytes(0), *trainer, "{}");
}

TEST_F(PullTest, TheSelfCheckStillFindsWhatChanged) {
  SlowCopier(2, 100);
  MakeTensors({kMiB, kMiB});
  RegisterAndPull();
  agent.Grant(0);
  ASSERT_EQ(trainer->Save(1, CKPT_SELFCHECK), 0) << ckpt_error();
  Launch(1);
  EXPECT_TRUE(Eventually([&] { return trainer->Poll(1).code == CKPT_E_TORN; }));
}

TEST_F(PullTest, AHandleIsClosedInTheMiddleOfAPull) {
  SlowCopier(4, 1000);
  MakeTensors({2 * kMiB, 2 * kMiB});
  RegisterAndPull();
  uint64_t epoch = agent.Grant(0);
  ASSERT_EQ(trainer->Save(1), 0) << ckpt_error();
  ASSERT_EQ(Gate(), 0);
  EXPECT_NE(trainer->Close(0), 0);
  EXPECT_TRUE(StreamPasses());
  EXPECT_EQ(agent.bell_slot(0).ack, epoch);
}

class ComparingTest : public PullTest {
 protected:
  ComparingTest() { gpu_path = CKPT_AUTO; }

  // Saves, each with three steps of 2 ms after it, in which training waits at the gate for what is copied.
  void Train(uint64_t saves) {
    uint64_t step = 0;
    for (uint64_t save = 0; save < saves; ++save) {
      agent.Grant(save % 2);
      ASSERT_EQ(trainer->Save(++step), 0) << ckpt_error();
      ASSERT_EQ(Gate(), 0);
      ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
      ASSERT_TRUE(trainer->Copied(step));
      for (int i = 0; i < 3; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        step += step % 10 == 9 ? 2 : 1;  // 10, 20, … would be saved by ckpt_step
        ASSERT_EQ(ckpt_step(trainer->handle, step, nullptr, 0, nullptr, 0, nullptr), 0);
      }
    }
  }
};

TEST_F(ComparingTest, WhatCostsTrainingLessIsChosen) {
  MakeTensors({3 * kMiB});
  RegisterAndPull();
  Slow(3 * kMiB, 20);  // this process
  Train(60);
  EXPECT_NE(strstr(trainer->Info().path_why, "a save costs"), nullptr) << trainer->Info().path_why;
  EXPECT_TRUE(Pulls()) << trainer->Info().path_why;
  EXPECT_GT(trainer->Info().pulled, 20u);
}

TEST_F(ComparingTest, WherePushWinsTheCopierIsLetGo) {
  SlowCopier(3, 20);
  MakeTensors({3 * kMiB});
  RegisterAndPull();
  Train(60);
  EXPECT_NE(strstr(trainer->Info().path_why, "a save costs"), nullptr) << trainer->Info().path_why;
  EXPECT_TRUE(Eventually([&] { return !Pulls() && trainer->Info().exported == 0; })) << trainer->Info().path_why;
  EXPECT_LT(trainer->Info().pulled, 30u) << "none once it was clear";
  EXPECT_GE(trainer->Info().pulled, 20u);
}

}  // namespace
}  // namespace ckptd
