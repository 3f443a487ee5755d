// One end of one transfer at work: TransferSender or TransferReceiver over a BulkStream, and over the next one when
// that has ended. The machines decide; here the bytes move, and the clock is looked at.
//
//   SendRun run(clock, name, shape, source, limits);
//   run.ChunkReady(7, crc);           // any thread, before or while it is driven
//   run.Drive(stream);                // a thread that has nothing else to do; returns when the stream has ended
//   run.state() == kRunning           // the connection was lost: with another one it goes on
//
// Drive belongs to one thread at a time, everything else may be called by any. No lock is held over I/O; the thread
// sleeps on a condition variable until something came, may be written, became ready, or is due.
#ifndef CKPTD_DAEMON_TRANSPORT_TRANSFER_RUN_H_
#define CKPTD_DAEMON_TRANSPORT_TRANSFER_RUN_H_

#include <algorithm>
#include <atomic>
#include <memory>

#include "absl/status/status.h"
#include "daemon/base/clock.h"
#include "daemon/base/mutex.h"
#include "daemon/transport/bulk_stream.h"
#include "daemon/transport/transfer_rules.h"
#include "daemon/transport/transfer_sender.h"

namespace ckptd::transport {

// Something happened. Kept by the stream's callbacks as long as they need it.
class Wake {
 public:
  void Set() CKPTD_EXCLUDES(mutex_);
  // Until Set, of which one is consumed, or `deadline` of the monotonic clock.
  void WaitUntil(Nanos deadline) CKPTD_EXCLUDES(mutex_);

 private:
  Mutex mutex_;
  CondVar changed_;
  bool set_ CKPTD_GUARDED_BY(mutex_) = false;
};

struct RunPatience {
  Nanos farewell = std::chrono::seconds(1);  // for the last words to go out
  Nanos stall = std::chrono::seconds(10);    // a receiver's, between two frames of any kind
};

class TransferRun {
 public:
  // `clock` is monotonic real time and outlives it.
  TransferRun(const Clock& clock, RunPatience patience) : clock_(clock), patience_(patience) {}
  virtual ~TransferRun() = default;

  // Closes the stream at the end. Prepare comes first, before anybody may want to Cut it.
  void Prepare() { cut_ = false; }
  void Drive(BulkStream& stream) CKPTD_EXCLUDES(mutex_);

  // A connection could not be made.
  void Vain() CKPTD_EXCLUDES(mutex_);
  // The transfer is over with `why`, unless it was already.
  void Abort(const absl::Status& why) CKPTD_EXCLUDES(mutex_);
  // Ends the present connection only.
  void Cut();
  // While nobody drives it: deadlines.
  void Tick() CKPTD_EXCLUDES(mutex_);
  [[nodiscard]] Nanos NextDeadline() CKPTD_EXCLUDES(mutex_);

  [[nodiscard]] TransferState state() CKPTD_EXCLUDES(mutex_);
  [[nodiscard]] absl::Status status() CKPTD_EXCLUDES(mutex_);
  [[nodiscard]] uint64_t verified_bytes() const { return verified_bytes_; }
  // Nobody drives it: a connection would be of no use until a chunk is ready.
  [[nodiscard]] virtual bool Rests() CKPTD_EXCLUDES(mutex_) { return false; }
  // The last connection was given back because it was of no use, which is no sign of trouble.
  [[nodiscard]] virtual bool GaveBack() CKPTD_EXCLUDES(mutex_) { return false; }
  // Of the time that it was driven, what it waited for its own source: that says nothing of the connection.
  [[nodiscard]] Nanos starved() const { return starved_; }

 protected:
  enum class Turn { kAgain, kWait, kOver };

  // What the two machines have in common.
  // False: it cannot go on.
  virtual bool ConnectedLocked(ConnectionId connection, Nanos now) CKPTD_REQUIRES(mutex_) = 0;
  virtual void LostLocked(ConnectionId connection, Nanos now) CKPTD_REQUIRES(mutex_) = 0;
  virtual void TickLocked(Nanos now) CKPTD_REQUIRES(mutex_) = 0;
  virtual void AbortLocked(const absl::Status& why) CKPTD_REQUIRES(mutex_) = 0;
  [[nodiscard]] virtual Nanos NextDeadlineLocked(Nanos now) CKPTD_REQUIRES(mutex_) = 0;
  [[nodiscard]] virtual TransferState StateLocked() const CKPTD_REQUIRES(mutex_) = 0;
  [[nodiscard]] virtual absl::Status StatusLocked() const CKPTD_REQUIRES(mutex_) = 0;

  // The driving thread's. One step; kWait: nothing to do before `due`.
  [[nodiscard]] virtual Turn Step(BulkStream& stream, Nanos* due) CKPTD_EXCLUDES(mutex_) = 0;
  // Of a sender that kWait: for its source.
  [[nodiscard]] virtual bool Starves() CKPTD_EXCLUDES(mutex_) { return false; }
  // A connection begins, or has ended: what belonged to it is forgotten.
  virtual void Reset() CKPTD_EXCLUDES(mutex_) = 0;
  // Nothing more is sent; waits a little for the other end to be done, too.
  void Leave(BulkStream& stream);

  [[nodiscard]] Nanos Now() const { return clock_.Monotonic(); }
  void WakeUp() { wake_->Set(); }

  const Clock& clock_;
  const RunPatience patience_;
  Mutex mutex_;
  ConnectionId connection_ CKPTD_GUARDED_BY(mutex_) = 0;
  std::atomic<uint64_t> verified_bytes_{0};

 private:
  void Go(BulkStream& stream);
  void Wait(Nanos until);

  std::atomic<Nanos> starved_{Nanos(0)};
  const std::shared_ptr<Wake> wake_ = std::make_shared<Wake>();
  std::atomic<bool> cut_{false};
};

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_TRANSFER_RUN_H_
