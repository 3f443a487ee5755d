#include "daemon/region/layout_set.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/failpoint.h"
#include "daemon/base/status_macros.h"

namespace ckptd::region {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr auto kRelease = std::memory_order_release;

uint64_t StateWord(SlotStateCode state, Epoch epoch) { return epoch << 8 | static_cast<uint64_t>(state); }

uint64_t GrantWord(const GrantOrder& order) { return order.epoch << 8 | (order.slot + 1); }

// Not FREE, LOADING or FILLING: there the file is, or is about to be, somebody's to write.
bool Replaceable(SlotStateCode state) {
  return state == SlotStateCode::kRetired || state == SlotStateCode::kSealed || state == SlotStateCode::kQuarantined;
}

}  // namespace

LayoutSet::LayoutSet(Files& files, std::shared_ptr<Quota> quota, Executor* freeing, std::string rank_dir, CtlHead head)
    : files_(files),
      quota_(std::move(quota)),
      freeing_(freeing),
      rank_dir_(std::move(rank_dir)),
      head_(std::move(head)),
      slots_(head_.block.slot_count),
      files_of_(head_.block.slot_count),
      replaced_epoch_(head_.block.slot_count) {}

std::string LayoutSet::Name(uint32_t slot) const {
  return absl::StrCat("job ", head_.job(), " rank ", head_.block.rank, " layout ", layout(), " slot ", slot);
}

std::optional<uint32_t> LayoutSet::NewestSealed() const {
  std::optional<uint32_t> newest;
  for (uint32_t slot = 0; slot < slot_count(); ++slot) {
    if (slots_[slot].state != SlotStateCode::kSealed) continue;
    if (!newest || slots_[slot].epoch > slots_[*newest].epoch) newest = slot;
  }
  return newest;
}

uint64_t LayoutSet::bytes() const {
  uint64_t bytes = 0;
  for (const auto& file : files_of_)
    if (file != nullptr) bytes += file->size();
  return bytes;
}

uint64_t LayoutSet::shrinkable_bytes() const {
  const uint64_t kept = NewestSealed() ? head_.slot_file_bytes() : 0;
  return bytes() - std::min(bytes(), kept);
}

absl::Status LayoutSet::CheckFile(uint32_t slot) const {
  if (files_of_[slot] == nullptr) return Error(ErrorCode::REFUSED, absl::StrCat(Name(slot), ": has no file"));
  absl::Status whole = files_of_[slot]->CheckSize();
  if (whole.ok()) return whole;
  return Error(ErrorCode::CORRUPT, absl::StrCat(Name(slot), ": ", whole.message()));
}

absl::StatusOr<LayoutDescriptors> LayoutSet::DescriptorsForSaving() const {
  LayoutDescriptors descriptors{.ctl = ctl_->read_fd(), .slots = {}};
  for (uint32_t slot = 0; slot < slot_count(); ++slot) {
    CKPTD_RETURN_IF_ERROR(CheckFile(slot));
    descriptors.slots.push_back(files_of_[slot]->write_fd());
  }
  return descriptors;
}

absl::StatusOr<SlotDescriptors> LayoutSet::DescriptorsForRestore(uint32_t slot) const {
  CKPTD_RETURN_IF_ERROR(CheckFile(slot));
  return SlotDescriptors{.ctl = ctl_->read_fd(), .slot = files_of_[slot]->read_fd()};
}

void LayoutSet::StoreWord(uint32_t slot, SlotStateCode state, Epoch epoch) {
  slots_[slot].state = state;
  slots_[slot].epoch = epoch;
  max_epoch_ = std::max(max_epoch_, epoch);
  ctl_->slot(slot).word.store(StateWord(state, epoch), kRelease);
}

void LayoutSet::SetOwner(uint32_t slot, const SlotOwner& owner) {
  slots_[slot].owner = owner;
  SlotState& state = ctl_->slot(slot);
  state.owner_ticket.store(owner.ticket, kRelaxed);
  state.owner_attempt.store(owner.attempt, kRelaxed);
  state.owner_pid.store(static_cast<uint64_t>(owner.pid), kRelaxed);
  state.owner_start.store(owner.start_time, kRelease);
}

void LayoutSet::SetFlags(uint32_t slot, uint64_t flags) {
  slots_[slot].flags |= flags;
  ctl_->slot(slot).flags.store(slots_[slot].flags, kRelease);
}

