#include "client/src/device_tensors.h"

#include <algorithm>

#include "client/core/device/allocation.h"
#include "client/src/failure.h"
#include "client/src/layout.h"

namespace ckptd {
namespace {

constexpr uint64_t kMostStaged = 64 << 20;

DeviceAddress AddressOf(const Registration& registration, uint32_t tensor) {
  return reinterpret_cast<DeviceAddress>(registration.data[tensor]);
}

int32_t NotOnDevice(const Registration& registration, uint32_t tensor, const char* why) {
  std::string_view name = registration.shape->table.name(tensor);
  return Fail(code::INVALID_ARGUMENT, "tensor \"%.*s\" was given as GPU memory: %s", static_cast<int>(name.size()),
              name.data(), why);
}

int16_t LaneIndex(DeviceTensors* devices, const std::shared_ptr<Lane>& lane) {
  auto found = std::find(devices->lanes.begin(), devices->lanes.end(), lane);
  if (found == devices->lanes.end()) found = devices->lanes.insert(found, lane);
  return static_cast<int16_t>(found - devices->lanes.begin());
}

int32_t FindOne(Lanes& lanes, uint32_t tensor, Registration* registration) {
  DeviceAllocation allocation;
  DeviceError error = FindAllocation(AddressOf(*registration, tensor), &allocation);
  if (error.fault == DeviceFault::kNoDriver) return Fail(code::DEVICE, "no usable CUDA driver: %s", error.call);
  if (!error.ok()) return NotOnDevice(*registration, tensor, "it lies in no allocation of a GPU");
  if (allocation.ordinal < 0) return NotOnDevice(*registration, tensor, "it is host memory");
  std::shared_ptr<Lane> lane;
  if (int32_t rc = lanes.Find(allocation.ordinal, &lane)) return rc;
  DeviceTensors& devices = registration->devices;
  devices.lane_of[tensor] = LaneIndex(&devices, lane);
  devices.allocation_end[tensor] = allocation.base + allocation.bytes;
  return 0;
}

// Eager tensors of one lane, in the order of the slot: so that their staged copies leave in few large pieces.
std::vector<uint32_t> EagerOf(const Registration& registration, int16_t lane) {
  std::vector<uint32_t> tensors;
  for (uint32_t tensor : registration.eager) {
    if (registration.devices.lane(tensor) == lane) tensors.push_back(tensor);
  }
  return tensors;
}

void StageEager(int16_t lane, bool shareable, Registration* registration) {
  DeviceTensors& devices = registration->devices;
  const std::vector<uint32_t> tensors = EagerOf(*registration, lane);
  uint64_t bytes = 0;
  for (uint32_t tensor : tensors) bytes += registration->shape->tensors[tensor].bytes;
  if (bytes == 0) return;
  std::unique_ptr<DeviceBlock> block;
  bool room = bytes <= kMostStaged && DeviceBlock::Allocate(devices.lanes[lane], bytes, shareable, &block).ok();
  if (!room) {
    devices.direct.insert(devices.direct.end(), tensors.begin(), tensors.end());
    return;
  }
  DeviceAddress at = block->address();
  for (uint32_t tensor : tensors) {
    devices.staged.push_back({tensor, at});
    at += registration->shape->tensors[tensor].bytes;
  }
  devices.blocks.push_back(std::move(block));
}

// With a ContextScope.
DeviceError Stage(const Registration& registration, int16_t index) {
  const DeviceTensors& devices = registration.devices;
  const Lane& lane = *devices.lanes[static_cast<size_t>(index)];
  for (const DeviceTensors::Staged& staged : devices.staged) {
    if (devices.lane(staged.tensor) != index) continue;
    uint64_t bytes = registration.shape->tensors[staged.tensor].bytes;
    const DeviceAddress from = AddressOf(registration, staged.tensor);
    DeviceError error = lane.device().CopyWithin(staged.copy, from, bytes, lane.caller());
    if (!error.ok()) return error;
  }
  return {};
}

DeviceError TakeOnLane(const Registration& registration, int16_t index, char* slot) {
  const DeviceTensors& devices = registration.devices;
  Lane& lane = *devices.lanes[static_cast<size_t>(index)];
  ContextScope scope(lane.device());
  if (!scope.error().ok()) return scope.error();
  lane.Forget();
  if (DeviceError error = Stage(registration, index); !error.ok()) return error;
  if (DeviceError error = lane.FollowCaller(); !error.ok()) return error;
  bool held = false;
  for (uint32_t tensor : devices.direct) {
    if (devices.lane(tensor) != index) continue;
    const TensorPlace& place = registration.shape->tensors[tensor];
    DeviceError error = lane.CopyOut(slot, place.slot_offset, AddressOf(registration, tensor), place.bytes);
    if (!error.ok()) return error;
    held = true;
  }
  return held ? lane.HoldCaller() : DeviceError();
}

}  // namespace

int32_t Lanes::Find(int ordinal, std::shared_ptr<Lane>* out) {
  for (const auto& lane : lanes_) {
    if (lane->ordinal() != ordinal) continue;
    *out = lane;
    return 0;
  }
  if (int32_t rc = Lane::Open(ordinal, out)) return rc;
  lanes_.push_back(*out);
  return 0;
}

int32_t Lanes::FindOf(const void* address, std::shared_ptr<Lane>* out) {
  DeviceAllocation allocation;
  DeviceError error = FindAllocation(reinterpret_cast<DeviceAddress>(address), &allocation);
  if (error.fault == DeviceFault::kNoDriver) return Fail(code::DEVICE, "no usable CUDA driver: %s", error.call);
  if (!error.ok() || allocation.ordinal < 0) {
    return Fail(code::INVALID_ARGUMENT, "%p was given as GPU memory, but is none", address);
  }
  return Find(allocation.ordinal, out);
}

int32_t FindDeviceTensors(Lanes& lanes, Registration* registration) {
  const uint64_t count = registration->flags.size();
  DeviceTensors& devices = registration->devices;
  for (uint32_t tensor : registration->shape->order) {
    if ((registration->flags[tensor] & CKPT_DEVICE) == 0) continue;
    if (devices.lane_of.empty()) {
      devices.lane_of.assign(count, DeviceTensors::kHost);
      devices.allocation_end.assign(count, 0);
    }
    if (int32_t rc = FindOne(lanes, tensor, registration)) return rc;
  }
  for (size_t lane = 0; lane < devices.lanes.size(); ++lane) {
    StageEager(static_cast<int16_t>(lane), lanes.share_copies(), registration);
  }
  return 0;
}

DeviceError StageEagerTensors(const Registration& registration) { return Stage(registration, 0); }

int32_t TakeEagerFromDevices(const Registration& registration, char* slot) {
  const DeviceTensors& devices = registration.devices;
  for (size_t i = 0; i < devices.lanes.size(); ++i) {
    DeviceError error = TakeOnLane(registration, static_cast<int16_t>(i), slot);
    if (!error.ok()) return DeviceFails(devices.lanes[i]->ordinal(), error);
  }
  return 0;
}

}  // namespace ckptd
