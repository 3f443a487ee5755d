#include "daemon/transport/visit.h"

#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/mutex.h"
#include "daemon/transport/credentials.h"
#include "daemon/transport/grpc_status.h"
#include "proto/ckptd/v1/peer.grpc.pb.h"

namespace ckptd::transport {
namespace {

// More than all members of the largest cluster have open together.
constexpr size_t kMaxVisits = 40'000;

// The visits that gRPC has not let go of. Any thread.
class Register {
 public:
  // OK, or why it must go at once.
  [[nodiscard]] absl::Status Enter(const std::shared_ptr<Visit>& visit) CKPTD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (!closed_.ok()) return closed_;
    if (visits_.size() == kMaxVisits)
      return Error(ErrorCode::BUSY, absl::StrCat(kMaxVisits, " calls of other agents are open; call again later"));
    visits_.emplace(visit->id(), visit);
    return absl::OkStatus();
  }
  void Leave(VisitId id) CKPTD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    visits_.erase(id);
  }
  [[nodiscard]] VisitId NextId() CKPTD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return ++last_id_;
  }
  [[nodiscard]] std::vector<std::shared_ptr<Visit>> Close(const absl::Status& why) CKPTD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    closed_ = why;
    std::vector<std::shared_ptr<Visit>> all;
    for (const auto& [id, visit] : visits_) {
      if (auto here = visit.lock()) all.push_back(std::move(here));
    }
    return all;
  }

 private:
  Mutex mutex_;
  absl::Status closed_ CKPTD_GUARDED_BY(mutex_);
  VisitId last_id_ CKPTD_GUARDED_BY(mutex_) = 0;
  std::map<VisitId, std::weak_ptr<Visit>> visits_ CKPTD_GUARDED_BY(mutex_);
};

class LinkVisit final : public grpc::ServerBidiReactor<v1::LinkRequest, v1::LinkResponse>, public Visit {
 public:
  LinkVisit(VisitId id, Caller caller, grpc::CallbackServerContext* context, VisitSink& sink, Register& visits)
      : Visit(id, std::move(caller)), context_(context), sink_(sink), register_(visits) {}

  void Begin(std::shared_ptr<LinkVisit> self) {
    self_ = self;
    if (absl::Status entered = register_.Enter(self); !entered.ok()) return End(entered);
    sink_.Came(std::move(self));
    StartRead(&request_);
  }

  bool Accept(const v1::HelloResponse& answer) override {
    if (ended_) return false;
    *response_.mutable_hello() = answer;
    StartWrite(&response_);
    return true;
  }
  void ReadNext() override {
    if (!ended_) StartRead(&request_);
  }
  void End(const absl::Status& status) override {
    if (!std::exchange(ended_, true)) Finish(ToGrpc(status, context_));
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return sink_.Left(id());
    sink_.Said(id(), std::make_shared<v1::LinkRequest>(std::exchange(request_, {})));
  }
  void OnDone() override {
    register_.Leave(id());
    const std::shared_ptr<LinkVisit> last = std::move(self_);
  }

  grpc::CallbackServerContext* const context_;
  VisitSink& sink_;
  Register& register_;
  v1::LinkRequest request_;
  v1::LinkResponse response_;
  bool ended_ = false;               // the owner's, but in Begin
  std::shared_ptr<LinkVisit> self_;  // until gRPC is done with it
};

// Peer.Hello: a visit that is over with the answer.
class HelloVisit final : public grpc::ServerUnaryReactor, public Visit {
 public:
  HelloVisit(VisitId id, Caller caller, grpc::CallbackServerContext* context, v1::HelloResponse* response,
             VisitSink& sink, Register& visits)
      : Visit(id, std::move(caller)), context_(context), response_(response), sink_(sink), register_(visits) {}

  void Begin(std::shared_ptr<HelloVisit> self, const v1::HelloRequest& hello) {
    self_ = self;
    if (absl::Status entered = register_.Enter(self); !entered.ok()) return End(entered);
    sink_.Came(std::move(self));
    auto request = std::make_shared<v1::LinkRequest>();
    *request->mutable_hello() = hello;
    sink_.Said(id(), std::move(request));
  }

  bool Accept(const v1::HelloResponse& answer) override {
    if (!ended_) *response_ = answer;
    End(absl::OkStatus());
    return false;
  }
  void ReadNext() override {}
  void End(const absl::Status& status) override {
    if (!std::exchange(ended_, true)) Finish(ToGrpc(status, context_));
  }

 private:
  void OnDone() override {
    register_.Leave(id());
    const std::shared_ptr<HelloVisit> last = std::move(self_);
  }

  grpc::CallbackServerContext* const context_;
  v1::HelloResponse* const response_;
  VisitSink& sink_;
  Register& register_;
  bool ended_ = false;
  std::shared_ptr<HelloVisit> self_;
};

class Desk final : public v1::Peer::CallbackService, public VisitDesk {
 public:
  explicit Desk(VisitSink& sink) : sink_(sink) {}

  grpc::Service* service() override { return this; }
  void Close(const absl::Status& why) override {
    for (const auto& visit : register_.Close(why)) visit->End(why);
  }

  grpc::ServerUnaryReactor* Hello(grpc::CallbackServerContext* context, const v1::HelloRequest* request,
                                  v1::HelloResponse* response) override {
    auto visit =
        std::make_shared<HelloVisit>(register_.NextId(), CallerOf(*context), context, response, sink_, register_);
    visit->Begin(visit, *request);
    return visit.get();
  }
  grpc::ServerBidiReactor<v1::LinkRequest, v1::LinkResponse>* Link(grpc::CallbackServerContext* context) override {
    auto visit = std::make_shared<LinkVisit>(register_.NextId(), CallerOf(*context), context, sink_, register_);
    visit->Begin(visit);
    return visit.get();
  }

 private:
  static Caller CallerOf(const grpc::CallbackServerContext& context) {
    const auto proved = context.auth_context();
    return {proved == nullptr ? CertificateNames{} : NamesOf(*proved), context.peer()};
  }

  VisitSink& sink_;
  Register register_;
};

}  // namespace

std::unique_ptr<VisitDesk> MakeVisitDesk(VisitSink& sink) { return std::make_unique<Desk>(sink); }

}  // namespace ckptd::transport
