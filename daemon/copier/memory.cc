#include "daemon/copier/memory.h"

#include <fcntl.h>

#include <cerrno>
#include <cinttypes>
#include <cstring>

namespace ckptd {
namespace {

constexpr int kSealsOfSize = F_SEAL_SHRINK | F_SEAL_GROW;

Outcome MapFile(const char* what, int fd, uint64_t bytes, SharedMapping* out) {
  int error = SharedMapping::Map(fd, bytes, Access::kReadWrite, out);
  if (error == 0) error = out->Populate(Access::kReadWrite);
  return error == 0 ? Outcome() : FileFails(what, error);
}

}  // namespace

Outcome CheckFile(const char* what, int fd, int seals, uint64_t bytes) {
  uint64_t size = 0;
  if (int error = FileBytes(fd, &size)) return FileFails(what, error);
  if (size < bytes) return Refuse("%s: %" PRIu64 " bytes, %" PRIu64 " are needed", what, size, bytes);
  if (seals == 0) return {};
  int have = fcntl(fd, F_GET_SEALS);
  if (have < 0) return FileFails(what, errno);
  return (have & seals) == seals ? Outcome() : Refuse("%s: it is not sealed", what);
}

Outcome MapGate(int fd, SharedMapping* out) {
  Outcome outcome = CheckFile("gate page", fd, kSealsOfSize, sizeof(GatePage));
  return outcome.ok() ? MapFile("gate page", fd, sizeof(GatePage), out) : outcome;
}

Outcome CheckBell(const BellHead& head, uint64_t bytes, const CopierSlots& request, BellPlaces* out) {
  const uint64_t entries = request.slot_count * BellRow(request.chunk_count);
  // Read once each: the trainer may write them meanwhile.
  out->slots = __atomic_load_n(&head.slots_offset, __ATOMIC_RELAXED);
  out->chunks = __atomic_load_n(&head.chunks_offset, __ATOMIC_RELAXED);
  bool identity = head.magic == kBellMagic && head.major == kRegionMajor && head.slot_count == request.slot_count &&
                  head.chunk_count == request.chunk_count;
  auto fits = [&](uint64_t offset, uint64_t need) {
    return offset % 8 == 0 && offset >= sizeof(BellHead) && offset <= bytes && need <= bytes - offset;
  };
  bool placed =
      fits(out->slots, request.slot_count * sizeof(BellSlot)) && fits(out->chunks, entries * sizeof(uint64_t));
  return identity && placed ? Outcome() : Refuse("bell: its head contradicts SLOTS");
}

// Its head is mapped memory of the trainer's.
Outcome SlotSet::MapBell(int fd) {
  uint64_t bytes = 0;
  if (int error = FileBytes(fd, &bytes)) return FileFails("bell", error);
  const uint64_t entries = request_.slot_count * BellRow(request_.chunk_count);
  const uint64_t need = sizeof(BellHead) + request_.slot_count * sizeof(BellSlot) + entries * sizeof(uint64_t);
  // The agent rounds to pages, and a later version of it may add to the head.
  if (bytes < need || bytes - need > need + (1 << 20)) {
    return Refuse("bell: %" PRIu64 " bytes, %" PRIu64 " are needed", bytes, need);
  }
  Outcome outcome = MapFile("bell", fd, bytes, &bell_);
  if (!outcome.ok()) return outcome;
  return CheckBell(*reinterpret_cast<const BellHead*>(bell_.data()), bytes, request_, &places_);
}

Outcome SlotSet::Open(const CopierSlots& request, std::span<const UniqueFd> fds, std::unique_ptr<SlotSet>* out) {
  std::unique_ptr<SlotSet> set(new SlotSet(request));
  Outcome outcome = set->MapBell(fds[0].get());
  for (uint32_t i = 0; i < request.slot_count && outcome.ok(); ++i) {
    int fd = fds[size_t{1} + i].get();
    outcome = CheckFile("slot", fd, 0, request.slot_bytes);
    set->slots_.emplace_back();
    if (outcome.ok()) outcome = MapFile("slot", fd, request.slot_bytes, &set->slots_.back());
  }
  if (outcome.ok()) *out = std::move(set);
  return outcome;
}

DeviceError SlotSet::Pin(const std::shared_ptr<Device>& device) {
  for (SharedMapping& mapping : slots_) {
    std::unique_ptr<PinnedMemory> pinned;
    DeviceError error = PinnedMemory::Pin(device, mapping.data(), mapping.size(), &pinned);
    if (!error.ok()) {
      pinned_.clear();
      return error;
    }
    pinned_.push_back(std::move(pinned));
  }
  return {};
}

BellSlot& SlotSet::bell_slot(uint32_t slot) const {
  return reinterpret_cast<BellSlot*>(bell_.data() + places_.slots)[slot];
}

std::atomic<uint64_t>& SlotSet::entry(uint32_t slot, uint64_t chunk) const {
  auto* entries = reinterpret_cast<std::atomic<uint64_t>*>(bell_.data() + places_.chunks);
  return entries[slot * BellRow(request_.chunk_count) + chunk];
}

}  // namespace ckptd
