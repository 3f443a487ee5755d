// How a stream begins and ends: all on the port's thread.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/os/fd.h"
#include "daemon/transport/ucx/ucx_stream.h"

namespace ckptd::transport {
namespace {

constexpr unsigned kFrameMessages = 1;
constexpr Nanos kParting = std::chrono::milliseconds(500);  // for what was said to arrive
constexpr Nanos kClosing = std::chrono::seconds(2);         // for UCX to let go of an endpoint and its requests

}  // namespace

absl::StatusOr<std::shared_ptr<UcxStream>> UcxStream::Make(const UcxHome& home, std::string address, Events events) {
  std::shared_ptr<UcxStream> stream(new UcxStream(home, std::move(address), std::move(events)));
  absl::Status made = stream->MakeWorker();
  if (made.ok()) return stream;
  if (stream->worker_ != nullptr) home.ucp.ucp_worker_destroy(std::exchange(stream->worker_, nullptr));
  return made;
}

// The port lets go of it when its worker is gone.
UcxStream::~UcxStream() {
  if (worker_ != nullptr) std::abort();
}

absl::Status UcxStream::MakeWorker() {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SINGLE;
  ucs_status_t status = home_.ucp.ucp_worker_create(home_.context, &params, &worker_);
  if (status != UCS_OK) return UcxError(home_.ucp, status, "making a worker");
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                       UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kFrameMessages;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  handler.arg = this;
  handler.cb = [](void* arg, const void* head, size_t head_bytes, void* data, size_t bytes,
                  const ucp_am_recv_param_t* how) {
    const bool offered = (how->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
    return static_cast<UcxStream*>(arg)->Came({static_cast<const char*>(head), head_bytes}, data, bytes, offered);
  };
  status = home_.ucp.ucp_worker_set_am_recv_handler(worker_, &handler);
  if (status == UCS_OK) status = home_.ucp.ucp_worker_get_efd(worker_, &event_fd_);
  if (status != UCS_OK) return UcxError(home_.ucp, status, "preparing a worker");
  return home_.loop.Watch(event_fd_, EPOLLIN, [weak = weak_from_this()](uint32_t) {
    if (const auto self = weak.lock()) self->Work();
  });
}

absl::Status UcxStream::MakeEndpoint(ucp_ep_params_t* params) {
  params->field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params->err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params->err_handler.arg = this;
  params->err_handler.cb = [](void* arg, ucp_ep_h, ucs_status_t status) {
    auto* const self = static_cast<UcxStream*>(arg);
    self->Break(UcxError(self->home_.ucp, status, "the connection"));
  };
  const ucs_status_t status = home_.ucp.ucp_ep_create(worker_, params, &endpoint_);
  if (status == UCS_OK) return absl::OkStatus();
  endpoint_ = nullptr;
  return UcxError(home_.ucp, status, "connecting");
}

absl::Status UcxStream::Dial(const sockaddr* to, socklen_t bytes, std::string hello) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr.addr = to;
  params.sockaddr.addrlen = bytes;
  CKPTD_RETURN_IF_ERROR(MakeEndpoint(&params));
  Order(FrameKind::kHello, std::move(hello));
  return absl::OkStatus();
}

absl::Status UcxStream::Accept(ucp_conn_request_h request) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
  params.conn_request = request;
  CKPTD_RETURN_IF_ERROR(MakeEndpoint(&params));
  AskForWork();
  return absl::OkStatus();
}

void UcxStream::CutOff() { GiveUp(Error(ErrorCode::CANCELLED, "cut off here")); }

void UcxStream::GiveUp(const absl::Status& why) {
  Break(why);
  Close(absl::OkStatus());
  AskForWork();
}

void UcxStream::Break(const absl::Status& why) {
  {
    MutexLock lock(mutex_);
    broken_ = true;
  }
  news_ = true;
  if (const auto first = std::exchange(events_.first, nullptr)) first(why);
}

void UcxStream::Tell() {
  std::function<void()> changed;
  if (std::exchange(news_, false)) {
    MutexLock lock(mutex_);
    changed = changed_;
  }
  if (changed) changed();
}

// Open, then, when it was closed: what was said is let arrive for a moment, unless the connection is broken or bytes
// are on their way into memory that its owner wants back; then the endpoint is closed by force, what UCX still does for
// it ends, and then the worker. True: there is more to do at once.
bool UcxStream::Part() {
  const Phase before = phase_;
  bool closed = false;
  bool at_once = false;
  bool unsaid = false;
  {
    MutexLock lock(mutex_);
    closed = closed_;
    at_once = broken_ || unplaced_ != 0 || endpoint_ == nullptr;
    if (closed && !at_once && phase_ == Phase::kOpen && !std::exchange(end_said_, true)) {
      orders_.push_back(std::unique_ptr<Outgoing>(new Outgoing{this, kEnd, {}, "", nullptr, 0}));
      ++unsent_;
    }
    unsaid = !orders_.empty();
  }
  if (!closed) return false;
  if (phase_ == Phase::kOpen) {
    phase_ = Phase::kParting;
    parting_ = home_.loop.After(kParting, [self = shared_from_this()] { self->CutOff(); });
  }
  if (phase_ == Phase::kParting && !at_once && !unsaid) Flush();
  if (phase_ < Phase::kClosing && (at_once || flushed_)) CloseEndpoint();
  if (phase_ == Phase::kClosing && closed_endpoint_) Settle();
  if (phase_ == Phase::kSettling && Settled()) Vanish();
  return phase_ != before;
}

