#include "daemon/protect/first_answer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"

namespace ckptd::protect {
namespace {

constexpr Nanos kAskBeside = std::chrono::seconds(1);

}  // namespace

FirstAnswer::FirstAnswer(Loop& loop, const Clock& clock, PieceSource::Calls calls, PieceSource::Attempt attempt,
                         std::vector<Asked> asked, absl::Status none, Handler handler)
    : loop_(loop),
      clock_(clock),
      calls_(std::move(calls)),
      attempt_(std::move(attempt)),
      asked_(std::move(asked)),
      handler_(std::move(handler)),
      last_(std::move(none)) {}

void FirstAnswer::AskNext() {
  if (over_) return;
  if (next_ == asked_.size()) {
    if (open_ == 0) End(last_);
    return;
  }
  const size_t who = next_++;
  ++open_;
  loop_.After(kAskBeside, scope_.Bind([this, next = next_] {
    if (next_ == next) AskNext();
  }));
  sources_.push_back(std::make_unique<PieceSource>(loop_, clock_, calls_, attempt_, asked_[who].agent, /*spare=*/true));
  sources_.back()->Ask(asked_[who].request,
                       [this, who](const absl::StatusOr<v1::DescribeResponse>& answer) { Answered(who, answer); });
}

void FirstAnswer::Answered(size_t who, const absl::StatusOr<v1::DescribeResponse>& answer) {
  if (over_) return;
  --open_;
  absl::Status status = answer.status();
  if (status.ok()) status = handler_.check(*answer);
  if (status.ok()) return End(answer);
  handler_.lost(who, status);
  last_ = Error(CodeOf(status), absl::StrCat("agent ", asked_[who].agent, ": ", status.message()));
  AskNext();
}

// In its own turn: this may be the call of whoever owns it, or of one of the asked.
void FirstAnswer::End(absl::StatusOr<v1::DescribeResponse> answer) {
  over_ = true;
  loop_.After(Nanos(0), scope_.Bind([this, answer = std::move(answer)] {
    const auto told = std::move(handler_.told);
    told(answer);
  }));
}

}  // namespace ckptd::protect
