#include "daemon/copier/gpu.h"

#include <cinttypes>
#include <cstring>

namespace ckptd {
namespace {

Outcome FindGpu(const uint8_t (&uuid)[16], int* ordinal) {
  int count = 0;
  if (DeviceError error = Device::Count(&count); !error.ok()) return DeviceFails("GPU", error);
  for (int i = 0; i < count; ++i) {
    DeviceFacts facts;
    // One that does not answer is not ours, or we shall hear of it when the context is made.
    if (!Device::Ask(i, &facts).ok() || memcmp(facts.uuid.data(), uuid, sizeof uuid) != 0) continue;
    *ordinal = i;
    if (!facts.exclusive_process) return {};
    return Refuse("GPU %s is in exclusive-process mode: a copier gets no context beside the trainer's",
                  facts.pci.c_str());
  }
  return Refuse("no GPU with this UUID among the %d that the copier sees", count);
}

DeviceHandle HandleOf(const CopierAllocation& allocation, int fd) {
  DeviceHandle handle;
  handle.kind = static_cast<HandleKind>(allocation.kind);
  handle.fd = handle.kind == HandleKind::kPosixFd ? fd : -1;
  memcpy(handle.bytes.data(), allocation.handle, handle.bytes.size());
  return handle;
}

// What the driver knows of it counts, where it knows it: a copy from behind an allocation breaks the context.
Outcome ImportOne(const Device& device, const DeviceHandle& handle, uint64_t bytes, ImportedAllocation* out) {
  if (DeviceError error = Import(device, handle, bytes, out); !error.ok()) return DeviceFails("IMPORT", error);
  DeviceAllocation found;
  if (!FindAllocation(out->base, &found).ok() || out->base - found.base + bytes <= found.bytes) return {};
  (void)Close(*out);
  return Refuse("IMPORT: an allocation of %" PRIu64 " bytes that says it has %" PRIu64, found.bytes, bytes);
}

}  // namespace

Outcome OpenGpu(const uint8_t (&uuid)[16], Gpu* out) {
  int ordinal = 0;
  Outcome outcome = FindGpu(uuid, &ordinal);
  if (!outcome.ok()) return outcome;
  Gpu gpu;
  std::unique_ptr<Device> device;
  if (DeviceError error = Device::Create(ordinal, &device); !error.ok()) return DeviceFails("context", error);
  gpu.device = std::move(device);
  gpu.scope = std::make_unique<ContextScope>(*gpu.device);
  if (!gpu.scope->error().ok()) return DeviceFails("context", gpu.scope->error());
  gpu.stream = std::make_unique<CopyStream>(gpu.device);
  if (DeviceError error = gpu.stream->Open(); !error.ok()) return DeviceFails("stream", error);
  *out = std::move(gpu);
  return {};
}

Outcome Imports::Add(const Device& device, const CopierImport& batch, std::span<const UniqueFd> fds) {
  const size_t before = all_.size();
  if (batch.first != before) return Refuse("IMPORT: from number %u, %zu are open", batch.first, before);
  if (batch.count > kMaxImports - before) return Refuse("IMPORT: more than %u allocations", kMaxImports);
  size_t fd = 0;
  for (uint32_t i = 0; i < batch.count; ++i) {
    const CopierAllocation& allocation = batch.allocations[i];
    bool has_fd = allocation.kind == static_cast<uint32_t>(HandleKind::kPosixFd);
    DeviceHandle handle = HandleOf(allocation, has_fd ? fds[fd++].get() : -1);
    ImportedAllocation imported;
    Outcome outcome = ImportOne(device, handle, allocation.bytes, &imported);
    if (outcome.ok()) {
      all_.push_back(imported);
      continue;
    }
    while (all_.size() > before) {
      (void)Close(all_.back());
      all_.pop_back();
    }
    return outcome;
  }
  return {};
}

Outcome Imports::CloseAll() {
  Outcome outcome;
  for (const ImportedAllocation& imported : all_) {
    DeviceError error = Close(imported);
    if (!error.ok() && outcome.ok()) outcome = DeviceFails("RELEASE", error);
  }
  all_.clear();
  return outcome;
}

}  // namespace ckptd
