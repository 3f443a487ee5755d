#include "daemon/transport/receive_run.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/core/copy/crc32c.h"
#include "daemon/base/errors.h"

namespace ckptd::transport {
namespace {

constexpr size_t kMostUnsaid = 1024;  // a sender that does not listen is not read from

}  // namespace

ReceiveRun::ReceiveRun(const Clock& clock, TransferName name, const TransferShape& shape, BulkTarget target,
                       const ReceiverLimits& limits, RunPatience patience)
    : TransferRun(clock, patience),
      shape_(shape),
      target_(std::move(target)),
      kept_(target_.keep),
      machine_(std::move(name), shape, limits, clock.Monotonic()) {}

bool ReceiveRun::ConnectedLocked(ConnectionId connection, Nanos now) {
  return machine_.Connected(connection, now).ok();
}
void ReceiveRun::LostLocked(ConnectionId connection, Nanos now) { machine_.Lost(connection, now); }
void ReceiveRun::TickLocked(Nanos now) { machine_.Tick(now); }
void ReceiveRun::AbortLocked(const absl::Status& why) { machine_.Abort(why); }
Nanos ReceiveRun::NextDeadlineLocked(Nanos) { return machine_.NextDeadline(); }
TransferState ReceiveRun::StateLocked() const { return machine_.state(); }
absl::Status ReceiveRun::StatusLocked() const { return machine_.status(); }

void ReceiveRun::Reset() {
  unsaid_.clear();
  came_ = Now();
  MutexLock lock(mutex_);
  for (const Arriving& chunk : arriving_) {
    if (chunk.placement == Placement::kInto) machine_.Broken(chunk.header);
  }
  arriving_.clear();
}

TransferRun::Turn ReceiveRun::Step(BulkStream& stream, Nanos* due) {
  const bool heard = unsaid_.size() < kMostUnsaid && Hear(stream);
  if (heard) came_ = Now();
  bool hang_up = false;
  {
    MutexLock lock(mutex_);
    machine_.Tick(Now());
    for (TransferMessage& message : machine_.TakeMessages()) unsaid_.push_back(std::move(message));
    hang_up = machine_.hang_up();
    *due = machine_.NextDeadline();
  }
  const bool said = SayNext(stream);
  if (stream.ended() || Stalled(Now(), due)) return Turn::kOver;
  if (hang_up && (unsaid_.empty() || Now() - came_ >= patience_.farewell)) {
    Leave(stream);
    return Turn::kOver;
  }
  if (hang_up) *due = std::min(*due, came_ + patience_.farewell);
  return heard || said ? Turn::kAgain : Turn::kWait;
}

bool ReceiveRun::SayNext(BulkStream& stream) {
  if (unsaid_.empty() || !stream.writable()) return false;
  stream.Say(unsaid_.front());
  unsaid_.pop_front();
  return true;
}

// The sender owes the rest of a chunk that it began, the next one, and, when all are there, the end of the connection;
// one that has nothing to send gives the connection back long before (SenderLimits::idle). So it is stopped, or the
// network is, and keeps neither the thread nor, once nobody comes back, the memory.
bool ReceiveRun::Stalled(Nanos now, Nanos* due) const {
  *due = std::min(*due, came_ + patience_.stall);
  return now - came_ >= patience_.stall;
}

bool ReceiveRun::Hear(BulkStream& stream) {
  const absl::StatusOr<std::optional<Incoming>> came = stream.Take();
  if (!came.ok()) {
    Abort(came.status());
    return true;
  }
  if (!came->has_value()) return false;
  const Incoming& incoming = **came;
  if (incoming.header) {
    Begin(*incoming.header);
  } else if (incoming.message) {
    MutexLock lock(mutex_);
    machine_.Heard(connection_, *incoming.message);
  } else if (incoming.placed != 0) {
    Sum(incoming.placed, incoming.crc);
  } else {
    Fill(stream, incoming.data);
  }
  return true;
}

void ReceiveRun::Wrong(absl::string_view what) {
  MutexLock lock(mutex_);
  machine_.Abort(Error(ErrorCode::PROTOCOL, absl::StrCat(ToString(machine_.name()), ": the sender sends ", what)));
}

void ReceiveRun::Begin(const ChunkHeader& header) {
  if (!arriving_.empty() && arriving_.back().filled < arriving_.back().header.bytes)
    return Wrong("a chunk within a chunk");
  MutexLock lock(mutex_);
  const absl::StatusOr<Placement> placement = machine_.Header(connection_, header, Now());
  if (placement.ok()) arriving_.push_back(Arriving{header, *placement});
}

// Header() has checked that the chunk lies within the image, and has its length.
void ReceiveRun::Fill(BulkStream& stream, size_t bytes) {
  const bool begun = !arriving_.empty() && arriving_.back().filled < arriving_.back().header.bytes;
  if (!begun) {
    if (state() == TransferState::kRunning) Wrong("bytes of no chunk");
    return;
  }
  Arriving& chunk = arriving_.back();
  if (bytes > chunk.header.bytes - chunk.filled) return Wrong("more bytes than a chunk has");
  const uint64_t offset = shape_.Offset(chunk.header.chunk) + chunk.filled;
  chunk.filled += bytes;
  received_bytes_ += bytes;
  if (chunk.placement == Placement::kInto) {
    if (const auto crc = stream.Place(target_.bytes.subspan(offset, bytes))) Sum(bytes, *crc);
  } else if (chunk.filled == chunk.header.bytes) {
    arriving_.pop_back();
  }
}

// They are of the oldest chunk that goes into its place and is not whole.
void ReceiveRun::Sum(size_t bytes, uint32_t crc) {
  const auto chunk = std::find_if(arriving_.begin(), arriving_.end(),
                                  [](const Arriving& one) { return one.placement == Placement::kInto; });
  if (chunk == arriving_.end()) return;
  chunk->crc = Crc32cCombine(chunk->crc, crc, bytes);
  chunk->summed += bytes;
  if (chunk->summed < chunk->header.bytes) return;
  const Arriving whole = *chunk;
  arriving_.erase(chunk);
  Settle(whole);
}

// Its owner hears of it before the sender does.
void ReceiveRun::Settle(const Arriving& chunk) {
  absl::Status wanted;
  if (chunk.crc == chunk.header.crc && target_.verified) wanted = target_.verified(chunk.header.chunk, chunk.crc);
  MutexLock lock(mutex_);
  const uint32_t before = machine_.verified();
  if (wanted.ok()) {
    machine_.Settled(chunk.header, chunk.crc, Now());
  } else {
    machine_.Broken(chunk.header);
    machine_.Abort(wanted);
  }
  if (machine_.verified() != before) verified_bytes_ += chunk.header.bytes;
}

}  // namespace ckptd::transport
