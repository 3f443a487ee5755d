#include "client/core/device/device.h"

#include <cuda.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "client/core/device/copy_stream.h"
#include "client/core/device/testing/fake_cuda.h"

namespace ckptd {
namespace {

constexpr uint64_t kBytes = 1 << 20;

fakecuda_counts Counts() {
  fakecuda_counts counts = {};
  fakecuda_count(&counts);
  return counts;
}

class DeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&trainer_, 0), CUDA_SUCCESS);
    ASSERT_TRUE(Device::Attach(0, &device_).ok());
    scope_ = std::make_unique<ContextScope>(*device_);
    ASSERT_TRUE(scope_->error().ok());
    ASSERT_TRUE(device_->CreateStream(&stream_).ok());
  }
  void TearDown() override {
    fakecuda_fail_none();
    fakecuda_rate(0);
    fakecuda_break(0);
    EXPECT_TRUE(device_->DestroyStream(stream_).ok());
    scope_.reset();
    device_.reset();
    cuDevicePrimaryCtxRelease(0);
  }

  // A pattern on the device.
  DeviceAddress Filled(char value) {
    DeviceAddress address = 0;
    EXPECT_TRUE(device_->Allocate(kBytes, &address).ok());
    std::vector<char> host(kBytes, value);
    EXPECT_TRUE(device_->CopyIn(address, host.data(), kBytes, stream_).ok());
    EXPECT_TRUE(device_->Synchronize(stream_).ok());
    return address;
  }

  CUcontext trainer_ = nullptr;
  std::unique_ptr<Device> device_;
  std::unique_ptr<ContextScope> scope_;
  DeviceStream stream_;
};

TEST_F(DeviceTest, AskingAGpuMakesNoContext) {
  const uint64_t before = Counts().primary_retains;
  DeviceFacts facts;
  ASSERT_TRUE(Device::Ask(0, &facts).ok());
  EXPECT_EQ(facts.uuid, device_->facts().uuid);
  EXPECT_EQ(facts.pci, device_->facts().pci);
  EXPECT_FALSE(facts.exclusive_process);
  EXPECT_EQ(Counts().primary_retains, before);
  EXPECT_FALSE(Device::Ask(7, &facts).ok());
}

TEST_F(DeviceTest, AttachesOnlyWhereSomebodyUsesTheDevice) {
  scope_.reset();
  EXPECT_TRUE(device_->DestroyStream(stream_).ok());
  device_.reset();
  cuDevicePrimaryCtxRelease(0);
  EXPECT_EQ(Device::Attach(0, &device_).fault, DeviceFault::kRefused);
  EXPECT_EQ(device_, nullptr);
  EXPECT_EQ(Counts().primary_retains, 0u);
  SetUp();
}

TEST_F(DeviceTest, FactsAreAsked) {
  EXPECT_EQ(device_->facts().name, "Host device");
  EXPECT_EQ(device_->facts().driver_version, 12040);
  EXPECT_TRUE(device_->facts().posix_fd);
  EXPECT_FALSE(device_->facts().fabric);
  EXPECT_FALSE(device_->facts().exclusive_process);
}

TEST_F(DeviceTest, ContextsReturnEvenlyAndForeignThreadsNeedOne) {
  std::thread([&] {
    DeviceEvent event;
    EXPECT_EQ(device_->CreateEvent(&event).code, CUDA_ERROR_INVALID_CONTEXT);
    ContextScope scope(*device_);
    EXPECT_TRUE(device_->CreateEvent(&event).ok());
    EXPECT_TRUE(device_->DestroyEvent(event).ok());
  }).join();
}

