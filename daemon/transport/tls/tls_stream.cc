#include "daemon/transport/tls/tls_stream.h"

#include <cstring>

#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"

namespace ckptd::transport {
namespace {

constexpr size_t kHeadRoom = 64;  // before the data, which begins a line of the cache
static_assert(kHeadRoom >= kMaxFrameHead);

}  // namespace

TlsStream::TlsStream(std::unique_ptr<TlsWire> wire, std::string address, TlsSeatPtr seat)
    : wire_(std::move(wire)),
      address_(std::move(address)),
      reader_([here = wire_.get()](std::span<std::byte> into) { return here->Read(into); }),
      seat_(std::move(seat)) {}

absl::StatusOr<std::shared_ptr<TlsStream>> TlsStream::Make(std::shared_ptr<ReadySet> set, std::unique_ptr<TlsWire> wire,
                                                           std::string address, TlsSeatPtr seat) {
  const int fd = wire->fd();
  auto stream = std::make_shared<TlsStream>(std::move(wire), std::move(address), std::move(seat));
  CKPTD_ASSIGN_OR_RETURN(stream->place_, ReadyPlace::Take(std::move(set), fd, stream));
  return stream;
}

void TlsStream::Watch(std::function<void()> changed) {
  MutexLock lock(mutex_);
  changed_ = std::move(changed);
}

void TlsStream::OnReady() {
  std::function<void()> changed;
  {
    MutexLock lock(mutex_);
    changed = changed_;
  }
  if (changed) changed();
}

// The driver has nothing to do until the socket is ready for more.
void TlsStream::Rest() {
  if (!closed_ && place_) place_->WaitFor(wire_->waits_for());
}

absl::StatusOr<std::optional<Incoming>> TlsStream::Take() {
  if (closed_) return std::nullopt;
  Pump();
  CKPTD_ASSIGN_OR_RETURN(std::optional<FrameReader::Whole> frame, reader_.Take());
  if (!frame) {
    Rest();
    return std::nullopt;
  }
  Incoming incoming;
  incoming.data = frame->data;
  incoming.placed = frame->placed;
  if (frame->kind == FrameKind::kMessage) {
    CKPTD_ASSIGN_OR_RETURN(incoming.message, DecodeMessage(frame->body));
  } else if (frame->kind == FrameKind::kChunk) {
    CKPTD_ASSIGN_OR_RETURN(incoming.header, DecodeChunk(frame->body));
  } else if (frame->kind == FrameKind::kHello) {
    return Error(ErrorCode::PROTOCOL, "Move by TLS: a second Hello");
  }
  return incoming;
}

void TlsStream::Pump() {
  if (pending_.empty())
    (void)wire_->Flush();
  else
    pending_ = pending_.subspan(wire_->Write(pending_));
}

bool TlsStream::writable() {
  if (closed_ || end_said_ || wire_->mute()) return false;
  Pump();
  if (pending_.empty()) return true;
  Rest();
  return false;
}

void TlsStream::SendBody(FrameKind kind, const std::string& body) {
  if (closed_ || end_said_) return;
  small_ = FrameHead(kind, body.size());
  small_ += body;
  pending_ = std::as_bytes(std::span(small_));
  Pump();
}

absl::Status TlsStream::SendData(size_t bytes, const std::function<absl::Status(std::span<std::byte> into)>& fill) {
  if (!buffer_) buffer_.reset(new std::byte[kHeadRoom + kMaxPiece]);
  std::byte* const data = buffer_.get() + kHeadRoom;
  CKPTD_RETURN_IF_ERROR(fill(std::span<std::byte>(data, bytes)));
  if (closed_ || end_said_) return absl::OkStatus();
  const std::string head = FrameHead(FrameKind::kData, bytes);
  std::memcpy(data - head.size(), head.data(), head.size());
  pending_ = {data - head.size(), head.size() + bytes};
  Pump();
  return absl::OkStatus();
}

void TlsStream::EndWrites() {
  if (closed_ || std::exchange(end_said_, true)) return;
  wire_->EndWrites();
}

// What the kernel has still arrives, if the other end reads it.
void TlsStream::Close(const absl::Status&) {
  if (std::exchange(closed_, true)) return;
  if (pending_.empty() && !end_said_ && !wire_->mute()) wire_->EndWrites();
  pending_ = {};
  place_.reset();
  wire_->CutOff();
  seat_.reset();
  MutexLock lock(mutex_);
  changed_ = nullptr;
}

}  // namespace ckptd::transport
