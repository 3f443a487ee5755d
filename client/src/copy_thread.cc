#include "client/src/copy_thread.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "client/src/capture_end.h"
#include "client/src/device_copy.h"
#include "client/src/failure.h"
#include "client/src/pull_copy.h"

namespace ckptd {
namespace {

// The tensor whose bytes contain `slot_offset`.
std::string_view TensorAt(const Shape& shape, uint64_t slot_offset) {
  auto after = std::upper_bound(shape.order.begin(), shape.order.end(), slot_offset,
                                [&](uint64_t at, uint32_t tensor) { return at < shape.tensors[tensor].slot_offset; });
  return after == shape.order.begin() ? std::string_view() : shape.table.name(*(after - 1));
}

void DropFaulted(State& state, const CopyResult& result) {
  std::string_view name = TensorAt(*state.capture.registration->shape, result.slot_offset);
  char sentence[256];
  snprintf(sentence, sizeof sentence, "step %" PRIu64 ": tensor \"%.*s\" cannot be copied: %s", state.capture.step,
           static_cast<int>(std::min<size_t>(name.size(), 100)), name.data(), strerror(result.error));
  GiveUp(state, result.error == EFAULT ? code::MOVED : code::INTERNAL, sentence);
}

void DropDevice(State& state, const CopyResult& result) {
  char sentence[256];
  snprintf(sentence, sizeof sentence, "step %" PRIu64 ": GPU %d: %s", state.capture.step, result.ordinal,
           Sentence(result.device).c_str());
  GiveUp(state, code::DEVICE, sentence);
}

void DropCopier(State& state, const CopyResult& result) {
  char sentence[256];
  snprintf(sentence, sizeof sentence, "step %" PRIu64 ": %s", state.capture.step, result.sentence.c_str());
  GiveUp(state, code::DEVICE, sentence);
}

// However it was to be copied.
CopyResult CopyAll(State& state) {
  CopyResult result;
  if (!state.capture.registration->devices.any()) return CopyPieces(state.capture);
  if (state.capture.link != nullptr && CopyByCopier(state, &result)) return result;
  return CopyFromDevices(state);
}

void DropTorn(State& state) {
  const Capture& capture = state.capture;
  std::string_view name = capture.registration->shape->table.name(capture.torn.front());
  char sentence[256];
  snprintf(sentence, sizeof sentence, "step %" PRIu64 ": %zu tensors changed before the gate, the first is \"%.*s\"",
           capture.step, capture.torn.size(), static_cast<int>(std::min<size_t>(name.size(), 100)), name.data());
  GiveUp(state, code::TORN, sentence);
}

}  // namespace

bool CopyThread::Start() { return thread_.Start("ckpt-copy", &CopyThread::Run, &CopyThread::Broke, this); }

// A GPU or a copier may still write to the slot, and nobody is left to see the end of that: then the slot is not given
// back, and closing the handle leaves its memory behind. Gates wait for none of it.
void CopyThread::Broke(void* self, const char* why) noexcept {
  State& state = static_cast<CopyThread*>(self)->state_;
  MutexLock lock(state.mutex);
  state.Break("ckpt-copy", why);
  Capture& capture = state.capture;
  if (capture.phase != Capture::Phase::kCopying) return;
  (void)GiveUp(state, code::INTERNAL, state.broken_sentence);
  capture.given_up = true;  // also where the slot's word was moved already
  if (capture.link != nullptr) capture.link->Release(capture.line);
  if (!capture.registration->devices.any()) EndCapture(state);
}

void CopyThread::Run(void* self) {
  auto* thread = static_cast<CopyThread*>(self);
  State& state = thread->state_;
  for (;;) {
    {
      MutexLock lock(state.mutex);
      while (!state.stopping && state.capture.phase != Capture::Phase::kCopying) state.copy_wanted.Wait(state.mutex);
      if (state.capture.phase != Capture::Phase::kCopying) return;
    }
    thread->CopyOne();
  }
}

void CopyThread::CopyOne() {
  Capture& capture = state_.capture;  // this thread's until Finish
  CopyResult result = CopyAll(state_);
  if (result.kind == CopyResult::Kind::kDone && capture.selfcheck) FindTorn(capture, state_.sums, &capture.torn);
  std::shared_ptr<Attachment> attachment = capture.attachment;
  std::shared_ptr<CopierLink> link = capture.link;  // if it is the last, then closed without the mutex
  Finish(result);
  attachment->Hint();
  state_.Wake();
}

void CopyThread::Finish(const CopyResult& result) {
  MutexLock lock(state_.mutex);
  Capture& capture = state_.capture;
  if (result.kind == CopyResult::Kind::kFault) {
    DropFaulted(state_, result);
  } else if (result.kind == CopyResult::Kind::kDevice) {
    DropDevice(state_, result);
  } else if (result.kind == CopyResult::Kind::kCopier) {
    DropCopier(state_, result);
  } else if (!capture.torn.empty()) {
    DropTorn(state_);
  }
  bool complete = result.kind == CopyResult::Kind::kDone && !capture.given_up;
  if (complete && capture.needs_gate && !state_.gating_trusted) {
    // Without a gate nobody promises that the tensors stood still: whoever calls ckpt_gate says so, and seals it.
    capture.phase = Capture::Phase::kHeld;
    state_.changed.NotifyAll();
    return;
  }
  if (!capture.given_up) CompleteCapture(state_);
  EndCapture(state_);
}

}  // namespace ckptd
