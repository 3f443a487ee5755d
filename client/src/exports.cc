#include "client/src/exports.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace ckptd {
namespace {

bool WriteAll(int fd, const void* from, uint64_t bytes) {
  const auto* at = static_cast<const char*>(from);
  while (bytes > 0) {
    ssize_t wrote = write(fd, at, bytes);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return false;
    at += wrote;
    bytes -= static_cast<uint64_t>(wrote);
  }
  return true;
}

bool Contains(const DeviceAllocation& allocation, DeviceAddress address) {
  return address >= allocation.base && address - allocation.base < allocation.bytes;
}

}  // namespace

bool Exports::Find(const Registration& registration, std::string* why) {
  for (const Piece& piece : registration.pieces) {
    if (piece.lane == DeviceTensors::kHost || piece.source == nullptr) continue;
    if (!Add(piece, why)) return false;
  }
  if (!pieces_.empty()) return true;
  *why = "all of its tensors on the GPU are copied inside ckpt_save";
  return false;
}

// A piece may lie in several allocations: PyTorch's expandable segments are chunks of their own, mapped side by side.
bool Exports::Add(const Piece& piece, std::string* why) {
  const auto begin = reinterpret_cast<DeviceAddress>(piece.source);
  for (uint64_t done = 0; done < piece.bytes;) {
    uint32_t index = 0;
    if (!Obtain(begin + done, &index, why)) return false;
    const DeviceAllocation& allocation = allocations_[index];
    const uint64_t offset = begin + done - allocation.base;
    const uint64_t bytes = std::min(piece.bytes - done, allocation.bytes - offset);
    pieces_.push_back({piece.slot_offset + done, bytes, offset, index, 0});
    done += bytes;
  }
  return true;
}

// The number of the allocation that `address` lies in. Neighbours often lie in the same.
bool Exports::Obtain(DeviceAddress address, uint32_t* index, std::string* why) {
  auto found = std::find_if(allocations_.rbegin(), allocations_.rend(),
                            [&](const DeviceAllocation& allocation) { return Contains(allocation, address); });
  *index = static_cast<uint32_t>(allocations_.rend() - found) - 1;
  if (found != allocations_.rend()) return true;
  DeviceAllocation allocation;
  DeviceError error = FindAllocation(address, &allocation);
  if (error.ok() && allocation.kind != HandleKind::kNone && Contains(allocation, address)) {
    *index = static_cast<uint32_t>(allocations_.size());
    allocations_.push_back(allocation);
    return true;
  }
  *why = error.ok() ? "the driver gives no handle for memory of its tensors" : Sentence(error);
  return false;
}

bool Exports::Batch(size_t first, CopierImport* out, std::vector<UniqueFd>* files, std::string* why) const {
  out->first = static_cast<uint32_t>(first);
  out->count = static_cast<uint32_t>(std::min<size_t>(kImportBatch, allocations_.size() - first));
  for (uint32_t i = 0; i < out->count; ++i) {
    const DeviceAllocation& allocation = allocations_[first + i];
    DeviceHandle handle;
    if (DeviceError error = ckptd::Export(allocation, &handle); !error.ok()) {
      *why = Sentence(error);
      return false;
    }
    if (handle.fd >= 0) files->emplace_back(handle.fd);
    out->allocations[i].bytes = allocation.bytes;
    out->allocations[i].kind = static_cast<uint32_t>(handle.kind);
    memcpy(out->allocations[i].handle, handle.bytes.data(), handle.bytes.size());
  }
  return true;
}

bool Exports::PlanFile(UniqueFd* out, std::string* why) const {
  UniqueFd file(static_cast<int>(syscall(SYS_memfd_create, "ckptd-plan", MFD_CLOEXEC | MFD_ALLOW_SEALING)));
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;
  bool made = file.valid() && WriteAll(file.get(), pieces_.data(), pieces_.size() * sizeof(CopierPiece)) &&
              fcntl(file.get(), F_ADD_SEALS, kSeals) == 0;
  if (!made) {
    *why = std::string("the plan's file: ") + strerror(errno);
    return false;
  }
  *out = std::move(file);
  return true;
}

bool StillThere(const std::vector<DeviceAllocation>& allocations) {
  return std::all_of(allocations.begin(), allocations.end(), [](const DeviceAllocation& allocation) {
    DeviceAllocation now;
    return FindAllocation(allocation.base, &now).ok() && now == allocation;
  });
}

}  // namespace ckptd
