#include "tools/bench/gpu.h"

#include <cuda.h>
#include <dlfcn.h>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"

namespace ckptd::bench {
namespace {

constexpr int kAsOf = 12000;

absl::Status Check(const char* call, int code) { return StatusOf(DeviceError{FaultOf(code), code, call}); }

template <typename Function>
absl::Status Find(decltype(&::cuGetProcAddress) find, const char* name, Function* out) {
  void* address = nullptr;
  CUdriverProcAddressQueryResult ignored = CU_GET_PROC_ADDRESS_SUCCESS;
  int code = find(name, &address, kAsOf, CU_GET_PROC_ADDRESS_DEFAULT, &ignored);
  *out = reinterpret_cast<Function>(address);
  return address != nullptr ? absl::OkStatus() : Check(name, code);
}

// The driver is loaded by now: this names it once more.
void* Library() { return dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL); }

bool IsHostDevice() { return dlsym(Library(), "fakecuda_count") != nullptr; }

std::string NameOf(const DeviceFacts& facts) {
  if (IsHostDevice()) return kHostDevice;
  const int version = facts.driver_version;  // 12040 is 12.4
  return absl::StrCat(facts.name, ", driver ", version / 1000, ".", version % 1000 / 10);
}

CUevent* HandleOf(DeviceEvent& event) { return reinterpret_cast<CUevent*>(&event.handle); }

}  // namespace

struct Gpu::Functions {
  decltype(&::cuEventCreate) event_create = nullptr;
  decltype(&::cuEventElapsedTime) event_elapsed = nullptr;
  decltype(&::cuMemGetInfo) memory_info = nullptr;
};

Gpu::Gpu() : functions_(std::make_unique<Functions>()) {}

absl::Status StatusOf(const DeviceError& error) {
  return error.ok() ? absl::OkStatus() : Error(ErrorCode::DEVICE, Sentence(error));
}

absl::Status Gpu::Found() {
  int count = 0;
  if (DeviceError error = Device::Count(&count); !error.ok()) {
    return Error(ErrorCode::DEVICE, absl::StrCat("no CUDA driver here: ", error.call));
  }
  return count > 0 ? absl::OkStatus() : Error(ErrorCode::DEVICE, "the CUDA driver shows no GPU");
}

absl::StatusOr<std::unique_ptr<Gpu>> Gpu::Open() {
  CKPTD_RETURN_IF_ERROR(Found());
  std::unique_ptr<Gpu> gpu(new Gpu());
  CKPTD_RETURN_IF_ERROR(StatusOf(Device::Create(0, &gpu->device_)));
  gpu->current_.emplace(*gpu->device_);
  CKPTD_RETURN_IF_ERROR(StatusOf(gpu->current_->error()));
  gpu->name_ = NameOf(gpu->device_->facts());
  CKPTD_RETURN_IF_ERROR(gpu->FindFunctions());
  CKPTD_RETURN_IF_ERROR(Check("cuEventCreate", gpu->functions_->event_create(HandleOf(gpu->begin_), CU_EVENT_DEFAULT)));
  CKPTD_RETURN_IF_ERROR(Check("cuEventCreate", gpu->functions_->event_create(HandleOf(gpu->end_), CU_EVENT_DEFAULT)));
  return gpu;
}

absl::Status Gpu::FindFunctions() {
  auto find = reinterpret_cast<decltype(&::cuGetProcAddress)>(dlsym(Library(), "cuGetProcAddress_v2"));
  if (find == nullptr) return Error(ErrorCode::DEVICE, "the driver is older than 525");
  CKPTD_RETURN_IF_ERROR(Find(find, "cuEventCreate", &functions_->event_create));
  CKPTD_RETURN_IF_ERROR(Find(find, "cuEventElapsedTime", &functions_->event_elapsed));
  return Find(find, "cuMemGetInfo", &functions_->memory_info);
}

Gpu::~Gpu() {
  for (DeviceEvent event : {begin_, end_}) {
    if (event.handle != nullptr) (void)device_->DestroyEvent(event);
  }
}

absl::StatusOr<uint64_t> Gpu::FreeBytes() const {
  size_t free_bytes = 0;
  size_t total = 0;
  CKPTD_RETURN_IF_ERROR(Check("cuMemGetInfo", functions_->memory_info(&free_bytes, &total)));
  return free_bytes;
}

absl::Status Gpu::MarkBegin(DeviceStream stream) const { return StatusOf(device_->Record(begin_, stream)); }

absl::Status Gpu::MarkEnd(DeviceStream stream) const { return StatusOf(device_->Record(end_, stream)); }

absl::StatusOr<double> Gpu::Seconds() const {
  float milliseconds = 0;
  CKPTD_RETURN_IF_ERROR(
      Check("cuEventElapsedTime", functions_->event_elapsed(&milliseconds, static_cast<CUevent>(begin_.handle),
                                                            static_cast<CUevent>(end_.handle))));
  return milliseconds / 1e3;
}

}  // namespace ckptd::bench
