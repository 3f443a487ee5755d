#include "daemon/transport/sockets/socket_stream.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"

namespace ckptd::transport {
namespace {

constexpr size_t kHeadRoom = 64;  // before the data, which begins a line of the cache
static_assert(kHeadRoom >= kMaxFrameHead);

}  // namespace

SocketStream::SocketStream(std::unique_ptr<Wire> wire, std::string address, SeatPtr seat)
    : wire_(std::move(wire)),
      address_(std::move(address)),
      reader_([here = wire_.get()](std::span<std::byte> into) { return here->Read(into); }),
      seat_(std::move(seat)) {}

absl::StatusOr<std::shared_ptr<SocketStream>> SocketStream::Make(std::shared_ptr<ReadySet> set,
                                                                 std::unique_ptr<Wire> wire, std::string address,
                                                                 SeatPtr seat) {
  const int fd = wire->fd();
  auto stream = std::make_shared<SocketStream>(std::move(wire), std::move(address), std::move(seat));
  CKPTD_ASSIGN_OR_RETURN(stream->place_, ReadyPlace::Take(std::move(set), fd, stream));
  return stream;
}

void SocketStream::Watch(std::function<void()> changed) {
  MutexLock lock(mutex_);
  changed_ = std::move(changed);
}

void SocketStream::OnReady() {
  std::function<void()> changed;
  {
    MutexLock lock(mutex_);
    changed = changed_;
  }
  if (changed) changed();
}

// The driver has nothing to do until the socket is ready for more.
void SocketStream::Rest() {
  if (!closed_ && place_) place_->WaitFor(wire_->waits_for());
}

absl::StatusOr<std::optional<Incoming>> SocketStream::Take() {
  if (closed_) return std::nullopt;
  Pump();
  CKPTD_RETURN_IF_ERROR(cut_short_);
  CKPTD_ASSIGN_OR_RETURN(std::optional<FrameReader::Whole> frame, reader_.Take());
  if (!frame) {
    Rest();
    return std::nullopt;
  }
  Incoming incoming;
  incoming.data = frame->data;
  incoming.placed = frame->placed;
  incoming.crc = frame->crc;
  if (frame->kind == FrameKind::kMessage) {
    CKPTD_ASSIGN_OR_RETURN(incoming.message, DecodeMessage(frame->body));
  } else if (frame->kind == FrameKind::kChunk) {
    CKPTD_ASSIGN_OR_RETURN(incoming.header, DecodeChunk(frame->body));
  } else if (frame->kind == FrameKind::kHello) {
    return Error(ErrorCode::PROTOCOL, "Move: a second Hello");
  }
  return incoming;
}

void SocketStream::Pump() {
  if (SentAll()) return (void)wire_->Flush();
  if (!pending_.empty()) pending_ = pending_.subspan(wire_->Write(pending_, of_file_ != 0));
  if (pending_.empty() && of_file_ != 0) PumpFile();
}

// Its frame has begun: there is no way to send anything else after it.
void SocketStream::PumpFile() {
  const absl::StatusOr<size_t> took = wire_->SendFile(file_.fd, file_.offset, of_file_);
  if (!took.ok()) {
    cut_short_ = took.status();
    wire_->CutOff();
    return;
  }
  file_.offset += *took;
  of_file_ -= *took;
}

bool SocketStream::writable() {
  if (closed_ || end_said_ || wire_->mute() || !cut_short_.ok()) return false;
  Pump();
  if (SentAll()) return true;
  Rest();
  return false;
}

void SocketStream::SendBody(FrameKind kind, const std::string& body) {
  if (closed_ || end_said_) return;
  small_ = FrameHead(kind, body.size());
  small_ += body;
  pending_ = std::as_bytes(std::span(small_));
  Pump();
}

absl::Status SocketStream::SendData(size_t bytes, const std::function<absl::Status(std::span<std::byte> into)>& fill) {
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

absl::Status SocketStream::SendFile(size_t bytes, const FilePlace& from) {
  struct stat file {};
  if (fstat(from.fd, &file) != 0) return ErrnoError(errno, "fstat", "a file to be sent");
  if (static_cast<uint64_t>(file.st_size) < from.offset + bytes)
    return Error(ErrorCode::CORRUPT,
                 absl::StrCat("a file to be sent ends at ", file.st_size, ", before ", from.offset + bytes));
  if (closed_ || end_said_) return absl::OkStatus();
  small_ = FrameHead(FrameKind::kData, bytes);
  pending_ = std::as_bytes(std::span(small_));
  file_ = from;
  of_file_ = bytes;
  Pump();
  return absl::OkStatus();
}

void SocketStream::EndWrites() {
  if (closed_ || std::exchange(end_said_, true)) return;
  wire_->EndWrites();
}

// What the kernel has still arrives, if the other end reads it.
void SocketStream::Close(const absl::Status&) {
  if (std::exchange(closed_, true)) return;
  if (SentAll() && !end_said_ && !wire_->mute()) wire_->EndWrites();
  pending_ = {};
  of_file_ = 0;
  place_.reset();
  wire_->CutOff();
  seat_.reset();
  MutexLock lock(mutex_);
  changed_ = nullptr;
}

}  // namespace ckptd::transport
