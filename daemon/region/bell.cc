#include "daemon/region/bell.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/core/copy/fill_check.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/base/units.h"
#include "daemon/os/event_fd.h"
#include "daemon/os/memfd.h"

namespace ckptd::region {
namespace {

constexpr uint64_t kLine = 64;
constexpr uint64_t kSlotsOffset = (sizeof(BellHead) + kLine - 1) / kLine * kLine;
// What the head says of itself, without the words that move.
constexpr size_t kFixedHeadBytes = offsetof(BellHead, pos);
// Minor 0 had no `wanted` at first. What a head lacks up to the slots is 0.
constexpr uint32_t kLeastHeadBytes = offsetof(BellHead, wanted);

uint64_t ChunksOffset(uint64_t slots) { return kSlotsOffset + slots * sizeof(BellSlot); }

void FillHead(BellHead& head, const Superblock& block, uint64_t file_bytes) {
  head.magic = kBellMagic;
  head.major = kRegionMajor;
  head.minor = kRegionMinor;
  head.head_bytes = sizeof(BellHead);
  head.bell_id = block.bell_id;
  head.region_id = block.region_id;
  head.layout = block.layout;
  head.slot_count = block.slot_count;
  head.chunk_count = block.chunk_count;
  head.reserved0 = 0;
  head.slots_offset = kSlotsOffset;
  head.chunks_offset = ChunksOffset(block.slot_count);
  head.file_bytes = file_bytes;
}

// A bell is read by the numbers of the ctl file, never by its own: they must be the same, byte for byte. But it may be
// of an agent of another minor, which its trainer has outlived: minors only add.
bool SameHead(const BellHead& ours, const std::byte* theirs) {
  BellHead copy{};
  std::memcpy(static_cast<void*>(&copy), theirs, kFixedHeadBytes);
  if (copy.head_bytes < kLeastHeadBytes || copy.head_bytes > kSlotsOffset) return false;
  copy.minor = ours.minor;
  copy.head_bytes = ours.head_bytes;
  return std::memcmp(&copy, &ours, kFixedHeadBytes) == 0;
}

uint64_t Load(const std::atomic<uint64_t>& word) { return word.load(std::memory_order_acquire); }

}  // namespace

uint64_t BellBytes(const CtlHead& ctl) {
  const uint64_t entries = uint64_t{ctl.block.slot_count} * BellRow(ctl.block.chunk_count);
  return RoundUp(ChunksOffset(ctl.block.slot_count) + entries * sizeof(uint64_t), 4096);
}

Bell::Bell(UniqueFd fd, UniqueFd hint, Mapping mapping, const CtlHead& ctl)
    : fd_(std::move(fd)),
      hint_(std::move(hint)),
      mapping_(std::move(mapping)),
      bell_id_(ctl.block.bell_id),
      slot_count_(ctl.block.slot_count),
      chunk_count_(ctl.block.chunk_count) {}

absl::StatusOr<std::unique_ptr<Bell>> Bell::Create(const CtlHead& ctl) {
  const uint64_t bytes = BellBytes(ctl);
  CKPTD_ASSIGN_OR_RETURN(UniqueFd fd, CreateMemfd("ckptd-bell", bytes));
  CKPTD_RETURN_IF_ERROR(AddSeals(fd.get(), kSealsOfSize));
  CKPTD_ASSIGN_OR_RETURN(Mapping mapping, Mapping::Map(fd.get(), bytes, MapAccess::kReadWrite));
  CKPTD_ASSIGN_OR_RETURN(UniqueFd hint, CreateEventFd());
  FillHead(*new (mapping.data()) BellHead, ctl.block, bytes);
  return std::unique_ptr<Bell>(new Bell(std::move(fd), std::move(hint), std::move(mapping), ctl));
}

absl::StatusOr<std::unique_ptr<Bell>> Bell::Attach(UniqueFd fd, const CtlHead& ctl) {
  const uint64_t bytes = BellBytes(ctl);
  CKPTD_ASSIGN_OR_RETURN(uint64_t size, CheckMemfd(fd.get(), kSealsOfSize, bytes));
  if (size != bytes) return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat("bell: ", size, " bytes, not ", bytes));
  CKPTD_ASSIGN_OR_RETURN(Mapping mapping, Mapping::Map(fd.get(), bytes, MapAccess::kReadWrite));
  BellHead expected{};
  FillHead(expected, ctl.block, bytes);
  if (!SameHead(expected, mapping.data()))
    return Error(ErrorCode::REFUSED, absl::StrCat("bell: not of job ", ctl.job(), " rank ", ctl.block.rank, " layout ",
                                                  ctl.block.layout, " of this region"));
  CKPTD_ASSIGN_OR_RETURN(UniqueFd hint, CreateEventFd());
  return std::unique_ptr<Bell>(new Bell(std::move(fd), std::move(hint), std::move(mapping), ctl));
}

BellHead& Bell::head() const { return *reinterpret_cast<BellHead*>(mapping_.data()); }

