#include "daemon/rpc/admin_service.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/mutex.h"
#include "proto/ckptd/v1/admin.grpc.pb.h"

namespace ckptd {
namespace {

// The metadata must stand before the status is sent.
grpc::Status ToGrpc(const absl::Status& status, grpc::CallbackServerContext* context) {
  if (status.ok()) return grpc::Status::OK;
  context->AddTrailingMetadata(kErrorMetadata, InfoOf(CodeOf(status)).name);
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

// Wall time, as gRPC has it, to a duration: what remains is only used for waiting.
Nanos TimeLeft(const grpc::CallbackServerContext& context) {
  const auto deadline = context.deadline();
  const auto now = std::chrono::system_clock::now();
  if (deadline - now > std::chrono::hours(24 * 365)) return Nanos::max();
  return std::max(Nanos(0), std::chrono::duration_cast<Nanos>(deadline - now));
}

// How many of something are under way.
class Places {
 public:
  explicit Places(int most) : free_(most) {}
  [[nodiscard]] bool TryTake() {
    if (free_.fetch_sub(1) > 0) return true;
    free_.fetch_add(1);
    return false;
  }
  void Leave() { free_.fetch_add(1); }

 private:
  std::atomic<int> free_;
};

absl::Status Busy() { return Error(ErrorCode::BUSY, "the agent works for too many ckptctl at once; ask again"); }

class UnaryState final : public AdminCall {
 public:
  using AdminCall::AdminCall;
  using AdminCall::MarkCancelled;
};

template <typename Response>
class UnaryReactor final : public grpc::ServerUnaryReactor {
 public:
  UnaryReactor(grpc::CallbackServerContext* context, Response* response, Places& places)
      : context_(context),
        response_(response),
        places_(places),
        state_(std::make_shared<UnaryState>(TimeLeft(*context))) {}

  [[nodiscard]] AdminCallPtr state() const { return state_; }
  void Answer(absl::StatusOr<Response> result) {
    if (result.ok() && result->ByteSizeLong() >= kMaxAdminMessage) {
      result = Error(ErrorCode::REFUSED, "the answer is above 1 MiB: name one job");
    }
    const absl::Status status = result.status();
    if (status.ok()) *response_ = *std::move(result);
    Finish(ToGrpc(status, context_));
  }

  void OnCancel() override { state_->MarkCancelled(); }
  void OnDone() override {
    places_.Leave();
    delete this;  // gRPC's way: it has let go of the reactor
  }

 private:
  grpc::CallbackServerContext* const context_;
  Response* const response_;
  Places& places_;
  const std::shared_ptr<UnaryState> state_;
};

// Lives until gRPC and the backend have both let go. At most one message is with gRPC; Write() waits for the one
// before.
template <typename Message>
class StreamReactor final : public grpc::ServerWriteReactor<Message>, public AdminStream<Message> {
 public:
  StreamReactor(grpc::CallbackServerContext* context, Places& places)
      : AdminStream<Message>(TimeLeft(*context)), context_(context), places_(places) {}

  void KeepAlive(std::shared_ptr<StreamReactor> self) { self_ = std::move(self); }

  bool Write(Message message) override {
    {
      MutexLock lock(mutex_);
      while (writing_ && !this->cancelled()) written_.Wait(mutex_);
      if (writing_ || this->cancelled()) return false;
      writing_ = true;
      message_ = std::move(message);
    }
    this->StartWrite(&message_);
    return true;
  }

  void End(absl::Status status) {
    {
      MutexLock lock(mutex_);
      end_ = std::move(status);
      if (writing_) return;  // OnWriteDone finishes
    }
    this->Finish(ToGrpc(*end_, context_));
  }

  void OnWriteDone(bool ok) override {
    bool finish = false;
    {
      MutexLock lock(mutex_);
      writing_ = false;
      if (!ok) this->MarkCancelled();
      finish = end_.has_value();
      written_.NotifyAll();
    }
    if (finish) this->Finish(ToGrpc(*end_, context_));
  }

  void OnCancel() override {
    MutexLock lock(mutex_);
    this->MarkCancelled();
    written_.NotifyAll();
  }

  void OnDone() override {
    places_.Leave();
    self_.reset();
  }

 private:
  grpc::CallbackServerContext* const context_;
  Places& places_;
  std::shared_ptr<StreamReactor> self_;
  Mutex mutex_;
  CondVar written_;
  bool writing_ CKPTD_GUARDED_BY(mutex_) = false;
  Message message_;                  // gRPC's while writing_
  std::optional<absl::Status> end_;  // set once, before Finish
};

class AdminService final : public v1::Admin::CallbackService {
 public:
  AdminService(AdminBackend& backend, const AdminLimits& limits)
      : backend_(backend), calls_(limits.calls), streams_(limits.streams) {}

  using Context = grpc::CallbackServerContext;
  template <typename Message>
  using Reactor = grpc::ServerWriteReactor<Message>;

#define CKPTD_UNARY(Method, Request, Response)                                                                      \
  grpc::ServerUnaryReactor* Method(Context* context, const v1::Request* request, v1::Response* response) override { \
    return Unary(context, *request, response, &AdminBackend::Method);                                               \
  }
#define CKPTD_STREAM(Method, Request, Message)                                          \
  Reactor<v1::Message>* Method(Context* context, const v1::Request* request) override { \
    return Stream<v1::Message>(context, *request, &AdminBackend::Method);               \
  }
  CKPTD_UNARY(Status, StatusRequest, StatusView)
  CKPTD_UNARY(List, ListRequest, ListResponse)
  CKPTD_UNARY(Flush, FlushRequest, FlushResponse)
  CKPTD_UNARY(Drain, DrainRequest, DrainResponse)
  CKPTD_UNARY(Pin, PinRequest, PinResponse)
  CKPTD_UNARY(Unpin, UnpinRequest, UnpinResponse)
  CKPTD_UNARY(Remove, RemoveRequest, RemoveResponse)
  CKPTD_UNARY(Gc, GcRequest, GcResponse)
  CKPTD_UNARY(Version, VersionRequest, VersionResponse)
  CKPTD_UNARY(Trace, TraceRequest, TraceResponse)
  CKPTD_STREAM(Inspect, InspectRequest, InspectResponse)
  CKPTD_STREAM(Verify, VerifyRequest, VerifyProgress)
  CKPTD_STREAM(Restore, RestoreRequest, RestoreResponse)
#undef CKPTD_UNARY
#undef CKPTD_STREAM

 private:
  template <typename Request, typename Response>
  grpc::ServerUnaryReactor* Unary(Context* context, const Request& request, Response* response,
                                  void (AdminBackend::*method)(AdminCallPtr, Request, AdminBackend::Done<Response>)) {
    const bool free = calls_.TryTake();
    auto* reactor = new UnaryReactor<Response>(context, response, free ? calls_ : refused_);
    if (!free) {
      reactor->Answer(Busy());
    } else {
      (backend_.*method)(reactor->state(), request,
                         [reactor](absl::StatusOr<Response> result) { reactor->Answer(std::move(result)); });
    }
    return reactor;
  }

  template <typename Message, typename Request>
  Reactor<Message>* Stream(Context* context, const Request& request,
                           void (AdminBackend::*method)(AdminStreamPtr<Message>, Request, AdminBackend::Ended)) {
    const bool free = streams_.TryTake();
    auto reactor = std::make_shared<StreamReactor<Message>>(context, free ? streams_ : refused_);
    StreamReactor<Message>* raw = reactor.get();
    raw->KeepAlive(reactor);
    if (!free) {
      raw->End(Busy());
    } else {
      (backend_.*method)(reactor, request, [reactor](absl::Status status) { reactor->End(std::move(status)); });
    }
    return raw;
  }

  AdminBackend& backend_;
  Places calls_;
  Places streams_;
  Places refused_{0};  // what those take who found no place
};

}  // namespace

std::unique_ptr<grpc::Service> MakeAdminService(AdminBackend& backend, const AdminLimits& limits) {
  return std::make_unique<AdminService>(backend, limits);
}

}  // namespace ckptd
