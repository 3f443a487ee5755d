#include "client/core/device/testing/fake_context.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <vector>

#include "client/core/device/testing/fake_failures.h"

namespace ckptd::fake {
namespace {

constexpr size_t kMaxDevices = 16;

std::atomic<bool> initialized{false};
thread_local std::vector<CUcontext> stack;

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

std::shared_ptr<FakeStream> Of(CUstream stream) {
  bool legacy = stream == nullptr || stream == CU_STREAM_LEGACY;
  return legacy ? Engine::Get().Legacy(Current()->ordinal) : stream->stream;
}

}  // namespace ckptd::fake
