// The receiving end of a transfer at work (transfer_run.h). The checksum of each piece is made by the stream, as it
// puts it into its place or right behind that, while it is in the cache.
#ifndef CKPTD_DAEMON_TRANSPORT_RECEIVE_RUN_H_
#define CKPTD_DAEMON_TRANSPORT_RECEIVE_RUN_H_

#include <deque>

#include "daemon/transport/copies.h"
#include "daemon/transport/transfer_run.h"

namespace ckptd::transport {

class ReceiveRun final : public TransferRun {
 public:
  // target.bytes has the bytes of the shape.
  ReceiveRun(const Clock& clock, TransferName name, const TransferShape& shape, BulkTarget target,
             const ReceiverLimits& limits, RunPatience patience = {});

  // Any thread: bytes that came, also those that were damaged or cut.
  [[nodiscard]] uint64_t received_bytes() const { return received_bytes_; }
  // Whether it is this memory that is filled, or was.
  [[nodiscard]] bool Fills(const BulkTarget& target) const { return target.keep && kept_.lock() == target.keep; }
  // While nobody drives it: it has ended, and needs the memory no more.
  void LetGo() { target_ = {}; }

 private:
  bool ConnectedLocked(ConnectionId connection, Nanos now) override CKPTD_REQUIRES(mutex_);
  void LostLocked(ConnectionId connection, Nanos now) override CKPTD_REQUIRES(mutex_);
  void TickLocked(Nanos now) override CKPTD_REQUIRES(mutex_);
  void AbortLocked(const absl::Status& why) override CKPTD_REQUIRES(mutex_);
  Nanos NextDeadlineLocked(Nanos now) override CKPTD_REQUIRES(mutex_);
  TransferState StateLocked() const override CKPTD_REQUIRES(mutex_);
  absl::Status StatusLocked() const override CKPTD_REQUIRES(mutex_);
  Turn Step(BulkStream& stream, Nanos* due) override CKPTD_EXCLUDES(mutex_);
  void Reset() override CKPTD_EXCLUDES(mutex_);

  // A chunk that is on its way.
  struct Arriving {
    ChunkHeader header;
    Placement placement = Placement::kPassOver;
    uint64_t filled = 0;  // bytes that have their place
    uint64_t summed = 0;  // bytes that are in place
    uint32_t crc = 0;     // of these
  };

  [[nodiscard]] bool Hear(BulkStream& stream) CKPTD_EXCLUDES(mutex_);
  void Begin(const ChunkHeader& header) CKPTD_EXCLUDES(mutex_);
  void Fill(BulkStream& stream, size_t bytes) CKPTD_EXCLUDES(mutex_);
  void Sum(size_t bytes, uint32_t crc) CKPTD_EXCLUDES(mutex_);
  void Settle(const Arriving& chunk) CKPTD_EXCLUDES(mutex_);
  void Wrong(absl::string_view what) CKPTD_EXCLUDES(mutex_);
  [[nodiscard]] bool Stalled(Nanos now, Nanos* due) const;
  [[nodiscard]] bool SayNext(BulkStream& stream);

  const TransferShape shape_;
  BulkTarget target_;
  const std::weak_ptr<void> kept_;
  TransferReceiver machine_ CKPTD_GUARDED_BY(mutex_);
  std::atomic<uint64_t> received_bytes_{0};
  // The driving thread's:
  std::deque<Arriving> arriving_;  // only the last may have bytes that have no place yet
  std::deque<TransferMessage> unsaid_;
  Nanos came_{0};  // last frame
};

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_RECEIVE_RUN_H_
