#include "daemon/transport/copies_desk.h"

#include <atomic>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/callback_scope.h"
#include "daemon/base/errors.h"
#include "daemon/base/log.h"
#include "daemon/base/mutex.h"
#include "daemon/base/status_macros.h"
#include "daemon/transport/copy_request.h"
#include "daemon/transport/credentials.h"
#include "daemon/transport/grpc_status.h"
#include "daemon/transport/move_stream.h"
#include "daemon/transport/shown.h"
#include "proto/ckptd/v1/copies.grpc.pb.h"

namespace ckptd::transport {
namespace {

constexpr size_t kMostCalls = 40'000;                        // as many as links may be open
constexpr Nanos kBetweenRefusals = std::chrono::seconds(1);  // in the log

// To whoever shows no certificate, and may be anybody: the same whatever is wrong. A member asks for another token
// then, by a call, and is told there.
absl::Status ToStranger() {
  return Error(ErrorCode::PERMISSION,
               "whoever dials here is not let in; the log of this node says why, and so does its answer at peers.port");
}

// The calls that gRPC has not let go of, and how each is ended. Any thread.
class CallBook {
 public:
  using End = std::function<void(const absl::Status&)>;
  // OK, or why it must go at once.
  [[nodiscard]] absl::Status Enter(const void* call, End end) CKPTD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (!closed_.ok()) return closed_;
    if (calls_.size() == kMostCalls)
      return Error(ErrorCode::BUSY, absl::StrCat(kMostCalls, " calls of other agents are open; call again later"));
    calls_.emplace(call, std::move(end));
    return absl::OkStatus();
  }
  void Leave(const void* call) CKPTD_EXCLUDES(mutex_) {
    End last;  // what it holds is let go without the lock
    MutexLock lock(mutex_);
    const auto found = calls_.find(call);
    if (found == calls_.end()) return;
    last = std::move(found->second);
    calls_.erase(found);
  }
  [[nodiscard]] std::vector<End> Close(const absl::Status& why) CKPTD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    closed_ = why;
    std::vector<End> all;
    for (const auto& [call, end] : calls_) all.push_back(end);
    return all;
  }

 private:
  Mutex mutex_;
  absl::Status closed_ CKPTD_GUARDED_BY(mutex_);
  std::map<const void*, End> calls_ CKPTD_GUARDED_BY(mutex_);
};

template <typename Request, typename Response>
class AskVisit final : public grpc::ServerUnaryReactor {
 public:
  AskVisit(Caller caller, grpc::CallbackServerContext* context, const Request& request, Response* response,
           CallBook& book)
      : caller_(std::move(caller)), context_(context), request_(request), response_(response), book_(book) {}

  [[nodiscard]] const Caller& caller() const { return caller_; }
  [[nodiscard]] const Request& request() const { return request_; }
  void Keep(std::shared_ptr<AskVisit> self) { self_ = std::move(self); }
  void Answer(Response response) {
    if (ended_.exchange(true)) return;
    *response_ = std::move(response);
    Finish(grpc::Status::OK);
  }
  void End(const absl::Status& why) {
    if (!ended_.exchange(true)) Finish(ToGrpc(why, context_));
  }

 private:
  void OnDone() override {
    book_.Leave(this);
    const std::shared_ptr<AskVisit> last = std::move(self_);
  }

  const Caller caller_;
  grpc::CallbackServerContext* const context_;
  const Request request_;
  Response* const response_;
  CallBook& book_;
  std::atomic<bool> ended_{false};
  std::shared_ptr<AskVisit> self_;  // until gRPC is done with it
};

using Base = v1::Copies::WithRawCallbackMethod_Move<v1::Copies::WithCallbackMethod_Offer<
    v1::Copies::WithCallbackMethod_Seal<v1::Copies::WithCallbackMethod_Describe<v1::Copies::Service>>>>;

void Ask(CopyHost& host, const std::string& peer, const v1::OfferRequest& request,
         CopyAnswer<v1::OfferResponse> answer) {
  host.Offer(peer, request, std::move(answer));
}
void Ask(CopyHost& host, const std::string& peer, const v1::SealRequest& request, CopyAnswer<v1::SealResponse> answer) {
  host.Seal(peer, request, std::move(answer));
}
void Ask(CopyHost& host, const std::string& peer, const v1::DescribeRequest& request,
         CopyAnswer<v1::DescribeResponse> answer) {
  host.Describe(peer, request, std::move(answer));
}

