// The service Peer spoken by hand, from either side, with any certificate: what GrpcLinks would not do.
#ifndef CKPTD_DAEMON_TRANSPORT_TESTING_RAW_PEER_H_
#define CKPTD_DAEMON_TRANSPORT_TESTING_RAW_PEER_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "daemon/transport/hello.h"
#include "proto/ckptd/v1/peer.grpc.pb.h"

namespace ckptd::transport {

// PEM texts. Empty certificate: none is shown. Empty `ca`: no TLS at all.
struct RawIdentity {
  std::string ca;
  std::string cert;
  std::string key;
};

class RawCaller {
 public:
  RawCaller(const std::string& address, const RawIdentity& identity);

  [[nodiscard]] absl::Status Hello(const v1::HelloRequest& hello);
  // Sends all, then waits for the callee to end it, or half-closes when it answered.
  [[nodiscard]] absl::Status Link(const std::vector<v1::LinkRequest>& requests);
  [[nodiscard]] const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

 private:
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Peer::Stub> stub_;
};

// A call that stays open until the callee ends it.
class RawLink {
 public:
  RawLink(const std::shared_ptr<grpc::Channel>& channel, const v1::LinkRequest& first);
  ~RawLink();
  [[nodiscard]] bool ReadAnswer();
  [[nodiscard]] absl::Status Wait();  // for its end

 private:
  std::unique_ptr<v1::Peer::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::LinkRequest, v1::LinkResponse>> stream_;
  bool ended_ = false;
};

// Answers every Hello with `answer`, and counts what it hears.
class RawCallee final : private v1::Peer::Service {
 public:
  RawCallee(const RawIdentity& identity, v1::HelloResponse answer);
  ~RawCallee() override;

  [[nodiscard]] std::string address() const;
  [[nodiscard]] int hellos() const { return hellos_; }
  [[nodiscard]] int messages() const { return messages_; }

 private:
  grpc::Status Link(grpc::ServerContext* context,
                    grpc::ServerReaderWriter<v1::LinkResponse, v1::LinkRequest>* stream) override;

  const v1::HelloResponse answer_;
  std::atomic<int> hellos_{0};
  std::atomic<int> messages_{0};
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

[[nodiscard]] v1::LinkRequest Saying(const v1::HelloRequest& hello);
[[nodiscard]] v1::LinkRequest Saying(const v1::State& state);

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_TESTING_RAW_PEER_H_
