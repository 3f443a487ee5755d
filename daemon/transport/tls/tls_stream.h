// One bulk connection over TLS 1.3, from either side, once its first frame came (tls_greeting.h). Frames follow each
// other as FrameHead and body (move_frame.h): the bytes are those of the protobuf messages MoveRequest and MoveResponse
// with one field each. The end of what is sent is TLS's close_notify; an end without it counts as a cut.
//
// Threads. Whoever drives the stream encrypts, decrypts and calls the socket himself, so there is no other thread to
// wait for, and after Close() nobody writes to his memory. The port's thread only says when the socket is ready again.
#ifndef CKPTD_DAEMON_TRANSPORT_TLS_TLS_STREAM_H_
#define CKPTD_DAEMON_TRANSPORT_TLS_TLS_STREAM_H_

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "daemon/base/mutex.h"
#include "daemon/transport/bulk_port.h"
#include "daemon/transport/move_frame.h"
#include "daemon/transport/tls/frame_reader.h"
#include "daemon/transport/tls/ready_set.h"
#include "daemon/transport/tls/tls_wire.h"

namespace ckptd::transport {

// One of those that are counted.
class TlsSeat {
 public:
  using Count = std::shared_ptr<std::atomic<size_t>>;
  explicit TlsSeat(Count count) : count_(std::move(count)) { ++*count_; }
  ~TlsSeat() { --*count_; }
  TlsSeat(const TlsSeat&) = delete;
  TlsSeat& operator=(const TlsSeat&) = delete;

 private:
  const Count count_;
};
using TlsSeatPtr = std::unique_ptr<TlsSeat>;

class TlsStream final : public BulkGuest, public Ready {
 public:
  [[nodiscard]] static absl::StatusOr<std::shared_ptr<TlsStream>> Make(std::shared_ptr<ReadySet> set,
                                                                       std::unique_ptr<TlsWire> wire,
                                                                       std::string address, TlsSeatPtr seat);
  TlsStream(std::unique_ptr<TlsWire> wire, std::string address, TlsSeatPtr seat);
  ~TlsStream() override { Close(absl::OkStatus()); }

  // BulkGuest, BulkStream.
  void Answer(const std::string& body) override { SendBody(FrameKind::kHello, body); }
  void Refuse(const absl::Status& why) override { SendBody(FrameKind::kMessage, Encode(StopOf(why))); }
  [[nodiscard]] std::string address() const override { return address_; }
  [[nodiscard]] std::optional<CertificateNames> names() const override { return wire_->names(); }
  void Watch(std::function<void()> changed) override CKPTD_EXCLUDES(mutex_);
  absl::StatusOr<std::optional<Incoming>> Take() override;
  [[nodiscard]] bool Place(std::span<std::byte> into) override { return !closed_ && reader_.Place(into); }
  bool ended() override { return closed_ || wire_->read_over(); }
  bool writable() override;
  void Say(const TransferMessage& message) override { SendBody(FrameKind::kMessage, Encode(message)); }
  void SendHeader(const ChunkHeader& header) override { SendBody(FrameKind::kChunk, EncodeChunk(header)); }
  absl::Status SendData(size_t bytes, const std::function<absl::Status(std::span<std::byte> into)>& fill) override;
  void EndWrites() override;
  void Close(const absl::Status& why) override CKPTD_EXCLUDES(mutex_);

  // Ready.
  void OnReady() override CKPTD_EXCLUDES(mutex_);
  void CutOff() override { wire_->CutOff(); }

 private:
  void SendBody(FrameKind kind, const std::string& body);
  void Pump();
  void Rest();

  // Whoever drives it:
  const std::unique_ptr<TlsWire> wire_;
  const std::string address_;
  std::unique_ptr<ReadyPlace> place_;
  FrameReader reader_;
  TlsSeatPtr seat_;
  std::string small_;                    // the frame that is sent now, or
  std::unique_ptr<std::byte[]> buffer_;  // this, of data: its head, too
  std::span<const std::byte> pending_;   // what is not encrypted of it
  bool end_said_ = false;
  bool closed_ = false;

  Mutex mutex_;
  std::function<void()> changed_ CKPTD_GUARDED_BY(mutex_);
};

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_TLS_TLS_STREAM_H_
