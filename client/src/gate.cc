#include "client/src/gate.h"

#include <cinttypes>
#include <cstdio>

#include "client/src/capture_end.h"
#include "client/src/failure.h"

namespace ckptd {
namespace {

bool StillCopying(const Capture& capture, uint64_t epoch) {
  return capture.busy() && capture.epoch == epoch && !capture.given_up;
}

void AddBlocked(State& state, uint64_t step, uint64_t begin_ns) {
  StepState* entry = state.steps.Find(step);
  if (entry == nullptr) return;
  entry->blocked_ns += MonotonicNs() - begin_ns;
  if (state.capture.step != step || state.capture.attachment == nullptr) return;
  state.capture.bell_slot().blocked_ns.store(entry->blocked_ns, std::memory_order_relaxed);
}

int32_t GiveUpAtDeadline(State& state) {
  char sentence[200];
  snprintf(sentence, sizeof sentence,
           "step %" PRIu64 ": the capture was not done at the gate's deadline; training goes on", state.capture.step);
  if (!GiveUp(state, code::GATE_DEADLINE, sentence)) return 0;
  return Fail(code::GATE_DEADLINE, "%s", sentence);
}

}  // namespace

int32_t PassGate(State& state, uint64_t timeout_ns) {
  uint64_t begin = MonotonicNs();
  uint64_t deadline = DeadlineAfter(timeout_ns == 0 ? state.gate_timeout_ns : timeout_ns);
  int32_t rc = 0;
  bool completed = false;
  {
    MutexLock lock(state.mutex);
    Capture& capture = state.capture;
    capture.gate_seen = true;
    state.gating_trusted = true;
    if (capture.phase == Capture::Phase::kIdle) return 0;
    uint64_t epoch = capture.epoch;
    uint64_t step = capture.step;
    bool in_time = true;
    while (in_time && StillCopying(capture, epoch)) in_time = state.changed.WaitUntil(state.mutex, deadline);
    if (StillCopying(capture, epoch)) rc = GiveUpAtDeadline(state);
    if (capture.phase == Capture::Phase::kHeld && capture.epoch == epoch) {
      completed = CompleteCapture(state);
      EndCapture(state);
    }
    AddBlocked(state, step, begin);
    if (completed) capture.attachment->Hint();
  }
  state.Wake();
  return rc;
}

void RefuseUngated(State& state) {
  Capture& capture = state.capture;
  if (capture.gate_seen || !capture.needs_gate) return;
  capture.gate_seen = true;  // told once
  state.gating_trusted = false;
  char sentence[200];
  snprintf(sentence, sizeof sentence,
           "step %" PRIu64 ": no ckpt_gate before the next save, so its tensors may have changed", capture.step);
  bool lost = capture.phase != Capture::Phase::kIdle && GiveUp(state, code::UNGATED, sentence);
  if (capture.phase == Capture::Phase::kHeld) EndCapture(state);
  if (!lost) state.Remember(-code::UNGATED, sentence);
}

}  // namespace ckptd
