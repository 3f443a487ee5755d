#include "daemon/region/adopt.h"

namespace ckptd::region {
namespace {

SlotStateCode StateOf(const ScannedSlot& scanned) {
  switch (scanned.now.state) {
    case SlotStateCode::kSealed:
    case SlotStateCode::kQuarantined:
      return scanned.now.record != nullptr ? scanned.now.state : SlotStateCode::kFree;
    case SlotStateCode::kFilling:
    case SlotStateCode::kRetired:
      return scanned.now.state;
    case SlotStateCode::kFree:
    case SlotStateCode::kLoading:
    case SlotStateCode::kPreparing:
      return SlotStateCode::kFree;
  }
  return SlotStateCode::kRetired;
}

}  // namespace

SlotSnapshot AdoptedState(const ScannedSlot& scanned) {
  SlotSnapshot slot;
  slot.state = SlotStateCode::kRetired;
  slot.epoch = scanned.now.epoch;
  if (!scanned.file_whole) return slot;
  slot.file_id = scanned.now.file_id;
  slot.state = StateOf(scanned);
  if (slot.state == SlotStateCode::kFilling || slot.state == SlotStateCode::kRetired) slot.owner = scanned.now.owner;
  if (slot.state == SlotStateCode::kSealed || slot.state == SlotStateCode::kQuarantined) {
    slot.owner = scanned.now.owner;
    slot.record = scanned.now.record;
    slot.parity = scanned.now.parity;
    slot.flags = scanned.now.flags & ~kSlotVerified;
  }
  return slot;
}

}  // namespace ckptd::region