// For a request whose end makes `kDone` true.
template <bool UcxStream::*kDone>
ucp_request_param_t UcxStream::Marks() {
  ucp_request_param_t how{};
  how.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  how.user_data = this;
  how.cb.send = [](void* request, ucs_status_t, void* user_data) {
    auto* const self = static_cast<UcxStream*>(user_data);
    self->home_.ucp.ucp_request_free(request);
    self->*kDone = true;
  };
  return how;
}

void UcxStream::Flush() {
  phase_ = Phase::kFlushing;
  const ucp_request_param_t how = Marks<&UcxStream::flushed_>();
  flushed_ = !UCS_PTR_IS_PTR(home_.ucp.ucp_ep_flush_nbx(endpoint_, &how)) || flushed_;
}

void UcxStream::ReleaseOffers() {
  std::vector<void*> offers;
  {
    MutexLock lock(mutex_);
    offers.swap(refused_);
    for (const Placing& order : to_place_) offers.push_back(order.offer);
    for (const Arrived& frame : arrived_) offers.push_back(frame.offer);
    to_place_.clear();
    arrived_.clear();
  }
  for (const auto& [number, frame] : early_) offers.push_back(frame.offer);
  early_.clear();
  for (void* const offer : offers) {
    if (offer != nullptr) home_.ucp.ucp_am_data_release(worker_, offer);
  }
}

void UcxStream::CloseEndpoint() {
  phase_ = Phase::kClosing;
  home_.loop.CancelTimer(std::exchange(parting_, 0));
  ReleaseOffers();
  parting_ = home_.loop.After(kClosing, [self = shared_from_this()] {
    self->Vanish();
    self->Tell();
  });
  ucp_request_param_t how{};
  how.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  how.flags = UCP_EP_CLOSE_FLAG_FORCE;
  how.user_data = this;
  how.cb.send = [](void* request, ucs_status_t, void* user_data) {
    auto* const self = static_cast<UcxStream*>(user_data);
    self->home_.ucp.ucp_request_free(request);
    self->closed_endpoint_ = true;
  };
  ucp_ep_h const endpoint = std::exchange(endpoint_, nullptr);
  if (endpoint == nullptr || !UCS_PTR_IS_PTR(home_.ucp.ucp_ep_close_nbx(endpoint, &how))) closed_endpoint_ = true;
}

// An endpoint that was closed by force is not gone: UCX goes on to discard its connections, of which only the worker's
// flush tells the end, and finishes what was being received a turn later. A worker that is destroyed before frees
// memory twice (libucp 1.16 to 1.22; the address sanitizer saw it in 2 of 20 runs with 1.22.0): ucp_worker_destroy,
// ucp_worker_discard_uct_ep_cleanup, ucs_callbackq_remove_oneshot, whose predicate ucp_worker_discard_remove_filter
// completes the discarding and so, by ucp_ep_reqs_purge and ucp_request_memh_invalidate, adds a callback to the table
// that is being gone over. Where that rehashes the table, the element that is freed then is taken out of a wrong place
// and stays, and ucs_callbackq_cleanup, of uct_worker_destroy, frees it again.
void UcxStream::Settle() {
  phase_ = Phase::kSettling;
  const ucp_request_param_t how = Marks<&UcxStream::settled_>();
  settled_ = !UCS_PTR_IS_PTR(home_.ucp.ucp_worker_flush_nbx(worker_, &how)) || settled_;
}

bool UcxStream::Settled() const {
  return settled_ && flying_.empty() &&
         std::all_of(placings_.begin(), placings_.end(), [](const auto& placing) { return placing->done; });
}

// With the worker everything ends that might still write to anybody's memory.
void UcxStream::Vanish() {
  if (worker_ == nullptr) return;
  home_.loop.CancelTimer(std::exchange(parting_, 0));
  home_.loop.Unwatch(event_fd_);
  home_.ucp.ucp_worker_destroy(std::exchange(worker_, nullptr));
  phase_ = Phase::kGone;
  placings_.clear();
  flying_.clear();
  {
    MutexLock lock(mutex_);
    gone_ = true;
    broken_ = true;
    orders_.clear();
  }
  news_ = true;
  if (events_.gone) events_.gone();
}

}  // namespace ckptd::transport
