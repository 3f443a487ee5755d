#include "client/core/device/testing/fake_cuda.h"

#include <cuda.h>

#include <cstring>

#include "client/core/device/driver.h"
#include "client/core/device/testing/fake_context.h"
#include "client/core/device/testing/fake_failures.h"
#include "client/core/device/testing/fake_memory.h"

using namespace ckptd::fake;  // NOLINT: this file is the library's face

extern "C" {

FAKECUDA_API CUresult cuGetProcAddress(const char* name, void** out, int, cuuint64_t,
                                       CUdriverProcAddressQueryResult* status) {
  *out = nullptr;
#define CKPTD_ENTRY(function) \
  if (strcmp(name, #function) == 0) *out = reinterpret_cast<void*>(&function);
  CKPTD_DRIVER_FUNCTIONS(CKPTD_ENTRY)
  CKPTD_ENTRY(cuEventElapsedTime)
  CKPTD_ENTRY(cuMemCreate)
  CKPTD_ENTRY(cuMemGetAllocationGranularity)
  CKPTD_ENTRY(cuMemGetInfo)
#undef CKPTD_ENTRY
  if (Failures::Get().Next(name) == CUDA_ERROR_NOT_FOUND) *out = nullptr;
  if (status != nullptr) *status = *out != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *out != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

FAKECUDA_API void fakecuda_fail(const char* call, int code, uint64_t after, uint64_t times) {
  Failures::Get().Add(call, code, after, times);
}

FAKECUDA_API void fakecuda_fail_none(void) { Failures::Get().Clear(); }

FAKECUDA_API void fakecuda_rate(uint64_t bytes_per_microsecond) { Counters::Get().rate = bytes_per_microsecond; }

FAKECUDA_API void fakecuda_hang(int on) { Engine::Get().Hang(on != 0); }

FAKECUDA_API void fakecuda_break(int code) { Engine::Get().Break(Current()->ordinal, code); }

FAKECUDA_API void fakecuda_count(fakecuda_counts* out) {
  const Counters& counters = Counters::Get();
  Memory::Counts memory = Memory::Get().Count();
  *out = {};
  out->allocations = memory.allocations;
  out->allocated_bytes = memory.allocated_bytes;
  out->imports = memory.imports;
  out->pinned_ranges = memory.pinned_ranges;
  out->pinned_bytes = memory.pinned_bytes;
  out->largest_pin = memory.largest_pin;
  out->streams = Engine::Get().streams();
  out->events = counters.events;
  out->primary_retains = Retains();
  out->copies = counters.copies;
  out->copied_bytes = counters.copied_bytes;
  out->largest_copy = counters.largest_copy;
}

}  // extern "C"
