// What of a rank goes to the storage, and when its bytes are handed over.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/app/rank_runner.h"
#include "daemon/base/status_macros.h"

namespace ckptd {

FlushKey RankRunner::KeyOf(const snapshot::SlotId& slot, Epoch epoch) const {
  return {options_.job, options_.rank, slot.layout, slot.index, epoch};
}

absl::StatusOr<FlushSource> RankRunner::SourceOf(const snapshot::SlotId& slot, const SnapshotId& id) {
  region::LayoutSet* set = Set(slot);
  std::shared_ptr<region::SlotFile> file = set == nullptr ? nullptr : set->FileOf(slot.index);
  if (!file) return Error(ErrorCode::INTERNAL, absl::StrCat("slot ", snapshot::ToString(slot), " has no file"));
  CKPTD_ASSIGN_OR_RETURN(std::span<const std::byte> bytes, file->ReadOnlyBytes());
  FlushSource source;
  source.job = options_.job;
  source.rank = options_.rank;
  source.world = set->head().block.world;
  source.id = id;
  source.images = set->head().images;
  source.chunk_bytes = set->head().block.chunk_bytes;
  source.header_crc = set->head().block.header_crc;
  source.slot = bytes.first(set->head().block.slot_bytes);
  source.keep = std::move(file);
  return source;
}

// Chunks go to the storage as they are captured, before anybody knows whether the fill will be sealed.
void RankRunner::Stream(snapshot::ProcessId process) {
  for (const auto& [layout, set] : region_.layouts()) {
    region::Bell* bell = bells_.Find(process, layout);
    if (bell == nullptr) continue;
    for (uint32_t slot = 0; slot < set->slot_count(); ++slot) {
      if (set->Slot(slot).state == SlotStateCode::kFilling) StreamSlot(*bell, layout, slot, bell->ReadSlot(slot));
    }
  }
}

void RankRunner::StreamSlot(const region::Bell& bell, uint32_t layout, uint32_t slot,
                            const region::BellSlotView& view) {
  const region::SlotSnapshot& now = region_.FindLayout(layout)->Slot(slot);
  bool filling = view.epoch == now.epoch && view.step != 0 && view.attempt == now.owner.attempt &&
                 (view.state == CaptureState::kOpen || view.state == CaptureState::kComplete);
  if (!filling) return;
  const FlushKey key = KeyOf({layout, slot}, view.epoch);
  Streamed* streamed = StreamOf(key, {layout, slot}, {view.attempt, view.step});
  protect::CopySender* copies = options_.early();
  if (streamed == nullptr && copies == nullptr) return;
  if (streamed == nullptr) streamed = &streaming_.emplace(key, Streamed{{view.attempt, view.step}}).first->second;
  if (copies != nullptr) bell.ReadDone(slot, view.epoch, static_cast<uint32_t>(streamed->crcs.size()), streamed->crcs);
  const uint32_t done = bell.DonePrefix(slot, view.epoch, streamed->chunks);
  if (done == streamed->chunks) return;
  streamed->chunks = done;
  if (streamed->flushed) services_.flusher.Captured(key, done);
  if (copies == nullptr) return;
  region::LayoutSet& set = *region_.FindLayout(layout);
  copies->Captured({options_.rank, streamed->id, set.head(), set.FileOf(slot), streamed->crcs});
}

// The flush of the fill, begun if it is to be; null while nobody knows whether it will be flushed.
RankRunner::Streamed* RankRunner::StreamOf(const FlushKey& key, const snapshot::SlotId& slot, const SnapshotId& id) {
  const auto known = streaming_.find(key);
  Streamed* streamed = known == streaming_.end() ? nullptr : &known->second;
  if (!machine_.flushes_all() || (streamed != nullptr && streamed->flushed)) return streamed;
  auto source = SourceOf(slot, id);
  if (!source.ok()) return streamed;
  services_.flusher.Begin(key, *std::move(source));
  if (streamed == nullptr) streamed = &streaming_.emplace(key, Streamed{id}).first->second;
  streamed->flushed = true;
  return streamed;
}

void RankRunner::Stop() {
  for (const auto& [key, streamed] : streaming_) services_.flusher.Discard(key);
  streaming_.clear();
}

void RankRunner::OnFlushed(const FlushOutcome& outcome) {
  snapshot::SlotId slot{outcome.key.layout, outcome.key.slot};
  if (!absl::IsCancelled(outcome.status)) channel_.NoteProblem(outcome.status);  // given up by us: no problem
  if (outcome.status.ok()) {
    unflushed_.erase(slot);
  } else {
    unflushed_[slot] = outcome.key.epoch;
  }
  Feed(snapshot::FlushEnded{slot, outcome.id, outcome.status});
}

bool RankRunner::flushing() const {
  snapshot::View view = machine_.view();
  return view.owes_flush ||
         std::any_of(view.slots.begin(), view.slots.end(), [](const auto& slot) { return slot.flushing; });
}

}  // namespace ckptd