absl::Status LayoutSet::CheckGrant(const Bell& bell, const GrantOrder& order) const {
  if (order.slot >= slot_count() || slots_[order.slot].state != SlotStateCode::kFree)
    return Error(ErrorCode::INTERNAL, absl::StrCat(Name(order.slot), ": granted but not free"));
  if (order.epoch <= max_epoch_ || order.epoch > kMaxEpoch)
    return Error(ErrorCode::INTERNAL, absl::StrCat(Name(order.slot), ": epoch ", order.epoch, " after ", max_epoch_));
  if (bell.bell_id() != head_.block.bell_id)
    return Error(ErrorCode::INTERNAL, absl::StrCat(Name(order.slot), ": granted in a bell of another layout"));
  return absl::OkStatus();
}

absl::Status LayoutSet::OpenGrant(Bell& bell, const GrantOrder& order) {
  CKPTD_RETURN_IF_ERROR(CheckGrant(bell, order));
  if (absl::Status whole = CheckFile(order.slot); !whole.ok()) {
    CKPTD_RETURN_IF_ERROR(RetireSlot(order.slot));
    return whole;
  }
  bell.Open(order.slot, order.epoch);
  CKPTD_FP("region.grant.opened");
  SetOwner(order.slot, order.owner);
  slots_[order.slot].flags = 0;
  ctl_->slot(order.slot).flags.store(0, kRelaxed);
  StoreWord(order.slot, SlotStateCode::kFilling, order.epoch);
  CKPTD_FP("region.grant.filling");
  grant_ = {GrantWord(order), order.floor, order.owner.attempt, order.parent};
  ctl_->grant().attempt.store(grant_.attempt, kRelaxed);
  ctl_->grant().parent_attempt.store(grant_.parent.attempt, kRelaxed);
  ctl_->grant().parent_step.store(grant_.parent.step, kRelaxed);
  ctl_->grant().floor.store(grant_.floor, kRelaxed);
  ctl_->grant().word.store(grant_.word, kRelease);
  return absl::OkStatus();
}

void LayoutSet::MoveFloor(StepId floor) {
  grant_.floor = floor;
  ctl_->grant().floor.store(floor, kRelease);
}

void LayoutSet::RevokeGrant() {
  grant_.word = 0;
  ctl_->grant().word.store(0, kRelease);
}

absl::Status LayoutSet::SetState(uint32_t slot, SlotStateCode state, Epoch epoch) {
  if (state == SlotStateCode::kSealed || epoch < slots_[slot].epoch || epoch > kMaxEpoch)
    return Error(ErrorCode::INTERNAL, absl::StrCat(Name(slot), ": state ", static_cast<int>(state), " epoch ", epoch,
                                                   " after epoch ", slots_[slot].epoch));
  StoreWord(slot, state, epoch);
  if (state != SlotStateCode::kQuarantined) {
    slots_[slot].record.reset();
    slots_[slot].parity.reset();
  }
  if (state != SlotStateCode::kFree) return absl::OkStatus();
  SetOwner(slot, {});
  slots_[slot].flags = 0;
  ctl_->slot(slot).flags.store(0, kRelease);
  return absl::OkStatus();
}

// The list before its head: until the head is there, the area does not even look like the new record.
void LayoutSet::StoreRecord(uint32_t slot, const SlotRecord& record) {
  std::span<std::byte> area = ctl_->record(slot);
  std::memcpy(area.data() + sizeof(RecordHead), record.chunk_crcs.data(), record.chunk_crcs.size() * sizeof(uint32_t));
  CKPTD_FP("region.record.middle");
  std::memcpy(area.data(), &record.head, sizeof(record.head));
}

absl::Status LayoutSet::CheckSeal(uint32_t slot, const RecordHead& head) const {
  const SlotSnapshot& now = slots_[slot];
  if ((now.state == SlotStateCode::kFilling || now.state == SlotStateCode::kLoading) && head.epoch >= now.epoch)
    return absl::OkStatus();
  return Error(ErrorCode::INTERNAL, absl::StrCat(Name(slot), ": sealed in state ", static_cast<int>(now.state),
                                                 " epoch ", now.epoch, " with epoch ", head.epoch));
}

void LayoutSet::Seal(uint32_t slot, SlotRecord record, uint64_t flags) {
  CKPTD_FP("region.record.before");
  slots_[slot].flags = flags;
  ctl_->slot(slot).flags.store(flags, kRelaxed);
  CKPTD_FP("region.record.flags");
  StoreRecord(slot, record);
  CKPTD_FP("region.record.after");
  StoreWord(slot, SlotStateCode::kSealed, record.head.epoch);
  CKPTD_FP("region.seal.after");
  slots_[slot].record = std::make_shared<const SlotRecord>(std::move(record));
}

