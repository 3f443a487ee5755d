// The CUDA driver's functions, found at run time: no program of ckptd links a CUDA library, and a process without GPU
// tensors never loads the driver.
//
// Every function is asked for as of CUDA 12.0 through cuGetProcAddress: under their plain names the library exports
// versions from before, and cuStreamWaitValue64's is switched off.
//
// Only this room includes this header: it brings in the toolkit's.
#ifndef CKPTD_CLIENT_CORE_DEVICE_DRIVER_H_
#define CKPTD_CLIENT_CORE_DEVICE_DRIVER_H_

#include <cuda.h>

#include <string>

#include "client/core/device/error.h"

// The macros of cuda.h give each name its version: member, type and symbol agree.
// clang-format off
#define CKPTD_DRIVER_FUNCTIONS(X)                                                                                      \
  X(cuInit) X(cuDriverGetVersion) X(cuGetErrorName) X(cuDeviceGet) X(cuDeviceGetCount) X(cuDeviceGetName)              \
  X(cuDeviceGetUuid) X(cuDeviceGetAttribute) X(cuDeviceTotalMem) X(cuDeviceGetPCIBusId)                                \
  X(cuDevicePrimaryCtxGetState) X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease) X(cuCtxPushCurrent)           \
  X(cuCtxPopCurrent) X(cuThreadExchangeStreamCaptureMode) X(cuCtxGetStreamPriorityRange)                               \
  X(cuStreamCreateWithPriority) X(cuStreamDestroy) X(cuStreamSynchronize) X(cuStreamQuery) X(cuStreamIsCapturing)      \
  X(cuStreamWaitEvent) X(cuStreamWaitValue64) X(cuStreamWriteValue64) X(cuEventCreate) X(cuEventDestroy)               \
  X(cuEventRecord) X(cuEventQuery) X(cuEventSynchronize) X(cuMemcpyDtoHAsync) X(cuMemcpyHtoDAsync)                     \
  X(cuMemcpyDtoDAsync) X(cuMemAlloc) X(cuMemFree) X(cuMemHostAlloc) X(cuMemFreeHost) X(cuMemHostRegister)              \
  X(cuMemHostUnregister) X(cuMemHostGetDevicePointer) X(cuPointerGetAttributes) X(cuPointerGetAttribute)               \
  X(cuIpcGetMemHandle) X(cuIpcOpenMemHandle) X(cuIpcCloseMemHandle) X(cuMemRetainAllocationHandle)                     \
  X(cuMemExportToShareableHandle) X(cuMemImportFromShareableHandle) X(cuMemGetAllocationPropertiesFromHandle)          \
  X(cuMemAddressReserve) X(cuMemAddressFree) X(cuMemMap) X(cuMemUnmap) X(cuMemSetAccess) X(cuMemRelease)  \
  X(cuMemCreate) X(cuMemGetAllocationGranularity)
// clang-format on

namespace ckptd {

struct Driver {
  // Loads and initialises it, once; later calls give the same answer. Any thread.
  static DeviceError Load(const Driver** out);

  // What Load gave, or null. Never loads.
  [[nodiscard]] static const Driver* Loaded();

  // The outcome of one call.
  static DeviceError Check(const char* call, CUresult result) {
    return {FaultOf(static_cast<int>(result)), static_cast<int>(result), call};
  }

#define CKPTD_DECLARE(name) decltype(&::name) name = nullptr;
  CKPTD_DRIVER_FUNCTIONS(CKPTD_DECLARE)
#undef CKPTD_DECLARE
};

}  // namespace ckptd

// A call by its name, with the name in the error: CKPTD_CUDA(driver, cuStreamDestroy, stream).
#define CKPTD_CUDA(driver, name, ...) ::ckptd::Driver::Check(#name, (driver).name(__VA_ARGS__))

#endif  // CKPTD_CLIENT_CORE_DEVICE_DRIVER_H_
