// Saves of tensors on a GPU, with the host device in its place (client/core/device/testing/fake_cuda.h).
#include <atomic>

#include "client/src/test_device.h"
#include "client/src/test_image.h"

namespace ckptd {
namespace {

using DeviceSaveTest = DeviceTest;

TEST_F(DeviceSaveTest, TheStreamWaitsAndTheHostDoesNot) {
  MakeTensors({2 * kMiB, 1000, 300'001});
  Register();
  uint64_t epoch = agent.Grant(0);
  Slow(2 * kMiB, 150);
  auto began = std::chrono::steady_clock::now();
  ASSERT_EQ(trainer->Save(1, 0, R"({"a":1})"), 0) << ckpt_error();
  ASSERT_EQ(Gate(), 0) << ckpt_error();
  auto blocked = std::chrono::steady_clock::now() - began;
  for (size_t i = 0; i < 3; ++i) Launch(i);
  EXPECT_LT(blocked, std::chrono::milliseconds(100)) << "less than the copy takes";
  ASSERT_TRUE(trainer->Copied(1));
  ExpectChunks(agent, 0, epoch);
  ExpectImage(agent.SlotBytes(0), *trainer, R"({"a":1})");
}

TEST_F(DeviceSaveTest, AStreamThatIsNotHeldTearsTheCopy) {
  if (OneQueue()) GTEST_SKIP() << "with one queue the kernel waits its turn";
  MakeTensors({2 * kMiB, kMiB});
  Register();
  agent.Grant(0);
  Slow(2 * kMiB, 100);
  ASSERT_EQ(trainer->Save(1), 0) << ckpt_error();
  Launch(1);
  ASSERT_TRUE(trainer->Copied(1));
  EXPECT_NE(agent.SlotBytes(0).find(std::string(1000, '\xee')), std::string::npos)
      << "the other tests of this file could not fail";
}

TEST_F(DeviceSaveTest, WhatTheCallersStreamStillHasToDoIsCaptured) {
  MakeTensors({300'000, 5000});
  Register();
  agent.Grant(0);
  Launch(0, 'u', 60);  // the update before step()
  memset(trainer->tensors[0].data(), 'u', trainer->tensors[0].size());
  ASSERT_EQ(trainer->Save(1), 0) << ckpt_error();
  ASSERT_EQ(Gate(), 0);
  Launch(0);
  ASSERT_TRUE(trainer->Copied(1));
  ExpectImage(agent.SlotBytes(0), *trainer, "{}");
}

TEST_F(DeviceSaveTest, EagerTensorsMayChangeAtOnce) {
  MakeTensors({kMiB, 77, 300'000}, CKPT_EAGER);
  Register();
  EXPECT_EQ(Counts().allocations, 2u) << "the segment, and room for the staged copies";
  agent.Grant(0);
  Slow(kMiB, 30);
  ASSERT_EQ(trainer->Save(1), 0) << ckpt_error();
  for (size_t i = 0; i < 3; ++i) Launch(i);
  ASSERT_EQ(Gate(), 0);
  ASSERT_TRUE(trainer->Copied(1));
  ExpectImage(agent.SlotBytes(0), *trainer, "{}");
}

TEST_F(DeviceSaveTest, WithoutRoomForStagedCopiesTheStreamWaits) {
  MakeTensors({kMiB, 77}, CKPT_EAGER);
  fakecuda_fail("cuMemAlloc", CUDA_ERROR_OUT_OF_MEMORY, 0, 1);
  Register();
  EXPECT_EQ(Counts().allocations, 1u);
  agent.Grant(0);
  Slow(kMiB, 50);
  ASSERT_EQ(trainer->Save(1), 0) << ckpt_error();
  for (size_t i = 0; i < 2; ++i) Launch(i);
  ASSERT_EQ(Gate(), 0);
  ASSERT_TRUE(trainer->Copied(1));
  ExpectImage(agent.SlotBytes(0), *trainer, "{}");
}

// And no copy crosses from one pinned range into the next.
TEST_F(DeviceSaveTest, MoreEagerBytesThanAreStagedLeaveDirectly) {
  MakeTensors({300 * kMiB, 4096}, CKPT_EAGER);
  Register();
  EXPECT_GT(Counts().pinned_ranges, 2u);
  EXPECT_EQ(Counts().allocations, 1u);
  agent.Grant(0);
  ASSERT_EQ(trainer->Save(1), 0) << ckpt_error();
  Launch(0);
  ASSERT_EQ(Gate(), 0);
  ASSERT_TRUE(trainer->Copied(1));
  ExpectImage(agent.SlotBytes(0), *trainer, "{}");
}

TEST_F(DeviceSaveTest, HostAndDeviceLazyAndEagerTogether) {
  MakeTensors({200'000, 100, 300'000, 5000, 7, 4096});
  for (size_t i : {size_t{1}, size_t{2}}) {  // these are the host's
    trainer->data[i] = trainer->tensors[i].data();
    trainer->flags[i] = 0;
  }
  trainer->flags[2] |= CKPT_EAGER;
  trainer->flags[3] |= CKPT_EAGER;
  Register();
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
}

TEST_F(DeviceSaveTest, CopiesAreFewAndNoneIsAbove64MiB) {
  MakeTensors({130 * kMiB});
  agent.chunk_bytes = 64 * kMiB;
  Register();
  agent.Grant(0);
  uint64_t before = Counts().copies;
  ASSERT_EQ(trainer->Save(1), 0) << ckpt_error();
  ASSERT_EQ(Gate(), 0);
  ASSERT_TRUE(trainer->Copied(1));
  EXPECT_LE(Counts().largest_copy, 64 * kMiB);
  EXPECT_LE(Counts().copies - before, 4u);
  ExpectImage(agent.SlotBytes(0), *trainer, "{}");
}

TEST_F(DeviceSaveTest, NeighboursOfOneAllocationAreOneCopy) {
  MakeTensors({512, 1024, 512, 4096});
  Register();
  agent.Grant(0);
  uint64_t before = Counts().copies;
  ASSERT_EQ(trainer->Save(1), 0) << ckpt_error();
  ASSERT_EQ(Gate(), 0);
  ASSERT_TRUE(trainer->Copied(1));
  EXPECT_EQ(Counts().copies - before, 1u);
}

TEST_F(DeviceSaveTest, NoCopyCrossesFromOneAllocationIntoTheNext) {
  constexpr uint64_t kChunk = 2 * kMiB;
  CUdeviceptr range = 0;
  ASSERT_EQ(cuMemAddressReserve(&range, 2 * kChunk, 0, 0, 0), CUDA_SUCCESS);
  for (uint64_t at = 0; at < 2 * kChunk; at += kChunk) {
    CUmemAllocationProp prop = {};
    CUmemGenericAllocationHandle memory = 0;
    ASSERT_EQ(cuMemCreate(&memory, kChunk, &prop, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuMemMap(range + at, kChunk, 0, memory, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuMemRelease(memory), CUDA_SUCCESS);
  }
  trainer->MakeTensors({1024, 1024});
  for (size_t i = 0; i < 2; ++i) {
    trainer->data[i] = reinterpret_cast<void*>(range + kChunk - 1024 + i * 1024);
    trainer->flags[i] = CKPT_DEVICE;
    memcpy(const_cast<void*>(trainer->data[i]), trainer->tensors[i].data(), 1024);
  }
  Register();
  agent.Grant(0);
  uint64_t before = Counts().copies;
  ASSERT_EQ(trainer->Save(1), 0) << ckpt_error();
  ASSERT_EQ(Gate(), 0);
  ASSERT_TRUE(trainer->Copied(1));
  EXPECT_EQ(Counts().copies - before, 2u);
  ExpectImage(agent.SlotBytes(0), *trainer, "{}");
  trainer.reset();
  for (uint64_t at = 0; at < 2 * kChunk; at += kChunk) ASSERT_EQ(cuMemUnmap(range + at, kChunk), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAddressFree(range, 2 * kChunk), CUDA_SUCCESS);
}

TEST_F(DeviceSaveTest, SlotsArePinnedInSmallCalls) {
  MakeTensors({300 * kMiB});
  Register();
  EXPECT_GE(trainer->Info().pinned_bytes, 600 * kMiB);
  EXPECT_STREQ(trainer->Info().pin_error, "");
  EXPECT_LE(Counts().largest_pin, 256 * kMiB);
  EXPECT_GT(Counts().pinned_ranges, 2u);
}

TEST_F(DeviceSaveTest, WhatCannotBePinnedIsToldAndSavedNevertheless) {
  fakecuda_fail("cuMemHostRegister", CUDA_ERROR_NOT_SUPPORTED, 0, 0);
  MakeTensors({kMiB, 5});
  Register();
  EXPECT_EQ(trainer->Info().pinned_bytes, 0u);
  EXPECT_STREQ(trainer->Info().pin_error, "cuMemHostRegister: CUDA_ERROR_NOT_SUPPORTED (801)");
  agent.Grant(0);
  ASSERT_EQ(trainer->Save(1), 0) << ckpt_error();
  ASSERT_EQ(Gate(), 0);
  Launch(0);
  ASSERT_TRUE(trainer->Copied(1));
  ExpectImage(agent.SlotBytes(0), *trainer, "{}");
}

TEST_F(DeviceSaveTest, ABrokenContextLosesTheSaveAndNothingElse) {
  MakeTensors({2 * kMiB});
  Register();
  agent.Grant(0);
  Slow(2 * kMiB, 100);
  ASSERT_EQ(trainer->Save(1), 0) << ckpt_error();
  ASSERT_EQ(Gate(), 0);
  fakecuda_break(CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_TRUE(Eventually([&] { return trainer->Poll(1).code == CKPT_E_DEVICE; }));
  EXPECT_NE(std::string(trainer->Info().last_sentence).find("CUDA_ERROR_ILLEGAL_ADDRESS"), std::string::npos);
  EXPECT_TRUE(Eventually([&] { return agent.bell_slot(0).ack != 0; })) << "the slot is given back";
  agent.Grant(1);
  EXPECT_EQ(trainer->Save(2), CKPT_E_DEVICE);
  EXPECT_EQ(Gate(), 0) << "nothing is being captured";
  fakecuda_break(0);  // so that the fixture can tidy up
}

TEST_F(DeviceSaveTest, AFailedSubmissionLosesTheSave) {
  MakeTensors({kMiB, 4096});
  Register();
  for (const char* call : {"cuEventRecord", "cuStreamWaitEvent", "cuMemcpyDtoHAsync", "cuEventSynchronize"}) {
    uint64_t epoch = agent.Grant(0);
    fakecuda_fail(call, CUDA_ERROR_INVALID_VALUE, 0, 1);
    uint64_t step = trainer->Info().saves + 1;
    ckpt_status status = trainer->Save(step);
    EXPECT_TRUE(status == 0 || status == CKPT_E_DEVICE) << call;
    EXPECT_TRUE(Eventually([&] { return trainer->Poll(step).code == CKPT_E_DEVICE; })) << call;
    fakecuda_fail_none();
    EXPECT_EQ(Gate(), 0) << call;
    ASSERT_TRUE(Eventually([&] { return agent.bell_slot(0).ack == epoch; })) << call;
  }
  agent.Grant(0);
  uint64_t step = trainer->Info().saves + 1;
  ASSERT_EQ(trainer->Save(step), 0) << "the device is whole: " << ckpt_error();
  ASSERT_EQ(Gate(), 0);
  ASSERT_TRUE(trainer->Copied(step));
  ExpectImage(agent.SlotBytes(0), *trainer, "{}");
}

TEST_F(DeviceSaveTest, WhatAStreamCannotWaitForTheHostWaitsFor) {
  MakeTensors({kMiB});
  Register();
  agent.Grant(0);
  Slow(kMiB, 60);
  ASSERT_EQ(trainer->Save(1), 0) << ckpt_error();
  fakecuda_fail("cuStreamWaitEvent", CUDA_ERROR_INVALID_VALUE, 0, 0);
  ASSERT_EQ(Gate(), 0) << ckpt_error();
  Launch(0);
  fakecuda_fail_none();
  ASSERT_TRUE(trainer->Copied(1));
  ExpectImage(agent.SlotBytes(0), *trainer, "{}");
}

TEST_F(DeviceSaveTest, AGateInAGraphIsRefusedWithTheFix) {
  MakeTensors({kMiB});
  Register();
  cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
  EXPECT_EQ(Gate(), CKPT_E_INVALID_ARGUMENT);
  EXPECT_NE(std::string(ckpt_error()).find("replay()"), std::string::npos);
  agent.Grant(0);
  EXPECT_EQ(trainer->Save(1), CKPT_E_INVALID_ARGUMENT);
  CUgraph graph = nullptr;
  cuStreamEndCapture(stream, &graph);
  EXPECT_EQ(trainer->Save(2), 0) << ckpt_error();
  EXPECT_EQ(Gate(), 0);
  EXPECT_TRUE(trainer->Copied(2));
}

TEST_F(DeviceSaveTest, AGraphThatIsCapturedMeanwhileStaysWhole) {
  MakeTensors({2 * kMiB, kMiB});
  Register();
  agent.Grant(0);
  Slow(2 * kMiB, 50);
  ASSERT_EQ(trainer->Save(1), 0) << ckpt_error();
  ASSERT_EQ(Gate(), 0);
  CUstream other = nullptr;
  ASSERT_EQ(cuStreamCreateWithPriority(&other, CU_STREAM_NON_BLOCKING, 0), CUDA_SUCCESS);
  cuStreamBeginCapture(other, CU_STREAM_CAPTURE_MODE_GLOBAL);
  EXPECT_TRUE(trainer->Copied(1));
  ASSERT_EQ(trainer->Register(), 0) << ckpt_error();
  CUgraph graph = nullptr;
  EXPECT_EQ(cuStreamEndCapture(other, &graph), CUDA_SUCCESS) << "a thread of libckpt broke the capture";
  cuStreamBeginCapture(other, CU_STREAM_CAPTURE_MODE_GLOBAL);
  EXPECT_EQ(cuStreamSynchronize(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(cuStreamEndCapture(other, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED) << "this check can fail";
  cuStreamDestroy(other);
}

TEST_F(DeviceSaveTest, TheSelfCheckSeesDeviceTensors) {
  MakeTensors({17 * kMiB, 5000, 4096});
  Register();
  agent.Grant(0);
  ASSERT_EQ(trainer->Save(1, CKPT_SELFCHECK), 0) << ckpt_error();
  ASSERT_EQ(Gate(), 0);
  ASSERT_TRUE(trainer->Copied(1)) << "nothing changed";
  if (OneQueue()) return;
  agent.Grant(1);
  Slow(17 * kMiB, 100);
  ASSERT_EQ(trainer->Save(2, CKPT_SELFCHECK), 0) << ckpt_error();
  Launch(1);  // before the gate: the promise is broken
  ASSERT_EQ(ckpt_gate(trainer->handle, 0), 0);
  EXPECT_EQ(trainer->Poll(2).code, CKPT_E_TORN);
  uint64_t torn[4] = {};
  ASSERT_EQ(ckpt_torn(trainer->handle, torn, 4), 1u);
  EXPECT_EQ(torn[0], 1u);
}

TEST_F(DeviceSaveTest, AnAbandonedSlotIsGivenBackWhenNothingWritesToItAnyMore) {
  MakeTensors({kMiB});
  Register();
  uint64_t epoch = agent.Grant(0);
  fakecuda_hang(1);
  ASSERT_EQ(trainer->Save(1), 0) << ckpt_error();
  ASSERT_EQ(Gate(), 0);
  agent.bell_slot(0).word = CaptureWord(epoch, CaptureState::kAbandoned);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(agent.bell_slot(0).ack, 0u) << "a copy is still on its way";
  fakecuda_hang(0);
  EXPECT_TRUE(Eventually([&] { return agent.bell_slot(0).ack == epoch; }));
}

TEST_F(DeviceSaveTest, ASlotWhoseEndCannotBeMarkedIsNotGivenBackUnderACopy) {
  MakeTensors({kMiB});
  Register();
  uint64_t epoch = agent.Grant(0);
  fakecuda_hang(1);
  fakecuda_fail("cuEventRecord", CUDA_ERROR_INVALID_VALUE, 1, 0);  // the first lets our stream follow the caller's
  ASSERT_EQ(trainer->Save(1), 0) << ckpt_error();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(agent.bell_slot(0).ack, 0u) << "a copy is still on its way";
  fakecuda_hang(0);
  EXPECT_TRUE(Eventually([&] { return agent.bell_slot(0).ack == epoch; }));
  EXPECT_EQ(trainer->Poll(1).code, CKPT_E_DEVICE);
}

TEST_F(DeviceSaveTest, TheHostsGateEndsAtItsDeadline) {
  MakeTensors({kMiB});
  Register();
  agent.Grant(0);
  fakecuda_hang(1);
  ASSERT_EQ(trainer->Save(1), 0) << ckpt_error();
  EXPECT_EQ(ckpt_gate(trainer->handle, 50 * kMs), CKPT_E_GATE_DEADLINE);
  fakecuda_hang(0);
}

TEST_F(DeviceSaveTest, CloseEndsTheGateOfAnotherThread) {
  MakeTensors({kMiB});
  Register();
  agent.Grant(0);
  fakecuda_hang(1);
  ASSERT_EQ(trainer->Save(1), 0) << ckpt_error();
  std::atomic<ckpt_status> gated{1};
  std::thread gate([&gated, handle = trainer->handle] {
    gated = ckpt_gate(handle, kLong);
    fakecuda_hang(0);  // only now: the copy does not end before the gate
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(gated, 1);
  EXPECT_EQ(trainer->Close(0), CKPT_E_TIMEOUT) << "not durable";
  gate.join();
  EXPECT_EQ(gated, CKPT_E_CANCELLED);
}

// In a process of its own: what is left behind there ends with it.
TEST_F(DeviceSaveTest, ADeviceThatNeverAnswersDoesNotHoldUpClose) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  auto close_with_hung_device = [&] {
    TestTrainer other(agent.socket(), 300 * kMs);
    trainer->Close(0);
    trainer->handle = std::exchange(other.handle, nullptr);
    MakeTensors({kMiB});
    Register();
    agent.Grant(0);
    fakecuda_hang(1);
    ckpt_status saved = trainer->Save(1);
    ckpt_status gated = Gate();
    ckpt_status closed = trainer->Close(10 * kMs);
    _exit(saved == 0 && gated == 0 && closed == CKPT_E_DEVICE ? 7 : 1);
  };
  auto began = std::chrono::steady_clock::now();
  EXPECT_EXIT(close_with_hung_device(), ::testing::ExitedWithCode(7), "");
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(20));
}

TEST_F(DeviceSaveTest, HostMemoryGivenAsTheDevicesIsRefusedByName) {
  trainer->MakeTensors({100, 200});
  trainer->flags[1] = CKPT_DEVICE;
  EXPECT_EQ(trainer->Register(), CKPT_E_INVALID_ARGUMENT);
  EXPECT_NE(std::string(ckpt_error()).find("\"t1\""), std::string::npos) << ckpt_error();
}

TEST_F(DeviceSaveTest, AHundredHandlesLeaveNothing) {
  MakeTensors({100'000, 50});
  trainer->flags[1] |= CKPT_EAGER;
  for (int i = 0; i < 100; ++i) {
    if (i > 0) trainer->Open(agent.socket());
    ASSERT_EQ(trainer->Register(), 0) << ckpt_error();
    trainer->WaitReady();
    ASSERT_EQ(trainer->Close(0), 0) << ckpt_error();
    ExpectNothingLeft();
  }
}

}  // namespace
}  // namespace ckptd
