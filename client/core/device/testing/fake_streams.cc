// Devices, contexts, streams and events of the host device. The macros of cuda.h name each function as the real library
// exports it.
#include <cuda.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "client/core/device/testing/fake_context.h"
#include "client/core/device/testing/fake_failures.h"
#include "client/core/device/testing/fake_memory.h"

using namespace ckptd::fake;  // NOLINT: this file is the library's face

extern "C" {

FAKECUDA_API CUresult cuInit(unsigned) {
  if (int code = Failures::Get().Next("cuInit")) return Result(code);
  if (Devices() == 0) return CUDA_ERROR_NO_DEVICE;
  if (const char* text = getenv("FAKECUDA_RATE")) Counters::Get().rate = strtoull(text, nullptr, 10);
  Initialized();
  return CUDA_SUCCESS;
}

FAKECUDA_API CUresult cuDriverGetVersion(int* version) {
  *version = 12040;
  return CUDA_SUCCESS;
}

FAKECUDA_API CUresult cuGetErrorName(CUresult error, const char** name) {
#define FAKE_NAME(code) \
  case code:            \
    *name = #code;      \
    return CUDA_SUCCESS;
  switch (error) {
    FAKE_NAME(CUDA_ERROR_INVALID_VALUE)
    FAKE_NAME(CUDA_ERROR_OUT_OF_MEMORY)
    FAKE_NAME(CUDA_ERROR_INVALID_CONTEXT)
    FAKE_NAME(CUDA_ERROR_ILLEGAL_ADDRESS)
    FAKE_NAME(CUDA_ERROR_NOT_SUPPORTED)
    default:
      *name = nullptr;
      return CUDA_ERROR_INVALID_VALUE;
  }
#undef FAKE_NAME
}

FAKECUDA_API CUresult cuDeviceGetCount(int* count) {
  *count = Devices();
  return CUDA_SUCCESS;
}

FAKECUDA_API CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return ordinal >= 0 && ordinal < Devices() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

FAKECUDA_API CUresult cuDeviceGetName(char* name, int bytes, CUdevice) {
  strncpy(name, "Host device", static_cast<size_t>(bytes));
  return CUDA_SUCCESS;
}

FAKECUDA_API CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  memset(uuid, device, sizeof *uuid);
  return CUDA_SUCCESS;
}

FAKECUDA_API CUresult cuDeviceTotalMem(size_t* bytes, CUdevice) {
  *bytes = Memory::Get().limit();
  return CUDA_SUCCESS;
}

FAKECUDA_API CUresult cuDeviceGetPCIBusId(char* text, int bytes, CUdevice device) {
  snprintf(text, static_cast<size_t>(bytes), "0000:%02x:00.0", device);
  return CUDA_SUCCESS;
}

FAKECUDA_API CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  const char* exclusive = getenv("FAKECUDA_EXCLUSIVE");
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE:
      *value = exclusive != nullptr && *exclusive == '1' ? CU_COMPUTEMODE_EXCLUSIVE_PROCESS : CU_COMPUTEMODE_DEFAULT;
      break;
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED:
      *value = 0;
      break;
    default:
      *value = 1;
  }
  return CUDA_SUCCESS;
}

FAKECUDA_API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  *flags = 0;
  *active = Context(device)->retains > 0 ? 1 : 0;
  return CUDA_SUCCESS;
}

FAKECUDA_API CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  if (int code = Failures::Get().Next("cuDevicePrimaryCtxRetain")) return Result(code);
  Context(device)->retains += 1;
  *context = Context(device);
  return CUDA_SUCCESS;
}

FAKECUDA_API CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  Context(device)->retains -= 1;
  return CUDA_SUCCESS;
}

FAKECUDA_API CUresult cuCtxPushCurrent(CUcontext context) {
  Push(context);
  return CUDA_SUCCESS;
}

FAKECUDA_API CUresult cuCtxPopCurrent(CUcontext* context) {
  *context = Pop();
  return *context != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

FAKECUDA_API CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return CUDA_SUCCESS;
}

FAKECUDA_API CUresult cuStreamCreateWithPriority(CUstream* out, unsigned flags, int) {
  FAKE_READY("cuStreamCreateWithPriority");
  *out = new CUstream_st{Engine::Get().CreateStream(Current()->ordinal, (flags & CU_STREAM_NON_BLOCKING) == 0)};
  return CUDA_SUCCESS;
}

FAKECUDA_API CUresult cuStreamCreate(CUstream* out, unsigned flags) {
  return cuStreamCreateWithPriority(out, flags, 0);
}