BellSlot& Bell::slot(uint32_t slot) const { return reinterpret_cast<BellSlot*>(mapping_.data() + kSlotsOffset)[slot]; }

std::atomic<uint64_t>* Bell::chunks(uint32_t slot) const {
  auto* all = reinterpret_cast<std::atomic<uint64_t>*>(mapping_.data() + ChunksOffset(slot_count_));
  return all + slot * BellRow(chunk_count_);
}

BellView Bell::Read() const {
  BellView view;
  view.pos = Load(head().pos);
  view.pos_attempt = Load(head().pos_attempt);
  view.wanted = Load(head().wanted);
  view.wanted_attempt = Load(head().wanted_attempt);
  view.dropped = Load(head().dropped);
  view.drop_code = Load(head().drop_code);
  for (uint32_t i = 0; i < slot_count_; ++i) view.slots.push_back(ReadSlot(i));
  return view;
}

BellPosition Bell::ReadPosition() const {
  const StepId step = Load(head().pos);
  return {Load(head().pos_attempt), step};
}

BellSlotView Bell::ReadSlot(uint32_t index) const {
  const BellSlot& from = slot(index);
  const uint64_t word = Load(from.word);
  BellSlotView view{.epoch = CaptureEpoch(word),
                    .state = CaptureStateOf(word),
                    .ack = Load(from.ack),
                    .step = Load(from.step),
                    .attempt = Load(from.attempt),
                    .trace = Load(from.trace),
                    .begin_ns = Load(from.begin_ns),
                    .end_ns = Load(from.end_ns),
                    .blocked_ns = Load(from.blocked_ns)};
  if (view.epoch > kMaxEpoch || view.ack > view.epoch || view.state == CaptureState::kNone) return {};
  view.end_ns = std::max(view.end_ns, view.begin_ns);
  return view;
}

absl::StatusOr<std::vector<uint32_t>> Bell::ReadChunks(uint32_t index, const BellSlotView& view) const {
  std::vector<uint32_t> crcs(chunk_count_);
  const std::atomic<uint64_t>* entries = chunks(index);
  FillCheck check(view.epoch, view.step, view.attempt);
  for (uint32_t i = 0; i < chunk_count_; ++i) {
    const uint64_t entry = Load(entries[i]);
    if (!ChunkDone(entry, view.epoch))
      return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat("bell slot ", index, " epoch ", view.epoch, ": chunk ", i,
                                                             " of ", chunk_count_, " has no checksum"));
    crcs[i] = static_cast<uint32_t>(entry);
    check.Add(crcs[i]);
  }
  if (Load(entries[chunk_count_]) != ChunkEntry(view.epoch, check.value()))
    return Error(ErrorCode::INVALID_ARGUMENT,
                 absl::StrCat("bell slot ", index, " epoch ", view.epoch, " step ", view.step, ": its check is wrong"));
  return crcs;
}

uint32_t Bell::DonePrefix(uint32_t slot, Epoch epoch, uint32_t from) const {
  const std::atomic<uint64_t>* entries = chunks(slot);
  while (from < chunk_count_ && ChunkDone(entries[from].load(std::memory_order_acquire), epoch)) ++from;
  return from;
}

void Bell::ReadDone(uint32_t slot, Epoch epoch, uint32_t from, std::vector<uint32_t>& crcs) const {
  const std::atomic<uint64_t>* entries = chunks(slot);
  for (; from < chunk_count_; ++from) {
    const uint64_t entry = entries[from].load(std::memory_order_acquire);
    if (!ChunkDone(entry, epoch)) return;
    crcs.push_back(static_cast<uint32_t>(entry));
  }
}

void Bell::Open(uint32_t index, Epoch epoch) {
  BellSlot& to = slot(index);
  to.step.store(0, std::memory_order_relaxed);
  to.ack.store(0, std::memory_order_relaxed);  // whatever stray write stands there: it would be above every epoch
  uint64_t seen = to.word.load(std::memory_order_relaxed);
  while (!to.word.compare_exchange_weak(seen, CaptureWord(epoch, CaptureState::kOpen), std::memory_order_acq_rel)) {
  }
}

AbandonOutcome Bell::Abandon(uint32_t index, Epoch epoch) {
  uint64_t seen = CaptureWord(epoch, CaptureState::kOpen);
  if (slot(index).word.compare_exchange_strong(seen, CaptureWord(epoch, CaptureState::kAbandoned),
                                               std::memory_order_acq_rel))
    return AbandonOutcome::kAbandoned;
  if (CaptureEpoch(seen) != epoch) return AbandonOutcome::kNotOpen;
  if (CaptureStateOf(seen) == CaptureState::kComplete) return AbandonOutcome::kComplete;
  return CaptureStateOf(seen) == CaptureState::kAbandoned ? AbandonOutcome::kAbandoned : AbandonOutcome::kNotOpen;
}

}  // namespace ckptd::region
