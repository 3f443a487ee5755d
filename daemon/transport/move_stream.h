// One call of Copies.Move as a BulkStream, from either side: gRPC's reactors. They decide nothing. Data is read into
// the memory that gRPC sends from, and copied once, and summed, from where gRPC received it. One message is on its way
// to gRPC at a time, and two from it: HTTP/2 slows down whoever sends faster than is read.
#ifndef CKPTD_DAEMON_TRANSPORT_MOVE_STREAM_H_
#define CKPTD_DAEMON_TRANSPORT_MOVE_STREAM_H_

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "daemon/base/mutex.h"
#include "daemon/transport/bulk_stream.h"
#include "daemon/transport/dial_stream.h"
#include "daemon/transport/move_frame.h"
#include "daemon/transport/visit.h"
#include "proto/ckptd/v1/copy.pb.h"

namespace ckptd::transport {

// What both sides have in common.
class MoveStream : public BulkStream {
 public:
  void Watch(std::function<void()> changed) override CKPTD_EXCLUDES(mutex_);
  absl::StatusOr<std::optional<Incoming>> Take() override CKPTD_EXCLUDES(mutex_);
  std::optional<uint32_t> Place(std::span<std::byte> into) override;
  bool ended() override CKPTD_EXCLUDES(mutex_);
  bool writable() override CKPTD_EXCLUDES(mutex_);
  void Say(const TransferMessage& message) override { SendBody(FrameKind::kMessage, Encode(message)); }
  void SendHeader(const ChunkHeader& header) override { SendBody(FrameKind::kChunk, EncodeChunk(header)); }
  absl::Status SendData(size_t bytes, const std::function<absl::Status(std::span<std::byte> into)>& fill) override;

 protected:
  // gRPC's threads. The first message is not a frame of the transfer: `First` gets it, or nothing when none came.
  void ReadDone(bool ok) CKPTD_EXCLUDES(mutex_);
  void WriteDone(bool ok) CKPTD_EXCLUDES(mutex_);
  virtual void First(bool came) = 0;
  // The body of the first message.
  [[nodiscard]] absl::StatusOr<std::string> TakeHello();

  // gRPC's calls.
  virtual void DoRead(grpc::ByteBuffer* into) = 0;
  virtual void DoWrite(const grpc::ByteBuffer* from) = 0;
  void StartReading() CKPTD_EXCLUDES(mutex_);
  void SendBody(FrameKind kind, const std::string& body) CKPTD_EXCLUDES(mutex_);
  [[nodiscard]] bool writing() CKPTD_EXCLUDES(mutex_);
  void MarkOver() CKPTD_EXCLUDES(mutex_);

 private:
  void Send(FrameKind kind, grpc::Slice body, size_t bytes) CKPTD_EXCLUDES(mutex_);
  [[nodiscard]] absl::StatusOr<FrameStart> ParseHead();
  [[nodiscard]] std::string Bytes(size_t from, size_t most) const;

  Mutex mutex_;
  std::function<void()> changed_ CKPTD_GUARDED_BY(mutex_);
  bool first_ CKPTD_GUARDED_BY(mutex_) = true;
  bool have_ CKPTD_GUARDED_BY(mutex_) = false;  // incoming_ is whole, and not taken
  bool over_ CKPTD_GUARDED_BY(mutex_) = false;
  bool writing_ CKPTD_GUARDED_BY(mutex_) = false;
  bool mute_ CKPTD_GUARDED_BY(mutex_) = false;  // a write failed
  grpc::ByteBuffer incoming_;                   // gRPC's while it reads
  grpc::ByteBuffer outgoing_;                   // gRPC's while it writes
  std::vector<grpc::Slice> slices_;             // of the frame that was taken
  size_t total_ = 0;
  size_t head_ = 0;
};

// From the caller's side.
class MoveCall final : private grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>, public MoveStream {
 public:
  using Answered = std::function<void(absl::StatusOr<v1::HelloResponse>)>;
  // `answered` on a thread of gRPC, once: with an error the call has ended. Close() ends it in any case.
  [[nodiscard]] static std::shared_ptr<MoveCall> Start(std::shared_ptr<grpc::Channel> channel,
                                                       const v1::MoveHello& hello, Answered answered,
                                                       std::shared_ptr<Pending> pending);
  void EndWrites() override;
  void Close(const absl::Status& why) override;

 private:
  MoveCall(std::shared_ptr<grpc::Channel> channel, Answered answered, std::shared_ptr<Pending> pending);
  void First(bool came) override;
  void DoRead(grpc::ByteBuffer* into) override { StartRead(into); }
  // Not after its end: gRPC would touch the context of a call that is over.
  void DoWrite(const grpc::ByteBuffer* from) override {
    if (!released_) StartWrite(from);
  }
  void OnReadDone(bool ok) override { ReadDone(ok); }
  void OnWriteDone(bool ok) override { WriteDone(ok); }
  void OnDone(const grpc::Status& status) override;

  const std::shared_ptr<grpc::Channel> channel_;
  const Answered answered_;
  const std::shared_ptr<Pending> pending_;
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  bool refused_ = false;  // gRPC's threads, one after the other
  std::atomic<bool> released_{false};
  std::shared_ptr<MoveCall> self_;  // until gRPC is done with it
};

class MoveVisit;

// Told on gRPC's threads.
struct MoveVisitEvents {
  std::function<void(std::shared_ptr<MoveVisit>, absl::StatusOr<v1::MoveHello>)> said;  // the first message
  std::function<void(const MoveVisit*)> done;                                           // gRPC has let go of it
};

// From the callee's side.
class MoveVisit final : private grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>, public MoveStream {
 public:
  MoveVisit(Caller caller, grpc::CallbackServerContext* context, MoveVisitEvents events)
      : caller_(std::move(caller)), context_(context), events_(std::move(events)) {}
  grpc::ServerGenericBidiReactor* Begin(std::shared_ptr<MoveVisit> self);

  [[nodiscard]] const Caller& caller() const { return caller_; }
  // Of the owner: whether the first message was heard.
  void SetHeard() { heard_ = true; }
  [[nodiscard]] bool heard() const { return heard_; }
  // The answer to the first message; then it is a BulkStream.
  void Answer(const v1::HelloResponse& answer) { SendBody(FrameKind::kHello, answer.SerializeAsString()); }
  void EndWrites() override { Close(absl::OkStatus()); }
  void Close(const absl::Status& why) override;

 private:
  void First(bool came) override;
  void DoRead(grpc::ByteBuffer* into) override {
    if (!closed_) StartRead(into);
  }
  void DoWrite(const grpc::ByteBuffer* from) override {
    if (!closed_) StartWrite(from);
  }
  void OnReadDone(bool ok) override { ReadDone(ok); }
  void OnWriteDone(bool ok) override { WriteDone(ok); }
  void OnDone() override;

  const Caller caller_;
  grpc::CallbackServerContext* const context_;
  const MoveVisitEvents events_;
  bool heard_ = false;
  std::atomic<bool> closed_{false};
  std::shared_ptr<MoveVisit> self_;
};

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_MOVE_STREAM_H_