template <typename Response>
void SetBulkPort(Response* response, const BulkPort& bulk) {
  if (bulk.way() == BulkWay::kTls) response->set_tls_port(bulk.port());
  if (bulk.way() == BulkWay::kTcp) response->set_tcp_port(bulk.port());
  if (bulk.way() == BulkWay::kUcx) response->set_ucx_port(bulk.port());
}
void SetBulkPort(v1::SealResponse*, const BulkPort&) {}

class CopyCounter final : public Base, public CopiesDesk {
 public:
  CopyCounter(Loop& loop, std::shared_ptr<Mailbox> mailbox, CopiesDeskOptions options)
      : loop_(loop),
        mailbox_(mailbox),
        options_(std::move(options)),
        moves_(std::in_place, loop, mailbox, options_.moves_at_once) {
    for (BulkPort* bulk : options_.bulks) {
      bulk->Serve([this, mailbox](std::shared_ptr<BulkGuest> guest, std::string hello) {
        mailbox->Put([this, guest = std::move(guest), hello = std::move(hello)] { HearBulk(guest, hello); });
      });
    }
  }

  grpc::Service* service() override { return this; }
  void Rejudge() override;
  void Close(const absl::Status& why) override {
    for (BulkPort* bulk : options_.bulks) bulk->Serve(nullptr);
    moves_.reset();
    for (const auto& end : book_.Close(why)) end(why);
  }

  grpc::ServerUnaryReactor* Offer(grpc::CallbackServerContext* context, const v1::OfferRequest* request,
                                  v1::OfferResponse* response) override {
    return Begin(context, *request, response);
  }
  grpc::ServerUnaryReactor* Seal(grpc::CallbackServerContext* context, const v1::SealRequest* request,
                                 v1::SealResponse* response) override {
    return Begin(context, *request, response);
  }
  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* context, const v1::DescribeRequest* request,
                                     v1::DescribeResponse* response) override {
    return Begin(context, *request, response);
  }
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Move(grpc::CallbackServerContext* context) override;

 private:
  template <typename Request, typename Response>
  grpc::ServerUnaryReactor* Begin(grpc::CallbackServerContext* context, const Request& request, Response* response);
  template <typename Request, typename Response>
  void Hear(const std::shared_ptr<AskVisit<Request, Response>>& visit);

  struct Judged {
    Card peer;
    v1::HelloResponse answer;
  };
  // What proves the name: the token does so later, to whom it was handed out, and no generation.
  enum class Proof { kCertificate, kToken };
  [[nodiscard]] absl::StatusOr<Judged> Judge(const Caller& caller, const v1::HelloRequest& hello);
  [[nodiscard]] absl::StatusOr<Judged> Consider(const Caller& caller, const v1::HelloRequest& hello, Proof proof);
  void HearMove(const std::shared_ptr<MoveVisit>& visit, const absl::StatusOr<v1::MoveHello>& hello);
  void HearBulk(const std::shared_ptr<BulkGuest>& guest, const std::string& said);
  [[nodiscard]] absl::Status TakeVisit(const std::shared_ptr<MoveVisit>& visit, const v1::MoveHello& hello);
  [[nodiscard]] absl::StatusOr<Judged> JudgeGuest(const BulkGuest& guest, const v1::HelloRequest& hello);
  // `why` for the log, `told` to the other end.
  void TurnAway(BulkGuest& guest, const absl::Status& why, const absl::Status& told);
  [[nodiscard]] absl::Status TakeMove(const Judged& judged, const v1::MoveHello& hello,
                                      const std::function<void()>& answer, std::shared_ptr<BulkStream> stream);

  static Caller CallerOf(const grpc::CallbackServerContext& context) {
    const auto proved = context.auth_context();
    return {proved == nullptr ? CertificateNames{} : NamesOf(*proved), context.peer()};
  }

  Loop& loop_;
  const std::shared_ptr<Mailbox> mailbox_;
  const CopiesDeskOptions options_;
  CallBook book_;
  std::optional<ServedMoves> moves_;
  std::map<std::string, Card> movers_;  // as they were let in last
  uint64_t turned_away_ = 0;            // since the log told of it
  Nanos told_{0};                       // when it did
  CallbackScope scope_;
};

