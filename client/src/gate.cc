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

// For a stream it is enough that all copies are submitted: it can wait for them itself.
bool MustWait(const Capture& capture, uint64_t epoch, const DeviceStream* stream) {
  return StillCopying(capture, epoch) && !(stream != nullptr && capture.submitted);
}

// What a stream has to wait for: the copies of these lanes, or what a copier does.
struct Waits {
  std::vector<std::shared_ptr<Lane>> lanes;
  std::shared_ptr<CopierLink> link;
  CopierLink::Line line;
};

// With the mutex held. From here on the copy thread minds the deadline of a pull.
Waits WaitsOf(Capture& capture, uint64_t epoch, const DeviceStream* stream, uint64_t deadline) {
  if (stream == nullptr || !StillCopying(capture, epoch)) return {};
  Waits waits = {capture.registration->devices.lanes, nullptr, {}};
  if (!capture.pulled) return waits;
  waits.link = capture.link;
  waits.line = capture.line;
  if (!capture.armed) capture.gate_deadline_ns = deadline;
  capture.armed = true;
  capture.link->Wake();
  return waits;
}

int32_t HoldStream(const Waits& waits, DeviceStream stream) {
  for (const auto& lane : waits.lanes) {
    ContextScope scope(lane->device());
    DeviceError error = scope.error();
    if (error.ok()) error = waits.link != nullptr ? waits.link->Hold(stream, waits.line) : lane->HoldUntilEnd(stream);
    if (!error.ok()) return DeviceFails(lane->ordinal(), error);
  }
  return 0;
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

int32_t WaitAtGate(State& state, uint64_t timeout_ns, const DeviceStream* stream) {
  uint64_t begin = MonotonicNs();
  uint64_t deadline = DeadlineAfter(timeout_ns == 0 ? state.gate_timeout_ns : timeout_ns);
  int32_t rc = 0;
  bool completed = false;
  Waits waits;
  {
    MutexLock lock(state.mutex);
    Capture& capture = state.capture;
    capture.gate_seen = true;
    state.gating_trusted = state.gated_step = true;
    state.pin_watch.Gate(begin);
    if (capture.phase == Capture::Phase::kIdle) return 0;
    uint64_t epoch = capture.epoch;
    uint64_t step = capture.step;
    bool in_time = true;
    while (in_time && !state.stopping && MustWait(capture, epoch, stream)) {
      in_time = state.changed.WaitUntil(state.mutex, deadline);
    }
    if (state.stopping) {
      rc = FailClosed();  // whoever closes has given the capture up
    } else if (MustWait(capture, epoch, stream)) {
      rc = GiveUpAtDeadline(state);
    }
    waits = WaitsOf(capture, epoch, stream, deadline);
    if (capture.phase == Capture::Phase::kHeld && capture.epoch == epoch) {
      completed = CompleteCapture(state);
      EndCapture(state);
    }
    AddBlocked(state, step, begin);
    if (completed) capture.attachment->Hint();
  }
  state.Wake();
  if (rc != 0 || waits.lanes.empty() || HoldStream(waits, *stream) == 0) return rc;
  return WaitAtGate(state, timeout_ns, nullptr);  // what no stream can be made to wait for, the caller waits for
}

// Behind the wait: a capture under way at this process' death is then still of a step that can be resumed.
void BeginUpdate(State& state, const DeviceStream* stream) {
  if (!state.rescue_wanted) return;
  std::shared_ptr<Rescue> rescue;
  {
    MutexLock lock(state.mutex);
    rescue = state.Rescuer();
  }
  if (rescue != nullptr) rescue->Begin(stream);
}

}  // namespace

int32_t PassGate(State& state, uint64_t timeout_ns, const DeviceStream* stream) {
  int32_t rc = WaitAtGate(state, timeout_ns, stream);
  BeginUpdate(state, stream);
  return rc;
}

int32_t RefuseCapturing(const Lane& lane, DeviceStream stream) {
  ContextScope scope(lane.device());
  bool capturing = false;
  DeviceError error = scope.error().ok() ? lane.device().IsCapturing(stream, &capturing) : scope.error();
  if (!error.ok()) return DeviceFails(lane.ordinal(), error);
  if (!capturing) return 0;
  return Fail(code::INVALID_ARGUMENT,
              "the stream is being captured into a CUDA graph, whose replays would pass no gate: call it before each "
              "replay() instead");
}

int32_t PassGateOnStream(State& state, void* handle, uint64_t timeout_ns) {
  std::shared_ptr<const Registration> registration;
  {
    MutexLock lock(state.mutex);
    registration = state.registration;
  }
  if (registration == nullptr || !registration->devices.any()) return PassGate(state, timeout_ns, nullptr);
  DeviceStream stream = {handle};
  int32_t rc = RefuseCapturing(*registration->devices.lanes.front(), stream);
  if (rc == -code::INVALID_ARGUMENT) return rc;
  return PassGate(state, timeout_ns, rc == 0 ? &stream : nullptr);
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
