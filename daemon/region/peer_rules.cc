#include "daemon/region/peer_rules.h"

#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"

namespace ckptd::region {
namespace {

bool IsMarked(const SnapshotId& id, const PeerMarks& marks) {
  return !id.none() && (id == marks.protected_ || id == marks.captured);
}

bool IsLive(const SnapshotId& id, const PeerMarks& marks) {
  return id.attempt == marks.attempt && id.step >= marks.floor;
}

bool Contains(std::span<const SnapshotId> all, const SnapshotId& id) {
  return std::find(all.begin(), all.end(), id) != all.end();
}

SnapshotId NewestOf(std::span<const SnapshotId> all) {
  return all.empty() ? SnapshotId{} : *std::max_element(all.begin(), all.end());
}

std::string Describe(const PeerSlotFacts& slot) {
  if (slot.state != SlotStateCode::kSealed) return "an older copy is still being written";
  return absl::StrCat("step ", ToString(slot.id), slot.held ? " is being read" : " is still needed");
}

absl::Status NoneFree(std::span<const PeerSlotFacts> slots) {
  std::string why;
  for (const PeerSlotFacts& slot : slots) absl::StrAppend(&why, why.empty() ? "" : ", ", Describe(slot));
  return Error(ErrorCode::BUSY, absl::StrCat("no slot is free yet: ", why));
}

}  // namespace

absl::Status Advance(PeerMarks& marks, const PeerMarks& told) {
  if (told.attempt < marks.attempt)
    return Error(ErrorCode::FENCED, absl::StrCat("attempt ", told.attempt, ", attempt ", marks.attempt, " was seen"));
  if (told.attempt > marks.attempt) {
    marks = told;
    return absl::OkStatus();
  }
  marks.protected_ = std::max(marks.protected_, told.protected_);
  marks.captured = std::max(marks.captured, told.captured);
  marks.floor = std::max(marks.floor, told.floor);
  return absl::OkStatus();
}

bool MayGo(const SnapshotId& id, std::span<const SnapshotId> complete, const PeerMarks& marks) {
  if (marks.floor == 0 || IsMarked(id, marks) || IsLive(id, marks)) return false;
  if (id != NewestOf(complete)) return true;
  return std::any_of(complete.begin(), complete.end(), [&](const SnapshotId& other) { return IsMarked(other, marks); });
}

bool IsOver(const SnapshotId& id, const PeerMarks& marks, const SnapshotId& durable) {
  return marks.floor != 0 && id < std::max(marks.protected_, durable) && id != marks.captured;
}

absl::Status CheckWanted(const SnapshotId& id, std::span<const SnapshotId> complete, const PeerMarks& marks) {
  if (id.none() || id.attempt > marks.attempt)
    return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat("step ", ToString(id), ": its attempt is above attempt ",
                                                           marks.attempt, " of the order"));
  if (Contains(complete, id))
    return Error(ErrorCode::REFUSED, absl::StrCat("step ", ToString(id), ": is complete here"));
  if (IsMarked(id, marks)) return absl::OkStatus();
  if (id < NewestOf(complete))
    return Error(ErrorCode::SUPERSEDED,
                 absl::StrCat("step ", ToString(id), ": step ", ToString(NewestOf(complete)), " is complete here"));
  if (id.attempt == marks.attempt && id.step < marks.floor)
    return Error(ErrorCode::BELOW_FLOOR, absl::StrCat("step ", ToString(id), ": the floor is ", marks.floor));
  return absl::OkStatus();
}

bool Overtakes(const SnapshotId& id, const SnapshotId& filling, const PeerMarks& marks) {
  return id >= filling || id == marks.captured;
}

absl::StatusOr<uint32_t> ChooseSlot(std::span<const PeerSlotFacts> slots, std::span<const SnapshotId> complete,
                                    const PeerMarks& marks) {
  std::optional<uint32_t> chosen;
  for (uint32_t i = 0; i < slots.size(); ++i) {
    const PeerSlotFacts& slot = slots[i];
    if (slot.held) continue;
    if (slot.state != SlotStateCode::kSealed) return i;
    if (!MayGo(slot.id, complete, marks)) continue;
    if (!chosen || slot.id < slots[*chosen].id) chosen = i;
  }
  if (chosen) return *chosen;
  return NoneFree(slots);
}

}  // namespace ckptd::region
