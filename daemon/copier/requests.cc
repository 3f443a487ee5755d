#include "daemon/copier/requests.h"

#include <bit>
#include <cinttypes>

#include "client/core/device/allocation.h"
#include "proto/local/bell.h"
#include "proto/local/rescue.h"

namespace ckptd {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kMostSlotBytes = uint64_t{1} << 46;

Outcome CheckStart(const CopierStart& start) {
  if (start.version == kCopierVersion) return {};
  return Refuse("START: version %u of the protocol, this copier speaks %u", start.version, kCopierVersion);
}

Outcome CheckSlots(const CopierSlots& slots) {
  if (slots.slot_count == 0 || slots.slot_count > kMaxSlots) return Refuse("SLOTS: %u slots", slots.slot_count);
  if (slots.slot_bytes == 0 || slots.slot_bytes % kPage != 0 || slots.slot_bytes > kMostSlotBytes) {
    return Refuse("SLOTS: a slot of %" PRIu64 " bytes", slots.slot_bytes);
  }
  if (!std::has_single_bit(slots.chunk_bytes) || slots.chunk_bytes < kMinChunkBytes ||
      slots.chunk_bytes > kMaxChunkBytes) {
    return Refuse("SLOTS: chunks of %" PRIu64 " bytes", slots.chunk_bytes);
  }
  uint64_t chunks = (slots.slot_bytes + slots.chunk_bytes - 1) / slots.chunk_bytes;
  if (slots.chunk_count == chunks && chunks <= kMaxChunks) return {};
  return Refuse("SLOTS: %u chunks, the slot has %" PRIu64, slots.chunk_count, chunks);
}

bool IsKind(uint32_t kind) {
  return kind == static_cast<uint32_t>(HandleKind::kLegacy) || kind == static_cast<uint32_t>(HandleKind::kPosixFd) ||
         kind == static_cast<uint32_t>(HandleKind::kFabric);
}

Outcome CheckImport(const CopierImport& import) {
  if (import.count == 0 || import.count > kImportBatch) return Refuse("IMPORT: %u allocations", import.count);
  for (uint32_t i = 0; i < import.count; ++i) {
    const CopierAllocation& allocation = import.allocations[i];
    if (!IsKind(allocation.kind)) return Refuse("IMPORT: handle kind %u", allocation.kind);
    if (allocation.bytes == 0) return Refuse("IMPORT: an allocation of 0 bytes");
  }
  return {};
}

Outcome CheckPlan(const CopierPlan& plan) {
  if (plan.count > 0 && plan.count <= kMaxPlanPieces) return {};
  return Refuse("PLAN: %" PRIu64 " pieces, at most %" PRIu64, plan.count, kMaxPlanPieces);
}

Outcome CheckCopy(const CopierCopy& copy) {
  // The gate lines of a new page hold 0, and no epoch has 32 low bits of 0 (bell.h).
  if (copy.serial == 0) return Refuse("COPY: serial 0");
  if (copy.epoch > kMaxEpoch || static_cast<uint32_t>(copy.epoch) == 0) {
    return Refuse("COPY: epoch %" PRIu64, copy.epoch);
  }
  if (copy.line >= kGateLines) return Refuse("COPY: gate line %u", copy.line);
  if (copy.complete > 1) return Refuse("COPY: complete is %u", copy.complete);
  return {};
}

Outcome CheckWatch(const CopierWatch& watch) {
  if (watch.hold_ns > 0 && watch.hold_ns <= kMostHoldNs) return {};
  return Refuse("WATCH: a hold of %" PRIu64 " ns", watch.hold_ns);
}

size_t CountDescriptors(const CopierImport& import) {
  size_t count = 0;
  for (uint32_t i = 0; i < import.count; ++i) {
    count += import.allocations[i].kind == static_cast<uint32_t>(HandleKind::kPosixFd) ? 1 : 0;
  }
  return count;
}

template <typename Message>
Outcome CheckFields(std::span<const uint8_t> bytes, size_t* descriptors, Outcome (*check)(const Message&)) {
  if (bytes.size() < sizeof(Message)) {
    return Refuse("a packet of %zu bytes, its type has %zu", bytes.size(), sizeof(Message));
  }
  const auto message = ReadMessage<Message>(bytes);
  Outcome outcome = check(message);
  if constexpr (std::is_same_v<Message, CopierStart> || std::is_same_v<Message, CopierPlan>) *descriptors = 1;
  if constexpr (std::is_same_v<Message, CopierWatch>) *descriptors = 2 + kRescueAreas;
  if constexpr (std::is_same_v<Message, CopierSlots>) *descriptors = size_t{1} + message.slot_count;
  if constexpr (std::is_same_v<Message, CopierImport>) *descriptors = outcome.ok() ? CountDescriptors(message) : 0;
  return outcome;
}

Outcome CheckType(uint16_t type, std::span<const uint8_t> bytes, size_t* descriptors) {
  switch (static_cast<CopierMessageType>(type)) {
    case CopierMessageType::kStart:
      return CheckFields(bytes, descriptors, CheckStart);
    case CopierMessageType::kSlots:
      return CheckFields(bytes, descriptors, CheckSlots);
    case CopierMessageType::kImport:
      return CheckFields(bytes, descriptors, CheckImport);
    case CopierMessageType::kPlan:
      return CheckFields(bytes, descriptors, CheckPlan);
    case CopierMessageType::kCopy:
      return CheckFields(bytes, descriptors, CheckCopy);
    case CopierMessageType::kWatch:
      return CheckFields(bytes, descriptors, CheckWatch);
    case CopierMessageType::kHostDone:
    case CopierMessageType::kRelease:
      return CheckFields<CopierSerial>(bytes, descriptors, [](const CopierSerial&) { return Outcome(); });
    case CopierMessageType::kCopying:
    case CopierMessageType::kAnswer:
      break;
  }
  return Refuse("a packet of type %u", type);
}

Outcome CheckHead(std::span<const uint8_t> bytes) {
  if (bytes.empty()) return Refuse("a packet with more bytes or descriptors than one may have");
  const auto head = ReadMessage<MessageHead>(bytes);
  if (bytes.size() < sizeof head) return Refuse("a packet of %zu bytes", bytes.size());
  if (head.magic != kMessageMagic) return Refuse("a packet with magic %08x", head.magic);
  if (head.size != bytes.size()) return Refuse("a packet of %zu bytes that says it has %u", bytes.size(), head.size);
  return {};
}

}  // namespace

Outcome CheckRequest(std::span<const uint8_t> bytes, size_t descriptors) {
  Outcome outcome = CheckHead(bytes);
  if (!outcome.ok()) return outcome;
  size_t needed = 0;
  outcome = CheckType(ReadMessage<MessageHead>(bytes).type, bytes, &needed);
  if (outcome.ok() && needed != descriptors) {
    return Refuse("a packet with %zu descriptors, it needs %zu", descriptors, needed);
  }
  return outcome;
}

bool IsHostDone(std::span<const uint8_t> bytes, size_t descriptors) {
  return CheckRequest(bytes, descriptors).ok() &&
         ReadMessage<MessageHead>(bytes).type == static_cast<uint16_t>(CopierMessageType::kHostDone);
}

}  // namespace ckptd
