#include "daemon/transport/transfer_run.h"

#include <utility>

#include "daemon/base/errors.h"

namespace ckptd::transport {

void Wake::Set() {
  MutexLock lock(mutex_);
  set_ = true;
  changed_.NotifyAll();
}

// A deadline far away is none: adding to it would overflow.
void Wake::WaitUntil(Nanos deadline) {
  constexpr Nanos kLong = std::chrono::hours(24 * 365 * 100);
  const std::chrono::steady_clock::time_point until(std::min(deadline, kLong));
  MutexLock lock(mutex_);
  while (!set_) {
    if (!changed_.WaitUntil(mutex_, until)) break;
  }
  set_ = false;
}

void TransferRun::Drive(BulkStream& stream) {
  stream.Watch([wake = wake_] { wake->Set(); });
  Reset();
  ConnectionId connection = 0;
  bool connected = false;
  {
    MutexLock lock(mutex_);
    connection = ++connection_;
    connected = ConnectedLocked(connection, Now());
  }
  if (connected) Go(stream);
  stream.Close(status());
  while (!stream.quiet()) wake_->WaitUntil(Nanos::max());  // the next connection writes to the same memory
  Reset();
  MutexLock lock(mutex_);
  LostLocked(connection, Now());
}

void TransferRun::Go(BulkStream& stream) {
  while (!cut_) {
    Nanos due = Nanos::max();
    const Turn turn = Step(stream, &due);
    if (turn == Turn::kOver) return;
    if (turn == Turn::kWait) Wait(due);
  }
}

void TransferRun::Wait(Nanos until) {
  const bool starves = Starves();
  const Nanos since = Now();
  wake_->WaitUntil(until);
  if (starves) starved_ = starved_.load() + (Now() - since);
}

void TransferRun::Leave(BulkStream& stream) {
  const Nanos until = Now() + patience_.farewell;
  bool said = false;
  while (!stream.ended() && Now() < until && !cut_) {
    const absl::StatusOr<std::optional<Incoming>> came = stream.Take();
    if (!came.ok()) return;
    if (!said && stream.writable()) {
      stream.EndWrites();
      said = true;
    }
    if (!came->has_value() && !stream.ended()) wake_->WaitUntil(until);
  }
}

void TransferRun::Vain() {
  MutexLock lock(mutex_);
  const ConnectionId connection = ++connection_;
  if (ConnectedLocked(connection, Now())) LostLocked(connection, Now());
}

void TransferRun::Abort(const absl::Status& why) {
  {
    MutexLock lock(mutex_);
    AbortLocked(why);
  }
  WakeUp();
}

void TransferRun::Cut() {
  cut_ = true;
  WakeUp();
}

void TransferRun::Tick() {
  MutexLock lock(mutex_);
  TickLocked(Now());
}

Nanos TransferRun::NextDeadline() {
  MutexLock lock(mutex_);
  return NextDeadlineLocked(Now());
}

TransferState TransferRun::state() {
  MutexLock lock(mutex_);
  return StateLocked();
}

absl::Status TransferRun::status() {
  MutexLock lock(mutex_);
  return StatusLocked();
}

}  // namespace ckptd::transport
