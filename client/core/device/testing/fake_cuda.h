// The host device: a CUDA driver whose GPU is shared host memory and a thread per stream. It is built as libcuda.so.1
// with the driver's own ABI, so that everything above it, down to dlopen, is the code that runs on a GPU.
//
// What it keeps of the real one: contexts and their stack, stream order, events and the time between them, the legacy
// default stream, one hardware queue (CUDA_DEVICE_MAX_CONNECTIONS=1), sticky errors, allocations that are segments with
// ids, legacy IPC, cuMemCreate memory with descriptors, pinned host ranges, stream memory operations, graph capture as
// a state of a stream. Kernels are cuLaunchHostFunc. What it lacks answers CUDA_ERROR_NOT_FOUND in cuGetProcAddress.
//
// The environment, read once: FAKECUDA_DEVICES (1), FAKECUDA_MEMORY in bytes for each (8 GiB), FAKECUDA_RATE in bytes a
// microsecond (0: as fast as memory), FAKECUDA_EXCLUSIVE=1 (compute mode), FAKECUDA_FAIL="call:code[:after[:times]],…"
// (times 0: for ever), FAKECUDA_SHARED=name (all processes with this name have one GPU's memory between them: what a
// dead one had and another still maps is used).
#ifndef CKPTD_CLIENT_CORE_DEVICE_TESTING_FAKE_CUDA_H_
#define CKPTD_CLIENT_CORE_DEVICE_TESTING_FAKE_CUDA_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FAKECUDA_API __attribute__((visibility("default")))

// The calls named `call` fail with `code` after `after` more that succeed, `times` times; 0: for ever.
FAKECUDA_API void fakecuda_fail(const char* call, int code, uint64_t after, uint64_t times);
FAKECUDA_API void fakecuda_fail_none(void);

FAKECUDA_API void fakecuda_rate(uint64_t bytes_per_microsecond);

// Every copy stops before it begins, until released: a hung device. Also of other processes' work: no.
FAKECUDA_API void fakecuda_hang(int on);

// Breaks the current context with this error, as a bad kernel would.
FAKECUDA_API void fakecuda_break(int code);

typedef struct fakecuda_counts {
  uint64_t allocations;  // of cuMemAlloc and cuMemCreate that live
  uint64_t allocated_bytes;
  uint64_t imports;
  uint64_t pinned_ranges;  // of cuMemHostRegister
  uint64_t pinned_bytes;
  uint64_t largest_pin;  // of one call, ever
  uint64_t streams;
  uint64_t events;
  uint64_t primary_retains;
  uint64_t copies;  // enqueued, ever
  uint64_t copied_bytes;
  uint64_t largest_copy;
} fakecuda_counts;

FAKECUDA_API void fakecuda_count(fakecuda_counts* out);

#ifdef __cplusplus
}
#endif

#endif  // CKPTD_CLIENT_CORE_DEVICE_TESTING_FAKE_CUDA_H_
