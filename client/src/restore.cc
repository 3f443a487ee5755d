#include "client/src/restore.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>

#include "client/src/failure.h"

namespace ckptd {
namespace {

constexpr uint64_t kDefaultTimeoutNs = 120'000'000'000;
// What the greeting may take of an agent that is asked only at the end of the connect timeout.
constexpr uint64_t kMoveGraceNs = 1'000'000'000;
// The agent's own timer runs to the same deadline, and its answer names who is missing: worth this much longer.
constexpr uint64_t kAnswerGraceNs = 1'000'000'000;
constexpr uint64_t kMostPatienceMs = UINT64_MAX / 1'000'000;

// With the mutex held: why waiting longer is futile, or 0.
int32_t Failed(const State& state) {
  if (state.deaf) return Fail(code::INTERNAL, "%s", state.broken_sentence);
  if (state.claim.stage == Claim::Stage::kFailed) return Fail(state.claim.code, "%s", state.claim.sentence.c_str());
  if (state.connect_code != 0) return Fail(state.connect_code, "%s", state.connect_sentence.c_str());
  return 0;
}

uint64_t AnswerDeadline(const State& state) {
  uint64_t deadline = state.claim.deadline_ns;
  if (!state.claim.answered) {
    const uint64_t connect = state.claim.connect_deadline_ns;
    const bool has_grace = state.holds_back && connect < UINT64_MAX - kMoveGraceNs;
    return std::min(deadline, has_grace ? connect + kMoveGraceNs : connect);
  }
  return state.connected && deadline < UINT64_MAX - kAnswerGraceNs ? deadline + kAnswerGraceNs : deadline;
}

int32_t TimedOut(const State& state) {
  if (!state.connected) {
    return Fail(code::AGENT_UNREACHABLE, "job %s rank %u: %s: %s", state.job.c_str(), state.rank,
                state.claim.answered ? "the agent went away and did not come back" : "no agent answers",
                state.tried.c_str());
  }
  return Fail(code::TIMEOUT, "job %s rank %u: the agent answers, but the restore was not decided in time",
              state.job.c_str(), state.rank);
}

void Describe(const LoadMessage& load, const Snapshot* snapshot, ckpt_restored* out) {
  out->source = load.source;
  out->attempt = load.attempt;
  out->snapshot_attempt = load.snapshot_attempt;
  out->snapshot_step = load.snapshot_attempt != 0 ? load.snapshot_step : 0;
  out->slot_bytes = snapshot != nullptr ? snapshot->bytes() : 0;
  out->image_count = snapshot != nullptr ? static_cast<uint32_t>(snapshot->headers().size()) : 0;
  out->skipped_count = std::min(load.skipped_count, kMaxSkipped);
  for (uint32_t i = 0; i < out->skipped_count; ++i) {
    const SkippedStep& skipped = load.skipped[i];
    out->skipped[i] = {skipped.attempt, skipped.step, -static_cast<int32_t>(skipped.code & INT32_MAX), skipped.rank};
  }
}

// With the mutex held: until something changed. The deadline is another one once an agent has answered.
int32_t WaitForChange(State& state) {
  if (int32_t rc = Failed(state)) return rc;
  uint64_t deadline = AnswerDeadline(state);
  bool changed = state.changed.WaitUntil(state.mutex, deadline);
  return changed || deadline != AnswerDeadline(state) ? 0 : TimedOut(state);
}

}  // namespace

bool IsAnswered(const Claim& claim) {
  return claim.stage == Claim::Stage::kOffered || claim.stage == Claim::Stage::kReported ||
         claim.stage == Claim::Stage::kRunning;
}

void KeepPatience(Claim& claim, uint64_t patience_ms) {
  if (claim.timeout_ns == 0) return;
  claim.deadline_ns = std::max(claim.deadline_ns, DeadlineAfter(std::min(patience_ms, kMostPatienceMs) * 1'000'000));
}

void LosePatience(Claim& claim) {
  if (claim.timeout_ns == 0) return;
  claim.deadline_ns = std::min(claim.deadline_ns, DeadlineAfter(claim.timeout_ns));
}

int32_t Restore::WaitForOffer() {
  while (!state_.claim.untaken) {
    if (int32_t rc = WaitForChange(state_)) return rc;
  }
  return 0;
}

int32_t Restore::AwaitOffer(ckpt_restored* out) {
  for (;;) {
    LoadMessage load;
    WhySkipped why;
    UniqueFd slot;
    UniqueFd ctl;
    {
      MutexLock lock(state_.mutex);
      if (int32_t rc = WaitForOffer()) return rc;
      load = state_.claim.load;
      why = state_.claim.why_skipped;
      slot = std::move(state_.claim.slot_file);
      ctl = std::move(state_.claim.ctl_file);
      state_.claim.untaken = false;
    }
    snapshot_.reset();
    int32_t rc = load.snapshot_attempt == 0 ? 0 : Snapshot::Open(load, std::move(slot), std::move(ctl), &snapshot_);
    if (rc == 0) {
      extra_bytes_ = snapshot_ != nullptr ? snapshot_->extra_bytes() : 0;
      Describe(load, snapshot_.get(), out);
      TakeWhy(load, why);
      return 0;
    }
    Report(-rc, LastSentence());
  }
}

void Restore::TakeWhy(const LoadMessage& load, const WhySkipped& why) {
  why_.clear();
  for (uint32_t i = 0; i < std::min(load.skipped_count, kMaxSkipped); ++i) {
    const auto said = why.sentences.find({load.skipped[i].attempt, load.skipped[i].step});
    const bool is_told = why.attempt == load.attempt && said != why.sentences.end();
    why_.push_back(is_told ? said->second : "");
  }
}

// Not when a newer offer has come meanwhile: that one replaces what was tried.
void Restore::Report(int32_t number, const char* reason) {
  {
    MutexLock lock(state_.mutex);
    Claim& claim = state_.claim;
    if (claim.untaken || claim.stage != Claim::Stage::kOffered) return;
    claim.stage = Claim::Stage::kReported;
    claim.result = number;
    claim.loaded_bytes = snapshot_ != nullptr ? snapshot_->bytes() : 0;
    snprintf(claim.reason, sizeof claim.reason, "%s", reason != nullptr ? reason : "");
  }
  state_.Wake();
}

int32_t Restore::Begin(const ckpt_want& want, ckpt_restored* out) {
  if (want.want > CKPT_WANT_FRESH) return Fail(code::INVALID_ARGUMENT, "want is %u", want.want);
  {
    MutexLock lock(state_.mutex);
    Claim claim;
    claim.stage = Claim::Stage::kJoining;
    claim.ticket = RandomNumber();
    claim.want = static_cast<Want>(want.want);
    claim.want_step = want.step;
    claim.timeout_ns = want.timeout_ns != 0 ? want.timeout_ns : kDefaultTimeoutNs;
    claim.deadline_ns = DeadlineAfter(claim.timeout_ns);
    const uint64_t connect_ns = want.connect_timeout_ns != 0 ? want.connect_timeout_ns : kDefaultConnectNs;
    claim.connect_deadline_ns = DeadlineAfter(connect_ns);
    claim.since_ns = MonotonicNs();
    claim.move_ns = std::min(connect_ns, claim.timeout_ns / 2);  // the other agent needs time to answer as well
    claim.answered = state_.connected;
    std::swap(state_.claim, claim);
  }
  begun_ = true;
  why_.clear();
  state_.Wake();
  int32_t rc = AwaitOffer(out);
  loading_ = rc == 0;
  return rc;
}

int32_t Restore::WaitForGo() {
  MutexLock lock(state_.mutex);
  const Claim& claim = state_.claim;
  while (claim.stage != Claim::Stage::kRunning) {
    if (claim.untaken) return CKPT_RELOAD;
    if (int32_t rc = WaitForChange(state_)) return rc;
  }
  return 0;
}

int32_t Restore::End(int32_t result, const char* reason, ckpt_restored* out) {
  if (!begun_) return Fail(code::INVALID_ARGUMENT, "ckpt_restore_end without ckpt_restore_begin");
  Report(-result, reason);
  snapshot_.reset();
  int32_t rc = WaitForGo();
  if (rc == CKPT_RELOAD) {
    rc = AwaitOffer(out);
    if (rc == 0) return CKPT_RELOAD;
  }
  begun_ = loading_ = false;
  return rc;
}

void Restore::Cancel() {
  MutexLock lock(state_.mutex);
  Claim& claim = state_.claim;
  const bool waits = claim.stage == Claim::Stage::kJoining || claim.stage == Claim::Stage::kOffered ||
                     claim.stage == Claim::Stage::kReported;
  if (!waits || claim.implicit) return;
  claim.stage = Claim::Stage::kFailed;
  claim.code = code::CANCELLED;
  claim.sentence =
      "job " + state_.job + " rank " + std::to_string(state_.rank) + ": the restore was ended from outside";
  state_.changed.NotifyAll();
}

}  // namespace ckptd
