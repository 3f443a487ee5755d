// Trainers with tensors on a GPU: the host device in its place (client/core/device/testing/fake_cuda.h).
#ifndef CKPTD_CLIENT_SRC_TEST_DEVICE_H_
#define CKPTD_CLIENT_SRC_TEST_DEVICE_H_

#include <cuda.h>

#include <memory>
#include <vector>

#include "client/core/device/testing/fake_cuda.h"
#include "client/src/test_trainer.h"

namespace ckptd {

inline constexpr uint64_t kMiB = 1 << 20;

[[nodiscard]] inline fakecuda_counts Counts() {
  fakecuda_counts counts = {};
  fakecuda_count(&counts);
  return counts;
}

// A kernel that overwrites a tensor.
struct Overwrite {
  void* at;
  size_t bytes;
  int value;
  int after_ms;
};

inline void RunOverwrite(void* argument) {
  std::unique_ptr<Overwrite> kernel(static_cast<Overwrite*>(argument));
  std::this_thread::sleep_for(std::chrono::milliseconds(kernel->after_ms));
  memset(kernel->at, kernel->value, kernel->bytes);
}

// With one hardware queue a kernel waits for every copy that was submitted before it: nothing can be torn then.
[[nodiscard]] inline bool OneQueue() { return getenv("CUDA_DEVICE_MAX_CONNECTIONS") != nullptr; }

// A trainer with a context of its own on the device, an agent, and nothing left behind.
class DeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    CUcontext context = nullptr;
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxPushCurrent(context), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0), CUDA_SUCCESS);
    BeforeStart();
    agent.Start();
    trainer = std::make_unique<TestTrainer>(agent.socket(), gate_timeout_ns, gpu_path, open_flags);
  }

  virtual void BeforeStart() {}

  void TearDown() override {
    fakecuda_hang(0);
    fakecuda_rate(0);
    fakecuda_fail_none();
    trainer.reset();
    fakecuda_break(0);
    ExpectNothingLeft();
    cuStreamSynchronize(stream);
    cuStreamDestroy(stream);
    for (CUdeviceptr segment : segments) cuMemFree(segment);
    CUcontext context = nullptr;
    cuCtxPopCurrent(&context);
    cuDevicePrimaryCtxRelease(0);
  }

  // Only the trainer's own things live on.
  void ExpectNothingLeft() const {
    fakecuda_counts counts = Counts();
    EXPECT_EQ(counts.pinned_ranges, 0u);
    EXPECT_EQ(counts.streams, 1u);
    EXPECT_EQ(counts.events, 0u);
    EXPECT_EQ(counts.primary_retains, 1u);
    EXPECT_EQ(counts.allocations, segments.size());
  }

  // Tensors of one segment, as PyTorch's allocator places them: each at a multiple of 512.
  void MakeTensors(const std::vector<uint64_t>& sizes, uint8_t flag = 0) {
    trainer->MakeTensors(sizes);
    uint64_t bytes = 0;
    for (uint64_t size : sizes) bytes += (size + 511) / 512 * 512;
    CUdeviceptr segment = 0;
    ASSERT_EQ(cuMemAlloc(&segment, bytes), CUDA_SUCCESS);
    segments.push_back(segment);
    for (size_t i = 0; i < sizes.size(); ++i) {
      memcpy(reinterpret_cast<void*>(segment), trainer->tensors[i].data(), sizes[i]);
      trainer->data[i] = reinterpret_cast<void*>(segment);
      trainer->flags[i] = static_cast<uint8_t>(CKPT_DEVICE | flag);
      segment += (sizes[i] + 511) / 512 * 512;
    }
  }

  void Register() {
    ASSERT_EQ(trainer->Register(), 0) << ckpt_error();
    trainer->WaitReady();
    ASSERT_EQ(ckpt_stream(trainer->handle, 0, stream), 0) << ckpt_error();
    ASSERT_EQ(ckpt_gate(trainer->handle, 0), 0);
  }

  void Launch(size_t tensor, int value = 0xee, int after_ms = 0) {
    auto* kernel =
        new Overwrite{const_cast<void*>(trainer->data[tensor]), trainer->tensors[tensor].size(), value, after_ms};
    ASSERT_EQ(cuLaunchHostFunc(stream, RunOverwrite, kernel), CUDA_SUCCESS);
  }

  // `bytes` take about `ms` milliseconds to copy.
  static void Slow(uint64_t bytes, uint64_t ms) { fakecuda_rate(std::max<uint64_t>(1, bytes / (ms * 1000))); }

  [[nodiscard]] ckpt_status Gate() { return ckpt_gate_stream(trainer->handle, stream, 0); }

  uint64_t gate_timeout_ns = 5'000 * kMs;
  uint32_t gpu_path = CKPT_PUSH;
  uint32_t open_flags = 0;
  FakeAgent agent;
  std::unique_ptr<TestTrainer> trainer;
  CUstream stream = nullptr;
  std::vector<CUdeviceptr> segments;
};

}  // namespace ckptd

#endif  // CKPTD_CLIENT_SRC_TEST_DEVICE_H_
