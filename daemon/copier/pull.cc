// First the wait for `ready`; then every copy is enqueued with a mark behind each stretch, and one behind the last;
// then, in small steps, whatever has become possible: to release the gate, for which training may be waiting, then to
// publish a chunk, to have a block summed, or to sum one. No step waits for the GPU, so that the end of the capture or
// of the trainer is seen at once.
#include "daemon/copier/pull.h"

#include <algorithm>

#include "client/core/copy/capture_word.h"
#include "daemon/copier/failpoint.h"

namespace ckptd {
namespace {

using std::chrono::microseconds;
using std::chrono::nanoseconds;

constexpr uint32_t kSpins = 64;
constexpr nanoseconds kFirstWait = microseconds(10);
constexpr nanoseconds kMostUntilReady = microseconds(1000);
constexpr nanoseconds kMostUntilCopied = microseconds(200);  // training may be waiting for `released`
constexpr uint64_t kPartsPerLook = 16;                       // of copies that the driver does while we wait

}  // namespace

nanoseconds LookAgainAfter(uint32_t looks, nanoseconds most) {
  if (looks < kSpins) return nanoseconds(0);
  return std::min(most, kFirstWait * (int64_t{1} << std::min(looks - kSpins, 20u)));
}

Pull::Pull(const PullParts& parts, const CopierCopy& copy)
    : parts_(parts),
      copy_(copy),
      word_(parts.slots.bell_slot(copy.slot)),
      line_(parts.gate.lines[copy.line]),
      slot_(parts.slots.slot(copy.slot)),
      stretch_bytes_(StretchBytes(parts.slots.slot_bytes(), parts.slots.chunk_bytes())),
      sums_(parts.team, slot_, parts.slots.slot_bytes(), parts.slots.chunk_bytes()),
      check_(copy.epoch, copy.step, copy.attempt) {}

PullEnd Pull::Run() {
  CKPTD_COPIER_FP("copy.begin");
  AwaitReady();
  CKPTD_COPIER_FP("copy.ready");
  if (Going()) SendCopying();
  if (Going()) Enqueue();
  CKPTD_COPIER_FP("copy.enqueued");
  Follow();
  Complete();
  return Finish();
}

// The first error counts.
bool Pull::Check(const char* what, const DeviceError& error) {
  if (error.ok()) return true;
  if (state_ == State::kDevice) return false;
  state_ = State::kDevice;
  failure_ = {CopierOutcome::kDevice, std::string(what) + ": " + Sentence(error), error.fault};
  return false;
}

// Between any two steps: is the capture still wanted, and by whom?
void Pull::Look(nanoseconds most) {
  if (!parts_.channel.Watch(LookAgainAfter(looks_++, most))) state_ = State::kClosed;
  if (Going() && !IsOpen(word_, copy_.epoch)) state_ = State::kStopped;
}

void Pull::AwaitReady() {
  do {
    Look(kMostUntilReady);
  } while (Going() && line_.ready.load(std::memory_order_acquire) != copy_.serial);
  looks_ = 0;
}

void Pull::SendCopying() {
  CopierSerial copying = {};
  copying.head = copy_.head;
  copying.head.type = static_cast<uint16_t>(CopierMessageType::kCopying);
  copying.head.size = sizeof copying;
  copying.serial = copy_.serial;
  parts_.channel.Hint({reinterpret_cast<const uint8_t*>(&copying), sizeof copying});
}

void Pull::Enqueue() {
  parts_.stream.Forget();
  for (const CopierPiece& piece : parts_.pieces) {
    if (!Going()) break;
    EnqueuePiece(piece);
  }
  if (Going()) Mark();
  end_marked_ = Check("copy", parts_.stream.MarkEnd());
}

void Pull::EnqueuePiece(const CopierPiece& piece) {
  for (uint64_t from = 0; from < piece.bytes && Going();) {
    const Part part = PartOf(piece, from, stretch_bytes_);
    if (part.stretch != marking_) Mark();
    marking_ = part.stretch;
    touched_ = true;
    enqueued_ = true;
    const DeviceAddress source = parts_.imports[piece.allocation].base + part.offset;
    Check("copy", parts_.stream.CopyOut(slot_, part.slot_offset, source, part.bytes));
    looks_ = 0;
    if (Going() && ++parts_seen_ % kPartsPerLook == 0) Look(kMostUntilCopied);
    from += part.bytes;
  }
}

void Pull::Mark() {
  if (touched_) Check("copy", parts_.stream.Mark(marking_));
  touched_ = false;
}

void Pull::Follow() {
  looks_ = 0;
  while (Going() && !(released_ && chunk_ > parts_.slots.chunk_count())) {
    bool moved = Release();
    if (Going()) moved = Publish() || moved;
    if (moved) looks_ = 0;
    if (Going()) Look(kMostUntilCopied);
  }
}

// True when something was done.
bool Pull::Release() {
  if (released_) return false;
  DeviceError error = parts_.stream.QueryEnd();
  if (error.fault == DeviceFault::kNotReady || !Check("copy", error)) return false;
  enqueued_ = false;
  CKPTD_COPIER_FP("copy.copied");
  line_.released.store(copy_.serial, std::memory_order_release);
  released_ = true;
  CKPTD_COPIER_FP("copy.released");
  return true;
}

// True when something was done.
bool Pull::Publish() {
  const SlotSet& slots = parts_.slots;
  if (chunk_ > slots.chunk_count() || !parts_.channel.HostIsDone(copy_.serial)) return false;
  if (chunk_ == slots.chunk_count()) {
    PublishCheck();
    return true;
  }
  if (sums_.IsReady()) {
    TakeSum();
    return true;
  }
  return AddBlock() || (Going() && sums_.Help());
}

// False: there is no room, or its bytes have not come.
bool Pull::AddBlock() {
  if (!sums_.CanAdd()) return false;
  const uint64_t stretch = sums_.added() / stretch_bytes_;
  if (sums_.added() % stretch_bytes_ == 0 && parts_.stream.IsMarked(stretch)) {
    DeviceError error = parts_.stream.Query(stretch);
    if (error.fault == DeviceFault::kNotReady || !Check("copy", error)) return false;
  }
  sums_.Add();
  return true;
}

void Pull::TakeSum() {
  const std::optional<uint32_t> crc = sums_.Take();
  if (crc.has_value()) PublishChunk(*crc);
}

void Pull::PublishChunk(uint32_t crc) {
  parts_.slots.entry(copy_.slot, chunk_).store(ChunkEntry(copy_.epoch, crc), std::memory_order_release);
  parts_.gate.progress.fetch_add(1, std::memory_order_relaxed);
  check_.Add(crc);
  chunk_ += 1;
  CKPTD_COPIER_FP("copy.chunk");
  // The trainer wakes the agent, which may stream what is published.
  if (chunk_ * parts_.slots.chunk_bytes() % stretch_bytes_ == 0) SendCopying();
}

void Pull::PublishCheck() {
  parts_.slots.entry(copy_.slot, chunk_).store(ChunkEntry(copy_.epoch, check_.value()), std::memory_order_release);
  chunk_ += 1;
}

void Pull::Complete() {
  CKPTD_COPIER_FP("copy.complete");
  if (Going() && copy_.complete != 0 && !TryComplete(word_, copy_.epoch)) state_ = State::kStopped;
}

// Behind the answer nothing writes to the slot. The word is moved before the gate opens: from then on the trainer
// changes what the capture was to hold.
PullEnd Pull::Finish() {
  if (state_ == State::kClosed) return {PullEnd::Kind::kClosed, {}};
  if (state_ == State::kDevice) TryAbandon(word_, copy_.epoch);
  if (enqueued_) {
    DeviceError error = Drain();
    if (state_ == State::kClosed) return {PullEnd::Kind::kClosed, {}};
    if (!Check("copy", error)) TryAbandon(word_, copy_.epoch);
    Outcome drained = DeviceFails("copy", error);
    if (drained.IsBroken()) failure_ = drained;  // and with the context its copies have ended
    enqueued_ = !error.ok() && !drained.IsBroken();
  }
  if (!released_) line_.released.store(copy_.serial, std::memory_order_release);
  if (enqueued_) return {PullEnd::Kind::kHung, failure_};
  if (state_ == State::kDevice) return {PullEnd::Kind::kAnswer, failure_};
  if (state_ == State::kStopped) {
    return {PullEnd::Kind::kAnswer, {CopierOutcome::kStopped, "the capture was given up", DeviceFault::kNone}};
  }
  return {};
}

// Until no copy is under way. Without the mark only the whole stream can be waited for.
DeviceError Pull::Drain() {
  looks_ = 0;
  while (end_marked_) {
    DeviceError error = parts_.stream.QueryEnd();
    if (error.ok()) return {};
    if (error.fault != DeviceFault::kNotReady) break;
    if (!parts_.channel.Watch(LookAgainAfter(looks_++, kMostUntilCopied))) {
      state_ = State::kClosed;
      return {};
    }
  }
  return parts_.stream.device().Synchronize(parts_.stream.stream());
}

}  // namespace ckptd
