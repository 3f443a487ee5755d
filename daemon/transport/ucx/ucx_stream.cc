#include "daemon/transport/ucx/ucx_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/core/copy/crc32c.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"

// What whoever drives a stream calls, and what moves frames on the port's thread; how a stream begins and ends is in
// ucx_life.cc.
namespace ckptd::transport {
namespace {

constexpr unsigned kFrameId = 1;  // of active messages
constexpr int kRounds = 64;       // of work, before others have their turn

std::array<uint8_t, UcxStream::kHeadBytes> HeadOf(FrameKind kind, uint32_t number) {
  std::array<uint8_t, UcxStream::kHeadBytes> head{static_cast<uint8_t>(kind)};
  for (size_t i = 0; i < 4; ++i) head[4 + i] = static_cast<uint8_t>(number >> (8 * i));
  return head;
}

uint32_t NumberOf(absl::string_view head) {
  uint32_t number = 0;
  for (size_t i = 0; i < 4; ++i) number |= static_cast<uint32_t>(static_cast<uint8_t>(head[4 + i])) << (8 * i);
  return number;
}

absl::Status Nonsense(absl::string_view what) {
  return Error(ErrorCode::PROTOCOL, absl::StrCat("Move by UCX: ", what));
}

}  // namespace

// --- Whoever drives it.

void UcxStream::Watch(std::function<void()> changed) {
  MutexLock lock(mutex_);
  changed_ = std::move(changed);
}

void UcxStream::AskForWork() {
  {
    MutexLock lock(mutex_);
    if (std::exchange(asked_, true)) return;
  }
  home_.mailbox->Put([self = shared_from_this()] { self->Work(); });
}

void UcxStream::Put(std::unique_ptr<Outgoing> frame) {
  {
    MutexLock lock(mutex_);
    if (closed_ || broken_) return;
    orders_.push_back(std::move(frame));
    ++unsent_;
  }
  AskForWork();
}

void UcxStream::Order(FrameKind kind, std::string body) {
  Put(std::unique_ptr<Outgoing>(new Outgoing{this, kind, {}, std::move(body), nullptr, 0}));
}

absl::Status UcxStream::SendData(size_t bytes, const std::function<absl::Status(std::span<std::byte> into)>& fill) {
  Buffer buffer;
  {
    MutexLock lock(mutex_);
    if (!spare_.empty()) {
      buffer = std::move(spare_.back());
      spare_.pop_back();
    }
  }
  if (!buffer) buffer.reset(new std::byte[kMaxPiece]);
  CKPTD_RETURN_IF_ERROR(fill(std::span<std::byte>(buffer.get(), bytes)));
  Put(std::unique_ptr<Outgoing>(new Outgoing{this, FrameKind::kData, {}, "", std::move(buffer), bytes}));
  return absl::OkStatus();
}

void UcxStream::EndWrites() {
  {
    MutexLock lock(mutex_);
    if (std::exchange(end_said_, true)) return;
  }
  Order(kEnd, "");
}

bool UcxStream::writable() {
  MutexLock lock(mutex_);
  return !broken_ && !closed_ && !end_said_ && unsent_ < kMostUnsent;
}

// What was offered by an end that is gone cannot come.
bool UcxStream::TakeableLocked() const {
  if (!placed_.empty()) return true;
  return !arrived_.empty() && !(broken_ && arrived_.front().kind == FrameKind::kData);
}

bool UcxStream::ended() {
  MutexLock lock(mutex_);
  if (TakeableLocked()) return false;
  return broken_ || closed_ || (end_came_ && unplaced_ == 0);
}

// What was offered last and not placed is refused; then what is in place comes before the next frame. True: there is
// work for the port's thread.
bool UcxStream::TakeNext(Arrived* frame, std::span<std::byte>* placed) {
  MutexLock lock(mutex_);
  bool work = false;
  if (void* const offer = std::exchange(to_be_placed_, nullptr)) {
    refused_.push_back(offer);
    work = true;
  }
  if (!placed_.empty()) {
    *placed = placed_.front();
    placed_.pop_front();
    return work;
  }
  if (!TakeableLocked()) return work;
  *frame = std::move(arrived_.front());
  arrived_.pop_front();
  to_be_placed_ = frame->offer;
  return ++took_ % (kAhead / 2) == 0 || work;
}

absl::StatusOr<std::optional<Incoming>> UcxStream::Take() {
  Arrived frame{};
  Incoming incoming;
  std::span<std::byte> placed;
  if (TakeNext(&frame, &placed)) AskForWork();
  if (!placed.empty()) {
    incoming.placed = placed.size();
    incoming.crc = Crc32c(0, placed.data(), placed.size());
    return incoming;
  }
  if (frame.kind == FrameKind{}) return std::nullopt;
  if (frame.kind == FrameKind::kData) {
    incoming.data = frame.bytes;
  } else if (frame.kind == FrameKind::kMessage) {
    CKPTD_ASSIGN_OR_RETURN(incoming.message, DecodeMessage(frame.body));
  } else {
    CKPTD_ASSIGN_OR_RETURN(incoming.header, DecodeChunk(frame.body));
  }
  return incoming;
}

std::optional<uint32_t> UcxStream::Place(std::span<std::byte> into) {
  {
    MutexLock lock(mutex_);
    void* const offer = std::exchange(to_be_placed_, nullptr);
    if (offer == nullptr) return std::nullopt;  // it was closed meanwhile
    to_place_.push_back({this, offer, into});
    ++unplaced_;
  }
  AskForWork();
  return std::nullopt;
}

bool UcxStream::quiet() {
  MutexLock lock(mutex_);
  return gone_ || unplaced_ == 0;
}

void UcxStream::Close(const absl::Status&) {
  {
    MutexLock lock(mutex_);
    if (std::exchange(closed_, true)) return;
    if (to_be_placed_ != nullptr) refused_.push_back(std::exchange(to_be_placed_, nullptr));
  }
  AskForWork();
}

// --- The port's thread.

void UcxStream::Work() {
  {
    MutexLock lock(mutex_);
    asked_ = false;
  }
  for (int round = 0; worker_ != nullptr && round < kRounds; ++round) {
    StartOrders();
    unsigned did = 0;
    while (did < kRounds && home_.ucp.ucp_worker_progress(worker_) != 0) ++did;
    const bool parts = Part();
    if (worker_ == nullptr) break;
    if (did == 0 && !parts && Sleeps()) return Tell();
  }
  Tell();
  if (worker_ != nullptr) AskForWork();
}

// Whether its descriptor wakes us when there is more to do.
bool UcxStream::Sleeps() {
  const ucs_status_t armed = home_.ucp.ucp_worker_arm(worker_);
  if (armed != UCS_OK && armed != UCS_ERR_BUSY) Break(UcxError(home_.ucp, armed, "the worker's descriptor"));
  return armed != UCS_ERR_BUSY;
}

void UcxStream::StartOrders() {
  if (endpoint_ == nullptr || phase_ > Phase::kFlushing) return;
  std::deque<Placing> places;
  std::vector<void*> refused;
  {
    MutexLock lock(mutex_);
    places.swap(to_place_);
    refused.swap(refused_);
  }
  for (Placing& order : places) StartPlacing(order);
  for (void* const offer : refused) home_.ucp.ucp_am_data_release(worker_, offer);
  SayTaken();
  while (std::unique_ptr<Outgoing> frame = NextToSend()) SendNow(std::move(frame));
}

std::unique_ptr<UcxStream::Outgoing> UcxStream::NextToSend() {
  MutexLock lock(mutex_);
  if (orders_.empty() || broken_ || sent_ - peer_took_ >= kAhead) return nullptr;
  std::unique_ptr<Outgoing> frame = std::move(orders_.front());
  orders_.pop_front();
  frame->head = HeadOf(frame->kind, sent_++);
  return frame;
}

void UcxStream::SayTaken() {
  {
    MutexLock lock(mutex_);
    if (took_ - said_taken_ < kAhead / 2 || broken_) return;
    said_taken_ = took_;
    ++unsent_;
  }
  SendNow(std::unique_ptr<Outgoing>(new Outgoing{this, kTaken, HeadOf(kTaken, said_taken_), "", nullptr, 0}));
}

void UcxStream::SendNow(std::unique_ptr<Outgoing> frame) {
  Outgoing* const sending = frame.get();
  flying_[sending] = std::move(frame);
  ucp_request_param_t how{};
  how.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  how.flags = sending->data ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER;
  how.user_data = sending;
  how.cb.send = [](void* request, ucs_status_t status, void* user_data) {
    auto* const sent = static_cast<Outgoing*>(user_data);
    sent->stream->home_.ucp.ucp_request_free(request);
    sent->stream->Sent(sent, status);
  };
  const void* const body = sending->data ? static_cast<const void*>(sending->data.get()) : sending->body.data();
  const size_t bytes = sending->data ? sending->bytes : sending->body.size();
  const ucs_status_ptr_t request =
      home_.ucp.ucp_am_send_nbx(endpoint_, kFrameId, sending->head.data(), sending->head.size(), body, bytes, &how);
  if (UCS_PTR_IS_PTR(request)) return;
  Sent(sending, UCS_PTR_STATUS(request));
}

void UcxStream::Sent(Outgoing* sent, ucs_status_t status) {
  const auto node = flying_.extract(sent);
  if (node.empty()) return;
  const std::unique_ptr<Outgoing>& frame = node.mapped();
  {
    MutexLock lock(mutex_);
    --unsent_;
    if (frame->data && spare_.size() < kMostUnsent) spare_.push_back(std::move(frame->data));
  }
  news_ = true;
  if (status != UCS_OK) Break(UcxError(home_.ucp, status, "sending"));
}

void UcxStream::StartPlacing(Placing order) {
  placings_.push_back(std::make_unique<Placing>(order));
  Placing* const placing = placings_.back().get();
  ucp_request_param_t how{};
  how.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  how.user_data = placing;
  how.cb.recv_am = [](void* request, ucs_status_t status, size_t, void* user_data) {
    auto* const placed = static_cast<Placing*>(user_data);
    placed->done = true;
    placed->stream->home_.ucp.ucp_request_free(request);
    placed->stream->Placed(status);
  };
  const ucs_status_ptr_t request =
      home_.ucp.ucp_am_recv_data_nbx(worker_, placing->offer, placing->into.data(), placing->into.size(), &how);
  if (UCS_PTR_IS_PTR(request)) return;
  placing->done = true;
  Placed(UCS_PTR_STATUS(request));
}

// In the order in which they were asked for, whichever was there first.
void UcxStream::Placed(ucs_status_t status) {
  if (status != UCS_OK) return Break(UcxError(home_.ucp, status, "receiving"));
  news_ = true;
  MutexLock lock(mutex_);
  if (broken_) return;
  while (!placings_.empty() && placings_.front()->done) {
    placed_.push_back(placings_.front()->into);
    placings_.pop_front();
    --unplaced_;
  }
}

// Within UCX's progress. UCS_INPROGRESS: the offer is kept.
ucs_status_t UcxStream::Came(absl::string_view head, void* data, size_t bytes, bool offered) {
  if (phase_ > Phase::kFlushing) return UCS_OK;
  const bool is_head = head.size() == kHeadBytes && head[1] == 0 && head[2] == 0 && head[3] == 0;
  const FrameKind kind = is_head ? static_cast<FrameKind>(head[0]) : FrameKind{};
  const uint32_t number = is_head ? NumberOf(head) : 0;
  if (kind == kTaken && bytes == 0 && number - peer_took_ <= sent_ - peer_took_) {
    peer_took_ = number;
    return UCS_OK;
  }
  {
    MutexLock lock(mutex_);
    if (broken_) return UCS_OK;
  }
  if (absl::Status fits = Check(kind, number, bytes, offered); !fits.ok()) {
    Break(fits);
    return UCS_OK;
  }
  Arrived frame{kind, "", offered ? data : nullptr, bytes};
  if (!offered && bytes != 0) frame.body.assign(static_cast<const char*>(data), bytes);
  early_.emplace(number, std::move(frame));
  for (auto next = early_.find(next_); next != early_.end(); next = early_.find(next_)) {
    Arrived whole = std::move(next->second);
    early_.erase(next);
    ++next_;
    Keep(std::move(whole));
  }
  return offered ? UCS_INPROGRESS : UCS_OK;
}

absl::Status UcxStream::Check(FrameKind kind, uint32_t number, size_t bytes, bool offered) {
  const bool is_end = kind == kEnd && bytes == 0;
  if (!is_end && (bytes == 0 || bytes > MostOf(kind))) return Nonsense(absl::StrCat(bytes, " bytes that are no frame"));
  if (offered != (kind == FrameKind::kData)) return Nonsense("a frame in the way of another kind");
  MutexLock lock(mutex_);
  const bool in_window = number - next_ < kAhead && number - took_ < kAhead && !end_came_;
  if (in_window && early_.count(number) == 0) return absl::OkStatus();
  return Nonsense("a frame that nobody may send now");
}

void UcxStream::Keep(Arrived frame) {
  news_ = true;
  if (!std::exchange(greeted_, true)) {
    First(frame);
    MutexLock lock(mutex_);
    if (frame.offer != nullptr) refused_.push_back(frame.offer);
    ++took_;
    return;
  }
  if (frame.kind == FrameKind::kHello) return Break(Nonsense("a second Hello"));
  MutexLock lock(mutex_);
  if (frame.kind == kEnd) {
    end_came_ = true;
    ++took_;
    return;
  }
  arrived_.push_back(std::move(frame));
}

void UcxStream::First(const Arrived& frame) {
  const auto first = std::exchange(events_.first, nullptr);
  if (!first) return;
  if (frame.kind == FrameKind::kHello) return first(frame.body);
  absl::Status why = Nonsense("it begins without Hello");
  if (frame.kind == FrameKind::kMessage) {
    const absl::StatusOr<TransferMessage> message = DecodeMessage(frame.body);
    const Stop* const stop = message.ok() ? std::get_if<Stop>(&*message) : nullptr;
    if (stop != nullptr) why = ErrorOf(*stop);
  }
  Break(why);
  first(why);
}

}  // namespace ckptd::transport
