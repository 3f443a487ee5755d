#include "client/core/device/device.h"

#include "client/core/device/driver.h"

namespace ckptd {
namespace {

CUstream Of(DeviceStream stream) { return static_cast<CUstream>(stream.handle); }
CUevent Of(DeviceEvent event) { return static_cast<CUevent>(event.handle); }

// What cannot be asked stays false or empty.
DeviceFacts FactsOf(const Driver& driver, CUdevice device) {
  DeviceFacts facts;
  char text[256] = {};
  if (driver.cuDeviceGetName(text, sizeof text, device) == CUDA_SUCCESS) facts.name = text;
  if (driver.cuDeviceGetPCIBusId(text, sizeof text, device) == CUDA_SUCCESS) facts.pci = text;
  CUuuid uuid = {};
  if (driver.cuDeviceGetUuid(&uuid, device) == CUDA_SUCCESS) {
    for (size_t i = 0; i < facts.uuid.size(); ++i) facts.uuid[i] = static_cast<uint8_t>(uuid.bytes[i]);
  }
  size_t bytes = 0;
  if (driver.cuDeviceTotalMem(&bytes, device) == CUDA_SUCCESS) facts.memory_bytes = bytes;
  driver.cuDriverGetVersion(&facts.driver_version);
  auto ask = [&](CUdevice_attribute attribute) {
    int value = 0;
    return driver.cuDeviceGetAttribute(&value, attribute, device) == CUDA_SUCCESS ? value : 0;
  };
  facts.exclusive_process = ask(CU_DEVICE_ATTRIBUTE_COMPUTE_MODE) == CU_COMPUTEMODE_EXCLUSIVE_PROCESS;
  facts.host_register = ask(CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED) != 0;
  facts.wait_value64 = ask(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS) != 0;
  facts.posix_fd = ask(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) != 0;
  facts.fabric = ask(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED) != 0;
  return facts;
}

}  // namespace

DeviceError Device::Count(int* count) {
  *count = 0;
  const Driver* driver = nullptr;
  if (DeviceError error = Driver::Load(&driver); !error.ok()) return error;
  return CKPTD_CUDA(*driver, cuDeviceGetCount, count);
}

DeviceError Device::Ask(int ordinal, DeviceFacts* out) {
  const Driver* driver = nullptr;
  if (DeviceError error = Driver::Load(&driver); !error.ok()) return error;
  CUdevice device = 0;
  DeviceError error = CKPTD_CUDA(*driver, cuDeviceGet, &device, ordinal);
  if (error.ok()) *out = FactsOf(*driver, device);
  return error;
}

DeviceError Device::Attach(int ordinal, std::unique_ptr<Device>* out) { return Retain(ordinal, false, out); }

DeviceError Device::Create(int ordinal, std::unique_ptr<Device>* out) { return Retain(ordinal, true, out); }

DeviceError Device::Retain(int ordinal, bool make, std::unique_ptr<Device>* out) {
  const Driver* driver = nullptr;
  if (DeviceError error = Driver::Load(&driver); !error.ok()) return error;
  CUdevice device = 0;
  if (DeviceError error = CKPTD_CUDA(*driver, cuDeviceGet, &device, ordinal); !error.ok()) return error;
  unsigned flags = 0;
  int active = 0;
  DeviceError error = CKPTD_CUDA(*driver, cuDevicePrimaryCtxGetState, device, &flags, &active);
  if (!error.ok()) return error;
  if (active == 0 && !make) return {DeviceFault::kRefused, CUDA_ERROR_INVALID_CONTEXT, "cuDevicePrimaryCtxGetState"};
  CUcontext context = nullptr;
  error = CKPTD_CUDA(*driver, cuDevicePrimaryCtxRetain, &context, device);
  if (!error.ok()) return error;
  out->reset(new Device(*driver, ordinal, context));
  (*out)->facts_ = FactsOf(*driver, device);
  return {};
}

Device::~Device() { driver_.cuDevicePrimaryCtxRelease(ordinal_); }

DeviceError Device::CreateStream(DeviceStream* out) const {
  int least = 0;
  int greatest = 0;
  DeviceError error = CKPTD_CUDA(driver_, cuCtxGetStreamPriorityRange, &least, &greatest);
  if (!error.ok()) return error;
  CUstream stream = nullptr;
  error = CKPTD_CUDA(driver_, cuStreamCreateWithPriority, &stream, CU_STREAM_NON_BLOCKING, least);
  out->handle = stream;
  return error;
}

DeviceError Device::DestroyStream(DeviceStream stream) const {
  return CKPTD_CUDA(driver_, cuStreamDestroy, Of(stream));
}

DeviceError Device::Synchronize(DeviceStream stream) const {
  return CKPTD_CUDA(driver_, cuStreamSynchronize, Of(stream));
}

DeviceError Device::IsCapturing(DeviceStream stream, bool* capturing) const {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  CUresult result = driver_.cuStreamIsCapturing(Of(stream), &status);
  // The legacy default stream cannot be asked while another one captures: what it is given then breaks that capture.
  *capturing = status != CU_STREAM_CAPTURE_STATUS_NONE || result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  return *capturing ? DeviceError() : Driver::Check("cuStreamIsCapturing", result);
}

DeviceError Device::CreateEvent(DeviceEvent* out) const {
  CUevent event = nullptr;
  DeviceError error = CKPTD_CUDA(driver_, cuEventCreate, &event, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING);
  out->handle = event;
  return error;
}

DeviceError Device::DestroyEvent(DeviceEvent event) const { return CKPTD_CUDA(driver_, cuEventDestroy, Of(event)); }

DeviceError Device::Record(DeviceEvent event, DeviceStream stream) const {
  return CKPTD_CUDA(driver_, cuEventRecord, Of(event), Of(stream));
}

DeviceError Device::Wait(DeviceStream stream, DeviceEvent event) const {
  return CKPTD_CUDA(driver_, cuStreamWaitEvent, Of(stream), Of(event), CU_EVENT_WAIT_DEFAULT);
}

DeviceError Device::Query(DeviceEvent event) const { return CKPTD_CUDA(driver_, cuEventQuery, Of(event)); }

DeviceError Device::Synchronize(DeviceEvent event) const { return CKPTD_CUDA(driver_, cuEventSynchronize, Of(event)); }

DeviceError Device::CopyOut(void* to, DeviceAddress from, uint64_t bytes, DeviceStream stream) const {
  return CKPTD_CUDA(driver_, cuMemcpyDtoHAsync, to, from, bytes, Of(stream));
}

DeviceError Device::CopyIn(DeviceAddress to, const void* from, uint64_t bytes, DeviceStream stream) const {
  return CKPTD_CUDA(driver_, cuMemcpyHtoDAsync, to, from, bytes, Of(stream));
}

DeviceError Device::CopyWithin(DeviceAddress to, DeviceAddress from, uint64_t bytes, DeviceStream stream) const {
  return CKPTD_CUDA(driver_, cuMemcpyDtoDAsync, to, from, bytes, Of(stream));
}

DeviceError Device::WriteValue(DeviceStream stream, DeviceAddress address, uint64_t value) const {
  return CKPTD_CUDA(driver_, cuStreamWriteValue64, Of(stream), address, value, CU_STREAM_WRITE_VALUE_DEFAULT);
}

DeviceError Device::WaitValue(DeviceStream stream, DeviceAddress address, uint64_t value) const {
  return CKPTD_CUDA(driver_, cuStreamWaitValue64, Of(stream), address, value, CU_STREAM_WAIT_VALUE_EQ);
}

DeviceError Device::Allocate(uint64_t bytes, DeviceAddress* out) const {
  CUdeviceptr address = 0;
  DeviceError error = CKPTD_CUDA(driver_, cuMemAlloc, &address, bytes);
  *out = address;
  return error;
}

DeviceError Device::Free(DeviceAddress address) const { return CKPTD_CUDA(driver_, cuMemFree, address); }

DeviceError Device::AllocatePinned(uint64_t bytes, void** out) const {
  return CKPTD_CUDA(driver_, cuMemHostAlloc, out, bytes, CU_MEMHOSTALLOC_PORTABLE);
}

DeviceError Device::FreePinned(void* address) const { return CKPTD_CUDA(driver_, cuMemFreeHost, address); }

DeviceError Device::Pin(void* address, uint64_t bytes) const {
  return CKPTD_CUDA(driver_, cuMemHostRegister, address, bytes, CU_MEMHOSTREGISTER_PORTABLE);
}

DeviceError Device::Unpin(void* address) const { return CKPTD_CUDA(driver_, cuMemHostUnregister, address); }

DeviceError Device::PinnedAddress(void* host, DeviceAddress* out) const {
  CUdeviceptr address = 0;
  DeviceError error = CKPTD_CUDA(driver_, cuMemHostGetDevicePointer, &address, host, 0);
  *out = address;
  return error;
}

ContextScope::ContextScope(const Device& device) : driver_(device.driver_) {
  error_ = CKPTD_CUDA(driver_, cuCtxPushCurrent, static_cast<CUcontext>(device.context_));
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  driver_.cuThreadExchangeStreamCaptureMode(&mode);
  capture_mode_ = mode;
}

ContextScope::~ContextScope() {
  auto mode = static_cast<CUstreamCaptureMode>(capture_mode_);
  driver_.cuThreadExchangeStreamCaptureMode(&mode);
  CUcontext popped = nullptr;
  if (error_.ok()) driver_.cuCtxPopCurrent(&popped);
}

}  // namespace ckptd