absl::StatusOr<CopyCounter::Judged> CopyCounter::Consider(const Caller& caller, const v1::HelloRequest& hello,
                                                          Proof proof) {
  CKPTD_ASSIGN_OR_RETURN(const Card self, options_.self());
  CKPTD_ASSIGN_OR_RETURN(Greeting greeting, CheckHello(self, hello));
  CKPTD_RETURN_IF_ERROR(proof == Proof::kToken ? options_.would_admit(greeting.peer)
                                               : options_.admit(caller.names, greeting.peer));
  if (options_.host == nullptr)
    return Error(ErrorCode::REFUSED, absl::StrCat("node ", self.name, " keeps no copies for others"));
  return Judged{std::move(greeting.peer), MakeAnswer(self, greeting.protocol)};
}

absl::StatusOr<CopyCounter::Judged> CopyCounter::Judge(const Caller& caller, const v1::HelloRequest& hello) {
  absl::StatusOr<Judged> judged = Consider(caller, hello, Proof::kCertificate);
  if (!judged.ok())
    Log(kWarning, "peer.refused")
        .Field("peer", Shown(hello.member()))
        .Field("from", Shown(caller.address))
        .Error(judged.status());
  return judged;
}

// The mailbox is closed before the desk goes.
template <typename Request, typename Response>
grpc::ServerUnaryReactor* CopyCounter::Begin(grpc::CallbackServerContext* context, const Request& request,
                                             Response* response) {
  auto visit = std::make_shared<AskVisit<Request, Response>>(CallerOf(*context), context, request, response, book_);
  visit->Keep(visit);
  const absl::Status entered = book_.Enter(visit.get(), [visit](const absl::Status& why) { visit->End(why); });
  if (entered.ok())
    mailbox_->Put([this, visit] { Hear(visit); });
  else
    visit->End(entered);
  return visit.get();
}

