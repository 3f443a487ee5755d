#include "daemon/job/removal.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/job/lineage.h"

namespace ckptd::job {

Removal::Removal(Config config, Wanted wanted) : context_{std::move(config)}, wanted_(std::move(wanted)) {
  std::sort(wanted_.steps.begin(), wanted_.steps.end());
  wanted_.steps.erase(std::unique(wanted_.steps.begin(), wanted_.steps.end()), wanted_.steps.end());
}

void Removal::Begin(Effects& effects) {
  if (!ended()) effects.emplace_back(List{++context_.last_op});
}

void Removal::Step(const Event& answer, Effects& effects) {
  Effects made;
  context_.effects = &made;
  std::visit([this](const auto& event) { On(event); }, answer);
  if (stage_ == Stage::kDeleting) deleter_.Work(Facts(), /*retention=*/false, context_);
  if (stage_ == Stage::kDeleting && !deleter_.failure().ok()) End(deleter_.failure());
  context_.effects = nullptr;
  TakeAnswers(&made);
  if (ended()) return;
  for (Effect& effect : made) effects.push_back(std::move(effect));
}

// The deleter's word on a request is kept here; its timer is nobody's: what fails ends the command.
void Removal::TakeAnswers(Effects* effects) {
  for (const Effect& effect : *effects) {
    const auto* ended = std::get_if<DeleteEnded>(&effect);
    if (ended != nullptr) results_.emplace(wanted_.steps[ended->request], ended->status);
  }
  std::erase_if(*effects, [](const Effect& effect) {
    return std::holds_alternative<DeleteEnded>(effect) || std::holds_alternative<StartTimer>(effect);
  });
}

void Removal::End(const absl::Status& why) {
  for (const SnapshotId& id : wanted_.steps) results_.emplace(id, why);
}

void Removal::Ask() {
  deleter_.Reset(attempt_);
  for (size_t i = 0; i < wanted_.steps.size(); ++i) {
    if (results_.count(wanted_.steps[i]) == 0) deleter_.Request({i, wanted_.steps[i]}, Facts(), context_);
  }
}

void Removal::On(const Listed& event) {
  if (!event.status.ok()) return End(event.status);
  steps_ = event.steps;
  for (StoredStep& step : steps_) {
    if (!MarkerHolds(step, event.decisions, context_.config.rules.void_markers)) step.marker = 0;
  }
  history_ = v1::DecisionRecord();
  if (const v1::DecisionRecord* base = NewestBefore(event.decisions, UINT64_MAX); base != nullptr) {
    SetParent(*base, {base->attempt(), UINT64_MAX}, &history_);
  }
  history_.set_attempt(UINT64_MAX);  // above all
  Ask();
  if (stage_ == Stage::kListing) {
    stage_ = Stage::kDeleting;
    return;
  }
  stage_ = Stage::kReading;
  context_.Request(ReadNewest{});
}

void Removal::On(const NewestRead& event) {
  if (!event.status.ok()) return End(event.status);
  const std::string& coordinator = event.record.coordinator();
  if (event.found && coordinator != context_.config.agent && !wanted_.take_over) {
    return End(
        Error(ErrorCode::REFUSED,
              absl::StrCat("job ", context_.config.job, ": agent ", coordinator, " coordinates attempt ",
                           event.record.attempt(), ". Ask that agent; or, if it is gone for good, add --force here")));
  }
  // It may still decide, for a parent that is about to be deleted here; a decision above it would not void that.
  if (event.found && !event.decided && event.record.rank0_ticket() != 0) {
    return End(
        Error(ErrorCode::REFUSED, absl::StrCat("job ", context_.config.job, ": attempt ", event.record.attempt(),
                                               " has not decided what to restore. Ask again when the job trains")));
  }
  attempt_ = std::max(event.record.attempt(), wanted_.seen) + 1;
  stage_ = Stage::kCreating;
  CreateAttempt request;
  request.record.set_job(context_.config.job);
  request.record.set_attempt(attempt_);
  request.record.set_coordinator(context_.config.agent);
  request.record.set_user(event.record.user());
  context_.Request(std::move(request));
}

void Removal::On(const AttemptCreated& event) {
  if (absl::IsAlreadyExists(event.status)) {
    return End(Error(ErrorCode::REFUSED,
                     absl::StrCat("job ", context_.config.job, ": a run has just begun. Ask again when it trains")));
  }
  if (!event.status.ok()) return End(event.status);
  stage_ = Stage::kListing;
  context_.Request(List{});
}

void Removal::On(const NewestChecked& event) {
  if (deleter_.On(event, context_) != Deleter::Outcome::kHigherAttempt) return;
  End(Error(ErrorCode::REFUSED, absl::StrCat("job ", context_.config.job,
                                             ": a run began meanwhile, and no file of the step under way was "
                                             "deleted. A step that `ckptctl list` shows as deleting goes when the "
                                             "run has saved a newer one; ask again for the others when it trains")));
}

void Removal::On(const MarkerPut& event) {
  const auto stays = deleter_.On(event, context_);
  for (StoredStep& step : steps_) {
    if (step.id == stays) Keep(event, &step);
  }
}

void Removal::On(const StepDeleted& event) {
  const auto gone = deleter_.On(event, context_);
  if (gone) std::erase_if(steps_, [&](const StoredStep& step) { return step.id == *gone; });
}

}  // namespace ckptd::job
