#include "daemon/transport/move_stream.h"

#include <grpc/slice.h>

#include <algorithm>
#include <utility>

#include "client/core/copy/copy_crc.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/transport/grpc_status.h"

namespace ckptd::transport {
namespace {

constexpr char kMoveMethod[] = "/ckptd.v1.Copies/Move";

absl::Status NoHello() { return Error(ErrorCode::PROTOCOL, "Move begins with Hello; this one began otherwise"); }

}  // namespace

void MoveStream::StartReading() { DoRead(&incoming_); }

void MoveStream::ReadDone(bool ok) {
  std::function<void()> changed;
  bool first = false;
  {
    MutexLock lock(mutex_);
    have_ = ok;
    over_ = !ok;
    first = std::exchange(first_, false);
    changed = changed_;
  }
  if (first) return First(ok);
  if (changed) changed();
}

void MoveStream::WriteDone(bool ok) {
  std::function<void()> changed;
  {
    MutexLock lock(mutex_);
    writing_ = false;
    mute_ = mute_ || !ok;
    changed = changed_;
  }
  if (changed) changed();
}

void MoveStream::Watch(std::function<void()> changed) {
  {
    MutexLock lock(mutex_);
    changed_ = std::move(changed);
  }
  StartReading();
}

bool MoveStream::ended() {
  MutexLock lock(mutex_);
  return over_ && !have_;
}

bool MoveStream::writable() {
  MutexLock lock(mutex_);
  return !writing_ && !mute_ && !over_;
}

bool MoveStream::writing() {
  MutexLock lock(mutex_);
  return writing_;
}

void MoveStream::MarkOver() {
  MutexLock lock(mutex_);
  over_ = true;
  have_ = false;
}

std::string MoveStream::Bytes(size_t from, size_t most) const {
  std::string out;
  for (const grpc::Slice& slice : slices_) {
    const size_t skip = std::min(from, slice.size());
    from -= skip;
    const size_t take = std::min(most - out.size(), slice.size() - skip);
    out.append(reinterpret_cast<const char*>(slice.begin()) + skip, take);
    if (out.size() == most) break;
  }
  return out;
}

absl::StatusOr<FrameStart> MoveStream::ParseHead() {
  slices_.clear();
  (void)incoming_.Dump(&slices_);
  incoming_.Clear();
  total_ = 0;
  for (const grpc::Slice& slice : slices_) total_ += slice.size();
  CKPTD_ASSIGN_OR_RETURN(const FrameStart start, ParseFrameHead(Bytes(0, kMaxFrameHead), total_));
  head_ = start.head;
  return start;
}

absl::StatusOr<std::string> MoveStream::TakeHello() {
  CKPTD_ASSIGN_OR_RETURN(const FrameStart start, ParseHead());
  {
    MutexLock lock(mutex_);
    have_ = false;
  }
  if (start.kind != FrameKind::kHello) return NoHello();
  return Bytes(head_, total_ - head_);
}

absl::StatusOr<std::optional<Incoming>> MoveStream::Take() {
  {
    MutexLock lock(mutex_);
    if (!have_) return std::nullopt;
    have_ = false;
  }
  const absl::StatusOr<FrameStart> start = ParseHead();
  StartReading();
  if (!start.ok()) return start.status();
  Incoming incoming;
  if (start->kind == FrameKind::kData) {
    incoming.data = total_ - head_;
  } else if (start->kind == FrameKind::kMessage) {
    CKPTD_ASSIGN_OR_RETURN(incoming.message, DecodeMessage(Bytes(head_, total_ - head_)));
  } else if (start->kind == FrameKind::kChunk) {
    CKPTD_ASSIGN_OR_RETURN(incoming.header, DecodeChunk(Bytes(head_, total_ - head_)));
  } else {
    return Error(ErrorCode::PROTOCOL, "Move: a second Hello");
  }
  return incoming;
}

std::optional<uint32_t> MoveStream::Place(std::span<std::byte> into) {
  size_t skip = head_;
  size_t done = 0;
  uint32_t crc = 0;
  for (const grpc::Slice& slice : slices_) {
    const size_t skipped = std::min(skip, slice.size());
    skip -= skipped;
    const size_t take = std::min(into.size() - done, slice.size() - skipped);
    crc = CopyCrc32c(crc, into.data() + done, slice.begin() + skipped, take);
    done += take;
  }
  return crc;
}

void MoveStream::Send(FrameKind kind, grpc::Slice body, size_t bytes) {
  const std::string head = FrameHead(kind, bytes);
  const grpc::Slice parts[] = {grpc::Slice(head), std::move(body)};
  outgoing_ = grpc::ByteBuffer(parts, 2);
  {
    MutexLock lock(mutex_);
    writing_ = true;
  }
  DoWrite(&outgoing_);
}

void MoveStream::SendBody(FrameKind kind, const std::string& body) { Send(kind, grpc::Slice(body), body.size()); }

absl::Status MoveStream::SendData(size_t bytes, const std::function<absl::Status(std::span<std::byte> into)>& fill) {
  grpc_slice memory = grpc_slice_malloc(bytes);
  grpc::Slice body(memory, grpc::Slice::STEAL_REF);
  auto* const place = reinterpret_cast<std::byte*>(GRPC_SLICE_START_PTR(memory));
  CKPTD_RETURN_IF_ERROR(fill(std::span<std::byte>(place, bytes)));
  Send(FrameKind::kData, std::move(body), bytes);
  return absl::OkStatus();
}

MoveCall::MoveCall(std::shared_ptr<grpc::Channel> channel, Answered answered, std::shared_ptr<Pending> pending)
    : channel_(std::move(channel)), answered_(std::move(answered)), pending_(std::move(pending)), stub_(channel_) {
  pending_->Add();
}

std::shared_ptr<MoveCall> MoveCall::Start(std::shared_ptr<grpc::Channel> channel, const v1::MoveHello& hello,
                                          Answered answered, std::shared_ptr<Pending> pending) {
  std::shared_ptr<MoveCall> call(new MoveCall(std::move(channel), std::move(answered), std::move(pending)));
  call->self_ = call;
  call->stub_.PrepareBidiStreamingCall(&call->context_, kMoveMethod, grpc::StubOptions(), call.get());
  call->AddHold();  // writes come from a thread that is not gRPC's
  call->SendBody(FrameKind::kHello, hello.SerializeAsString());
  call->StartReading();
  call->StartCall();
  return call;
}

void MoveCall::First(bool came) {
  v1::HelloResponse answer;
  absl::StatusOr<std::string> body = came ? TakeHello() : absl::StatusOr<std::string>(NoHello());
  if (body.ok() && answer.ParseFromString(*body)) return answered_(std::move(answer));
  refused_ = true;  // OnDone says why
  if (came) context_.TryCancel();
  if (!released_.exchange(true)) RemoveHold();
}

void MoveCall::EndWrites() {
  if (!released_) StartWritesDone();
}

void MoveCall::Close(const absl::Status&) {
  if (released_.exchange(true)) return;
  context_.TryCancel();
  RemoveHold();
}

void MoveCall::OnDone(const grpc::Status& status) {
  if (refused_) {
    const absl::Status why = FromGrpc(status, context_);
    answered_(why.ok() ? NoHello() : why);
  }
  const std::shared_ptr<MoveCall> last = std::move(self_);
  pending_->Done();
}

grpc::ServerGenericBidiReactor* MoveVisit::Begin(std::shared_ptr<MoveVisit> self) {
  self_ = std::move(self);
  StartReading();
  return this;
}

void MoveVisit::First(bool came) {
  v1::MoveHello hello;
  absl::StatusOr<std::string> body = came ? TakeHello() : absl::StatusOr<std::string>(NoHello());
  if (!body.ok() || !hello.ParseFromString(*body)) return events_.said(self_, NoHello());
  events_.said(self_, std::move(hello));
}

// A write that the caller does not take would keep the call: it is cancelled.
void MoveVisit::Close(const absl::Status& why) {
  if (closed_.exchange(true)) return;
  MarkOver();
  if (writing() && !why.ok()) context_->TryCancel();
  Finish(ToGrpc(why, context_));
}

void MoveVisit::OnDone() {
  events_.done(this);
  const std::shared_ptr<MoveVisit> last = std::move(self_);
}

}  // namespace ckptd::transport
