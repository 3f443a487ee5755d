#include "daemon/transport/testing/raw_peer.h"

#include <grpc/grpc_security_constants.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <chrono>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/transport/grpc_status.h"

namespace ckptd::transport {
namespace {

using grpc::experimental::StaticDataCertificateProvider;

constexpr std::chrono::seconds kCall{20};
constexpr int kMost = 64 << 20;

std::shared_ptr<StaticDataCertificateProvider> ProviderOf(const RawIdentity& identity) {
  if (identity.cert.empty()) return std::make_shared<StaticDataCertificateProvider>(identity.ca);
  return std::make_shared<StaticDataCertificateProvider>(
      identity.ca, std::vector<grpc::experimental::IdentityKeyCertPair>{{identity.key, identity.cert}});
}

std::shared_ptr<grpc::ChannelCredentials> CallerCredentials(const RawIdentity& identity) {
  if (identity.ca.empty()) return grpc::InsecureChannelCredentials();
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(ProviderOf(identity));
  options.watch_root_certs();
  if (!identity.cert.empty()) options.watch_identity_key_cert_pairs();
  options.set_verify_server_certs(false);
  options.set_check_call_host(false);
  options.set_certificate_verifier(std::make_shared<grpc::experimental::NoOpCertificateVerifier>());
  return grpc::experimental::TlsCredentials(options);
}

std::shared_ptr<grpc::ServerCredentials> CalleeCredentials(const RawIdentity& identity) {
  if (identity.ca.empty()) return grpc::InsecureServerCredentials();
  grpc::experimental::TlsServerCredentialsOptions options(ProviderOf(identity));
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE);
  return grpc::experimental::TlsServerCredentials(options);
}

void SetDeadline(grpc::ClientContext* context) { context->set_deadline(std::chrono::system_clock::now() + kCall); }

}  // namespace

RawCaller::RawCaller(const std::string& address, const RawIdentity& identity) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxSendMessageSize(kMost);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  channel_ = grpc::CreateCustomChannel(address, CallerCredentials(identity), arguments);
  stub_ = v1::Peer::NewStub(channel_);
}

absl::Status RawCaller::Hello(const v1::HelloRequest& hello) {
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::HelloResponse response;
  const grpc::Status status = stub_->Hello(&context, hello, &response);
  return FromGrpc(status, context);
}

absl::Status RawCaller::Link(const std::vector<v1::LinkRequest>& requests) {
  grpc::ClientContext context;
  SetDeadline(&context);
  auto stream = stub_->Link(&context);
  for (const v1::LinkRequest& request : requests) (void)stream->Write(request);
  (void)stream->WritesDone();
  v1::LinkResponse response;
  while (stream->Read(&response)) {
  }
  const grpc::Status status = stream->Finish();
  return FromGrpc(status, context);
}

RawLink::RawLink(const std::shared_ptr<grpc::Channel>& channel, const v1::LinkRequest& first)
    : stub_(v1::Peer::NewStub(channel)) {
  SetDeadline(&context_);
  stream_ = stub_->Link(&context_);
  (void)stream_->Write(first);
}

RawLink::~RawLink() {
  context_.TryCancel();
  if (!ended_) (void)Wait();
}

bool RawLink::ReadAnswer() {
  v1::LinkResponse response;
  return stream_->Read(&response) && response.has_hello();
}

absl::Status RawLink::Wait() {
  ended_ = true;
  v1::LinkResponse response;
  while (stream_->Read(&response)) {
  }
  const grpc::Status status = stream_->Finish();
  return FromGrpc(status, context_);
}

RawCallee::RawCallee(const RawIdentity& identity, v1::HelloResponse answer) : answer_(std::move(answer)) {
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", CalleeCredentials(identity), &port_);
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  if (server_ == nullptr) std::abort();
}

RawCallee::~RawCallee() {
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
}

std::string RawCallee::address() const { return absl::StrCat("127.0.0.1:", port_); }

grpc::Status RawCallee::Link(grpc::ServerContext*,
                             grpc::ServerReaderWriter<v1::LinkResponse, v1::LinkRequest>* stream) {
  for (v1::LinkRequest request; stream->Read(&request);) {
    if (!request.has_hello()) {
      ++messages_;
      continue;
    }
    ++hellos_;
    v1::LinkResponse response;
    *response.mutable_hello() = answer_;
    (void)stream->Write(response);
  }
  return grpc::Status::OK;
}

v1::LinkRequest Saying(const v1::HelloRequest& hello) {
  v1::LinkRequest request;
  *request.mutable_hello() = hello;
  return request;
}

v1::LinkRequest Saying(const v1::State& state) {
  v1::LinkRequest request;
  *request.mutable_state() = state;
  return request;
}

}  // namespace ckptd::transport
