#include "client/src/capture_end.h"

#include "client/core/copy/capture_word.h"
#include "client/include/ckpt/ckpt.h"
#include "client/src/failure.h"

namespace ckptd {
namespace {

CaptureMessage Describe(const Capture& capture, MessageType type) {
  CaptureMessage message = {};
  message.head.type = static_cast<uint16_t>(type);
  message.head.trace = capture.trace;
  message.attempt = capture.attempt;
  message.step = capture.step;
  message.epoch = capture.epoch;
  message.layout = capture.attachment->ready().layout;
  message.slot = capture.slot;
  return message;
}

// After the capture word has moved. The copy thread looks why.
void OpenGate(const Capture& capture) {
  if (capture.link == nullptr) return;
  capture.link->Release(capture.line);
  capture.link->Wake();
}

// Neither this process nor its deadline gave the capture up.
void RecordAgentGaveUp(State& state) {
  const Capture& capture = state.capture;
  if (state.fenced_by != 0) {
    RecordDrop(state, capture.step, capture.attempt, code::FENCED, "a newer attempt of this job runs");
  } else {
    RecordDrop(state, capture.step, capture.attempt, code::INTERRUPTED, "the agent gave this capture up");
  }
}

}  // namespace

void RecordDrop(State& state, uint64_t step, uint64_t attempt, int32_t number, const char* sentence) {
  state.steps.Drop(step, -number);
  state.dropped += 1;
  state.Remember(-number, sentence);
  CaptureMessage message = {};
  message.head.type = static_cast<uint16_t>(MessageType::kDrop);
  message.attempt = attempt;
  message.step = step;
  message.code = static_cast<uint32_t>(number);
  if (state.attachment != nullptr) {
    BellHead& bell = state.attachment->bell();
    message.layout = state.attachment->ready().layout;
    bell.drop_code.store(static_cast<uint64_t>(number), std::memory_order_relaxed);
    bell.dropped.store(state.dropped, std::memory_order_release);
  }
  state.hints.Push(message);
  state.changed.NotifyAll();
}

bool GiveUp(State& state, int32_t number, const char* sentence) {
  Capture& capture = state.capture;
  if (!TryAbandon(capture.bell_slot(), capture.epoch)) return false;
  if (capture.given_up) return true;
  capture.given_up = true;
  capture.stop.store(true, std::memory_order_relaxed);
  OpenGate(capture);
  RecordDrop(state, capture.step, capture.attempt, number, sentence);
  return true;
}

bool CompleteCapture(State& state) {
  Capture& capture = state.capture;
  capture.bell_slot().end_ns.store(MonotonicNs(), std::memory_order_relaxed);
  bool complete = TryComplete(capture.bell_slot(), capture.epoch);
  if (!complete && !(capture.pulled && IsComplete(capture.bell_slot(), capture.epoch))) {
    if (!capture.given_up) RecordAgentGaveUp(state);
    capture.given_up = true;
    return false;
  }
  if (StepState* step = state.steps.Find(capture.step)) step->flags |= CKPT_COPIED;
  state.hints.Push(Describe(capture, MessageType::kDone));
  return true;
}

void EndCapture(State& state) {
  Capture& capture = state.capture;
  OpenGate(capture);
  if (capture.orphaned) {
    state.orphans.push_back({capture.link, capture.attachment, capture.slot});
  } else {
    Acknowledge(capture.bell_slot(), capture.epoch);
  }
  capture.link.reset();
  state.pull.in_use = false;
  capture.phase = Capture::Phase::kIdle;
  state.changed.NotifyAll();
}

}  // namespace ckptd