FAKECUDA_API CUresult cuStreamDestroy(CUstream stream) {
  Engine::Get().EndStream(stream->stream);
  delete stream;
  return CUDA_SUCCESS;
}

FAKECUDA_API CUresult cuStreamSynchronize(CUstream stream) {
  FAKE_READY("cuStreamSynchronize");
  FAKE_MAY_WAIT();
  Engine::Get().Await(Engine::Get().Here(Of(stream)));
  return Ready("");
}

FAKECUDA_API CUresult cuStreamQuery(CUstream stream) {
  FAKE_READY("cuStreamQuery");
  FAKE_MAY_WAIT();
  auto fake = Of(stream);
  return Engine::Get().Reached({fake, fake->enqueued}) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

FAKECUDA_API CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  FAKE_READY("cuStreamIsCapturing");
  *status = Of(stream)->capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}

FAKECUDA_API CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  *mode = ExchangeMode(*mode);
  return CUDA_SUCCESS;
}

FAKECUDA_API CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) {
  BeginCapture(*Of(stream), mode);
  return CUDA_SUCCESS;
}

FAKECUDA_API CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  *graph = nullptr;
  return EndCapture(*Of(stream));
}

FAKECUDA_API CUresult cuEventCreate(CUevent* out, unsigned flags) {
  FAKE_READY("cuEventCreate");
  *out = new CUevent_st();
  (*out)->timed = (flags & CU_EVENT_DISABLE_TIMING) == 0;
  Counters::Get().events += 1;
  return CUDA_SUCCESS;
}

FAKECUDA_API CUresult cuEventDestroy(CUevent event) {
  delete event;
  Counters::Get().events -= 1;
  return CUDA_SUCCESS;
}

FAKECUDA_API CUresult cuEventRecord(CUevent event, CUstream stream) {
  FAKE_READY("cuEventRecord");
  if (!event->timed) {
    event->event.mark = Engine::Get().Here(Of(stream));
    return CUDA_SUCCESS;
  }
  auto reached = event->reached_ns = std::make_shared<std::atomic<int64_t>>(0);
  event->event.mark = Engine::Get().Enqueue(Of(stream), [reached] {
    *reached = std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
    return 0;
  });
  return CUDA_SUCCESS;
}

FAKECUDA_API CUresult cuEventElapsedTime(float* milliseconds, CUevent begin, CUevent end) {
  FAKE_READY("cuEventElapsedTime");
  if (begin->reached_ns == nullptr || end->reached_ns == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Engine& engine = Engine::Get();
  if (!engine.Reached(begin->event.mark) || !engine.Reached(end->event.mark)) return CUDA_ERROR_NOT_READY;
  *milliseconds = static_cast<float>(static_cast<double>(*end->reached_ns - *begin->reached_ns) / 1e6);
  return CUDA_SUCCESS;
}

FAKECUDA_API CUresult cuEventQuery(CUevent event) {
  FAKE_READY("cuEventQuery");
  FAKE_MAY_WAIT();
  return Engine::Get().Reached(event->event.mark) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

FAKECUDA_API CUresult cuEventSynchronize(CUevent event) {
  FAKE_READY("cuEventSynchronize");
  FAKE_MAY_WAIT();
  Engine::Get().Await(event->event.mark);
  return Ready("");
}

FAKECUDA_API CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
  FAKE_READY("cuStreamWaitEvent");
  if (Of(stream)->capturing) return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  Engine::Get().Enqueue(Of(stream), [] { return 0; }, {event->event.mark});
  return CUDA_SUCCESS;
}

FAKECUDA_API CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags) {
  FAKE_READY("cuStreamWaitValue64");
  if (flags != CU_STREAM_WAIT_VALUE_EQ) return CUDA_ERROR_NOT_SUPPORTED;
  auto* word = reinterpret_cast<std::atomic<uint64_t>*>(address);
  Engine::Get().Enqueue(Of(stream), [=] {
    while (word->load(std::memory_order_acquire) != value) std::this_thread::sleep_for(std::chrono::microseconds(50));
    return 0;
  });
  return CUDA_SUCCESS;
}

FAKECUDA_API CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned) {
  FAKE_READY("cuStreamWriteValue64");
  auto* word = reinterpret_cast<std::atomic<uint64_t>*>(address);
  Engine::Get().Enqueue(Of(stream), [=] {
    word->store(value, std::memory_order_release);
    return 0;
  });
  return CUDA_SUCCESS;
}

FAKECUDA_API CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
  FAKE_READY("cuLaunchHostFunc");
  Engine::Get().Enqueue(Of(stream), [=] {
    function(data);
    return 0;
  });
  return CUDA_SUCCESS;
}

}  // extern "C"
