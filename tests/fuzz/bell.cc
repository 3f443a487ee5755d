// Feeds the memory in which a trainer tells of its fills (proto/local/bell.h) to an agent that takes it over
// (Bell::Attach), reads it and seals what it says.
//
// A fill is believed only if its check holds: then each chunk's entry is of its epoch, and a record made of it reads
// back. Otherwise nothing may come of it. An abandoned word is never complete afterwards.
#include "daemon/region/bell.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "client/core/copy/fill_check.h"
#include "daemon/os/memfd.h"
#include "daemon/region/record.h"
#include "proto/local/region.h"
#include "tests/fuzz/fuzz.h"

namespace ckptd::fuzz {

using region::Bell;
using region::BellSlotView;
using region::CtlHead;

const Allowed kAllowed = {64 << 10, 16};

namespace {

constexpr uint32_t kSlots = 2;
constexpr uint32_t kChunks = 3;
constexpr uint64_t kSlotsOffset = 128;  // behind the head, on a cache line

const CtlHead& TestHead() {
  static const CtlHead* const head = [] {
    const region::LayoutSpec spec = {.job = "gpt",
                                     .uid = 1000,
                                     .rank = 0,
                                     .world = 1,
                                     .slot_count = kSlots,
                                     .header_crc = 7,
                                     .chunk_bytes = kMinChunkBytes,
                                     .images = {{0, kMinChunkBytes * kChunks, 4096}}};
    auto* made = new CtlHead(*region::MakeCtlHead(spec, 77, 1, 0));
    made->block.bell_id = 78;  // random otherwise, and inputs would mean something else each time
    return made;
  }();
  return *head;
}

// Says the same as the agent: from what stands in the input, by the rules of the format.
bool MayBeSealed(const uint64_t* row, const BellSlotView& view) {
  FillCheck check(view.epoch, view.step, view.attempt);
  for (uint32_t i = 0; i < kChunks; ++i) {
    if (row[i] >> 32 != (view.epoch & UINT32_MAX)) return false;
    check.Add(static_cast<uint32_t>(row[i]));
  }
  return row[kChunks] == (view.epoch << 32 | check.value());
}

void CheckSealed(const BellSlotView& view, std::vector<uint32_t> crcs) {
  RecordHead head{};
  head.attempt = view.attempt;
  head.step = view.step;
  head.epoch = view.epoch;
  auto record = region::MakeRecord(TestHead(), head, std::move(crcs));
  FUZZ_CHECK(record.ok() == (view.attempt != 0 && view.epoch != 0));
  if (!record.ok()) return;
  std::vector<std::byte> bytes(TestHead().block.record_stride);
  std::memcpy(bytes.data(), &record->head, sizeof(record->head));
  std::memcpy(bytes.data() + sizeof(record->head), record->chunk_crcs.data(),
              record->chunk_crcs.size() * sizeof(uint32_t));
  auto read = region::ParseRecord(TestHead(), bytes, view.epoch);
  FUZZ_CHECK(read.ok() && read->chunk_crcs == record->chunk_crcs && read->id() == record->id());
}

void CheckSlot(Bell& bell, uint32_t slot, const uint64_t* row) {
  const BellSlotView view = bell.ReadSlot(slot);
  FUZZ_CHECK(view.epoch <= kMaxEpoch && view.ack <= view.epoch && view.end_ns >= view.begin_ns);
  auto crcs = bell.ReadChunks(slot, view);
  FUZZ_CHECK(crcs.ok() == MayBeSealed(row, view));
  const uint32_t prefix = bell.DonePrefix(slot, view.epoch, 0);
  FUZZ_CHECK(prefix <= kChunks);
  FUZZ_CHECK(!crcs.ok() || prefix == kChunks);
  if (crcs.ok()) CheckSealed(view, *std::move(crcs));
  if (view.epoch == 0) return;  // the word makes no sense, and no grant is of epoch 0
  const auto outcome = bell.Abandon(slot, view.epoch);
  FUZZ_CHECK((outcome == region::AbandonOutcome::kComplete) ==
             (view.state == CaptureState::kComplete && bell.ReadSlot(slot).epoch == view.epoch));
}

bool Within(size_t place, size_t begin, size_t bytes) { return place >= begin && place < begin + bytes; }

}  // namespace

// Inputs are the file behind the head; the head is ours but for what byte 0 and 1 change in it.
void Run(Input input) {
  static const uint64_t bytes = region::BellBytes(TestHead());
  static auto* const fresh = Bell::Create(TestHead())->release();
  std::vector<uint8_t> file(bytes);
  FUZZ_CHECK(pread(fresh->fd(), file.data(), kSlotsOffset, 0) == static_cast<ssize_t>(kSlotsOffset));
  Reader in(input);
  const auto at = in.Take<uint8_t>();
  const auto flip = in.Take<uint8_t>();
  file[at % kSlotsOffset] ^= flip;
  in.Fill(file.data() + offsetof(BellHead, pos), sizeof(BellHead) - offsetof(BellHead, pos));
  in.Fill(file.data() + kSlotsOffset, bytes - kSlotsOffset);

  UniqueFd fd = *CreateMemfd("fuzz-bell", bytes);
  FUZZ_CHECK(pwrite(fd.get(), file.data(), bytes, 0) == static_cast<ssize_t>(bytes));
  FUZZ_CHECK(AddSeals(fd.get(), kSealsOfSize).ok());
  auto bell = Bell::Attach(std::move(fd), TestHead());
  const size_t place = at % kSlotsOffset;
  const bool in_minor = Within(place, offsetof(BellHead, minor), sizeof(BellHead::minor));
  const bool in_length = Within(place, offsetof(BellHead, head_bytes), sizeof(BellHead::head_bytes));
  if (!in_length) FUZZ_CHECK(bell.ok() == (flip == 0 || in_minor || place >= offsetof(BellHead, pos)));
  if (!bell.ok()) return;
  FUZZ_CHECK((*bell)->Read().slots.size() == kSlots);
  uint64_t rows[kSlots][kChunks + 1];
  std::memcpy(rows, file.data() + kSlotsOffset + kSlots * sizeof(BellSlot), sizeof(rows));
  for (uint32_t slot = 0; slot < kSlots; ++slot) CheckSlot(**bell, slot, rows[slot]);
}

// The check of each fill.
void Repair(std::vector<uint8_t>& input) {
  constexpr size_t kFirst = 2 + sizeof(BellHead) - offsetof(BellHead, pos);
  constexpr size_t kRow = (kChunks + 1) * sizeof(uint64_t);
  if (input.size() < kFirst + kSlots * (sizeof(BellSlot) + kRow)) return;
  for (size_t slot = 0; slot < kSlots; ++slot) {
    uint64_t words[4];  // word, ack, step, attempt
    uint64_t row[kChunks + 1];
    uint8_t* const at = input.data() + kFirst + kSlots * sizeof(BellSlot) + slot * kRow;
    std::memcpy(words, input.data() + kFirst + slot * sizeof(BellSlot), sizeof(words));
    std::memcpy(row, at, sizeof(row));
    const uint64_t epoch = CaptureEpoch(words[0]);
    FillCheck check(epoch, words[2], words[3]);
    for (uint32_t i = 0; i < kChunks; ++i) {
      row[i] = ChunkEntry(epoch, static_cast<uint32_t>(row[i]));
      check.Add(static_cast<uint32_t>(row[i]));
    }
    row[kChunks] = ChunkEntry(epoch, check.value());
    std::memcpy(at, row, sizeof(row));
  }
}

}  // namespace ckptd::fuzz
