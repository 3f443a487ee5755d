#include "client/src/handle.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <memory>

#include "client/core/copy/capture_word.h"
#include "client/src/capture_end.h"
#include "client/src/failure.h"
#include "client/src/fork.h"
#include "client/src/open.h"

namespace ckptd {
namespace {

// How long a GPU has to finish the copies of a capture that was given up.
constexpr uint64_t kMostDrainNs = 5'000'000'000;

// False: a copy on a GPU does not end, and the copy thread with it.
bool StopThreads(ckpt& handle) {
  bool ended = false;
  {
    MutexLock lock(handle.state.mutex);
    handle.state.stopping = true;
    handle.state.copy_wanted.NotifyAll();
    handle.state.changed.NotifyAll();
    while (handle.state.callers != 0) handle.state.changed.Wait(handle.state.mutex);
    const Capture& capture = handle.state.capture;
    uint64_t deadline = DeadlineAfter(std::min(kMostDrainNs, handle.state.gate_timeout_ns));
    bool in_time = true;
    while (in_time && capture.phase == Capture::Phase::kCopying) {
      in_time = handle.state.changed.WaitUntil(handle.state.mutex, deadline);
    }
    ended = capture.phase != Capture::Phase::kCopying || !capture.registration->devices.any();
  }
  if (ended) handle.copy_thread.Join();
  handle.pull_thread.Join();
  handle.state.Wake();
  handle.session.Join();
  return ended;
}

// A process that registers without having restored starts afresh; the agent refuses when something exists, unless the
// job is to be restarted. Then it starts afresh as well where its restore came to nothing: nobody else would answer the
// agent. With the mutex held.
void JoinImplicitly(State& state, bool restoring) {
  Claim& old = state.claim;
  const bool in_vain = state.restart && !restoring && !old.implicit && old.stage != Claim::Stage::kRunning;
  if (old.stage != Claim::Stage::kNone && !in_vain) return;
  Claim claim;
  claim.stage = Claim::Stage::kJoining;
  claim.implicit = true;
  claim.since_ns = MonotonicNs();
  claim.ticket = RandomNumber();
  claim.want = state.restart ? Want::kFresh : Want::kNewest;
  claim.answered = state.connected;
  std::swap(state.claim, claim);
}

// Whether `step` has `level`; with the mutex held. 1 = not yet.
int32_t Reached(State& state, uint64_t step, uint32_t level) {
  const StepState* entry = state.steps.Find(step);
  if (entry == nullptr) return Fail(code::NOT_FOUND, "step %" PRIu64 " was not saved by this handle", step);
  if ((entry->flags & level) != 0) return 0;
  if ((entry->flags & CKPT_DROPPED) != 0) {
    return Fail(-entry->code, "step %" PRIu64 " was dropped: %s", step, CodeNextStep(-entry->code));
  }
  if (state.fenced_by != 0) return Fail(code::FENCED, "attempt %" PRIu64 " of this job runs", state.fenced_by);
  if (state.deaf) return Fail(code::INTERNAL, "%s", state.broken_sentence);
  if (entry->code == -code::SUPERSEDED && (level & (CKPT_PROTECTED | CKPT_DURABLE)) != 0) {
    return Fail(code::SUPERSEDED, "step %" PRIu64 " stayed in memory only: %s", step, CodeNextStep(code::SUPERSEDED));
  }
  return 1;
}

// Every byte of a held capture is in the slot; whoever calls this knows that none changed meanwhile. With the mutex
// held.
void SealHeld(State& state) {
  Capture& capture = state.capture;
  if (capture.phase != Capture::Phase::kHeld) return;
  bool complete = CompleteCapture(state);
  EndCapture(state);
  if (complete) capture.attachment->Hint();
  state.Wake();
}

// Who waits for `step` changes nothing meanwhile: for this capture that is a gate, once all of it is copied. Not for
// those to come, which are trusted no more than before. With the mutex held.
void StandStill(State& state, uint64_t step) {
  Capture& capture = state.capture;
  if (capture.step != step || capture.busy()) return;
  capture.gate_seen = true;
  SealHeld(state);
}

// What the last save came to at the end of the handle; with the mutex held.
int32_t AwaitLastSave(State& state, uint64_t deadline_ns) {
  const StepState* newest = state.steps.Newest();
  if (newest == nullptr) return 0;
  uint64_t step = newest->step;
  if (deadline_ns != 0) WantDurable(state, (newest->flags & CKPT_DROPPED) != 0 ? state.captured_step : step);
  for (;;) {
    SealHeld(state);
    int32_t rc = Reached(state, step, CKPT_DURABLE);
    if (rc <= 0) return rc;
    if (deadline_ns == 0 || !state.changed.WaitUntil(state.mutex, deadline_ns)) break;
  }
  return Fail(code::TIMEOUT, "step %" PRIu64 " is not on storage yet", step);
}

}  // namespace

int32_t OpenHandle(const ckpt_options& options, ckpt** out) {
  auto handle = std::make_unique<ckpt>();
  handle->fork_generation = ForkGeneration();
  if (int32_t rc = TakeOptions(options, &handle->state)) return rc;
  if (!handle->copy_thread.Start() || !handle->session.Start() ||
      (handle->state.pull_wanted && !handle->pull_thread.Start())) {
    (void)StopThreads(*handle);
    return Fail(code::INTERNAL, "a thread could not be started");
  }
  *out = handle.release();
  return 0;
}

int32_t RegisterTable(ckpt& handle, const ckpt_table& from) {
  State& state = handle.state;
  Table table;
  if (int32_t rc = CopyTable(from, &table)) return rc;
  std::shared_ptr<const Shape> shape;
  uint64_t number = 1;
  {
    MutexLock lock(state.mutex);
    if (state.registration != nullptr) shape = state.registration->shape;
    if (state.registration != nullptr) number = state.registration->number + 1;
  }
  bool same = shape != nullptr && from.extra_bytes <= shape->extra.bytes && shape->table == table;
  if (!same) {
    const uint64_t restored = handle.restore.extra_bytes();
    const bool fits = restored != 0 && from.extra_bytes <= restored;
    const uint64_t room = fits ? restored : ExtraCapacity(from.extra_bytes);
    int32_t rc = BuildShape(std::move(table), state.rank, room, &shape);
    if (rc != 0) return rc;
  }
  std::shared_ptr<const Registration> registration;
  int32_t rc = BuildRegistration(std::move(shape), from.data, from.flags, number, state.lanes, &registration);
  if (rc != 0) return rc;
  {
    MutexLock lock(state.mutex);
    state.registration.swap(registration);
    state.DropRescue("a copier is being prepared");
    if (!same) state.layout_code = 0;
    state.pull.paused = false;
    JoinImplicitly(state, handle.restore.loading());
    state.changed.NotifyAll();
  }
  state.Wake();
  return 0;
}

int32_t PollStep(State& state, uint64_t step, ckpt_step_state* out) {
  MutexLock lock(state.mutex);
  const StepState* entry = state.steps.Find(step);
  if (entry == nullptr) return Fail(code::NOT_FOUND, "step %" PRIu64 " was not saved by this handle", step);
  out->flags = entry->flags;
  out->code = entry->code;
  out->blocked_ns = entry->blocked_ns;
  out->eager_bytes = entry->eager_bytes;
  return 0;
}

int32_t WaitForStep(State& state, uint64_t step, uint32_t level, bool still, uint64_t timeout_ns) {
  uint64_t deadline = DeadlineAfter(timeout_ns);
  MutexLock lock(state.mutex);
  if ((level & CKPT_DURABLE) != 0 && state.steps.Find(step) != nullptr) WantDurable(state, step);
  for (;;) {
    if (still) StandStill(state, step);
    int32_t rc = Reached(state, step, level);
    if (rc <= 0) return rc;
    if (state.stopping) return FailClosed();
    if (state.changed.WaitUntil(state.mutex, deadline)) continue;
    bool held = state.capture.phase == Capture::Phase::kHeld && state.capture.step == step;
    return Fail(code::TIMEOUT, "step %" PRIu64 " is not there yet%s", step,
                held ? ": it waits for the first ckpt_gate" : "");
  }
}

// Of the slots that GPUs copy into; with the mutex held.
static void FillPinning(const State& state, ckpt_info_view* out) {
  if (state.attachment == nullptr) return;
  for (const auto& slot : state.attachment->slots) {
    if (slot == nullptr) continue;
    if (slot->pinned != nullptr) out->pinned_bytes += slot->mapping.size();
    if (!slot->pin_error.empty()) snprintf(out->pin_error, sizeof out->pin_error, "%s", slot->pin_error.c_str());
  }
}

// With the mutex held.
static void FillPath(const State& state, ckpt_info_view* out) {
  const Pull& pull = state.pull;
  out->gpu_path = state.Pulls() ? CKPT_PULL : CKPT_PUSH;
  out->pulled = pull.pulled;
  out->registered = state.registration != nullptr ? state.registration->number : 0;
  out->exported = pull.exported;
  snprintf(out->path_why, sizeof out->path_why, "%s", pull.why.c_str());
}

void FillInfo(State& state, ckpt_info_view* out) {
  MutexLock lock(state.mutex);
  out->connected = state.connected ? 1 : 0;
  out->attempt = state.attempt;
  out->fenced_by = state.fenced_by;
  out->captured_step = state.captured_step;
  out->durable_step = state.durable_step;
  out->prepared_bytes = state.prepared_bytes;
  out->layout_bytes = state.registration != nullptr ? state.registration->shape->slot_bytes : 0;
  out->ready = state.SlotsAreGranted() ? 1 : 0;
  out->broken = state.broken ? 1 : 0;
  out->last_code = state.last_code;
  out->dropped = state.dropped;
  out->saves = state.saves;
  out->reconnects = state.reconnects;
  snprintf(out->last_sentence, sizeof out->last_sentence, "%s", state.last_sentence);
  FillPinning(state, out);
  FillPath(state, out);
  const std::shared_ptr<Rescue> rescue = state.Rescuer();
  out->rescuable = rescue != nullptr && rescue->armed() ? 1 : 0;
  if (state.rescue_wanted && rescue == nullptr) {
    snprintf(out->rescue_why, sizeof out->rescue_why, "%s", state.RescueWhy());
  }
}

int32_t CloseHandle(ckpt* raw, uint64_t timeout_ns) {
  std::unique_ptr<ckpt> handle(raw);
  State& state = handle->state;
  int32_t rc = 0;
  {
    MutexLock lock(state.mutex);
    state.DropRescue("the handle is closed");
    rc = AwaitLastSave(state, timeout_ns == 0 ? 0 : DeadlineAfter(timeout_ns));
    if (state.capture.busy()) GiveUp(state, code::CANCELLED, "the handle was closed before the copy was done");
    state.stopping = true;  // in one with it: a gate that ends by it knows why
  }
  if (!StopThreads(*handle)) {
    (void)handle.release();  // the thread in there may wake up: what it uses stays
    return Fail(code::DEVICE, "a GPU did not finish its copies; a thread and the memory it uses are left behind");
  }
  std::shared_ptr<Attachment> attachment;
  MutexLock lock(state.mutex);
  attachment = Detach(state);
  return rc;
}

}  // namespace ckptd
