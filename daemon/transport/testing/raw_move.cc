#include "daemon/transport/testing/raw_move.h"

#include <chrono>

#include "daemon/transport/grpc_status.h"

namespace ckptd::transport {
namespace {

constexpr std::chrono::seconds kRawPatience{20};

void LimitCall(grpc::ClientContext* context) { context->set_deadline(std::chrono::system_clock::now() + kRawPatience); }

}  // namespace

absl::Status RawOffer(const std::shared_ptr<grpc::Channel>& channel, const v1::OfferRequest& request,
                      v1::OfferResponse* response) {
  grpc::ClientContext context;
  LimitCall(&context);
  const grpc::Status status = v1::Copies::NewStub(channel)->Offer(&context, request, response);
  return FromGrpc(status, context);
}

absl::Status RawSeal(const std::shared_ptr<grpc::Channel>& channel, const v1::SealRequest& request) {
  grpc::ClientContext context;
  LimitCall(&context);
  v1::SealResponse response;
  const grpc::Status status = v1::Copies::NewStub(channel)->Seal(&context, request, &response);
  return FromGrpc(status, context);
}

absl::Status RawDescribe(const std::shared_ptr<grpc::Channel>& channel, const v1::DescribeRequest& request) {
  grpc::ClientContext context;
  LimitCall(&context);
  v1::DescribeResponse response;
  const grpc::Status status = v1::Copies::NewStub(channel)->Describe(&context, request, &response);
  return FromGrpc(status, context);
}

RawMove::RawMove(const std::shared_ptr<grpc::Channel>& channel) : stub_(v1::Copies::NewStub(channel)) {
  LimitCall(&context_);
  stream_ = stub_->Move(&context_);
}

RawMove::~RawMove() {
  context_.TryCancel();
  if (!ended_) (void)End();
}

bool RawMove::Hello(const v1::HelloRequest& from, const std::string& transfer) {
  v1::MoveRequest request;
  *request.mutable_hello()->mutable_from() = from;
  request.mutable_hello()->set_transfer(transfer);
  return stream_->Write(request);
}

bool RawMove::Chunk(const ChunkHeader& header, const std::string& data) {
  v1::MoveRequest request;
  request.mutable_chunk()->set_chunk(header.chunk);
  request.mutable_chunk()->set_attempt(header.attempt);
  request.mutable_chunk()->set_crc(header.crc);
  request.mutable_chunk()->set_bytes(header.bytes);
  if (!stream_->Write(request)) return false;
  request.set_data(data);
  return stream_->Write(request);
}

bool RawMove::Say(const TransferMessage& message) {
  v1::MoveRequest request;
  request.set_message(Encode(message));
  return stream_->Write(request);
}

std::optional<v1::MoveResponse> RawMove::Read() {
  v1::MoveResponse response;
  if (!stream_->Read(&response)) return std::nullopt;
  return response;
}

std::optional<TransferMessage> RawMove::ReadAnswer() {
  for (auto response = Read(); response; response = Read()) {
    if (response->body_case() != v1::MoveResponse::kMessage) continue;
    absl::StatusOr<TransferMessage> message = DecodeMessage(response->message());
    if (!message.ok()) return std::nullopt;
    if (!std::holds_alternative<Welcome>(*message) && !std::holds_alternative<Window>(*message)) return *message;
  }
  return std::nullopt;
}

absl::Status RawMove::End() {
  ended_ = true;
  (void)stream_->WritesDone();
  while (Read()) {
  }
  const grpc::Status status = stream_->Finish();
  return FromGrpc(status, context_);
}

}  // namespace ckptd::transport
