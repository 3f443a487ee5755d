#include "daemon/protect/piece_source.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/format/snapshot_ref.h"
#include "daemon/protect/copy_messages.h"

namespace ckptd::protect {
namespace {

constexpr Nanos kPieceAnswer = std::chrono::seconds(10);  // to one question
constexpr Nanos kPieceNotYet = std::chrono::seconds(10);  // an agent that has not heard of the attempt is asked again
constexpr Nanos kWeHearLater = std::chrono::seconds(1);   // than that agent of a new attempt
constexpr Nanos kAskPieceAgain = std::chrono::milliseconds(100);

bool ComesLater(const absl::Status& status) {
  return CodeOf(status) == ErrorCode::BUSY || CodeOf(status) == ErrorCode::LAYOUT_PREPARING;
}

absl::Status NoLinks() { return Error(ErrorCode::AGENT_UNREACHABLE, "there are no links to other nodes"); }

}  // namespace

PieceSource::PieceSource(Loop& loop, const Clock& clock, Calls calls, Attempt attempt, std::string agent, bool spare)
    : loop_(loop),
      clock_(clock),
      calls_(std::move(calls)),
      attempt_(std::move(attempt)),
      agent_(std::move(agent)),
      spare_(spare) {}

void PieceSource::Ask(v1::DescribeRequest request, Answer answer) {
  request_ = std::move(request);
  answer_ = std::move(answer);
  asked_ = clock_.Monotonic();
  patience_ends_ = asked_ + kPieceNotYet;
  AskNow();
}

void PieceSource::AskNow() {
  transport::CopyCalls* calls = calls_();
  if (calls == nullptr) return Answered(NoLinks());
  request_.set_attempt(attempt_());
  calls->Describe(agent_, request_, kPieceAnswer,
                  scope_.Bind([this](absl::StatusOr<v1::DescribeResponse> answer) { Answered(std::move(answer)); }));
}

// The last thing here: whoever hears the answer may ask anew.
void PieceSource::Answered(absl::StatusOr<v1::DescribeResponse> answer) {
  const Nanos now = clock_.Monotonic();
  const bool behind = CodeOf(answer.status()) == ErrorCode::FENCED && now < asked_ + kWeHearLater;
  const bool again = behind || (ComesLater(answer.status()) && now < patience_ends_);
  if (again) return (void)loop_.After(kAskPieceAgain, scope_.Bind([this] { AskNow(); }));
  patience_ends_ = Nanos(0);
  const Answer told = std::exchange(answer_, nullptr);
  told(std::move(answer));
}

absl::Status PieceSource::Receive(const v1::DescribeResponse& told, uint64_t bytes, uint64_t chunk_bytes,
                                  transport::BulkTarget target, transport::MoveDone done) {
  transport::CopyCalls* calls = calls_();
  if (calls == nullptr) return NoLinks();
  const v1::CopyName& copy = request_.copy();
  transport::MoveOrder order;
  order.peer = agent_;
  order.name = {agent_, copy.job(), copy.rank(), ToId(copy.snapshot()), told.slot()};
  order.image_bytes = bytes;
  order.chunk_bytes = chunk_bytes;
  CKPTD_ASSIGN_OR_RETURN(order.token, TokenOf(told.token()));
  order.renew = scope_.Bind([this, slot = told.slot()](auto answered) { Renew(slot, std::move(answered)); });
  transport::ReceiverLimits limits;
  limits.deadline = clock_.Monotonic() + transport::kLongestTransfer;
  auto received = calls->Receive(std::move(order), std::move(target), limits, scope_.Bind(std::move(done)));
  if (!received.ok()) return received.status();
  move_ = *std::move(received);
  return absl::OkStatus();
}

void PieceSource::Cancel() {
  if (move_ != nullptr) move_->Cancel();
}

void PieceSource::Renew(uint32_t slot, const std::function<void(absl::StatusOr<transport::TransferToken>)>& answered) {
  transport::CopyCalls* calls = calls_();
  if (calls == nullptr) return answered(NoLinks());
  request_.set_attempt(attempt_());
  calls->Describe(agent_, request_, kPieceAnswer,
                  scope_.Bind([this, slot, answered](const absl::StatusOr<v1::DescribeResponse>& again) {
                    const absl::Status said = Patiently(again.status());
                    answered(said.ok() ? RenewedToken(slot, again) : absl::StatusOr<transport::TransferToken>(said));
                  }));
}

// What the transport would go on with for long ends here.
absl::Status PieceSource::Patiently(const absl::Status& said) {
  const Nanos now = clock_.Monotonic();
  const bool waits = ComesLater(said);
  if (!waits) patience_ends_ = Nanos(0);
  if (waits && patience_ends_ == Nanos(0)) patience_ends_ = now + kPieceNotYet;
  const bool silent = CodeOf(said) == ErrorCode::TIMEOUT && spare_;
  if (!silent && (!waits || now < patience_ends_)) return said;
  return Error(ErrorCode::NOT_FOUND, absl::StrCat("it does not go on: ", said.message()));
}

}  // namespace ckptd::protect
