#include "client/core/device/testing/fake_memory.h"

#include <cuda.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include "client/core/device/testing/fake_handles.h"

namespace ckptd::fake {
namespace {

constexpr uint64_t kMagic = 0x656b61664344554b;
constexpr uint64_t kPage = 4096;
constexpr uint64_t kGranularity = 2 << 20;  // of cuMemCreate

uint64_t RoundUp(uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

std::string FileName() {
  const char* shared = getenv("FAKECUDA_SHARED");
  return shared != nullptr ? std::string("fakecuda-") + shared : "fakecuda";
}

// Adds the files of this name that a process maps: inode -> bytes.
void AddMapped(const std::string& maps, const std::string& file, std::map<uint64_t, uint64_t>* found) {
  std::ifstream lines(maps);
  for (std::string line; std::getline(lines, line);) {
    if (!line.ends_with("/memfd:" + file + " (deleted)")) continue;
    std::istringstream fields(line);
    std::string mode;
    std::string device;
    char dash = 0;
    uint64_t begin = 0;
    uint64_t end = 0;
    uint64_t offset = 0;
    uint64_t inode = 0;
    if (!(fields >> std::hex >> begin >> dash >> end >> mode >> offset >> device >> std::dec >> inode)) continue;
    uint64_t& bytes = (*found)[inode];
    bytes = std::max(bytes, offset + end - begin);
  }
}

// By all processes.
uint64_t MappedBytes(const std::string& file) {
  std::map<uint64_t, uint64_t> found;
  std::error_code gone;
  for (const auto& process : std::filesystem::directory_iterator("/proc", gone)) {
    if (isdigit(process.path().filename().string()[0]) != 0) AddMapped(process.path() / "maps", file, &found);
  }
  uint64_t sum = 0;
  for (const auto& [inode, bytes] : found) sum += bytes;
  return sum;
}

int MakeFile(uint64_t bytes) {
  int fd = memfd_create(FileName().c_str(), MFD_CLOEXEC);
  if (fd >= 0 && ftruncate(fd, static_cast<off_t>(bytes)) == 0) return fd;
  if (fd >= 0) close(fd);
  return -1;
}

uint64_t MapFile(int fd, uint64_t bytes, uint64_t at = 0) {
  int flags = at != 0 ? MAP_SHARED | MAP_FIXED : MAP_SHARED;
  void* address = mmap(reinterpret_cast<void*>(at), bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  return address == MAP_FAILED ? 0 : reinterpret_cast<uint64_t>(address);
}

uint64_t Limit() {
  const char* text = getenv("FAKECUDA_MEMORY");
  return text != nullptr ? strtoull(text, nullptr, 10) : uint64_t{8} << 30;
}

void* Pointer(uint64_t address) { return reinterpret_cast<void*>(address); }

}  // namespace

Memory::Memory() : limit_(Limit()) {}

Memory& Memory::Get() {
  static auto* memory = new Memory();
  return *memory;
}

uint64_t Memory::Used(int ordinal) {
  std::lock_guard lock(mutex_);
  return UsedLocked(ordinal);
}

uint64_t Memory::UsedLocked(int ordinal) const {
  if (getenv("FAKECUDA_SHARED") != nullptr) return MappedBytes(FileName());
  uint64_t used = 0;
  for (const auto& [base, segment] : segments_) {
    if (segment.kind == Kind::kLegacy && segment.ordinal == ordinal) used += segment.bytes;
  }
  for (const auto& [handle, physical] : physical_) {
    if (!physical.imported && physical.ordinal == ordinal) used += physical.bytes;
  }
  return used;
}

int Memory::Room(int ordinal, uint64_t bytes) const {
  uint64_t used = UsedLocked(ordinal);
  return bytes <= limit_ && used <= limit_ - bytes ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

int Memory::Allocate(int ordinal, uint64_t bytes, uint64_t* base) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(mutex_);
  bytes = RoundUp(bytes);
  if (int full = Room(ordinal, bytes)) return full;
  Segment segment = {.ordinal = ordinal, .fd = MakeFile(bytes), .bytes = bytes, .id = next_id_++};
  if (segment.fd < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  segment.base = MapFile(segment.fd, bytes);
  if (segment.base == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  *base = segment.base;
  segments_[segment.base] = segment;
  return CUDA_SUCCESS;
}

int Memory::Free(uint64_t base) {
  std::lock_guard lock(mutex_);
  auto found = segments_.find(base);
  if (found == segments_.end() || found->second.kind != Kind::kLegacy) return CUDA_ERROR_INVALID_VALUE;
  munmap(Pointer(base), found->second.bytes);
  close(found->second.fd);
  segments_.erase(found);
  return CUDA_SUCCESS;
}

int Memory::AllocatePinned(uint64_t bytes, void** out) {
  bytes = RoundUp(std::max<uint64_t>(bytes, 1));
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  std::lock_guard lock(mutex_);
  auto base = reinterpret_cast<uint64_t>(address);
  segments_[base] = {.kind = Kind::kPinned, .ordinal = -1, .base = base, .bytes = bytes, .id = next_id_++};
  *out = address;
  return CUDA_SUCCESS;
}

int Memory::FreePinned(void* address) {
  std::lock_guard lock(mutex_);
  auto found = segments_.find(reinterpret_cast<uint64_t>(address));
  if (found == segments_.end() || found->second.kind != Kind::kPinned) return CUDA_ERROR_INVALID_VALUE;
  munmap(address, found->second.bytes);
  segments_.erase(found);
  return CUDA_SUCCESS;
}

int Memory::Register(void* address, uint64_t bytes) {
  auto base = reinterpret_cast<uint64_t>(address);
  if (bytes == 0 || address == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(mutex_);
  auto after = registered_.lower_bound(base);
  if (after != registered_.end() && after->first < base + bytes) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  if (after != registered_.begin()) {
    auto before = std::prev(after);
    if (before->first + before->second > base) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  }
  registered_[base] = bytes;
  largest_pin_ = std::max(largest_pin_, bytes);
  return CUDA_SUCCESS;
}

int Memory::Unregister(void* address) {
  std::lock_guard lock(mutex_);
  bool was = registered_.erase(reinterpret_cast<uint64_t>(address)) != 0;
  return was ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

bool Memory::IsRegistered(const void* address, uint64_t bytes) {
  auto at = reinterpret_cast<uint64_t>(address);
  std::lock_guard lock(mutex_);
  auto next = registered_.upper_bound(at);
  if (next == registered_.begin()) return false;
  auto [base, size] = *std::prev(next);
  return at + bytes <= base + size;
}

bool Memory::TouchesRegistered(const void* address, uint64_t bytes) {
  auto at = reinterpret_cast<uint64_t>(address);
  std::lock_guard lock(mutex_);
  auto next = registered_.lower_bound(at + bytes);
  return next != registered_.begin() && std::prev(next)->first + std::prev(next)->second > at;
}

int Memory::ExportLegacy(uint64_t address, LegacyHandle* out) {
  Segment segment;
  if (!Find(address, &segment) || segment.kind != Kind::kLegacy) return CUDA_ERROR_INVALID_VALUE;
  *out = {.magic = kMagic,
          .bytes = segment.bytes,
          .server = HandleAddress(),
          .id = segment.id,
          .pid = getpid(),
          .ordinal = segment.ordinal,
          .unused = {}};
  return out->server != 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

int Memory::OpenShared(uint64_t id) {
  std::lock_guard lock(mutex_);
  for (const auto& [base, segment] : segments_) {
    if (segment.kind == Kind::kLegacy && segment.id == id) return fcntl(segment.fd, F_DUPFD_CLOEXEC, 3);
  }
  return -1;
}

int Memory::OpenLegacy(const LegacyHandle& handle, uint64_t* base) {
  if (handle.magic != kMagic || handle.pid == getpid()) return CUDA_ERROR_INVALID_CONTEXT;
  std::lock_guard lock(mutex_);
  for (auto& [at, segment] : segments_) {
    if (segment.kind != Kind::kImported || segment.server != handle.server || segment.origin != handle.id) continue;
    segment.opened += 1;
    *base = at;
    return CUDA_SUCCESS;
  }
  int fd = FetchHandle(handle.server, handle.id);
  if (fd < 0) return CUDA_ERROR_INVALID_VALUE;
  uint64_t mapped = MapFile(fd, handle.bytes);
  close(fd);
  if (mapped == 0) return CUDA_ERROR_MAP_FAILED;
  segments_[mapped] = {.kind = Kind::kImported,
                       .ordinal = handle.ordinal,
                       .base = mapped,
                       .bytes = handle.bytes,
                       .id = next_id_++,
                       .opened = 1,
                       .server = handle.server,
                       .origin = handle.id};
  *base = mapped;
  return CUDA_SUCCESS;
}

int Memory::CloseLegacy(uint64_t base) {
  std::lock_guard lock(mutex_);
  auto found = segments_.find(base);
  if (found == segments_.end() || found->second.kind != Kind::kImported) return CUDA_ERROR_INVALID_VALUE;
  if (--found->second.opened > 0) return CUDA_SUCCESS;
  munmap(Pointer(base), found->second.bytes);
  segments_.erase(found);
  return CUDA_SUCCESS;
}

int Memory::Create(int ordinal, uint64_t bytes, bool exportable, uint64_t* handle) {
  if (bytes == 0 || bytes % kGranularity != 0) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(mutex_);
  if (int full = Room(ordinal, bytes)) return full;
  int fd = MakeFile(bytes);
  if (fd < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = next_handle_++;
  physical_[*handle] = {.fd = fd, .ordinal = ordinal, .bytes = bytes, .references = 1, .exportable = exportable};
  return CUDA_SUCCESS;
}

int Memory::Retain(uint64_t address, uint64_t* handle) {
  Segment segment;
  if (!Find(address, &segment) || segment.kind != Kind::kVmm) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(mutex_);
  physical_[segment.handle].references += 1;
  *handle = segment.handle;
  return CUDA_SUCCESS;
}

void Memory::Drop(uint64_t handle) {
  auto found = physical_.find(handle);
  if (found == physical_.end() || --found->second.references > 0) return;
  close(found->second.fd);
  physical_.erase(found);
}

int Memory::Release(uint64_t handle) {
  std::lock_guard lock(mutex_);
  if (!physical_.contains(handle)) return CUDA_ERROR_INVALID_VALUE;
  Drop(handle);
  return CUDA_SUCCESS;
}

int Memory::ExportFd(uint64_t handle, int* fd) {
  std::lock_guard lock(mutex_);
  auto found = physical_.find(handle);
  if (found == physical_.end() || !found->second.exportable) return CUDA_ERROR_INVALID_VALUE;
  *fd = fcntl(found->second.fd, F_DUPFD_CLOEXEC, 3);
  return *fd >= 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

int Memory::ImportFd(int fd, uint64_t* handle) {
  off_t bytes = lseek(fd, 0, SEEK_END);
  int copy = bytes > 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 3) : -1;
  if (copy < 0) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(mutex_);
  *handle = next_handle_++;
  physical_[*handle] = {.fd = copy, .bytes = static_cast<uint64_t>(bytes), .references = 1, .imported = true};
  return CUDA_SUCCESS;
}

int Memory::Reserve(uint64_t bytes, uint64_t* base) {
  void* address = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *base = reinterpret_cast<uint64_t>(address);
  std::lock_guard lock(mutex_);
  reserved_[*base] = bytes;
  return CUDA_SUCCESS;
}

int Memory::Unreserve(uint64_t base, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  auto found = reserved_.find(base);
  if (found == reserved_.end() || found->second != bytes) return CUDA_ERROR_INVALID_VALUE;
  munmap(Pointer(base), bytes);
  reserved_.erase(found);
  return CUDA_SUCCESS;
}

int Memory::Map(uint64_t base, uint64_t bytes, uint64_t handle) {
  std::lock_guard lock(mutex_);
  auto found = physical_.find(handle);
  auto range = reserved_.upper_bound(base);
  if (found == physical_.end() || found->second.bytes != bytes || range == reserved_.begin()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  --range;
  if (base - range->first + bytes > range->second || segments_.contains(base)) return CUDA_ERROR_INVALID_VALUE;
  if (MapFile(found->second.fd, bytes, base) == 0) return CUDA_ERROR_MAP_FAILED;
  found->second.references += 1;
  segments_[base] = {.kind = Kind::kVmm,
                     .ordinal = found->second.ordinal,
                     .base = base,
                     .bytes = bytes,
                     .id = next_id_++,
                     .handle = handle};
  return CUDA_SUCCESS;
}

int Memory::Unmap(uint64_t base, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  auto found = segments_.find(base);
  if (found == segments_.end() || found->second.kind != Kind::kVmm || found->second.bytes != bytes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  constexpr int kHole = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  if (mmap(Pointer(base), bytes, PROT_NONE, kHole, -1, 0) == MAP_FAILED) return CUDA_ERROR_UNMAP_FAILED;
  Drop(found->second.handle);
  segments_.erase(found);
  return CUDA_SUCCESS;
}

bool Memory::Find(uint64_t address, Segment* out) {
  std::lock_guard lock(mutex_);
  auto next = segments_.upper_bound(address);
  if (next == segments_.begin()) return false;
  const Segment& segment = std::prev(next)->second;
  if (address - segment.base >= segment.bytes) return false;
  *out = segment;
  return true;
}

bool Memory::IsExportable(const Segment& segment) {
  std::lock_guard lock(mutex_);
  auto found = physical_.find(segment.handle);
  return segment.kind == Kind::kVmm && found != physical_.end() && found->second.exportable;
}

Memory::Counts Memory::Count() {
  std::lock_guard lock(mutex_);
  Counts counts;
  for (const auto& [base, segment] : segments_) {
    if (segment.kind == Kind::kImported) counts.imports += 1;
    if (segment.kind != Kind::kLegacy) continue;
    counts.allocations += 1;
    counts.allocated_bytes += segment.bytes;
  }
  for (const auto& [handle, physical] : physical_) {
    counts.imports += physical.imported ? 1 : 0;
    counts.allocations += physical.imported ? 0 : 1;
    counts.allocated_bytes += physical.imported ? 0 : physical.bytes;
  }
  for (const auto& [base, bytes] : registered_) counts.pinned_bytes += bytes;
  counts.pinned_ranges = registered_.size();
  counts.largest_pin = largest_pin_;
  return counts;
}

}  // namespace ckptd::fake
