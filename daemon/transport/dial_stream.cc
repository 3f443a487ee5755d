#include "daemon/transport/dial_stream.h"

#include <utility>

#include "daemon/base/errors.h"
#include "daemon/transport/grpc_status.h"

namespace ckptd::transport {
namespace {

constexpr char kLinkMethod[] = "/ckptd.v1.Peer/Link";

// The bytes themselves: gRPC lets go of them when it has sent them.
grpc::ByteBuffer Shared(const DialStream::Bytes& bytes) {
  using Held = DialStream::Bytes;
  const auto let_go = [](void* held) { delete static_cast<Held*>(held); };
  const grpc::Slice slice(const_cast<char*>(bytes->data()), bytes->size(), let_go, new Held(bytes));
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace

void Pending::Add() {
  MutexLock lock(mutex_);
  ++count_;
}

void Pending::Done() {
  MutexLock lock(mutex_);
  if (--count_ == 0) none_.NotifyAll();
}

void Pending::WaitForNone() {
  MutexLock lock(mutex_);
  while (count_ != 0) none_.Wait(mutex_);
}

DialStream::DialStream(std::shared_ptr<grpc::Channel> channel, DialEvents events, std::shared_ptr<Pending> pending)
    : channel_(std::move(channel)), events_(std::move(events)), pending_(std::move(pending)), stub_(channel_) {
  pending_->Add();
}

std::shared_ptr<DialStream> DialStream::Start(std::shared_ptr<grpc::Channel> channel, const v1::LinkRequest& hello,
                                              DialEvents events, std::shared_ptr<Pending> pending) {
  std::shared_ptr<DialStream> stream(new DialStream(std::move(channel), std::move(events), std::move(pending)));
  stream->self_ = stream;
  stream->stub_.PrepareBidiStreamingCall(&stream->context_, kLinkMethod, {}, stream.get());
  stream->AddHold();  // writes come from a thread that is not gRPC's
  stream->request_ = Shared(std::make_shared<const std::string>(hello.SerializeAsString()));
  stream->StartRead(&stream->response_);
  stream->StartWrite(&stream->request_);
  stream->StartCall();
  return stream;
}

void DialStream::Write(const Bytes& request) {
  if (released_) return;
  request_ = Shared(request);
  StartWrite(&request_);
}

void DialStream::EndWrites() {
  if (!released_) StartWritesDone();
}

void DialStream::Release() {
  if (std::exchange(released_, true)) return;
  context_.TryCancel();
  RemoveHold();
}

// There is one answer; whoever says more is cut off.
void DialStream::OnReadDone(bool ok) {
  if (!ok) return events_.broken();
  if (std::exchange(answered_, true))
    context_.TryCancel();
  else
    events_.answered(response_.hello());
  StartRead(&response_);
}

void DialStream::OnWriteDone(bool ok) {
  if (ok) events_.written();
}

void DialStream::OnDone(const grpc::Status& status) {
  const absl::Status why = FromGrpc(status, context_);
  events_.ended(why.ok() ? Error(ErrorCode::AGENT_UNREACHABLE, "it ended the link") : why);
  const std::shared_ptr<DialStream> last = std::move(self_);
  pending_->Done();
}

}  // namespace ckptd::transport
