#include "daemon/copier/rescue.h"

#include <fcntl.h>

#include <algorithm>
#include <utility>

#include "client/core/copy/capture_word.h"
#include "client/core/threads/sync.h"

namespace ckptd {
namespace {

uint64_t Load(const std::atomic<uint64_t>& word) { return word.load(std::memory_order_acquire); }

// As ckpt_save does it: the step last.
void TellStep(BellSlot& slot, const LastStep& last) {
  slot.attempt.store(last.attempt, std::memory_order_relaxed);
  slot.begin_ns.store(MonotonicNs(), std::memory_order_relaxed);
  slot.end_ns.store(0, std::memory_order_relaxed);
  slot.blocked_ns.store(0, std::memory_order_relaxed);
  slot.step.store(last.step, std::memory_order_release);
}

bool CopyOut(const PullParts& parts, const LastStep& last, const LentSlot& lent, uint64_t serial) {
  CopierCopy copy = {};
  copy.serial = serial;
  copy.epoch = lent.epoch;
  copy.step = last.step;
  copy.attempt = last.attempt;
  copy.slot = lent.slot;
  parts.gate.lines[copy.line].ready.store(serial, std::memory_order_release);
  Pull pull(parts, copy);
  const PullEnd end = pull.Run();
  return end.kind == PullEnd::Kind::kAnswer && end.outcome.ok();
}

}  // namespace

std::optional<LastStep> FindLastStep(const RescuePage& page) {
  const uint64_t done = Load(page.done);
  if (Load(page.armed) != 1 || done == 0) return std::nullopt;
  for (const auto& begun : page.begun) {
    if (Load(begun) > done) return std::nullopt;
  }
  const auto area = static_cast<uint32_t>(done % kRescueAreas);
  const LastStep last = {done, Load(page.areas[area].step), Load(page.areas[area].attempt), area};
  const bool whole = Load(page.areas[area].serial) == done && last.step != 0 && last.attempt != 0;
  return whole ? std::optional(last) : std::nullopt;
}

// The agent lends one at a time. A step that was saved, or was to be, is no business of ours: unless its copy was under
// way, which is then done again.
std::optional<LentSlot> FindLentSlot(const SlotSet& slots, const LastStep& last) {
  const BellHead& head = slots.bell_head();
  const bool passed = Load(head.pos_attempt) == last.attempt && Load(head.pos) >= last.step;
  for (uint32_t i = 0; i < slots.slot_count(); ++i) {
    const BellSlot& slot = slots.bell_slot(i);
    const uint64_t word = Load(slot.word);
    if (CaptureStateOf(word) != CaptureState::kOpen) continue;
    const uint64_t step = Load(slot.step);
    const bool usable = step == 0 ? !passed : step == last.step && Load(slot.attempt) == last.attempt;
    if (usable) return LentSlot{i, CaptureEpoch(word)};
  }
  return std::nullopt;
}

Outcome Estate::Open(const CopierWatch& watch, uint64_t slot_bytes, std::vector<UniqueFd> fds,
                     std::unique_ptr<Estate>* out) {
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;
  auto estate = std::make_unique<Estate>();
  estate->hold_ns_ = watch.hold_ns;
  Outcome outcome = CheckFile("rescue page", fds[0].get(), kSeals, sizeof(RescuePage));
  if (!outcome.ok()) return outcome;
  int error = SharedMapping::Map(fds[0].get(), sizeof(RescuePage), Access::kReadWrite, &estate->page_);
  if (error != 0) return FileFails("rescue page", error);
  for (uint32_t i = 0; i < kRescueAreas && outcome.ok(); ++i) {
    estate->areas_[i] = std::move(fds[size_t{1} + i]);
    outcome = CheckFile("rescue area", estate->areas_[i].get(), kSeals, slot_bytes);
  }
  if (outcome.ok()) *out = std::move(estate);
  return outcome;
}

int Estate::FillHostBytes(uint32_t area, std::span<const CopierPiece> pieces, uint64_t slot_bytes, char* slot) const {
  const int fd = areas_[area].get();
  uint64_t at = 0;
  for (const CopierPiece& piece : pieces) {
    if (int error = ReadExactly(fd, at, slot + at, piece.slot_offset - at)) return error;
    at = piece.slot_offset + piece.bytes;
  }
  return ReadExactly(fd, at, slot + at, slot_bytes - at);
}

// Looked at again behind the last copy: whatever of the dead process still ran on the GPU would be seen there.
bool CaptureEstate(const Estate& estate, const PullParts& parts, uint64_t serial) {
  const std::optional<LastStep> last = FindLastStep(estate.page());
  if (!last.has_value()) return false;
  const std::optional<LentSlot> lent = FindLentSlot(parts.slots, *last);
  if (!lent.has_value()) return false;
  BellSlot& word = parts.slots.bell_slot(lent->slot);
  TellStep(word, *last);
  char* slot = parts.slots.slot(lent->slot);
  const bool copied = estate.FillHostBytes(last->area, parts.pieces, parts.slots.slot_bytes(), slot) == 0 &&
                      CopyOut(parts, *last, *lent, serial);
  if (copied && FindLastStep(estate.page()) == last) return TryComplete(word, lent->epoch);
  (void)TryAbandon(word, lent->epoch);
  return false;
}

}  // namespace ckptd
