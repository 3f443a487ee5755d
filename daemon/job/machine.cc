#include "daemon/job/machine.h"

#include <utility>

#include "daemon/job/coordinator.h"
#include "daemon/job/member.h"

namespace ckptd::job {

class Machine::Impl {
 public:
  explicit Impl(Config config) : context_{std::move(config)}, member_(&context_), coordinator_(&context_, &member_) {}

  void Step(const Event& event, Effects& effects) {
    context_.effects = &effects;
    std::visit([this](const auto& e) { On(e); }, event);
    SetPace();
    context_.effects = nullptr;
  }

  [[nodiscard]] View view() const {
    View view;
    member_.FillView(&view);
    coordinator_.FillView(&view);  // which knows more, where it is here
    return view;
  }

 private:
  void On(const Started& event) {
    member_.On(event);
    if (event.seen != 0) coordinator_.Resume();
  }
  void On(const Join& event) {
    if (member_.On(event) && event.rank == 0) coordinator_.Open(event);
  }
  void On(const MembersChanged& event) {
    context_.config.members = event.members;
    member_.KeepResending();
    coordinator_.MembersChanged();
    coordinator_.Resend();  // who is new hears of the attempt at once
    coordinator_.Evaluate();
  }
  void On(const StateReceived& event) {
    if (!member_.SameUser(*event.state)) return member_.StayOut(*event.state);
    member_.On(event);
    coordinator_.HigherAttempt(event.state->attempt(), event.state->coordinator());
  }
  void On(const TimerFired& event) {
    switch (event.kind) {
      case TimerKind::kResend:
        coordinator_.Repeat();
        member_.SendReport();
        member_.Resent(event.key);
        break;
      case TimerKind::kSettle:
        coordinator_.Settled();
        break;
      case TimerKind::kDecide:
        coordinator_.DecideTimeout(event.key);
        coordinator_.Evaluate();
        break;
      case TimerKind::kRetry:
        coordinator_.Retry(event.key);
        coordinator_.Evaluate();
        break;
      case TimerKind::kPins:
      case TimerKind::kUndeleted:
        coordinator_.DeletionRested(event.kind);
        coordinator_.Evaluate();
        break;
      case TimerKind::kProve:
        member_.ProverRested();
        coordinator_.Evaluate();
        break;
      case TimerKind::kJoin:
        member_.JoinTimedOut(event.key, coordinator_.phase());
        break;
    }
  }
  void On(const Withdrawn& event) { member_.On(event); }
  void On(const Reaped& event) { member_.On(event); }
  void On(const Resumed& event) {
    member_.On(event);
    coordinator_.ResumeUnseen(event.attempt);
  }
  void On(const RankChanged& event) { member_.On(event); }
  void On(const CopiesChanged& event) { member_.On(event); }
  void On(const CopyRefused& event) { member_.On(event); }
  void On(const StorageHangs& event) { member_.On(event); }
  void On(const RankVerified& event) {
    member_.On(event);
    coordinator_.Evaluate();
  }
  void On(const StepVerified&) {}  // of a Removal
  void On(const ReportReceived& event) {
    coordinator_.On(event);
    coordinator_.EvaluateSoon();
  }
  template <typename T>
  void On(const T& event) {
    coordinator_.On(event);
    coordinator_.Evaluate();
  }
  // Of a job that has ended, agents tell each other seldom; as soon as something happens, as always. Those that were
  // not heard meanwhile are asked at once: they are not gone.
  void SetPace() {
    const bool quiet = member_.Quiet() && coordinator_.Still();
    if (quiet_ && !quiet) coordinator_.Resend();
    quiet_ = quiet;
    member_.SetQuiet(quiet);
  }

  Context context_;
  Member member_;
  Coordinator coordinator_;
  bool quiet_ = false;
};

Machine::Machine(Config config) : impl_(std::make_unique<Impl>(std::move(config))) {}
Machine::~Machine() = default;
Machine::Machine(Machine&&) noexcept = default;
Machine& Machine::operator=(Machine&&) noexcept = default;
void Machine::Step(const Event& event, Effects& effects) { impl_->Step(event, effects); }
View Machine::view() const { return impl_->view(); }

}  // namespace ckptd::job
