// One call of Peer.Link, from the caller's side: gRPC's reactor. It decides nothing (out_link.h does).
#ifndef CKPTD_DAEMON_TRANSPORT_DIAL_STREAM_H_
#define CKPTD_DAEMON_TRANSPORT_DIAL_STREAM_H_

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "daemon/base/mutex.h"
#include "proto/ckptd/v1/peer.grpc.pb.h"

namespace ckptd::transport {

// Counts streams that gRPC has not let go of.
class Pending {
 public:
  void Add() CKPTD_EXCLUDES(mutex_);
  void Done() CKPTD_EXCLUDES(mutex_);
  void WaitForNone() CKPTD_EXCLUDES(mutex_);

 private:
  Mutex mutex_;
  CondVar none_;
  size_t count_ CKPTD_GUARDED_BY(mutex_) = 0;
};

// What is told on gRPC's threads. After `broken` nothing may be written, and Release() is called; then comes `ended`.
struct DialEvents {
  std::function<void(const v1::HelloResponse& answer)> answered;
  std::function<void()> written;
  std::function<void()> broken;
  std::function<void(const absl::Status& why)> ended;  // never OK
};

// It is given LinkRequests as bytes: a coordinator writes the same ones to all of its members.
class DialStream final : public grpc::ClientBidiReactor<grpc::ByteBuffer, v1::LinkResponse> {
 public:
  // A serialised LinkRequest.
  using Bytes = std::shared_ptr<const std::string>;

  // Begins with `hello`, which counts as the first write.
  [[nodiscard]] static std::shared_ptr<DialStream> Start(std::shared_ptr<grpc::Channel> channel,
                                                         const v1::LinkRequest& hello, DialEvents events,
                                                         std::shared_ptr<Pending> pending);

  // These on one thread. Write: only after the one before was `written`. After Release() it does nothing: gRPC would
  // touch the call's context when it has long ended.
  void Write(const Bytes& request);
  // Instead of a further Write: the callee reads what was written, and ends the call.
  void EndWrites();
  // Ends the call. Idempotent.
  void Release();

 private:
  DialStream(std::shared_ptr<grpc::Channel> channel, DialEvents events, std::shared_ptr<Pending> pending);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  const std::shared_ptr<grpc::Channel> channel_;
  const DialEvents events_;
  const std::shared_ptr<Pending> pending_;
  grpc::TemplatedGenericStub<grpc::ByteBuffer, v1::LinkResponse> stub_;
  grpc::ClientContext context_;
  grpc::ByteBuffer request_;
  v1::LinkResponse response_;
  bool answered_ = false;             // of gRPC's reads, one at a time
  bool released_ = false;             // of the owner's thread
  std::shared_ptr<DialStream> self_;  // until gRPC is done with it
};

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_DIAL_STREAM_H_
