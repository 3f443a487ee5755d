// Allocations of the host device: segments of shared memory, in this process or imported. See fake_cuda.h.
#ifndef CKPTD_CLIENT_CORE_DEVICE_TESTING_FAKE_MEMORY_H_
#define CKPTD_CLIENT_CORE_DEVICE_TESTING_FAKE_MEMORY_H_

#include <cstdint>
#include <map>
#include <mutex>

namespace ckptd::fake {

enum class Kind : uint8_t { kLegacy, kVmm, kImported, kPinned };

// A range of addresses with memory behind it.
struct Segment {
  Kind kind = Kind::kLegacy;
  int ordinal = 0;
  int fd = -1;
  uint64_t base = 0;
  uint64_t bytes = 0;
  uint64_t id = 0;
  uint64_t handle = 0;  // kVmm: of the physical memory
  uint64_t opened = 0;  // kImported: times
  uint64_t server = 0;  // kImported: who has it,
  uint64_t origin = 0;  // kImported: and its id there
};

// Physical memory of cuMemCreate.
struct Physical {
  int fd = -1;
  int ordinal = 0;
  uint64_t bytes = 0;
  uint64_t references = 0;
  bool exportable = false;
  bool imported = false;
};

// 64 bytes that another process understands.
struct LegacyHandle {
  uint64_t magic;
  uint64_t bytes;
  uint64_t server;
  uint64_t id;
  int32_t pid;
  int32_t ordinal;
  char unused[24];
};
static_assert(sizeof(LegacyHandle) == 64);

// Every call returns a CUresult.
class Memory {
 public:
  static Memory& Get();

  int Allocate(int ordinal, uint64_t bytes, uint64_t* base);
  int Free(uint64_t base);
  int AllocatePinned(uint64_t bytes, void** out);
  int FreePinned(void* address);
  int Register(void* address, uint64_t bytes);
  int Unregister(void* address);

  int ExportLegacy(uint64_t address, LegacyHandle* out);
  int OpenLegacy(const LegacyHandle& handle, uint64_t* base);
  int CloseLegacy(uint64_t base);
  // Of the allocation `id`, the caller's to close; -1: there is none. See fake_handles.h.
  [[nodiscard]] int OpenShared(uint64_t id);

  int Create(int ordinal, uint64_t bytes, bool exportable, uint64_t* handle);
  int Retain(uint64_t address, uint64_t* handle);
  int Release(uint64_t handle);
  int ExportFd(uint64_t handle, int* fd);
  int ImportFd(int fd, uint64_t* handle);
  int Reserve(uint64_t bytes, uint64_t* base);
  int Unreserve(uint64_t base, uint64_t bytes);
  int Map(uint64_t base, uint64_t bytes, uint64_t handle);
  int Unmap(uint64_t base, uint64_t bytes);

  [[nodiscard]] uint64_t limit() const { return limit_; }
  [[nodiscard]] uint64_t Used(int ordinal);
  [[nodiscard]] bool Find(uint64_t address, Segment* out);
  [[nodiscard]] bool IsExportable(const Segment& segment);
  [[nodiscard]] bool IsRegistered(const void* address, uint64_t bytes);  // within one range
  [[nodiscard]] bool TouchesRegistered(const void* address, uint64_t bytes);

  struct Counts {
    uint64_t allocations = 0;
    uint64_t allocated_bytes = 0;
    uint64_t imports = 0;
    uint64_t pinned_ranges = 0;
    uint64_t pinned_bytes = 0;
    uint64_t largest_pin = 0;
  };
  [[nodiscard]] Counts Count();

 private:
  Memory();
  uint64_t UsedLocked(int ordinal) const;
  int Room(int ordinal, uint64_t bytes) const;
  void Drop(uint64_t handle);

  std::mutex mutex_;
  const uint64_t limit_;
  uint64_t next_id_ = 1;
  uint64_t next_handle_ = 1;
  uint64_t largest_pin_ = 0;
  std::map<uint64_t, Segment> segments_;     // by base
  std::map<uint64_t, uint64_t> reserved_;    // base -> bytes
  std::map<uint64_t, uint64_t> registered_;  // base -> bytes
  std::map<uint64_t, Physical> physical_;
};

}  // namespace ckptd::fake

#endif  // CKPTD_CLIENT_CORE_DEVICE_TESTING_FAKE_MEMORY_H_
