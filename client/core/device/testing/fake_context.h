// What the functions of the host device share: contexts, the calling thread's stack of them, handles, counters.
#ifndef CKPTD_CLIENT_CORE_DEVICE_TESTING_FAKE_CONTEXT_H_
#define CKPTD_CLIENT_CORE_DEVICE_TESTING_FAKE_CONTEXT_H_

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "client/core/device/testing/fake_cuda.h"
#include "client/core/device/testing/fake_engine.h"

// What the opaque handles of cuda.h point to.
struct CUctx_st {
  int ordinal = 0;
  std::atomic<int> retains{0};
};
struct CUstream_st {
  std::shared_ptr<ckptd::fake::FakeStream> stream;
};
struct CUevent_st {
  ckptd::fake::FakeEvent event;
  bool timed = true;
  std::shared_ptr<std::atomic<int64_t>> reached_ns = nullptr;  // of a timed one, once it was recorded
};

namespace ckptd::fake {

struct Counters {
  static Counters& Get();

  std::atomic<uint64_t> events{0};
  std::atomic<uint64_t> copies{0};
  std::atomic<uint64_t> copied_bytes{0};
  std::atomic<uint64_t> largest_copy{0};
  std::atomic<uint64_t> rate{0};  // bytes a microsecond; 0: no limit
};

[[nodiscard]] int Devices();
[[nodiscard]] CUcontext Context(int ordinal);
[[nodiscard]] uint64_t Retains();  // of all primary contexts
void Initialized();                // by cuInit

// The calling thread's stack.
[[nodiscard]] CUcontext Current();  // null: none
void Push(CUcontext context);
CUcontext Pop();

// What every call that needs a context asks first: initialised, a context, not broken, not told to fail.
[[nodiscard]] CUresult Ready(const char* call);

// A graph capture of mode GLOBAL forbids all threads whose own mode is not RELAXED what may wait for the device: the
// call fails, and the capture with it.
[[nodiscard]] CUresult MayWait();
CUstreamCaptureMode ExchangeMode(CUstreamCaptureMode mode);  // of the calling thread
void BeginCapture(FakeStream& stream, CUstreamCaptureMode mode);
[[nodiscard]] CUresult EndCapture(FakeStream& stream);

[[nodiscard]] std::shared_ptr<FakeStream> Of(CUstream stream);

inline CUresult Result(int code) { return static_cast<CUresult>(code); }

}  // namespace ckptd::fake

#define FAKE_READY(call)                                                          \
  if (CUresult not_ready = ckptd::fake::Ready(call); not_ready != CUDA_SUCCESS) { \
    return not_ready;                                                             \
  }

#define FAKE_MAY_WAIT()                                                         \
  if (CUresult forbidden = ckptd::fake::MayWait(); forbidden != CUDA_SUCCESS) { \
    return forbidden;                                                           \
  }

#endif  // CKPTD_CLIENT_CORE_DEVICE_TESTING_FAKE_CONTEXT_H_
