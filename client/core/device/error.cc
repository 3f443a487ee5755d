#include "client/core/device/error.h"

#include <cuda.h>

#include "client/core/device/driver.h"

namespace ckptd {

DeviceFault FaultOf(int code) {
  switch (code) {
    case CUDA_SUCCESS:
      return DeviceFault::kNone;
    case CUDA_ERROR_NOT_READY:
      return DeviceFault::kNotReady;
    case CUDA_ERROR_STUB_LIBRARY:
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
    case CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE:
      return DeviceFault::kNoDriver;
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
    case CUDA_ERROR_SYSTEM_NOT_READY:
      return DeviceFault::kLost;
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_EXTERNAL_DEVICE:
    case CUDA_ERROR_UNKNOWN:
      return DeviceFault::kSticky;
    default:
      return DeviceFault::kRefused;
  }
}

std::string Sentence(const DeviceError& error) {
  const char* name = nullptr;
  const Driver* driver = Driver::Loaded();
  if (driver != nullptr) driver->cuGetErrorName(static_cast<CUresult>(error.code), &name);
  std::string sentence = error.call;
  sentence += ": ";
  sentence += name != nullptr ? name : "error";
  sentence += " (" + std::to_string(error.code) + ")";
  return sentence;
}

}  // namespace ckptd
