// The service Copies spoken by hand, with any certificate and by protobuf alone: what GrpcCopies would not do.
#ifndef CKPTD_DAEMON_TRANSPORT_TESTING_RAW_MOVE_H_
#define CKPTD_DAEMON_TRANSPORT_TESTING_RAW_MOVE_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "daemon/transport/transfer_messages.h"
#include "proto/ckptd/v1/copies.grpc.pb.h"

namespace ckptd::transport {

// Each call fails within 20 s.
[[nodiscard]] absl::Status RawOffer(const std::shared_ptr<grpc::Channel>& channel, const v1::OfferRequest& request,
                                    v1::OfferResponse* response);
[[nodiscard]] absl::Status RawSeal(const std::shared_ptr<grpc::Channel>& channel, const v1::SealRequest& request);
[[nodiscard]] absl::Status RawDescribe(const std::shared_ptr<grpc::Channel>& channel,
                                       const v1::DescribeRequest& request);

class RawMove {
 public:
  explicit RawMove(const std::shared_ptr<grpc::Channel>& channel);
  ~RawMove();

  bool Hello(const v1::HelloRequest& from, const std::string& transfer);
  bool Chunk(const ChunkHeader& header, const std::string& data);
  bool Say(const TransferMessage& message);
  bool Write(const v1::MoveRequest& request) { return stream_->Write(request); }
  // The next that the callee says; nothing: it ended the call.
  [[nodiscard]] std::optional<v1::MoveResponse> Read();
  // The next but Welcome, Window and the answer to Hello.
  [[nodiscard]] std::optional<TransferMessage> ReadAnswer();
  // Half-closes, and waits for the end.
  [[nodiscard]] absl::Status End();

 private:
  std::unique_ptr<v1::Copies::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::MoveRequest, v1::MoveResponse>> stream_;
  bool ended_ = false;
};

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_TESTING_RAW_MOVE_H_