template <typename Request, typename Response>
void CopyCounter::Hear(const std::shared_ptr<AskVisit<Request, Response>>& visit) {
  const absl::StatusOr<Judged> judged = Judge(visit->caller(), visit->request().from());
  if (!judged.ok()) return visit->End(judged.status());
  if (absl::Status fits = CheckRequest(visit->request()); !fits.ok()) return visit->End(fits);
  Ask(*options_.host, judged->peer.name, visit->request(),
      [visit, answer = judged->answer, bulks = options_.bulks](absl::StatusOr<Response> response) {
        if (!response.ok()) return visit->End(response.status());
        *response->mutable_by() = answer;
        for (const BulkPort* bulk : bulks) SetBulkPort(&*response, *bulk);
        visit->Answer(*std::move(response));
      });
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* CopyCounter::Move(grpc::CallbackServerContext* context) {
  MoveVisitEvents events;
  events.said = [this](std::shared_ptr<MoveVisit> visit, absl::StatusOr<v1::MoveHello> hello) {
    mailbox_->Put([this, visit = std::move(visit), hello = std::move(hello)] { HearMove(visit, hello); });
  };
  events.done = [this](const MoveVisit* visit) { book_.Leave(visit); };
  auto visit = std::make_shared<MoveVisit>(CallerOf(*context), context, std::move(events));
  const absl::Status entered = book_.Enter(visit.get(), [visit](const absl::Status& why) { visit->Close(why); });
  auto* const reactor = visit->Begin(visit);
  if (!entered.ok()) {
    visit->Close(entered);
    return reactor;
  }
  mailbox_->Put([this, visit] {
    loop_.After(options_.patience, scope_.Bind([weak = std::weak_ptr<MoveVisit>(visit)] {
      const auto here = weak.lock();
      if (here && !here->heard()) here->Close(Error(ErrorCode::TIMEOUT, "Move begins with Hello, and none came"));
    }));
  });
  return reactor;
}

void CopyCounter::HearMove(const std::shared_ptr<MoveVisit>& visit, const absl::StatusOr<v1::MoveHello>& hello) {
  visit->SetHeard();
  const absl::Status taken = hello.ok() ? TakeVisit(visit, *hello) : hello.status();
  if (!taken.ok()) visit->Close(taken);
}

absl::Status CopyCounter::TakeVisit(const std::shared_ptr<MoveVisit>& visit, const v1::MoveHello& hello) {
  CKPTD_ASSIGN_OR_RETURN(const Judged judged, Judge(visit->caller(), hello.from()));
  return TakeMove(
      judged, hello, [&] { visit->Answer(judged.answer); }, visit);
}

void CopyCounter::HearBulk(const std::shared_ptr<BulkGuest>& guest, const std::string& said) {
  v1::MoveHello hello;
  const absl::Status nonsense = Error(ErrorCode::PROTOCOL, "Move begins with Hello; this one began otherwise");
  if (!hello.ParseFromString(said)) return TurnAway(*guest, nonsense, nonsense);
  const absl::StatusOr<Judged> judged = JudgeGuest(*guest, hello.from());
  if (!judged.ok()) return TurnAway(*guest, judged.status(), guest->names() ? judged.status() : ToStranger());
  const absl::Status taken = TakeMove(
      *judged, hello, [&] { guest->Answer(judged->answer.SerializeAsString()); }, guest);
  if (!taken.ok()) TurnAway(*guest, taken, taken);
}

// Where no certificate is behind it, whoever has the token is who it was handed out to, or was told it by him.
absl::StatusOr<CopyCounter::Judged> CopyCounter::JudgeGuest(const BulkGuest& guest, const v1::HelloRequest& hello) {
  const std::optional<CertificateNames> names = guest.names();
  return Consider({names.value_or(CertificateNames{}), guest.address()}, hello,
                  names ? Proof::kCertificate : Proof::kToken);
}

// Strangers may dial without end: the log has one line a second of them.
void CopyCounter::TurnAway(BulkGuest& guest, const absl::Status& why, const absl::Status& told) {
  guest.Refuse(told);
  guest.Close(told);
  ++turned_away_;
  const Nanos now = loop_.clock().Monotonic();
  if (now - told_ < kBetweenRefusals) return;
  told_ = now;
  Log(kWarning, "peer.refused")
      .Field("from", Shown(guest.address()))
      .Field("connections", std::exchange(turned_away_, 0))
      .Error(why);
}

absl::Status CopyCounter::TakeMove(const Judged& judged, const v1::MoveHello& hello,
                                   const std::function<void()>& answer, std::shared_ptr<BulkStream> stream) {
  CKPTD_ASSIGN_OR_RETURN(const struct Hello transfer, DecodeHello(hello.transfer()));
  if (transfer.name.peer != judged.peer.name)
    return Error(ErrorCode::PERMISSION, absl::StrCat(ToString(transfer.name), ": node ", judged.peer.name,
                                                     " cannot speak for another; its token is its own"));
  CKPTD_RETURN_IF_ERROR(moves_->CheckRoom());
  CKPTD_ASSIGN_OR_RETURN(BulkEnd end, options_.host->Redeem(judged.peer.name, transfer));
  if (end.name != transfer.name || end.image_bytes != transfer.image_bytes || end.chunk_bytes != transfer.chunk_bytes)
    return Error(ErrorCode::PERMISSION,
                 absl::StrCat(ToString(transfer.name), ": the token was made for another transfer"));
  CKPTD_RETURN_IF_ERROR(moves_->CheckFree(end));
  movers_[judged.peer.name] = judged.peer;
  answer();
  return moves_->Begin(std::move(end), std::move(stream));
}

void CopyCounter::Rejudge() {
  for (auto mover = movers_.begin(); mover != movers_.end();) {
    const absl::Status admitted = options_.would_admit(mover->second);
    if (!admitted.ok()) moves_->AbortPeer(mover->first, admitted);
    mover = admitted.ok() ? std::next(mover) : movers_.erase(mover);
  }
}

}  // namespace

std::unique_ptr<CopiesDesk> MakeCopiesDesk(Loop& loop, std::shared_ptr<Mailbox> mailbox, CopiesDeskOptions options) {
  return std::make_unique<CopyCounter>(loop, std::move(mailbox), std::move(options));
}

}  // namespace ckptd::transport
