#include "daemon/transport/dialled_move.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/ids.h"

namespace ckptd::transport {
namespace {

constexpr Nanos kTokenIsFresh = std::chrono::seconds(10);  // it is good for 30 s (copy_keeper.cc)
constexpr Nanos kRestsAtMost = std::chrono::seconds(20);   // the other end waits for 60 s (copy_keeper.cc)

// The other end has no room now: no fault of the connection.
bool MeansLater(ErrorCode code) { return code == ErrorCode::BUSY || code == ErrorCode::LAYOUT_PREPARING; }

// Another connection, or another token, may do better. Everything else is the last word.
bool MayPass(ErrorCode code) {
  return code == ErrorCode::AGENT_UNREACHABLE || code == ErrorCode::TIMEOUT || code == ErrorCode::PERMISSION ||
         code == ErrorCode::CANCELLED || code == ErrorCode::DRAINING;
}

}  // namespace

void DialShared::AbortAll(const absl::Status& why) {
  for (const Run& one : runs) {
    if (const auto here = one.run.lock()) here->Abort(why);
  }
}

void DialShared::AbortPeer(const std::string& peer, const absl::Status& why) {
  for (const Run& one : runs) {
    const auto here = one.peer == peer ? one.run.lock() : nullptr;
    if (here) here->Abort(why);
  }
}

DialledMove::DialledMove(std::shared_ptr<DialShared> shared, MoveOrder order, Hello hello,
                         std::shared_ptr<TransferRun> run, std::function<absl::Status(uint32_t, uint32_t)> ready,
                         uint32_t most_vain, MoveDone done)
    : shared_(std::move(shared)),
      order_(std::move(order)),
      hello_(std::move(hello)),
      run_(std::move(run)),
      ready_(std::move(ready)),
      most_vain_(most_vain),
      done_(std::move(done)),
      backoff_(shared_->first_pause, shared_->longest_pause, RandomId()),
      token_(order_.token),
      token_since_(Now()) {
  look_ = scope_.Bind([this] { Look(); });
  awake_ = scope_.Bind([this] { Awake(); });
  std::erase_if(shared_->runs, [](const DialShared::Run& one) { return one.run.expired(); });
  shared_->runs.push_back({order_.peer, run_});
  SetAlarm();
  Wait();
}

DialledMove::~DialledMove() {
  run_->Abort(Error(ErrorCode::CANCELLED, absl::StrCat(ToString(order_.name), ": given up here")));
  shared_->loop.CancelTimer(pause_);
  shared_->loop.CancelTimer(alarm_);
  GiveSlotBack();
}

absl::Status DialledMove::ChunkReady(uint32_t chunk, uint32_t crc) {
  if (!ready_)
    return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat(ToString(order_.name), ": is received, not sent"));
  absl::Status ready = ready_(chunk, crc);
  if (rests_.exchange(false)) shared_->mailbox->Put(awake_);
  return ready;
}

void DialledMove::Cancel() {
  run_->Abort(Error(ErrorCode::CANCELLED, absl::StrCat(ToString(order_.name), ": cancelled here")));
  shared_->mailbox->Put(look_);
}

void DialledMove::SetAlarm() {
  shared_->loop.CancelTimer(std::exchange(alarm_, 0));
  const Nanos due = run_->NextDeadline();
  if (due != Nanos::max()) alarm_ = shared_->loop.At(due, look_);
}

// The run was aborted, or a deadline is over. Whoever drives it sees that himself.
void DialledMove::Look() {
  if (phase_ == Phase::kDriven || phase_ == Phase::kOver) return;
  run_->Tick();
  if (Over()) return Finish();
  SetAlarm();
}

void DialledMove::Wait() {
  if (!shows_up_ && run_->Rests()) return Rest();
  TokenIsFresh() ? AskForSlot() : Renew();
}

bool DialledMove::TokenIsFresh() const { return !token_used_ && Now() - token_since_ < kTokenIsFresh; }

void DialledMove::AskForSlot() {
  phase_ = Phase::kWaiting;
  waits_since_ = Now();
  ticket_ = shared_->slots->Ask(scope_.Bind([this] { Granted(); }));
}

// Looked at once more when ChunkReady is known to say so.
void DialledMove::Rest() {
  phase_ = Phase::kResting;
  waits_since_ = Now();
  rests_ = true;
  pause_ = shared_->loop.After(kRestsAtMost, [this] {
    shows_up_ = true;
    Awake();
  });
  if (!run_->Rests()) Awake();
}

void DialledMove::Awake() {
  if (phase_ != Phase::kResting) return;
  rests_ = false;
  shared_->loop.CancelTimer(std::exchange(pause_, 0));
  Waited();
  Wait();
}

// For something of this node: the other end may have been free meanwhile.
void DialledMove::Waited() {
  if (busy_since_) *busy_since_ += Now() - waits_since_;
}

void DialledMove::Granted() {
  shows_up_ = false;
  has_slot_ = true;
  Waited();
  TokenIsFresh() ? Dial() : Renew();
}

