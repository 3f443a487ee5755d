// The memory that trainer and copier share: the gate page, the bell, the slots. Whoever gave a descriptor may have put
// anything behind it: sizes and seals are looked at before it is mapped.
#ifndef CKPTD_DAEMON_COPIER_MEMORY_H_
#define CKPTD_DAEMON_COPIER_MEMORY_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "client/core/device/pinned_memory.h"
#include "client/core/wire/fds.h"
#include "client/core/wire/mapping.h"
#include "daemon/copier/outcome.h"
#include "proto/local/bell.h"
#include "proto/local/copier.h"

namespace ckptd {

// At least `bytes` long and sealed with all of `seals`.
Outcome CheckFile(const char* what, int fd, int seals, uint64_t bytes);

Outcome MapGate(int fd, SharedMapping* out);

// Where the arrays of a bell of so many bytes are, when its head agrees with the request. Pure.
struct BellPlaces {
  uint64_t slots = 0;
  uint64_t chunks = 0;
};
Outcome CheckBell(const BellHead& head, uint64_t bytes, const CopierSlots& request, BellPlaces* out);

// Bell and slots of one layout.
class SlotSet {
 public:
  // `fds`: as in the request. Mapped and populated, not pinned.
  static Outcome Open(const CopierSlots& request, std::span<const UniqueFd> fds, std::unique_ptr<SlotSet>* out);

  // All of them, or none: copies then go through the driver's own buffers.
  DeviceError Pin(const std::shared_ptr<Device>& device);

  [[nodiscard]] uint32_t slot_count() const { return request_.slot_count; }
  [[nodiscard]] uint64_t slot_bytes() const { return request_.slot_bytes; }
  [[nodiscard]] uint64_t chunk_bytes() const { return request_.chunk_bytes; }
  [[nodiscard]] uint32_t chunk_count() const { return request_.chunk_count; }
  [[nodiscard]] uint64_t pinned_bytes() const { return pinned_.size() * request_.slot_bytes; }

  [[nodiscard]] char* slot(uint32_t slot) const { return slots_[slot].data(); }
  [[nodiscard]] const BellHead& bell_head() const { return *reinterpret_cast<const BellHead*>(bell_.data()); }
  [[nodiscard]] BellSlot& bell_slot(uint32_t slot) const;
  [[nodiscard]] std::atomic<uint64_t>& entry(uint32_t slot, uint64_t chunk) const;

 private:
  explicit SlotSet(const CopierSlots& request) : request_(request) {}
  Outcome MapBell(int fd);

  const CopierSlots request_;
  BellPlaces places_;
  SharedMapping bell_;
  std::vector<SharedMapping> slots_;
  std::vector<std::unique_ptr<PinnedMemory>> pinned_;  // behind the mappings: unpinned before they go
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_COPIER_MEMORY_H_
