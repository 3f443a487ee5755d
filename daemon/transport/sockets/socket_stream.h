// One bulk connection over a socket, from either side, once its first frame came (greeting.h). Frames follow each other
// as FrameHead and body (move_frame.h): the bytes are those of the protobuf messages MoveRequest and MoveResponse with
// one field each.
//
// Threads. Whoever drives the stream calls the socket himself (and encrypts, and decrypts, where the wire does), so
// there is no other thread to wait for, and after Close() nobody writes to his memory. The port's thread only says when
// the socket is ready again.
#ifndef CKPTD_DAEMON_TRANSPORT_SOCKETS_SOCKET_STREAM_H_
#define CKPTD_DAEMON_TRANSPORT_SOCKETS_SOCKET_STREAM_H_

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "daemon/base/mutex.h"
#include "daemon/transport/bulk_port.h"
#include "daemon/transport/move_frame.h"
#include "daemon/transport/sockets/frame_reader.h"
#include "daemon/transport/sockets/ready_set.h"
#include "daemon/transport/sockets/wire.h"

namespace ckptd::transport {

// One of those that are counted.
class Seat {
 public:
  using Count = std::shared_ptr<std::atomic<size_t>>;
  explicit Seat(Count count) : count_(std::move(count)) { ++*count_; }
  ~Seat() { --*count_; }
  Seat(const Seat&) = delete;
  Seat& operator=(const Seat&) = delete;

 private:
  const Count count_;
};
using SeatPtr = std::unique_ptr<Seat>;

class SocketStream final : public BulkGuest, public Ready {
 public:
  [[nodiscard]] static absl::StatusOr<std::shared_ptr<SocketStream>> Make(std::shared_ptr<ReadySet> set,
                                                                          std::unique_ptr<Wire> wire,
                                                                          std::string address, SeatPtr seat);
  SocketStream(std::unique_ptr<Wire> wire, std::string address, SeatPtr seat);
  ~SocketStream() override { Close(absl::OkStatus()); }

  // BulkGuest, BulkStream.
  void Answer(const std::string& body) override { SendBody(FrameKind::kHello, body); }
  void Refuse(const absl::Status& why) override { SendBody(FrameKind::kMessage, Encode(StopOf(why))); }
  [[nodiscard]] std::string address() const override { return address_; }
  [[nodiscard]] std::optional<CertificateNames> names() const override { return wire_->names(); }
  void Watch(std::function<void()> changed) override CKPTD_EXCLUDES(mutex_);
  absl::StatusOr<std::optional<Incoming>> Take() override;
  [[nodiscard]] std::optional<uint32_t> Place(std::span<std::byte> into) override {
    return closed_ ? std::nullopt : reader_.Place(into);
  }
  bool ended() override { return closed_ || wire_->read_over(); }
  bool writable() override;
  void Say(const TransferMessage& message) override { SendBody(FrameKind::kMessage, Encode(message)); }
  void SendHeader(const ChunkHeader& header) override { SendBody(FrameKind::kChunk, EncodeChunk(header)); }
  absl::Status SendData(size_t bytes, const std::function<absl::Status(std::span<std::byte> into)>& fill) override;
  [[nodiscard]] bool sends_files() const override { return wire_->sends_files(); }
  absl::Status SendFile(size_t bytes, const FilePlace& from) override;
  void EndWrites() override;
  void Close(const absl::Status& why) override CKPTD_EXCLUDES(mutex_);

  // Ready.
  void OnReady() override CKPTD_EXCLUDES(mutex_);
  void CutOff() override { wire_->CutOff(); }

 private:
  void SendBody(FrameKind kind, const std::string& body);
  void Pump();
  void PumpFile();
  [[nodiscard]] bool SentAll() const { return pending_.empty() && of_file_ == 0; }
  void Rest();

  // Whoever drives it:
  const std::unique_ptr<Wire> wire_;
  const std::string address_;
  std::unique_ptr<ReadyPlace> place_;
  FrameReader reader_;
  SeatPtr seat_;
  std::string small_;                    // the frame that is sent now, or
  std::unique_ptr<std::byte[]> buffer_;  // this, of data: its head, too
  std::span<const std::byte> pending_;   // what the wire has not taken of it
  FilePlace file_;                       // after it
  size_t of_file_ = 0;                   // so many bytes
  absl::Status cut_short_;               // the file
  bool end_said_ = false;
  bool closed_ = false;

  Mutex mutex_;
  std::function<void()> changed_ CKPTD_GUARDED_BY(mutex_);
};

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_SOCKETS_SOCKET_STREAM_H_
