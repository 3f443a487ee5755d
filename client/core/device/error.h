// What the CUDA driver answered, sorted by what can be done about it.
#ifndef CKPTD_CLIENT_CORE_DEVICE_ERROR_H_
#define CKPTD_CLIENT_CORE_DEVICE_ERROR_H_

#include <cstdint>
#include <string>

namespace ckptd {

enum class DeviceFault : uint8_t {
  kNone,
  kNotReady,  // the work asked about is not done yet
  kRefused,   // this call cannot be done; the context is whole: go another way
  kSticky,    // the context is broken, every later call fails too: only the end of the process helps
  kLost,      // the device is gone, or waits for a reset
  kNoDriver,  // this machine has no driver that can be used
};

struct [[nodiscard]] DeviceError {
  DeviceFault fault = DeviceFault::kNone;
  int code = 0;           // CUresult
  const char* call = "";  // the driver's function, a literal

  [[nodiscard]] bool ok() const { return fault == DeviceFault::kNone; }
};

// The fault of a CUresult.
[[nodiscard]] DeviceFault FaultOf(int code);

// "cuMemcpyDtoHAsync: CUDA_ERROR_ILLEGAL_ADDRESS (700)".
[[nodiscard]] std::string Sentence(const DeviceError& error);

}  // namespace ckptd

#endif  // CKPTD_CLIENT_CORE_DEVICE_ERROR_H_
