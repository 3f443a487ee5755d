// The GPU of a benchmark and its limits, on the host device (client/core/device/testing/fake_cuda.h).
#include "tools/bench/gpu.h"

#include <gtest/gtest.h>

#include "client/core/device/testing/fake_cuda.h"
#include "tools/bench/gpu_limits.h"

namespace ckptd::bench {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

class GpuTest : public testing::Test {
 protected:
  GpuTest() {
    auto opened = Gpu::Open();
    EXPECT_TRUE(opened.ok()) << opened.status();
    gpu = *std::move(opened);
  }
  ~GpuTest() override {
    fakecuda_rate(0);
    fakecuda_fail_none();
  }

  std::unique_ptr<Gpu> gpu;
};

TEST_F(GpuTest, TheHostDeviceIsNoGpu) {
  EXPECT_TRUE(gpu->is_host_device());
  EXPECT_EQ(gpu->name(), "host device: no figure of a GPU");
}

TEST_F(GpuTest, MarksTellWhatTheStreamTook) {
  const Device& device = gpu->device();
  DeviceStream stream;
  DeviceAddress memory = 0;
  ASSERT_TRUE(device.CreateStream(&stream).ok());
  ASSERT_TRUE(device.Allocate(2 * kMiB, &memory).ok());
  fakecuda_rate(20);  // bytes a microsecond: a MiB in 52 ms
  auto copy = [&] { return device.CopyWithin(memory + kMiB, memory, kMiB, stream).ok(); };
  ASSERT_TRUE(copy());
  ASSERT_TRUE(gpu->MarkBegin(stream).ok());
  ASSERT_TRUE(copy());
  ASSERT_TRUE(gpu->MarkEnd(stream).ok());
  ASSERT_TRUE(copy());
  EXPECT_FALSE(gpu->Seconds().ok()) << "it has not been there yet";
  ASSERT_TRUE(device.Synchronize(stream).ok());
  auto seconds = gpu->Seconds();
  ASSERT_TRUE(seconds.ok()) << seconds.status();
  EXPECT_GE(*seconds, 0.050);
  EXPECT_LT(*seconds, 0.104) << "one copy lies between the marks, not two";
  EXPECT_TRUE(device.Free(memory).ok());
  EXPECT_TRUE(device.DestroyStream(stream).ok());
}

TEST_F(GpuTest, TheLimitIsTheTimeOfEveryCopy) {
  auto blocks = PinnedBlocks::Make(*gpu, "/no/region", 12 * kMiB - 1);
  ASSERT_TRUE(blocks.ok()) << blocks.status();
  EXPECT_EQ((*blocks)->bytes(), 12 * kMiB);
  EXPECT_EQ((*blocks)->Describe(), "12 x 1.0 MiB");
  fakecuda_rate(100);
  for (auto copy : {&PinnedBlocks::CopyOut, &PinnedBlocks::CopyIn}) {
    auto seconds = ((**blocks).*copy)();
    ASSERT_TRUE(seconds.ok()) << seconds.status();
    EXPECT_GE(*seconds, 12 * static_cast<double>(kMiB) / 100e6) << "the copies were not waited for";
  }
}

TEST_F(GpuTest, WhatTheDriverRefusesIsAnError) {
  fakecuda_fail("cuMemHostAlloc", 2, 5, 1);  // out of memory, with some blocks made
  auto blocks = PinnedBlocks::Make(*gpu, "/no/region", 12 * kMiB);
  EXPECT_FALSE(blocks.ok());
  fakecuda_counts counts = {};
  fakecuda_count(&counts);
  EXPECT_EQ(counts.allocations, 0u);
  EXPECT_EQ(counts.streams, 0u);
}

}  // namespace
}  // namespace ckptd::bench
