#include "client/core/device/allocation.h"

#include <cuda.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "client/core/device/testing/fake_cuda.h"

extern char** environ;

namespace ckptd {
namespace {

constexpr uint64_t kBytes = 2 << 20;

fakecuda_counts Counts() {
  fakecuda_counts counts = {};
  fakecuda_count(&counts);
  return counts;
}

class AllocationTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    ASSERT_TRUE(Device::Create(0, &device_).ok());
    scope_ = std::make_unique<ContextScope>(*device_);
  }

  // What PyTorch's expandable segments are made of.
  DeviceAddress MapChunk(DeviceAddress at, bool exportable) {
    CUmemAllocationProp prop = {};
    prop.location.id = 0;
    if (exportable) prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUmemGenericAllocationHandle memory = 0;
    EXPECT_EQ(cuMemCreate(&memory, kBytes, &prop, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemMap(at, kBytes, 0, memory, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemRelease(memory), CUDA_SUCCESS);
    return at;
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<ContextScope> scope_;
};

// Runs the test below in a process of its own, with the handle in its environment. What it says is its exit status.
int RunPeer(const DeviceHandle& handle, char expected) {
  std::string hex;
  char digits[3];
  for (uint8_t byte : handle.bytes) {
    snprintf(digits, sizeof digits, "%02x", byte);
    hex += digits;
  }
  setenv("PEER_HANDLE", hex.c_str(), 1);
  setenv("PEER_KIND", std::to_string(static_cast<int>(handle.kind)).c_str(), 1);
  setenv("PEER_FD", "9", 1);
  setenv("PEER_BYTE", std::string(1, expected).c_str(), 1);
  std::string self = "/proc/self/exe";
  std::string filter = "--gtest_filter=Peer.DISABLED_OpensTheHandle";
  std::string disabled = "--gtest_also_run_disabled_tests";
  std::vector<char*> arguments = {self.data(), filter.data(), disabled.data(), nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (handle.fd >= 0) posix_spawn_file_actions_adddup2(&actions, handle.fd, 9);
  pid_t pid = 0;
  int status = posix_spawn(&pid, self.c_str(), &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (status != 0) return -1;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

std::string Environment(const char* name) {
  const char* value = getenv(name);
  return value != nullptr ? value : "";
}

TEST(Peer, DISABLED_OpensTheHandle) {
  DeviceHandle handle;
  std::string hex = Environment("PEER_HANDLE");
  ASSERT_EQ(hex.size(), 2 * handle.bytes.size());
  for (size_t i = 0; i < handle.bytes.size(); ++i) {
    handle.bytes[i] = static_cast<uint8_t>(strtoul(hex.substr(2 * i, 2).c_str(), nullptr, 16));
  }
  handle.kind = static_cast<HandleKind>(std::stoi(Environment("PEER_KIND")));
  handle.fd = std::stoi(Environment("PEER_FD"));
  std::unique_ptr<Device> device;
  ASSERT_TRUE(Device::Create(0, &device).ok());
  ContextScope scope(*device);
  ImportedAllocation imported;
  ASSERT_TRUE(Import(*device, handle, kBytes, &imported).ok());
  std::vector<char> host(kBytes);
  ASSERT_TRUE(device->CopyOut(host.data(), imported.base, kBytes, {}).ok());
  EXPECT_EQ(std::string(1, host.back()), Environment("PEER_BYTE"));
  EXPECT_TRUE(Close(imported).ok());
  EXPECT_EQ(Counts().imports, 0u);
}

TEST_F(AllocationTest, AnAddressIsFoundInItsAllocation) {
  DeviceAddress base = 0;
  ASSERT_TRUE(device_->Allocate(kBytes, &base).ok());
  DeviceAllocation found;
  ASSERT_TRUE(FindAllocation(base + 12345, &found).ok());
  EXPECT_EQ(found.base, base);
  EXPECT_EQ(found.bytes, kBytes);
  EXPECT_EQ(found.ordinal, 0);
  EXPECT_EQ(found.kind, HandleKind::kLegacy);
  DeviceAllocation again;
  ASSERT_TRUE(FindAllocation(base, &again).ok());
  EXPECT_EQ(found, again);
  ASSERT_TRUE(device_->Free(base).ok());
  EXPECT_EQ(FindAllocation(base, &again).fault, DeviceFault::kRefused);
}

TEST_F(AllocationTest, HostMemoryIsNotTheDevices) {
  void* pinned = nullptr;
  ASSERT_TRUE(device_->AllocatePinned(4096, &pinned).ok());
  DeviceAllocation found;
  ASSERT_TRUE(FindAllocation(reinterpret_cast<DeviceAddress>(pinned), &found).ok());
  EXPECT_EQ(found.ordinal, -1);
  EXPECT_EQ(found.kind, HandleKind::kNone);
  ASSERT_TRUE(device_->FreePinned(pinned).ok());
  int local = 0;
  EXPECT_EQ(FindAllocation(reinterpret_cast<DeviceAddress>(&local), &found).fault, DeviceFault::kRefused);
}

TEST_F(AllocationTest, AnAddressThatIsMappedAnewIsAnotherAllocation) {
  CUdeviceptr range = 0;
  ASSERT_EQ(cuMemAddressReserve(&range, kBytes, 0, 0, 0), CUDA_SUCCESS);
  MapChunk(range, true);
  DeviceAllocation before;
  ASSERT_TRUE(FindAllocation(range, &before).ok());
  ASSERT_EQ(cuMemUnmap(range, kBytes), CUDA_SUCCESS);
  MapChunk(range, true);
  DeviceAllocation after;
  ASSERT_TRUE(FindAllocation(range, &after).ok());
  EXPECT_EQ(before.base, after.base);
  EXPECT_NE(before.buffer_id, after.buffer_id);
  ASSERT_EQ(cuMemUnmap(range, kBytes), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAddressFree(range, kBytes), CUDA_SUCCESS);
}

TEST_F(AllocationTest, LegacyMemoryIsReadByAnotherProcess) {
  DeviceAddress base = 0;
  ASSERT_TRUE(device_->Allocate(kBytes, &base).ok());
  memset(reinterpret_cast<void*>(base), 'q', kBytes);
  DeviceAllocation found;
  ASSERT_TRUE(FindAllocation(base, &found).ok());
  DeviceHandle handle;
  ASSERT_TRUE(Export(found, &handle).ok());
  EXPECT_EQ(RunPeer(handle, 'q'), 0);
  EXPECT_NE(RunPeer(handle, 'r'), 0) << "the peer cannot fail";
  ASSERT_TRUE(device_->Free(base).ok());
}

TEST_F(AllocationTest, AChunkIsReadByAnotherProcess) {
  CUdeviceptr range = 0;
  ASSERT_EQ(cuMemAddressReserve(&range, 2 * kBytes, 0, 0, 0), CUDA_SUCCESS);
  MapChunk(range, true);
  MapChunk(range + kBytes, false);
  memset(reinterpret_cast<void*>(range), 's', kBytes);
  DeviceAllocation found;
  ASSERT_TRUE(FindAllocation(range + 17, &found).ok());
  EXPECT_EQ(found.kind, HandleKind::kPosixFd);
  DeviceHandle handle;
  ASSERT_TRUE(Export(found, &handle).ok());
  EXPECT_EQ(RunPeer(handle, 's'), 0);
  close(handle.fd);
  ASSERT_TRUE(FindAllocation(range + kBytes, &found).ok());
  EXPECT_EQ(found.kind, HandleKind::kNone);
  EXPECT_EQ(Export(found, &handle).fault, DeviceFault::kRefused);
  ASSERT_EQ(cuMemUnmap(range, kBytes), CUDA_SUCCESS);
  ASSERT_EQ(cuMemUnmap(range + kBytes, kBytes), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAddressFree(range, 2 * kBytes), CUDA_SUCCESS);
  EXPECT_EQ(Counts().allocations, 0u);
}

TEST_F(AllocationTest, AFailedImportLeavesNothing) {
  CUdeviceptr range = 0;
  ASSERT_EQ(cuMemAddressReserve(&range, kBytes, 0, 0, 0), CUDA_SUCCESS);
  MapChunk(range, true);
  DeviceAllocation found;
  ASSERT_TRUE(FindAllocation(range, &found).ok());
  DeviceHandle handle;
  ASSERT_TRUE(Export(found, &handle).ok());
  for (const char* call : {"cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap"}) {
    fakecuda_fail(call, CUDA_ERROR_OUT_OF_MEMORY, 0, 1);
    ImportedAllocation imported;
    DeviceError error = Import(*device_, handle, kBytes, &imported);
    EXPECT_EQ(error.code, CUDA_ERROR_OUT_OF_MEMORY) << call;
    EXPECT_STREQ(error.call, call);
    EXPECT_EQ(Counts().imports, 0u) << call;
    fakecuda_fail_none();
  }
  close(handle.fd);
  ASSERT_EQ(cuMemUnmap(range, kBytes), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAddressFree(range, kBytes), CUDA_SUCCESS);
}

}  // namespace
}  // namespace ckptd