absl::Status LayoutSet::WriteRecord(uint32_t slot, const RecordHead& head, std::vector<uint32_t> chunk_crcs,
                                    uint64_t flags) {
  CKPTD_RETURN_IF_ERROR(CheckSeal(slot, head));
  CKPTD_ASSIGN_OR_RETURN(SlotRecord record, MakeRecord(head_, head, std::move(chunk_crcs)));
  Seal(slot, std::move(record), flags);
  return absl::OkStatus();
}

// What the parity was made of before the record that it belongs to: without its record it is nobody's.
absl::Status LayoutSet::WriteParity(uint32_t slot, const RecordHead& head, std::vector<uint32_t> chunk_crcs,
                                    const ParityRecord& parity, uint64_t flags) {
  CKPTD_RETURN_IF_ERROR(CheckSeal(slot, head));
  CKPTD_ASSIGN_OR_RETURN(SlotRecord record, MakeRecord(head_, head, std::move(chunk_crcs)));
  CKPTD_ASSIGN_OR_RETURN(std::vector<std::byte> tail, EncodeParity(parity, record.head, head_.block.rank));
  std::span<std::byte> area = ctl_->record(slot).subspan(head_.tail_offset());
  if (tail.size() > area.size())
    return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat(Name(slot), ": its layout has no room for parity's record"));
  std::memcpy(area.data(), tail.data(), tail.size());
  Seal(slot, std::move(record), flags);
  slots_[slot].parity = std::make_shared<const ParityRecord>(parity);
  return absl::OkStatus();
}

void LayoutSet::SetFence(AttemptId attempt) {
  grant_.attempt = attempt;
  ctl_->grant().attempt.store(attempt, kRelease);
}

absl::Status LayoutSet::FreeSlot(uint32_t slot) {
  absl::Status whole = CheckFile(slot);
  if (whole.ok()) return SetState(slot, SlotStateCode::kFree, slots_[slot].epoch);
  CKPTD_RETURN_IF_ERROR(RetireSlot(slot));
  return whole;
}

absl::Status LayoutSet::RetireSlot(uint32_t slot) {
  return SetState(slot, SlotStateCode::kRetired, slots_[slot].epoch);
}

absl::StatusOr<std::shared_ptr<SlotBuild>> LayoutSet::StartReplace(uint32_t slot, Executor& executor,
                                                                   SlotBuild::Done done) {
  if (!Replaceable(slots_[slot].state))
    return Error(ErrorCode::INTERNAL,
                 absl::StrCat(Name(slot), ": replaced in state ", static_cast<int>(slots_[slot].state)));
  replaced_epoch_[slot] = slots_[slot].epoch;
  const uint64_t bytes = head_.slot_file_bytes();
  CKPTD_ASSIGN_OR_RETURN(QuotaHold hold, quota_->Take(head_.job(), bytes));
  SlotBuildOrder order{rank_dir_, 1, bytes, std::move(hold), Preparation::kPopulated, freeing_};
  return SlotBuild::Start(files_, std::move(order), executor, std::move(done));
}

absl::StatusOr<std::shared_ptr<SlotFile>> LayoutSet::FinishReplace(uint32_t slot, SlotBuild& build) {
  std::vector<std::shared_ptr<SlotFile>> fresh = build.Take();
  // Freed and filled again meanwhile: its file is not the one that was to go.
  if (!Replaceable(slots_[slot].state) || slots_[slot].epoch != replaced_epoch_[slot] || fresh.size() != 1) {
    for (const auto& file : fresh) file->Unlink();
    return Error(ErrorCode::INTERNAL, absl::StrCat(Name(slot), ": moved on while it was being replaced"));
  }
  CKPTD_RETURN_IF_ERROR(RetireSlot(slot));
  std::shared_ptr<SlotFile> old = std::exchange(files_of_[slot], fresh.front());
  slots_[slot].file_id = fresh.front()->file_id();
  ctl_->slot(slot).file_id.store(slots_[slot].file_id, kRelease);
  CKPTD_FP("region.replace.file_id");
  if (old != nullptr) old->Unlink();
  return old;
}

// The state first: a slot without a file is never anything else to a successor.
absl::Status LayoutSet::DropFile(uint32_t slot) {
  SlotStateCode state = slots_[slot].state;
  if (state != SlotStateCode::kFree && state != SlotStateCode::kRetired)
    return Error(ErrorCode::INTERNAL, absl::StrCat(Name(slot), ": dropped in state ", static_cast<int>(state)));
  CKPTD_RETURN_IF_ERROR(RetireSlot(slot));
  slots_[slot].file_id = 0;
  ctl_->slot(slot).file_id.store(0, kRelease);
  CKPTD_FP("region.drop.file_id");
  if (std::shared_ptr<SlotFile> file = std::exchange(files_of_[slot], nullptr)) SlotFile::Discard(file);
  return absl::OkStatus();
}

}  // namespace ckptd::region
