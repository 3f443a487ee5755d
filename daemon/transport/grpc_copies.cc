#include "daemon/transport/grpc_copies.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/base/units.h"
#include "daemon/transport/copy_request.h"
#include "daemon/transport/grpc_status.h"
#include "daemon/transport/move_stream.h"
#include "daemon/transport/receive_run.h"
#include "daemon/transport/send_run.h"
#include "proto/ckptd/v1/copies.grpc.pb.h"

namespace ckptd::transport {
namespace {

absl::Status AtNode(const std::string& peer, const absl::Status& why) {
  return Error(CodeOf(why), absl::StrCat("node ", peer, ": ", why.message()));
}

// Whoever lets go of it last closes it: nobody may want it any more when it is answered.
std::shared_ptr<BulkStream> ClosedWhenLetGo(const std::shared_ptr<BulkStream>& stream) {
  return {stream.get(), [stream](BulkStream* last) { last->Close(Error(ErrorCode::CANCELLED, "nobody wants it")); }};
}

// What the peer said of another way for the bytes; nothing: this answer does not speak of it.
template <typename Response>
std::optional<uint32_t> BulkPortIn(const Response& response, BulkWay way) {
  if (way == BulkWay::kTls) return response.tls_port();
  return way == BulkWay::kTcp ? response.tcp_port() : response.ucx_port();
}
std::optional<uint32_t> BulkPortIn(const v1::SealResponse&, BulkWay) { return std::nullopt; }

}  // namespace

// One call, kept until gRPC is done with it. The context is shared: it may be cancelled by its owner.
template <typename Request, typename Response>
struct CopyAsk {
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::Copies::Stub> stub;
  std::shared_ptr<grpc::ClientContext> context = std::make_shared<grpc::ClientContext>();
  Request request;
  Response response;
  Card self;
};

GrpcCopies::GrpcCopies(Loop& loop, const std::shared_ptr<Mailbox>& mailbox, GrpcCopiesOptions options)
    : loop_(loop),
      mailbox_(mailbox),
      options_(std::move(options)),
      shared_(std::make_shared<DialShared>(DialShared{
          loop,
          mailbox,
          std::make_shared<ThreadPool>("move-out", options_.moves_at_once, options_.moves_at_once, Priority::kBehind),
          std::make_shared<MoveSlots>(options_.moves_at_once),
          options_.first_pause,
          options_.longest_pause,
          nullptr,
          nullptr,
          {}})) {
  shared_->dial = scope_.Bind([this](const std::string& peer, const struct Hello& hello, const StreamOpened& opened) {
    Dial(peer, hello, opened);
  });
  shared_->ended = scope_.Bind([this](const MoveTold& told) { Ended(told); });
}

GrpcCopies::~GrpcCopies() {
  const absl::Status why = Error(ErrorCode::DRAINING, "this node leaves");
  shared_->AbortAll(why);
  shared_->pool->Stop();
  for (const auto& [id, context] : asking_) {
    if (const auto here = context.lock()) here->TryCancel();
  }
  for (const auto& [id, stream] : dialling_) {
    if (const auto here = stream.lock()) here->Close(why);
  }
}

void GrpcCopies::Rejudge() {
  for (const auto& [peer, card] : answered_) {
    const absl::Status admitted = options_.would_admit(card);
    if (!admitted.ok()) shared_->AbortPeer(peer, AtNode(peer, admitted));
  }
}

void GrpcCopies::ForgetOthers(const std::function<bool(const std::string& name)>& is_peer) {
  choice_.ForgetOthers(is_peer);
  routes_.ForgetOthers(is_peer);
  std::erase_if(answered_, [&](const auto& entry) { return !is_peer(entry.first); });
}

absl::StatusOr<Card> GrpcCopies::Believe(const Card& self, const std::string& peer, const v1::HelloResponse& by,
                                         bool proved) const {
  CKPTD_ASSIGN_OR_RETURN(Greeting greeting, CheckAnswer(self, peer, by));
  CKPTD_RETURN_IF_ERROR(proved ? options_.admit(greeting.peer) : options_.would_admit(greeting.peer));
  return std::move(greeting.peer);
}

template <typename Request, typename Response>
absl::Status GrpcCopies::CheckAnswered(const Card& self, const std::string& peer, const Request& request,
                                       const absl::StatusOr<Response>& response) const {
  CKPTD_RETURN_IF_ERROR(response.status());
  CKPTD_RETURN_IF_ERROR(Believe(self, peer, response->by(), /*proved=*/true).status());
  return CheckResponse(request, *response);
}

template <typename Request, typename Response, typename Method>
void GrpcCopies::Ask(const std::string& peer, Request request, Nanos patience, CopyAnswer<Response> answer,
                     Method method) {
  auto call = std::make_shared<CopyAsk<Request, Response>>();
  const absl::StatusOr<Card> self = options_.self();
  absl::StatusOr<std::shared_ptr<grpc::Channel>> channel =
      self.ok() ? options_.connect(peer) : absl::StatusOr<std::shared_ptr<grpc::Channel>>(self.status());
  if (!channel.ok()) return mailbox_->Put([answer, why = AtNode(peer, channel.status())] { answer(why); });
  call->self = *self;
  call->channel = *std::move(channel);
  call->stub = v1::Copies::NewStub(call->channel);
  call->request = std::move(request);
  *call->request.mutable_from() = MakeHello(*self, peer);
  call->context->set_deadline(std::chrono::system_clock::now() + patience);
  const uint64_t id = ++last_;
  asking_[id] = call->context;
  auto answered = scope_.Bind([this, id, peer, call, answer](const absl::Status& status) {
    asking_.erase(id);
    absl::StatusOr<Response> response = status.ok() ? absl::StatusOr<Response>(call->response) : status;
    const absl::Status fits = CheckAnswered(call->self, peer, call->request, response);
    for (const BulkPort* bulk : options_.bulks) {
      const std::optional<uint32_t> port = fits.ok() ? BulkPortIn(*response, bulk->way()) : std::nullopt;
      if (port) routes_.Heard(peer, call->context->peer(), bulk->way(), *port);
    }
    answer(fits.ok() ? std::move(response) : absl::StatusOr<Response>(AtNode(peer, fits)));
  });
  options_.pending->Add();
  (call->stub->async()->*method)(
      call->context.get(), &call->request, &call->response,
      [call, answered, mailbox = mailbox_, pending = options_.pending](const grpc::Status& status) mutable {
        mailbox->Put([answered, said = FromGrpc(status, *call->context)]() mutable { answered(said); });
        pending->Done();
      });
}

// The overloads with a callback, by their types.
template <typename Request, typename Response>
using AskMethod = void (v1::Copies::Stub::async::*)(grpc::ClientContext*, const Request*, Response*,
                                                    std::function<void(grpc::Status)>);

void GrpcCopies::Offer(const std::string& peer, v1::OfferRequest request, Nanos patience,
                       CopyAnswer<v1::OfferResponse> answer) {
  const AskMethod<v1::OfferRequest, v1::OfferResponse> method = &v1::Copies::Stub::async::Offer;
  Ask(peer, std::move(request), patience, std::move(answer), method);
}

void GrpcCopies::Seal(const std::string& peer, v1::SealRequest request, Nanos patience,
                      CopyAnswer<v1::SealResponse> answer) {
  const AskMethod<v1::SealRequest, v1::SealResponse> method = &v1::Copies::Stub::async::Seal;
  Ask(peer, std::move(request), patience, std::move(answer), method);
}

void GrpcCopies::Describe(const std::string& peer, v1::DescribeRequest request, Nanos patience,
                          CopyAnswer<v1::DescribeResponse> answer) {
  const AskMethod<v1::DescribeRequest, v1::DescribeResponse> method = &v1::Copies::Stub::async::Describe;
  Ask(peer, std::move(request), patience, std::move(answer), method);
}

void GrpcCopies::Dial(const std::string& peer, const struct Hello& hello, const StreamOpened& opened) {
  const absl::StatusOr<Card> self = options_.self();
  if (!self.ok()) return mailbox_->Put([opened, why = AtNode(peer, self.status())] { opened(why); });
  v1::MoveHello first;
  *first.mutable_from() = MakeHello(*self, peer);
  first.set_transfer(EncodeHello(hello));
  if (BulkPort* const port = PortOf(WayTo(peer))) return DialBulk(peer, *self, *port, first, opened);
  DialByCall(peer, *self, first, opened);
}

BulkPort* GrpcCopies::PortOf(BulkWay way) const {
  const auto found =
      std::find_if(options_.bulks.begin(), options_.bulks.end(), [&](BulkPort* bulk) { return bulk->way() == way; });
  return found == options_.bulks.end() ? nullptr : *found;
}

BulkWay GrpcCopies::WayTo(const std::string& peer) {
  const Nanos now = loop_.clock().Monotonic();
  std::vector<BulkWay> open;
  for (const BulkPort* bulk : options_.bulks) {
    if (routes_.Find(peer, bulk->way(), now)) open.push_back(bulk->way());
  }
  open.push_back(BulkWay::kGrpc);
  if (!options_.measures) open.resize(1);
  return choice_.Choose(peer, open, now);
}

void GrpcCopies::DialBulk(const std::string& peer, const Card& self, BulkPort& port, const v1::MoveHello& hello,
                          const StreamOpened& opened) {
  const BulkRoute route = *routes_.Find(peer, port.way(), loop_.clock().Monotonic());
  auto bulked = scope_.Bind([this, peer, self, way = port.way(), opened](const absl::StatusOr<OpenedBulk>& bulk) {
    Bulked(peer, self, way, bulk, opened);
  });
  port.Dial({peer, route.host, route.port}, hello.SerializeAsString(), options_.patience,
            [mailbox = mailbox_, bulked](const absl::StatusOr<OpenedBulk>& bulk) {
              mailbox->Put([bulked, bulk]() mutable { bulked(bulk); });
            });
}

void GrpcCopies::Ended(const MoveTold& told) {
  if (told.bytes == 0) return WayFailed(told.peer, told.way);
  choice_.Moved(told.peer, told.way, told.bytes, told.took, loop_.clock().Monotonic());
}

// The next ones take another way for a while; gRPC is always there.
void GrpcCopies::WayFailed(const std::string& peer, BulkWay way) {
  choice_.Failed(peer, way);
  if (way != BulkWay::kGrpc) routes_.Failed(peer, way, loop_.clock().Monotonic());
}

// Where there is no connection to be had, the next one is a call of Move.
void GrpcCopies::Bulked(const std::string& peer, const Card& self, BulkWay way, const absl::StatusOr<OpenedBulk>& bulk,
                        const StreamOpened& opened) {
  const ErrorCode code = CodeOf(bulk.status());
  if (code == ErrorCode::AGENT_UNREACHABLE || code == ErrorCode::TIMEOUT) WayFailed(peer, way);
  if (!bulk.ok()) return opened(AtNode(peer, bulk.status()));
  v1::HelloResponse by;
  if (!by.ParseFromString(bulk->answer))
    return opened(AtNode(peer, Error(ErrorCode::PROTOCOL, "its answer to Hello is none")));
  absl::StatusOr<Card> believed = Believe(self, peer, by, bulk->proved);
  if (!believed.ok()) return opened(AtNode(peer, believed.status()));
  answered_[peer] = *std::move(believed);
  opened(OpenedStream{bulk->stream, way});
}

// The call's first answer, or why there is none; the timer closes what says nothing.
void GrpcCopies::DialByCall(const std::string& peer, const Card& self, const v1::MoveHello& hello,
                            const StreamOpened& opened) {
  absl::StatusOr<std::shared_ptr<grpc::Channel>> channel = options_.connect(peer);
  if (!channel.ok()) return mailbox_->Put([opened, why = AtNode(peer, channel.status())] { opened(why); });
  const uint64_t id = ++last_;
  auto answered = scope_.Bind([this, id, peer, self, opened](const absl::StatusOr<v1::HelloResponse>& answer) {
    const auto dialled = dialling_.extract(id);
    if (dialled.empty()) return;
    const std::shared_ptr<BulkStream> stream = dialled.mapped().lock();
    if (!answer.ok() || !stream)
      return opened(AtNode(peer, answer.ok() ? Error(ErrorCode::CANCELLED, "ended") : answer.status()));
    absl::StatusOr<Card> believed = Believe(self, peer, *answer, /*proved=*/true);
    if (!believed.ok()) {
      stream->Close(believed.status());
      return opened(AtNode(peer, believed.status()));
    }
    answered_[peer] = *std::move(believed);
    opened(OpenedStream{ClosedWhenLetGo(stream), BulkWay::kGrpc});
  });
  const std::shared_ptr<BulkStream> stream = MoveCall::Start(
      *std::move(channel), hello,
      [mailbox = mailbox_, answered](const absl::StatusOr<v1::HelloResponse>& answer) {
        mailbox->Put([answered, answer]() mutable { answered(answer); });
      },
      options_.pending);
  dialling_[id] = stream;
  (void)loop_.After(options_.patience, scope_.Bind([this, id, peer, opened] {
    const auto dialled = dialling_.extract(id);
    if (dialled.empty()) return;
    if (const auto here = dialled.mapped().lock()) here->Close(absl::OkStatus());
    opened(
        AtNode(peer, Error(ErrorCode::TIMEOUT, absl::StrCat("no answer within ", FormatDuration(options_.patience)))));
  }));
}

// In the order it is the peer that was dialled, in the Hello it is this node.
absl::StatusOr<Hello> GrpcCopies::HelloOf(MoveOrder& order, Nanos deadline) const {
  order.name.peer = order.peer;
  CKPTD_RETURN_IF_ERROR(CheckTransferName(order.name));
  if (deadline == Nanos::max() || !order.renew)
    return Error(ErrorCode::INVALID_ARGUMENT,
                 absl::StrCat(ToString(order.name), ": a transfer needs a deadline and a way to renew its token"));
  CKPTD_ASSIGN_OR_RETURN(const Card self, options_.self());
  struct Hello hello {
    order.token, order.name, order.image_bytes, order.chunk_bytes
  };
  hello.name.peer = self.name;
  return hello;
}

absl::StatusOr<std::unique_ptr<CopyMove>> GrpcCopies::Send(MoveOrder order, BulkSource source,
                                                           const SenderLimits& limits, MoveDone done) {
  CKPTD_ASSIGN_OR_RETURN(struct Hello hello, HelloOf(order, limits.deadline));
  CKPTD_ASSIGN_OR_RETURN(const TransferShape shape, TransferShape::Make(order.image_bytes, order.chunk_bytes));
  if (!source.read)
    return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat(ToString(order.name), ": nothing to read from"));
  auto run = std::make_shared<SendRun>(loop_.clock(), order.name, shape, std::move(source), limits);
  auto ready = [run](uint32_t chunk, uint32_t crc) { return run->ChunkReady(chunk, crc); };
  return std::make_unique<DialledMove>(shared_, std::move(order), std::move(hello), run, ready, 0, std::move(done));
}

absl::StatusOr<std::unique_ptr<CopyMove>> GrpcCopies::Receive(MoveOrder order, BulkTarget target,
                                                              const ReceiverLimits& limits, MoveDone done) {
  CKPTD_ASSIGN_OR_RETURN(struct Hello hello, HelloOf(order, limits.deadline));
  CKPTD_ASSIGN_OR_RETURN(const TransferShape shape, TransferShape::Make(order.image_bytes, order.chunk_bytes));
  if (target.bytes.size() != order.image_bytes)
    return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat(ToString(order.name), ": a target of ", target.bytes.size(),
                                                           " bytes for ", order.image_bytes));
  ReceiverLimits own = limits;  // while it waits for its turn it is alone, too
  own.alone = std::max(own.alone, limits.deadline - loop_.clock().Monotonic());
  auto run = std::make_shared<ReceiveRun>(loop_.clock(), order.name, shape, std::move(target), own);
  return std::make_unique<DialledMove>(shared_, std::move(order), std::move(hello), run, nullptr,
                                       SenderLimits{}.vain_connections, std::move(done));
}

}  // namespace ckptd::transport
