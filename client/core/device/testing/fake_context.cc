#include "client/core/device/testing/fake_context.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>
#include <vector>

#include "client/core/device/testing/fake_failures.h"

namespace ckptd::fake {
namespace {

constexpr size_t kMaxDevices = 16;

std::atomic<bool> initialized{false};
std::atomic<int> global_captures{0};
std::atomic<bool> capture_broken{false};
thread_local std::vector<CUcontext> stack;
thread_local CUstreamCaptureMode mode_of_thread = CU_STREAM_CAPTURE_MODE_GLOBAL;

std::array<CUctx_st, kMaxDevices>& Contexts() {
  static auto* contexts = [] {
    auto* made = new std::array<CUctx_st, kMaxDevices>();
    for (size_t i = 0; i < kMaxDevices; ++i) (*made)[i].ordinal = static_cast<int>(i);
    return made;
  }();
  return *contexts;
}

}  // namespace

Counters& Counters::Get() {
  static Counters counters;
  return counters;
}

int Devices() {
  const char* text = getenv("FAKECUDA_DEVICES");
  return text != nullptr ? static_cast<int>(std::clamp<long>(strtol(text, nullptr, 10), 0, kMaxDevices)) : 1;
}

CUcontext Context(int ordinal) { return &Contexts()[static_cast<size_t>(ordinal)]; }

uint64_t Retains() {
  uint64_t sum = 0;
  for (const CUctx_st& context : Contexts()) sum += static_cast<uint64_t>(context.retains);
  return sum;
}

void Initialized() { initialized = true; }

CUcontext Current() { return stack.empty() ? nullptr : stack.back(); }

void Push(CUcontext context) { stack.push_back(context); }

CUcontext Pop() {
  CUcontext top = Current();
  if (top != nullptr) stack.pop_back();
  return top;
}

CUresult Ready(const char* call) {
  if (!initialized) return CUDA_ERROR_NOT_INITIALIZED;
  if (Current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (int broken = Engine::Get().Broken(Current()->ordinal)) return Result(broken);
  return Result(Failures::Get().Next(call));
}

CUresult MayWait() {
  if (global_captures == 0 || mode_of_thread == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  capture_broken = true;
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUstreamCaptureMode ExchangeMode(CUstreamCaptureMode mode) { return std::exchange(mode_of_thread, mode); }

void BeginCapture(FakeStream& stream, CUstreamCaptureMode mode) {
  stream.capturing = true;
  stream.captures_globally = mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
  if (stream.captures_globally && global_captures++ == 0) capture_broken = false;
}

CUresult EndCapture(FakeStream& stream) {
  stream.capturing = false;
  if (!stream.captures_globally) return CUDA_SUCCESS;
  global_captures -= 1;
  return capture_broken ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

std::shared_ptr<FakeStream> Of(CUstream stream) {
  bool legacy = stream == nullptr || stream == CU_STREAM_LEGACY;
  return legacy ? Engine::Get().Legacy(Current()->ordinal) : stream->stream;
}

}  // namespace ckptd::fake