void DialledMove::Renew() {
  phase_ = Phase::kRenewing;
  order_.renew(scope_.Bind([this, renewal = ++renewal_](const absl::StatusOr<TransferToken>& token) {
    if (phase_ == Phase::kRenewing && renewal == renewal_) Renewed(token);
  }));
}

void DialledMove::Renewed(const absl::StatusOr<TransferToken>& token) {
  if (!token.ok()) return Failed(token.status());
  token_ = *token;
  token_since_ = Now();
  token_used_ = false;
  has_slot_ ? Dial() : AskForSlot();
}

void DialledMove::Dial() {
  phase_ = Phase::kDialling;
  token_used_ = true;
  hello_.token = token_;
  shared_->dial(order_.peer, hello_,
                scope_.Bind([this](absl::StatusOr<OpenedStream> opened) { Opened(std::move(opened)); }));
}

void DialledMove::Opened(absl::StatusOr<OpenedStream> opened) {
  if (phase_ == Phase::kDialling && opened.ok()) return Drive(*std::move(opened));
  if (opened.ok()) return opened->stream->Close(Error(ErrorCode::CANCELLED, "nobody wants it any more"));
  if (phase_ == Phase::kDialling) Failed(opened.status());
}

void DialledMove::Drive(OpenedStream opened) {
  phase_ = Phase::kDriven;
  has_slot_ = false;
  busy_since_.reset();
  progress_ = run_->verified_bytes();
  way_ = opened.way;
  driven_since_ = Now();
  starved_ = run_->starved();
  std::shared_ptr<BulkStream> stream = std::move(opened.stream);
  run_->Prepare();
  auto returned = scope_.Bind([this] { Returned(); });
  const bool runs =
      shared_->pool->Run([stream, run = run_, slots = shared_->slots, mailbox = shared_->mailbox, returned]() mutable {
        run->Drive(*stream);
        stream.reset();
        run.reset();
        mailbox->Put([slots, returned]() mutable {
          returned();
          slots->Return();
        });
      });
  if (runs) return;
  stream->Close(Error(ErrorCode::DRAINING, "this node leaves"));
  shared_->slots->Return();
  run_->Abort(Error(ErrorCode::DRAINING, absl::StrCat(ToString(order_.name), ": this node leaves")));
  Finish();
}

void DialledMove::Returned() {
  const uint64_t brought = run_->verified_bytes() - progress_;
  const Nanos took = Now() - driven_since_ - (run_->starved() - starved_);
  const bool vain = brought == 0 && !run_->GaveBack();
  if (shared_->ended && (brought != 0 || (vain && !Over()))) shared_->ended({order_.peer, way_, brought, took});
  if (Over()) return Finish();
  SetAlarm();
  phase_ = Phase::kPausing;  // the slot goes back by itself
  if (run_->GaveBack()) {
    backoff_.Reset();
    return Wait();
  }
  if (!vain) backoff_.Reset();
  vain_ = vain ? vain_ + 1 : 0;
  Vain();
}

void DialledMove::Failed(const absl::Status& why) {
  last_error_ = why;
  const ErrorCode code = CodeOf(why);
  if (MeansLater(code) && !busy_since_) busy_since_ = Now();
  const bool too_long = MeansLater(code) && Now() - *busy_since_ >= order_.busy_patience;
  if (too_long || (!MeansLater(code) && !MayPass(code))) run_->Abort(why);
  GiveSlotBack();
  phase_ = Phase::kPausing;
  if (MeansLater(code) || Over()) return Pause();
  run_->Vain();
  ++vain_;
  Vain();
}

// Of a receiver: a sender's machine counts for itself.
void DialledMove::Vain() {
  if (most_vain_ != 0 && vain_ >= most_vain_)
    run_->Abort(Error(ErrorCode::TIMEOUT, absl::StrCat(ToString(order_.name), ": ", vain_,
                                                       " connections in a row brought nothing; look at the network "
                                                       "between the two nodes")));
  Pause();
}

void DialledMove::Pause() {
  if (Over()) return Finish();
  pause_ = shared_->loop.After(backoff_.Next(), [this] { Wait(); });
}

void DialledMove::GiveSlotBack() {
  if (phase_ == Phase::kWaiting) shared_->slots->Withdraw(ticket_);
  phase_ = Phase::kOver;
  if (std::exchange(has_slot_, false)) shared_->slots->Return();
}

void DialledMove::Finish() {
  if (phase_ != Phase::kDriven) GiveSlotBack();
  phase_ = Phase::kOver;
  shared_->loop.CancelTimer(pause_);
  shared_->loop.CancelTimer(alarm_);
  absl::Status status = run_->status();
  if (CodeOf(status) == ErrorCode::TIMEOUT && !last_error_.ok())
    status = Error(ErrorCode::TIMEOUT, absl::StrCat(status.message(), "; the last error: ", last_error_.message()));
  if (done_) shared_->mailbox->Put(scope_.Bind([done = done_, status] { done(status); }));
}

}  // namespace ckptd::transport