TEST(Stretches, AreOfWholeChunks) {
  constexpr uint64_t kMiB = 1 << 20;
  EXPECT_EQ(StretchBytes(4096, 64 << 10), 64u << 10) << "one stretch";
  EXPECT_EQ(StretchBytes(kMiB, 64 << 10), 64u << 10);
  EXPECT_EQ(StretchBytes(160 * kMiB, kMiB), 2 * kMiB);
  EXPECT_EQ(StretchBytes(12'000 * kMiB, 2 * kMiB), 16 * kMiB);
  EXPECT_EQ(StretchBytes(512'000 * kMiB, 64 * kMiB), 64 * kMiB);
}

TEST_F(DeviceTest, ACopyIsDoneWhenItsEventSaysSo) {
  DeviceAddress address = Filled('x');
  void* pinned = nullptr;
  ASSERT_TRUE(device_->AllocatePinned(kBytes, &pinned).ok());
  memset(pinned, 0, kBytes);
  DeviceEvent event;
  ASSERT_TRUE(device_->CreateEvent(&event).ok());
  fakecuda_rate(kBytes / 50'000);  // 50 ms
  ASSERT_TRUE(device_->CopyOut(pinned, address, kBytes, stream_).ok());
  ASSERT_TRUE(device_->Record(event, stream_).ok());
  EXPECT_EQ(device_->Query(event).fault, DeviceFault::kNotReady);
  EXPECT_TRUE(device_->Synchronize(event).ok());
  EXPECT_TRUE(device_->Query(event).ok());
  EXPECT_EQ(static_cast<char*>(pinned)[kBytes - 1], 'x');
  EXPECT_TRUE(device_->DestroyEvent(event).ok());
  EXPECT_TRUE(device_->FreePinned(pinned).ok());
  EXPECT_TRUE(device_->Free(address).ok());
}

TEST_F(DeviceTest, UnpinnedMemoryIsCopiedBeforeTheCallReturns) {
  DeviceAddress address = Filled('y');
  std::vector<char> host(kBytes);
  fakecuda_rate(kBytes / 20'000);
  ASSERT_TRUE(device_->CopyOut(host.data(), address, kBytes, stream_).ok());
  EXPECT_EQ(host.back(), 'y');
  EXPECT_TRUE(device_->Free(address).ok());
}

TEST_F(DeviceTest, AStreamWaitsForAnotherOnesEvent) {
  DeviceAddress address = Filled('1');
  DeviceStream writer;
  ASSERT_TRUE(device_->CreateStream(&writer).ok());
  DeviceEvent copied;
  ASSERT_TRUE(device_->CreateEvent(&copied).ok());
  void* pinned = nullptr;
  ASSERT_TRUE(device_->AllocatePinned(kBytes, &pinned).ok());
  fakecuda_rate(kBytes / 20'000);
  ASSERT_TRUE(device_->CopyOut(pinned, address, kBytes, stream_).ok());
  ASSERT_TRUE(device_->Record(copied, stream_).ok());
  ASSERT_TRUE(device_->Wait(writer, copied).ok());
  cuLaunchHostFunc(
      static_cast<CUstream>(writer.handle), [](void* at) { memset(at, '2', kBytes); },
      reinterpret_cast<void*>(address));
  ASSERT_TRUE(device_->Synchronize(writer).ok());
  EXPECT_EQ(std::string(static_cast<char*>(pinned), kBytes), std::string(kBytes, '1'));
  EXPECT_TRUE(device_->DestroyEvent(copied).ok());
  EXPECT_TRUE(device_->DestroyStream(writer).ok());
  EXPECT_TRUE(device_->FreePinned(pinned).ok());
  EXPECT_TRUE(device_->Free(address).ok());
}

TEST_F(DeviceTest, AGateOfAWordHoldsAStream) {
  void* pinned = nullptr;
  ASSERT_TRUE(device_->AllocatePinned(4096, &pinned).ok());
  auto* word = new (pinned) std::atomic<uint64_t>(0);
  DeviceAddress address = 0;
  ASSERT_TRUE(device_->PinnedAddress(pinned, &address).ok());
  ASSERT_TRUE(device_->WaitValue(stream_, address, 7).ok());
  ASSERT_TRUE(device_->WriteValue(stream_, address + 8, 1).ok());
  DeviceEvent behind;
  ASSERT_TRUE(device_->CreateEvent(&behind).ok());
  ASSERT_TRUE(device_->Record(behind, stream_).ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(device_->Query(behind).fault, DeviceFault::kNotReady);
  word->store(7);
  EXPECT_TRUE(device_->Synchronize(behind).ok());
  EXPECT_EQ(word[1].load(), 1u);
  EXPECT_TRUE(device_->DestroyEvent(behind).ok());
  EXPECT_TRUE(device_->FreePinned(pinned).ok());
}

TEST_F(DeviceTest, CapturingIsSeen) {
  auto stream = static_cast<CUstream>(stream_.handle);
  bool capturing = true;
  ASSERT_TRUE(device_->IsCapturing(stream_, &capturing).ok());
  EXPECT_FALSE(capturing);
  cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
  ASSERT_TRUE(device_->IsCapturing(stream_, &capturing).ok());
  EXPECT_TRUE(capturing);
  CUgraph graph = nullptr;
  cuStreamEndCapture(stream, &graph);
}

TEST_F(DeviceTest, PinningTwiceIsRefusedAndLeavesTheContextWhole) {
  std::vector<char> host(8192);
  ASSERT_TRUE(device_->Pin(host.data(), host.size()).ok());
  DeviceError error = device_->Pin(host.data() + 4096, 4096);
  EXPECT_EQ(error.fault, DeviceFault::kRefused);
  EXPECT_EQ(error.code, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  EXPECT_TRUE(device_->Synchronize(stream_).ok());
  EXPECT_TRUE(device_->Unpin(host.data()).ok());
  EXPECT_EQ(Counts().pinned_ranges, 0u);
}

TEST_F(DeviceTest, AFreedSourceBreaksTheContextForGood) {
  DeviceAddress address = Filled('z');
  void* pinned = nullptr;
  ASSERT_TRUE(device_->AllocatePinned(kBytes, &pinned).ok());
  DeviceStream held;
  ASSERT_TRUE(device_->CreateStream(&held).ok());
  cuLaunchHostFunc(
      static_cast<CUstream>(held.handle), [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(30)); },
      nullptr);
  ASSERT_TRUE(device_->CopyOut(pinned, address, kBytes, held).ok());
  ASSERT_TRUE(device_->Free(address).ok());
  DeviceError error = device_->Synchronize(held);
  EXPECT_EQ(error.fault, DeviceFault::kSticky);
  EXPECT_EQ(Sentence(error), "cuStreamSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS (700)");
  EXPECT_EQ(device_->Allocate(4096, &address).fault, DeviceFault::kSticky);
  EXPECT_TRUE(device_->DestroyStream(held).ok());
  EXPECT_TRUE(device_->FreePinned(pinned).ok());
}

TEST_F(DeviceTest, FailuresOnDemand) {
  fakecuda_fail("cuMemAlloc", CUDA_ERROR_OUT_OF_MEMORY, 1, 1);
  DeviceAddress first = 0;
  DeviceAddress second = 0;
  EXPECT_TRUE(device_->Allocate(4096, &first).ok());
  EXPECT_EQ(device_->Allocate(4096, &second).fault, DeviceFault::kRefused);
  EXPECT_TRUE(device_->Allocate(4096, &second).ok());
  EXPECT_TRUE(device_->Free(first).ok());
  EXPECT_TRUE(device_->Free(second).ok());
}

TEST(FaultOf, SortsByWhatCanBeDone) {
  EXPECT_EQ(FaultOf(CUDA_SUCCESS), DeviceFault::kNone);
  EXPECT_EQ(FaultOf(CUDA_ERROR_NOT_READY), DeviceFault::kNotReady);
  EXPECT_EQ(FaultOf(CUDA_ERROR_OUT_OF_MEMORY), DeviceFault::kRefused);
  EXPECT_EQ(FaultOf(CUDA_ERROR_LAUNCH_FAILED), DeviceFault::kSticky);
  EXPECT_EQ(FaultOf(CUDA_ERROR_DEVICE_UNAVAILABLE), DeviceFault::kLost);
  EXPECT_EQ(FaultOf(CUDA_ERROR_STUB_LIBRARY), DeviceFault::kNoDriver);
}

}  // namespace
}  // namespace ckptd
