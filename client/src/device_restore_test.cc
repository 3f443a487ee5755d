// Restores into memory of a GPU, with the host device in its place.
#include "client/src/test_allocations.h"
#include "client/src/test_device.h"
#include "client/src/test_image.h"

namespace ckptd {
namespace {

class DeviceRestoreTest : public DeviceTest {
 protected:
  // Step 7 of these tensors, sealed; then another trainer begins to restore it.
  void SealAndBegin(const std::vector<uint64_t>& sizes) {
    MakeTensors(sizes);
    Register();
    agent.Grant(0);
    ASSERT_EQ(trainer->Save(7), 0) << ckpt_error();
    ASSERT_EQ(Gate(), 0);
    ASSERT_TRUE(trainer->Copied(7));
    agent.Seal(0);
    slot = agent.SlotBytes(0);
    trainer->Close(0);
    trainer->Open(agent.socket());
    ASSERT_EQ(ckpt_stream(trainer->handle, 0, stream), 0) << ckpt_error();
    ckpt_want want = {sizeof want, CKPT_WANT_NEWEST, 0, kLong, 0};
    restored.struct_bytes = sizeof restored;
    ASSERT_EQ(ckpt_restore_begin(trainer->handle, &want, &restored), 0) << ckpt_error();
  }

  [[nodiscard]] uint64_t OffsetOf(size_t i) const { return TensorOffset(slot, i); }

  std::vector<ckpt_box> Boxes() {
    std::vector<ckpt_box> boxes;
    for (size_t i = 0; i < trainer->tensors.size(); ++i) {
      void* to = const_cast<void*>(trainer->data[i]);
      memset(to, 0, trainer->tensors[i].size());
      boxes.push_back({to, OffsetOf(i), trainer->tensors[i].size(), CKPT_DEVICE});
    }
    return boxes;
  }

  void ExpectTensors() const {
    for (size_t i = 0; i < trainer->tensors.size(); ++i) {
      EXPECT_EQ(memcmp(trainer->data[i], trainer->tensors[i].data(), trainer->tensors[i].size()), 0) << i;
    }
  }

  std::string slot;
  ckpt_restored restored = {};
};

TEST_F(DeviceRestoreTest, ManyTensorsAndManyBlocksArrive) {
  SealAndBegin({20 * kMiB, 1000, 9 * kMiB + 13, 77'777, 512});
  std::vector<ckpt_box> boxes = Boxes();
  ASSERT_EQ(ckpt_restore_read(trainer->handle, boxes.data(), boxes.size()), 0) << ckpt_error();
  ExpectTensors();
  ASSERT_EQ(ckpt_restore_end(trainer->handle, 0, nullptr, &restored), 0) << ckpt_error();
}

TEST_F(DeviceRestoreTest, HostAndDeviceInOneCall) {
  SealAndBegin({2 * kMiB, 300'000});
  std::vector<ckpt_box> boxes = Boxes();
  std::string host(300'000, 0);
  boxes[1] = {host.data(), boxes[1].offset, host.size(), 0};
  ASSERT_EQ(ckpt_restore_read(trainer->handle, boxes.data(), boxes.size()), 0) << ckpt_error();
  EXPECT_EQ(host, std::string(trainer->tensors[1].begin(), trainer->tensors[1].end()));
  EXPECT_EQ(memcmp(trainer->data[0], trainer->tensors[0].data(), 2 * kMiB), 0);
}

TEST_F(DeviceRestoreTest, WhatTheCallersStreamStillWritesComesFirst) {
  SealAndBegin({100'000});
  std::vector<ckpt_box> boxes = Boxes();
  Launch(0, 'i', 50);  // the model's initialisation
  ASSERT_EQ(ckpt_restore_read(trainer->handle, boxes.data(), boxes.size()), 0) << ckpt_error();
  ExpectTensors();
}

TEST_F(DeviceRestoreTest, ADamagedChunkIsNoticed) {
  SealAndBegin({2 * kMiB});
  agent.DamageSlot(0, slot.size() / 2);
  std::vector<ckpt_box> boxes = Boxes();
  EXPECT_EQ(ckpt_restore_read(trainer->handle, boxes.data(), boxes.size()), CKPT_E_CORRUPT);
  EXPECT_NE(std::string(ckpt_error()).find("is damaged"), std::string::npos);
}

TEST_F(DeviceRestoreTest, AFailingDeviceIsTold) {
  SealAndBegin({12 * kMiB});
  std::vector<ckpt_box> boxes = Boxes();
  for (const char* call : {"cuMemHostAlloc", "cuMemcpyHtoDAsync", "cuEventRecord", "cuEventCreate"}) {
    fakecuda_fail(call, CUDA_ERROR_INVALID_VALUE, 0, 1);
    EXPECT_EQ(ckpt_restore_read(trainer->handle, boxes.data(), boxes.size()), CKPT_E_DEVICE) << call;
    EXPECT_NE(std::string(ckpt_error()).find(call), std::string::npos) << ckpt_error();
    fakecuda_fail_none();
  }
  ASSERT_EQ(ckpt_restore_read(trainer->handle, boxes.data(), boxes.size()), 0) << ckpt_error();
  ExpectTensors();
}

// The calling thread reads as well, and may have read all before another one has begun: then again.
TEST_F(DeviceRestoreTest, AThreadWithoutMemoryFailsTheReadAndNotTheProcess) {
  if (!kAllocationsAreSeen) GTEST_SKIP() << "the sanitizer has operator new";
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "on one core no other thread reads";
  SealAndBegin({20 * kMiB});
  std::vector<ckpt_box> boxes = Boxes();
  FailAllocationOf("ckpt-read");
  ckpt_status read = 0;
  for (int tries = 0; tries < 100 && read == 0; ++tries) {
    read = ckpt_restore_read(trainer->handle, boxes.data(), boxes.size());
  }
  EXPECT_EQ(read, CKPT_E_INTERNAL);
  EXPECT_NE(std::string(ckpt_error()).find("out of memory"), std::string::npos) << ckpt_error();
  FailAllocationOf(nullptr);
  ASSERT_EQ(ckpt_restore_read(trainer->handle, boxes.data(), boxes.size()), 0) << ckpt_error();
  ExpectTensors();
}

TEST_F(DeviceRestoreTest, AnAddressThatIsNotTheDevicesIsRefused) {
  SealAndBegin({1000});
  char host[1000];
  ckpt_box box = {host, OffsetOf(0), sizeof host, CKPT_DEVICE};
  EXPECT_EQ(ckpt_restore_read(trainer->handle, &box, 1), CKPT_E_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace ckptd
