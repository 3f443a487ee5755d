#include "client/core/device/driver.h"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>

namespace ckptd {
namespace {

constexpr int kAsOf = 12000;

Driver the_driver;
DeviceError the_error;
std::atomic<bool> usable{false};
pthread_once_t once = PTHREAD_ONCE_INIT;

DeviceError NoDriver(const char* call) { return {DeviceFault::kNoDriver, CUDA_ERROR_NOT_FOUND, call}; }

template <typename Function>
bool Find(decltype(&cuGetProcAddress) find, const char* name, Function* out) {
  void* address = nullptr;
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
  if (find(name, &address, kAsOf, CU_GET_PROC_ADDRESS_DEFAULT, &status) != CUDA_SUCCESS) return false;
  *out = reinterpret_cast<Function>(address);
  return address != nullptr;
}

DeviceError FindAll() {
  // Never closed: its threads and exit handlers outlive every handle.
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return NoDriver("dlopen libcuda.so.1");
  auto find = reinterpret_cast<decltype(&cuGetProcAddress)>(dlsym(library, "cuGetProcAddress_v2"));
  if (find == nullptr) return NoDriver("cuGetProcAddress_v2 (the driver is older than 525)");
#define CKPTD_FIND(name) \
  if (!Find(find, #name, &the_driver.name)) return NoDriver(#name);
  CKPTD_DRIVER_FUNCTIONS(CKPTD_FIND)
#undef CKPTD_FIND
  return CKPTD_CUDA(the_driver, cuInit, 0);
}

void LoadOnce() {
  the_error = FindAll();
  if (the_error.ok()) usable.store(true, std::memory_order_release);
}

}  // namespace

DeviceError Driver::Load(const Driver** out) {
  pthread_once(&once, LoadOnce);
  *out = the_error.ok() ? &the_driver : nullptr;
  return the_error;
}

const Driver* Driver::Loaded() { return usable.load(std::memory_order_acquire) ? &the_driver : nullptr; }

}  // namespace ckptd
