// Feeds what a trainer hands its copier (daemon/copier), in three turns that byte 0 chooses: a packet with a number of
// descriptors, a plan, and the estate of a dead trainer (rescue page and bell).
//
// Of an estate a step counts only if it is the one that the GPU has come to and no update had begun; and only a slot
// that is lent and open may take it. A fill that was taken must be complete in the word, with its epoch.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "client/core/copy/capture_word.h"
#include "daemon/copier/memory.h"
#include "daemon/copier/plan.h"
#include "daemon/copier/requests.h"
#include "daemon/copier/rescue.h"
#include "tests/fuzz/fuzz.h"

namespace ckptd::fuzz {

const Allowed kAllowed = {64 << 10, 16};

namespace {

constexpr uint32_t kSlots = 2;
constexpr uint64_t kSlotBytes = kMinChunkBytes;

void FeedPacket(Reader& in) {
  const size_t descriptors = in.Take<uint8_t>() % 20;
  const Input packet = in.Bytes(SIZE_MAX);
  const bool good = CheckRequest(packet, descriptors).ok();
  FUZZ_CHECK(!IsHostDone(packet, descriptors) || good);
  if (!good) return;
  const auto head = ReadMessage<MessageHead>(packet);
  FUZZ_CHECK(head.size == packet.size() && head.magic == kMessageMagic);
  FUZZ_CHECK(!CheckRequest(packet, descriptors + 1).ok());
}

// What is accepted lies inside, each piece behind the one before.
void FeedPlan(Reader& in) {
  const uint64_t slot_bytes = in.Take<uint64_t>() >> 16;
  std::vector<ImportedAllocation> imports(in.Take<uint8_t>() % 4);
  for (ImportedAllocation& import : imports) import.bytes = in.Take<uint64_t>();
  std::vector<CopierPiece> pieces;
  while (!in.done() && pieces.size() < 64) pieces.push_back(in.Take<CopierPiece>());
  if (!CheckPieces(pieces, imports, slot_bytes).ok()) return;
  unsigned __int128 end = 0;
  for (const CopierPiece& piece : pieces) {
    FUZZ_CHECK(piece.slot_offset >= end);
    end = static_cast<unsigned __int128>(piece.slot_offset) + piece.bytes;
    FUZZ_CHECK(end <= slot_bytes);
    FUZZ_CHECK(static_cast<unsigned __int128>(piece.offset) + piece.bytes <= imports.at(piece.allocation).bytes);
    if (piece.bytes == 0) continue;
    const Part part = PartOf(piece, 0, kMinChunkBytes);
    FUZZ_CHECK(part.bytes > 0 && part.bytes <= piece.bytes);
    FUZZ_CHECK(part.slot_offset / kMinChunkBytes == (part.slot_offset + part.bytes - 1) / kMinChunkBytes);
  }
}

// One chunk a slot. The bell is written anew for each input; everything else stays.
struct World {
  UniqueFd bell;
  std::vector<uint8_t> head;  // of a bell that is right
  std::unique_ptr<SlotSet> slots;
};

constexpr uint64_t kBellSlots = 128;
constexpr uint64_t kBellChunks = kBellSlots + kSlots * sizeof(BellSlot);
constexpr uint64_t kBellBytes = 4096;

UniqueFd SealedMemory(uint64_t bytes) {
  UniqueFd fd(memfd_create("fuzz-copier", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  FUZZ_CHECK(ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0);
  FUZZ_CHECK(fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
  return fd;
}

void SetHead(BellHead& head) {
  head.magic = kBellMagic;
  head.major = kRegionMajor;
  head.head_bytes = sizeof(head);
  head.slot_count = kSlots;
  head.chunk_count = 1;
  head.slots_offset = kBellSlots;
  head.chunks_offset = kBellChunks;
  head.file_bytes = kBellBytes;
}

void WriteBell(int fd, const void* bytes, uint64_t size) {
  FUZZ_CHECK(pwrite(fd, bytes, size, 0) == static_cast<ssize_t>(size));
}

CopierSlots TestRequest() {
  CopierSlots request = {};
  request.slot_bytes = kSlotBytes;
  request.chunk_bytes = kMinChunkBytes;
  request.slot_count = kSlots;
  request.chunk_count = 1;
  return request;
}

World& TheWorld() {
  static auto* const world = [] {
    auto* made = new World;
    std::vector<UniqueFd> fds;
    fds.push_back(SealedMemory(kBellBytes));
    BellHead head{};
    SetHead(head);
    WriteBell(fds[0].get(), &head, sizeof(head));
    for (uint32_t i = 0; i < kSlots; ++i) fds.push_back(SealedMemory(kSlotBytes));
    FUZZ_CHECK(SlotSet::Open(TestRequest(), fds, &made->slots).ok());
    made->bell = std::move(fds[0]);
    return made;
  }();
  return *world;
}

void CheckLast(const RescuePage& page, const LastStep& last) {
  FUZZ_CHECK(page.armed == 1 && last.serial == page.done && last.serial != 0);
  for (const auto& begun : page.begun) FUZZ_CHECK(begun <= last.serial);
  FUZZ_CHECK(last.area < kRescueAreas && page.areas[last.area].serial == last.serial);
  FUZZ_CHECK(last.step == page.areas[last.area].step && last.attempt == page.areas[last.area].attempt);
  FUZZ_CHECK(last.step != 0 && last.attempt != 0);
}

// The end of CaptureEstate, without a GPU to copy from.
void Capture(const LastStep& last) {
  SlotSet& slots = *TheWorld().slots;
  const std::optional<LentSlot> lent = FindLentSlot(slots, last);
  if (!lent.has_value()) return;
  FUZZ_CHECK(lent->slot < kSlots);
  BellSlot& slot = slots.bell_slot(lent->slot);
  FUZZ_CHECK(CaptureStateOf(slot.word) == CaptureState::kOpen && CaptureEpoch(slot.word) == lent->epoch);
  FUZZ_CHECK(slot.step == 0 || (slot.step == last.step && slot.attempt == last.attempt));
  FUZZ_CHECK(TryComplete(slot, lent->epoch));
  FUZZ_CHECK(slot.word == CaptureWord(lent->epoch, CaptureState::kComplete));
  const std::optional<LentSlot> again = FindLentSlot(slots, last);
  FUZZ_CHECK(!again.has_value() || again->slot != lent->slot);
}

void FeedEstate(Reader& in) {
  RescuePage page;
  in.Fill(static_cast<void*>(&page), sizeof(page));
  BellHead head{};
  SetHead(head);
  const auto trusted = in.Take<uint8_t>() % 4 != 0;
  in.Fill(static_cast<void*>(&head.pos), sizeof(head) - offsetof(BellHead, pos));
  if (!trusted) in.Fill(static_cast<void*>(&head), sizeof(head));
  BellPlaces places;
  if (CheckBell(head, kBellBytes, TestRequest(), &places).ok()) {
    FUZZ_CHECK(places.slots <= kBellBytes - kSlots * sizeof(BellSlot) && places.slots >= sizeof(BellHead));
    FUZZ_CHECK(places.chunks <= kBellBytes - kSlots * BellRow(1) * sizeof(uint64_t));
  }
  if (!trusted) return;
  uint8_t bell[kBellBytes] = {};
  std::memcpy(bell, static_cast<void*>(&head), sizeof(head));
  in.Fill(bell + kBellSlots, kBellBytes - kBellSlots);
  WriteBell(TheWorld().bell.get(), bell, sizeof(bell));
  const std::optional<LastStep> last = FindLastStep(page);
  if (!last.has_value()) return;
  CheckLast(page, *last);
  Capture(*last);
}

}  // namespace

void Run(Input input) {
  Reader in(input);
  switch (in.Take<uint8_t>() % 3) {
    case 0:
      return FeedPacket(in);
    case 1:
      return FeedPlan(in);
    default:
      return FeedEstate(in);
  }
}

// A packet's magic and length.
void Repair(std::vector<uint8_t>& input) {
  constexpr size_t kBegin = 2;
  if (input.size() < kBegin + sizeof(MessageHead) || input[0] % 3 != 0) return;
  const auto size = static_cast<uint32_t>(input.size() - kBegin);
  std::memcpy(input.data() + kBegin + offsetof(MessageHead, magic), &kMessageMagic, sizeof(kMessageMagic));
  std::memcpy(input.data() + kBegin + offsetof(MessageHead, size), &size, sizeof(size));
}

}  // namespace ckptd::fuzz
