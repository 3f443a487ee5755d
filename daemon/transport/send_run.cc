#include "daemon/transport/send_run.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/failpoint.h"

namespace ckptd::transport {

SendRun::SendRun(const Clock& clock, TransferName name, const TransferShape& shape, BulkSource source,
                 const SenderLimits& limits, RunPatience patience)
    : TransferRun(clock, patience),
      shape_(shape),
      source_(std::move(source)),
      machine_(std::move(name), shape, limits) {}

bool SendRun::Starves() {
  MutexLock lock(mutex_);
  return machine_.Starves();
}

bool SendRun::Rests() {
  MutexLock lock(mutex_);
  return machine_.Rests();
}

bool SendRun::GaveBack() {
  MutexLock lock(mutex_);
  return machine_.gave_back();
}

absl::Status SendRun::ChunkReady(uint32_t chunk, uint32_t crc) {
  {
    MutexLock lock(mutex_);
    absl::Status ready = machine_.ChunkReady(chunk, crc);
    if (!ready.ok()) return ready;
  }
  WakeUp();
  return absl::OkStatus();
}

bool SendRun::ConnectedLocked(ConnectionId connection, Nanos now) {
  machine_.Connected(connection, now);
  return true;
}
void SendRun::LostLocked(ConnectionId connection, Nanos now) { machine_.Lost(connection, now); }
void SendRun::TickLocked(Nanos now) { machine_.Tick(now); }
void SendRun::AbortLocked(const absl::Status& why) { machine_.Abort(why); }
Nanos SendRun::NextDeadlineLocked(Nanos now) { return machine_.NextDeadline(now); }
TransferState SendRun::StateLocked() const { return machine_.state(); }
absl::Status SendRun::StatusLocked() const { return machine_.status(); }

TransferRun::Turn SendRun::Step(BulkStream& stream, Nanos* due) {
  const bool heard = Hear(stream);
  std::optional<Stop> stop;
  bool hang_up = false;
  {
    MutexLock lock(mutex_);
    machine_.Tick(Now());
    stop = machine_.TakeStop();
    hang_up = machine_.hang_up();
    *due = machine_.NextDeadline(Now());
  }
  if (hang_up) return GoAway(stream, stop);
  if (stream.ended()) return Turn::kOver;
  const bool wrote = stream.writable() && Write(stream);
  return heard || wrote ? Turn::kAgain : Turn::kWait;
}

// Whoever is silent is not waited for.
TransferRun::Turn SendRun::GoAway(BulkStream& stream, const std::optional<Stop>& stop) {
  if (stop && stream.writable()) stream.Say(*stop);
  if (stop || state() == TransferState::kComplete) Leave(stream);
  return Turn::kOver;
}

bool SendRun::Hear(BulkStream& stream) {
  absl::StatusOr<std::optional<Incoming>> came = stream.Take();
  if (!came.ok()) {
    Abort(came.status());
    return true;
  }
  if (!came->has_value()) return false;
  Heard(**came);
  return true;
}

void SendRun::Heard(const Incoming& incoming) {
  MutexLock lock(mutex_);
  if (incoming.message)
    machine_.Heard(connection_, *incoming.message, Now());
  else
    machine_.Abort(
        Error(ErrorCode::PROTOCOL, absl::StrCat(ToString(machine_.name()), ": the receiver sends chunks, too")));
  // The last chunk may be shorter than the others.
  const uint64_t whole = machine_.verified() * shape_.chunk_bytes();
  verified_bytes_ = std::min(whole, shape_.image_bytes());
}

bool SendRun::Write(BulkStream& stream) {
  if (sending_) {
    WritePiece(stream);
    return true;
  }
  {
    MutexLock lock(mutex_);
    sending_ = machine_.Next(Now());
  }
  sent_ = 0;
  if (sending_) stream.SendHeader(*sending_);
  return sending_.has_value();
}

absl::Status SendRun::Send(BulkStream& stream, size_t bytes, uint64_t offset) const {
  CKPTD_FP("copy.send");
  if (source_.file.fd >= 0 && stream.sends_files())
    return stream.SendFile(bytes, {source_.file.fd, source_.file.offset + offset});
  return stream.SendData(bytes, [&](std::span<std::byte> into) { return source_.read(offset, into); });
}

void SendRun::WritePiece(BulkStream& stream) {
  const size_t piece = std::min<uint64_t>(kMaxPiece, sending_->bytes - sent_);
  const uint64_t offset = shape_.Offset(sending_->chunk) + sent_;
  const absl::Status sent = Send(stream, piece, offset);
  if (!sent.ok()) return Abort(sent);
  sent_ += piece;
  sent_bytes_ += piece;
  if (sent_ == sending_->bytes) sending_.reset();
}

}  // namespace ckptd::transport
