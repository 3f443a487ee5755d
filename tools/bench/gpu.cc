#include "tools/bench/gpu.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"

namespace ckptd::bench {
namespace {

constexpr int kAsOf = 12000;
constexpr unsigned kTimed = 0;  // CU_EVENT_DEFAULT

using FindFunction = int (*)(const char*, void**, int, uint64_t, int*);

absl::Status Check(const char* call, int code) { return StatusOf(DeviceError{FaultOf(code), code, call}); }

template <typename Function>
absl::Status Find(FindFunction find, const char* name, Function* out) {
  void* address = nullptr;
  int ignored = 0;
  int code = find(name, &address, kAsOf, 0, &ignored);
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

}  // namespace

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
  CKPTD_RETURN_IF_ERROR(Check("cuEventCreate", gpu->event_create_(&gpu->begin_.handle, kTimed)));
  CKPTD_RETURN_IF_ERROR(Check("cuEventCreate", gpu->event_create_(&gpu->end_.handle, kTimed)));
  return gpu;
}

absl::Status Gpu::FindFunctions() {
  auto find = reinterpret_cast<FindFunction>(dlsym(Library(), "cuGetProcAddress_v2"));
  if (find == nullptr) return Error(ErrorCode::DEVICE, "the driver is older than 525");
  CKPTD_RETURN_IF_ERROR(Find(find, "cuEventCreate", &event_create_));
  CKPTD_RETURN_IF_ERROR(Find(find, "cuEventElapsedTime", &event_elapsed_));
  return Find(find, "cuMemGetInfo", &memory_info_);
}

Gpu::~Gpu() {
  for (DeviceEvent event : {begin_, end_}) {
    if (event.handle != nullptr) (void)device_->DestroyEvent(event);
  }
}

absl::StatusOr<uint64_t> Gpu::FreeBytes() const {
  size_t free_bytes = 0;
  size_t total = 0;
  CKPTD_RETURN_IF_ERROR(Check("cuMemGetInfo", memory_info_(&free_bytes, &total)));
  return free_bytes;
}

absl::Status Gpu::MarkBegin(DeviceStream stream) const { return StatusOf(device_->Record(begin_, stream)); }

absl::Status Gpu::MarkEnd(DeviceStream stream) const { return StatusOf(device_->Record(end_, stream)); }

absl::StatusOr<double> Gpu::Seconds() const {
  float milliseconds = 0;
  CKPTD_RETURN_IF_ERROR(Check("cuEventElapsedTime", event_elapsed_(&milliseconds, begin_.handle, end_.handle)));
  return milliseconds / 1e3;
}

}  // namespace ckptd::bench
