#include "daemon/region/peer_rank.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/log.h"
#include "daemon/base/status_macros.h"

namespace ckptd::region {
namespace {

bool IsComplete(const SlotSnapshot& slot) { return slot.state == SlotStateCode::kSealed && slot.record != nullptr; }

std::optional<uint32_t> SlotWith(const LayoutSet& set, const SnapshotId& id) {
  for (uint32_t slot = 0; slot < set.slot_count(); ++slot)
    if (IsComplete(set.Slot(slot)) && set.Slot(slot).record->id() == id) return slot;
  return std::nullopt;
}

}  // namespace

absl::StatusOr<std::unique_ptr<PeerRank>> PeerRank::Open(const RegionContext& context, std::string job,
                                                         const std::string& job_dir, const PeerKey& key) {
  CKPTD_ASSIGN_OR_RETURN(auto region,
                         RankRegion::OpenAt(context, absl::StrCat(job_dir, "/", PeerDirName(key)), key.number));
  return std::unique_ptr<PeerRank>(new PeerRank(std::move(job), key, std::move(region)));
}

std::string PeerRank::Name() const { return absl::StrCat("job ", job_, " ", ToString(key_)); }

absl::Status PeerRank::Named(const absl::Status& status) const {
  return status.ok() ? status : Error(CodeOf(status), absl::StrCat(Name(), ": ", status.message()));
}

std::shared_ptr<const bool> PeerRank::StartBuilding() {
  auto token = std::make_shared<const bool>(true);
  building_ = token;
  return token;
}

// --------------------------------------------------------------------------------------------------------- attempts

AttemptId PeerRank::HighestAttempt() const {
  AttemptId highest = 0;
  for (const auto& [number, set] : region_->layouts()) highest = std::max(highest, set->grant().attempt);
  for (const SnapshotId& id : CompleteCopies()) highest = std::max(highest, id.attempt);
  return highest;
}

void PeerRank::SetFence(AttemptId attempt) {
  for (const auto& [number, set] : region_->layouts()) set->SetFence(attempt);
  auto fill = fill_.lock();
  if (fill == nullptr || fill->place().attempt >= attempt) return;
  fill->Fence();
  fill_.reset();
}

// ------------------------------------------------------------------------------------------------- what there is

std::shared_ptr<SlotUse> PeerRank::UseOf(const Place& place) {
  std::shared_ptr<SlotUse>& use = uses_[place];
  if (use == nullptr) use = std::make_shared<SlotUse>();
  return use;
}

bool PeerRank::IsHeld(const Place& place) const {
  auto found = uses_.find(place);
  return found != uses_.end() && found->second->held();
}

bool PeerRank::held() const {
  return std::any_of(uses_.begin(), uses_.end(), [](const auto& use) { return use.second->held(); });
}

std::vector<SnapshotId> PeerRank::CompleteCopies() const {
  std::vector<SnapshotId> ids;
  for (const auto& [number, set] : region_->layouts())
    for (uint32_t slot = 0; slot < set->slot_count(); ++slot)
      if (IsComplete(set->Slot(slot))) ids.push_back(set->Slot(slot).record->id());
  return ids;
}

absl::StatusOr<PeerRank::Place> PeerRank::Find(const SnapshotId& id, LayoutCrc of) const {
  std::optional<Place> newest;  // layouts are numbered in the order in which they were made
  for (const auto& [number, set] : region_->layouts()) {
    if (of && set->head().block.header_crc != *of) continue;
    if (const auto slot = SlotWith(*set, id)) newest = Place{number, *slot};
  }
  if (newest) return *newest;
  return Error(ErrorCode::NOT_FOUND, absl::StrCat(Name(), ": no complete copy of step ", ToString(id), " here"));
}

std::vector<PeerSlotFacts> PeerRank::FactsOf(const LayoutSet& set) const {
  std::vector<PeerSlotFacts> facts;
  for (uint32_t slot = 0; slot < set.slot_count(); ++slot) {
    const SlotSnapshot& now = set.Slot(slot);
    facts.push_back({.state = now.state,
                     .id = IsComplete(now) ? now.record->id() : SnapshotId{},
                     .held = IsHeld({set.layout(), slot})});
  }
  return facts;
}

PeerEntry PeerRank::EntryOf(const LayoutSet& set, uint32_t slot) const {
  const Superblock& block = set.head().block;
  const SlotSnapshot& now = set.Slot(slot);
  PeerEntry entry{.job = job_,
                  .uid = block.uid,
                  .key = key_,
                  .world = block.world,
                  .id = {},
                  .layout_crc = block.header_crc,
                  .slot_bytes = block.slot_bytes,
                  .chunk_bytes = block.chunk_bytes,
                  .held = IsHeld({set.layout(), slot}),
                  .record = nullptr,
                  .parity = nullptr};
  if (!IsComplete(now)) return entry;
  entry.complete = true;
  entry.id = now.record->id();
  entry.verified = (now.flags & kSlotVerified) != 0;
  entry.durable = (now.flags & kSlotPersisted) != 0;
  entry.record = now.record;
  entry.parity = now.parity;
  return entry;
}

void PeerRank::AddEntries(std::vector<PeerEntry>& to) const {
  const std::shared_ptr<PeerFill> fill = fill_.lock();
  for (const auto& [number, set] : region_->layouts()) {
    for (uint32_t slot = 0; slot < set->slot_count(); ++slot) {
      const bool filling = fill != nullptr && fill->place().layout == number && fill->place().slot == slot;
      if (!filling && !IsComplete(set->Slot(slot))) continue;
      PeerEntry& entry = to.emplace_back(EntryOf(*set, slot));
      if (!filling) continue;
      entry.id = fill->place().id;
      entry.missing_chunks = fill->missing();
    }
  }
}

// ---------------------------------------------------------------------------------------------------------- filling

// One fill at a time.
absl::Status PeerRank::MakeWay(const SnapshotId& id, const PeerMarks& marks) {
  auto fill = fill_.lock();
  if (fill == nullptr) return absl::OkStatus();
  if (!Overtakes(id, fill->place().id, marks))
    return Error(ErrorCode::SUPERSEDED, absl::StrCat(Name(), ": step ", ToString(id), ": step ",
                                                     ToString(fill->place().id), " is being copied"));
  fill->Fence();
  fill_.reset();
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<PeerFill>> PeerRank::Begin(const LayoutSpec& spec, const SnapshotId& id,
                                                          const PeerMarks& marks) {
  const std::vector<SnapshotId> complete = CompleteCopies();
  LayoutSet* set = region_->FindSame(spec);
  CKPTD_RETURN_IF_ERROR(Named(CheckWanted(id, BesideOtherParity(complete, set, id), marks)));
  if (set == nullptr)
    return Error(ErrorCode::LAYOUT_PREPARING, absl::StrCat(Name(), ": no memory is prepared for this layout yet"));
  CKPTD_RETURN_IF_ERROR(MakeWay(id, marks));
  absl::StatusOr<uint32_t> slot = ChooseSlot(FactsOf(*set), complete, marks);
  if (!slot.ok()) return Named(slot.status());
  return OpenFill(*set, *slot, id, marks.attempt);
}

// Parity of the same step that was made of another grouping of the ranks is no reason not to make this one.
std::vector<SnapshotId> PeerRank::BesideOtherParity(std::vector<SnapshotId> complete, const LayoutSet* set,
                                                    const SnapshotId& id) const {
  const bool here = set != nullptr && SlotWith(*set, id).has_value();
  if (key_.kind == PeerKind::kParity && !here) std::erase(complete, id);
  return complete;
}

absl::StatusOr<std::shared_ptr<PeerFill>> PeerRank::OpenFill(LayoutSet& set, uint32_t slot, const SnapshotId& id,
                                                             AttemptId attempt) {
  const Superblock& block = set.head().block;
  FillPlace place{.name = absl::StrCat(Name(), " step ", ToString(id)),
                  .job = job_,
                  .key = key_,
                  .id = id,
                  .attempt = attempt,
                  .epoch = region_->NextEpoch(),
                  .layout = set.layout(),
                  .slot = slot,
                  .slot_bytes = block.slot_bytes,
                  .chunk_bytes = block.chunk_bytes};
  // Mapped before the slot is given up: what fails until here costs nothing.
  std::shared_ptr<SlotFile> file = set.FileOf(slot);
  CKPTD_ASSIGN_OR_RETURN(Mapping mapping, file->Map(MapAccess::kReadWrite));
  CKPTD_RETURN_IF_ERROR(set.SetState(slot, SlotStateCode::kLoading, place.epoch));
  SlotHold hold(UseOf({set.layout(), slot}));
  auto fill = std::make_shared<PeerFill>(std::move(place), std::move(file), std::move(mapping), std::move(hold));
  fill_ = fill;
  return fill;
}

bool PeerRank::IsCurrent(const PeerFill& fill) const { return fill_.lock().get() == &fill; }

absl::Status PeerRank::CheckSeal(const PeerFill& fill, const PeerSeal& seal) const {
  const SnapshotId said{seal.head.attempt, seal.head.step};
  if (said != fill.place().id)
    return Error(ErrorCode::INVALID_ARGUMENT,
                 absl::StrCat(fill.place().name, ": completed with the record of step ", ToString(said)));
  if ((seal.parity != nullptr) == (key_.kind == PeerKind::kParity)) return absl::OkStatus();
  return Error(ErrorCode::INVALID_ARGUMENT,
               absl::StrCat(fill.place().name, ": parity needs its record, and a copy has none"));
}

absl::Status PeerRank::Write(LayoutSet& set, const PeerFill& fill, const PeerSeal& seal,
                             std::vector<uint32_t> crcs) const {
  RecordHead head = seal.head;
  head.epoch = fill.place().epoch;
  if (seal.parity != nullptr)
    return set.WriteParity(fill.place().slot, head, std::move(crcs), *seal.parity, kSlotVerified);
  return set.WriteRecord(fill.place().slot, head, std::move(crcs), kSlotVerified);
}

absl::Status PeerRank::Complete(PeerFill& fill, const PeerSeal& seal, const PeerMarks& marks) {
  CKPTD_ASSIGN_OR_RETURN(std::vector<uint32_t> crcs, fill.Checksums());
  LayoutSet* set = region_->FindLayout(fill.place().layout);
  if (set == nullptr || !IsCurrent(fill))
    return Error(ErrorCode::FENCED, absl::StrCat(fill.place().name, ": this copy is no longer wanted"));
  CKPTD_RETURN_IF_ERROR(CheckSeal(fill, seal));
  if (const uint32_t root = RootCrc(crcs); root != seal.root_crc)
    return Error(ErrorCode::CORRUPT, absl::StrCat(fill.place().name, ": root checksum ", absl::Hex(root),
                                                  ", its owner's is ", absl::Hex(seal.root_crc)));
  CKPTD_RETURN_IF_ERROR(Write(*set, fill, seal, std::move(crcs)));
  fill.Fence();
  fill_.reset();
  // Memory that stays taken is no reason to call a complete copy lost: it is tried again with the next one.
  absl::Status trimmed = Trim(set->layout(), marks);
  if (!trimmed.ok()) Log(kWarning, "region.peer.trim").Error(trimmed);
  return absl::OkStatus();
}

absl::Status PeerRank::Abort(PeerFill& fill) {
  fill.Fence();
  if (!IsCurrent(fill)) return absl::OkStatus();
  fill_.reset();
  LayoutSet* set = region_->FindLayout(fill.place().layout);
  return set == nullptr ? absl::OkStatus() : set->FreeSlot(fill.place().slot);
}

// -------------------------------------------------------------------------------------------------- complete copies

absl::StatusOr<PeerCopy> PeerRank::OpenCopy(const SnapshotId& id, LayoutCrc of) {
  CKPTD_ASSIGN_OR_RETURN(const Place place, Find(id, of));
  const LayoutSet& set = *region_->FindLayout(place.first);
  const SlotSnapshot& now = set.Slot(place.second);
  return PeerCopy{.hold = SlotHold(UseOf(place)),
                  .head = set.head(),
                  .record = now.record,
                  .parity = now.parity,
                  .file = set.FileOf(place.second)};
}

absl::Status PeerRank::SetFlags(const SnapshotId& id, uint64_t flags, LayoutCrc of) {
  CKPTD_ASSIGN_OR_RETURN(const Place place, Find(id, of));
  region_->FindLayout(place.first)->SetFlags(place.second, flags);
  return absl::OkStatus();
}

absl::Status PeerRank::MarkVerified(const SnapshotId& id, LayoutCrc of) { return SetFlags(id, kSlotVerified, of); }

void PeerRank::MarkDurable(const SnapshotId& id) { (void)SetFlags(id, kSlotPersisted, std::nullopt); }

SnapshotId PeerRank::NewestDurable() const {
  SnapshotId newest;
  for (const auto& [number, set] : region_->layouts())
    for (uint32_t slot = 0; slot < set->slot_count(); ++slot)
      if (IsComplete(set->Slot(slot)) && (set->Slot(slot).flags & kSlotPersisted) != 0)
        newest = std::max(newest, set->Slot(slot).record->id());
  return newest;
}

absl::Status PeerRank::Quarantine(const SnapshotId& id, LayoutCrc of) {
  CKPTD_ASSIGN_OR_RETURN(const Place place, Find(id, of));
  LayoutSet& set = *region_->FindLayout(place.first);
  return set.SetState(place.second, SlotStateCode::kQuarantined, set.Slot(place.second).epoch);
}

absl::Status PeerRank::Delete(const SnapshotId& id, LayoutCrc of) {
  CKPTD_ASSIGN_OR_RETURN(const Place place, Find(id, of));
  return region_->FindLayout(place.first)->FreeSlot(place.second);
}

// ----------------------------------------------------------------------------------------------------------- memory

absl::Status PeerRank::GiveUp(LayoutSet& set, const MayGive& may_give) {
  for (uint32_t slot = 0; slot < set.slot_count(); ++slot) {
    const SlotSnapshot& now = set.Slot(slot);
    if (IsHeld({set.layout(), slot}) || set.FileOf(slot) == nullptr) continue;
    if (IsComplete(now) && !may_give(now.record->id())) continue;
    CKPTD_RETURN_IF_ERROR(set.RetireSlot(slot));
    CKPTD_RETURN_IF_ERROR(set.DropFile(slot));
  }
  return absl::OkStatus();
}

absl::Status PeerRank::Trim(uint32_t but, const PeerMarks& marks) {
  return TrimBy(but, [&](const SnapshotId& id) { return MayGo(id, CompleteCopies(), marks); });
}

absl::Status PeerRank::TrimOver(const PeerMarks& marks, const SnapshotId& durable) {
  return TrimBy(0, [&](const SnapshotId& id) { return IsOver(id, marks, durable); });
}

absl::Status PeerRank::TrimBy(uint32_t but, const MayGive& may_give) {
  std::vector<uint32_t> gone;
  for (const auto& [number, set] : region_->layouts()) {
    if (number == but) continue;
    CKPTD_RETURN_IF_ERROR(GiveUp(*set, may_give));
    if (set->bytes() == 0) gone.push_back(number);
  }
  for (uint32_t layout : gone) {
    CKPTD_RETURN_IF_ERROR(region_->RemoveLayout(layout));
    std::erase_if(uses_, [&](const auto& use) { return use.first.first == layout; });
  }
  return absl::OkStatus();
}

absl::Status PeerRank::Remove() {
  if (building() != nullptr)
    return Error(ErrorCode::BUSY, absl::StrCat(Name(), ": memory for it is being prepared; try again"));
  if (const auto fill = fill_.lock()) fill->Fence();
  fill_.reset();
  return region_->Remove();
}

}  // namespace ckptd::region
