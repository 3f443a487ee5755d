// The sending end of a transfer at work (transfer_run.h).
#ifndef CKPTD_DAEMON_TRANSPORT_SEND_RUN_H_
#define CKPTD_DAEMON_TRANSPORT_SEND_RUN_H_

#include <optional>

#include "daemon/transport/copies.h"
#include "daemon/transport/transfer_run.h"

namespace ckptd::transport {

class SendRun final : public TransferRun {
 public:
  SendRun(const Clock& clock, TransferName name, const TransferShape& shape, BulkSource source,
          const SenderLimits& limits, RunPatience patience = {});

  // Any thread: TransferSender::ChunkReady.
  [[nodiscard]] absl::Status ChunkReady(uint32_t chunk, uint32_t crc) CKPTD_EXCLUDES(mutex_);
  [[nodiscard]] bool Rests() override CKPTD_EXCLUDES(mutex_);
  [[nodiscard]] bool GaveBack() override CKPTD_EXCLUDES(mutex_);
  // Any thread: bytes of chunks that went out, also those that were lost.
  [[nodiscard]] uint64_t sent_bytes() const { return sent_bytes_; }

 private:
  bool ConnectedLocked(ConnectionId connection, Nanos now) override CKPTD_REQUIRES(mutex_);
  void LostLocked(ConnectionId connection, Nanos now) override CKPTD_REQUIRES(mutex_);
  void TickLocked(Nanos now) override CKPTD_REQUIRES(mutex_);
  void AbortLocked(const absl::Status& why) override CKPTD_REQUIRES(mutex_);
  Nanos NextDeadlineLocked(Nanos now) override CKPTD_REQUIRES(mutex_);
  TransferState StateLocked() const override CKPTD_REQUIRES(mutex_);
  absl::Status StatusLocked() const override CKPTD_REQUIRES(mutex_);
  Turn Step(BulkStream& stream, Nanos* due) override CKPTD_EXCLUDES(mutex_);
  [[nodiscard]] bool Starves() override CKPTD_EXCLUDES(mutex_);
  void Reset() override { sending_.reset(); }

  [[nodiscard]] bool Hear(BulkStream& stream) CKPTD_EXCLUDES(mutex_);
  void Heard(const Incoming& incoming) CKPTD_EXCLUDES(mutex_);
  [[nodiscard]] bool Write(BulkStream& stream) CKPTD_EXCLUDES(mutex_);
  void WritePiece(BulkStream& stream) CKPTD_EXCLUDES(mutex_);
  [[nodiscard]] absl::Status Send(BulkStream& stream, size_t bytes, uint64_t offset) const;
  Turn GoAway(BulkStream& stream, const std::optional<Stop>& stop) CKPTD_EXCLUDES(mutex_);

  const TransferShape shape_;
  const BulkSource source_;
  TransferSender machine_ CKPTD_GUARDED_BY(mutex_);
  std::atomic<uint64_t> sent_bytes_{0};
  // The driving thread's:
  std::optional<ChunkHeader> sending_;
  uint64_t sent_ = 0;  // of it
};

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_SEND_RUN_H_
