#include "client/src/save.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <new>

#include "client/core/copy/capture_word.h"
#include "client/include/ckpt/ckpt.h"
#include "client/src/capture_end.h"
#include "client/src/device_copy.h"
#include "client/src/failure.h"
#include "client/src/gate.h"
#include "client/src/pull_thread.h"

namespace ckptd {
namespace {

struct Granted {
  uint64_t epoch = 0;
  uint32_t slot = 0;
  uint64_t floor = 0;
  uint64_t attempt = 0;
};

// The three words of a grant are written one by one: read until the first did not change meanwhile. A value that is old
// by now is refused by the capture word.
bool ReadGrant(const Attachment& attachment, Granted* out) {
  const Grant& grant = attachment.grant();
  for (int tries = 0; tries < 4; ++tries) {
    uint64_t word = grant.word.load(std::memory_order_acquire);
    out->floor = grant.floor.load(std::memory_order_acquire);
    out->attempt = grant.attempt.load(std::memory_order_acquire);
    if (grant.word.load(std::memory_order_acquire) != word) continue;
    out->epoch = word >> 8;
    uint64_t slot = word & 0xff;
    if (slot == 0 || slot > attachment.slot_count() || out->epoch == 0 || out->epoch > kMaxEpoch) return false;
    out->slot = static_cast<uint32_t>(slot - 1);
    return true;
  }
  return false;
}

// Joined, and not told to go yet. At first that is as short as preparing memory; then somebody is missing.
int32_t WhyNotRunning(const State& state) {
  constexpr uint64_t kSoonNs = 1'000'000'000;  // a second
  const uint64_t waited = MonotonicNs() - state.claim.since_ns;
  if (state.world == 1 || !state.claim.implicit || waited < kSoonNs) {
    return Fail(code::LAYOUT_PREPARING, "job %s rank %u joins; memory is prepared then", state.job.c_str(), state.rank);
  }
  const auto seconds = static_cast<unsigned>(waited / kSoonNs);
  return Fail(code::RANKS_MISSING,
              "job %s rank %u has waited %u s for the other ranks, of %u in all; until every one of them has joined "
              "nothing is saved, and training goes on",
              state.job.c_str(), state.rank, seconds, state.world);
}

int32_t WhyNotReady(const State& state) {
  if (state.registration == nullptr) return Fail(code::INVALID_ARGUMENT, "call ckpt_register before ckpt_save");
  if (state.claim.stage == Claim::Stage::kFailed) {
    return Fail(state.claim.code, "%s", state.claim.sentence.c_str());
  }
  if (state.connect_code != 0) return Fail(state.connect_code, "%s", state.connect_sentence.c_str());
  if (!state.connected) return Fail(code::AGENT_UNREACHABLE, "no agent answers: %s", state.tried.c_str());
  if (state.layout_code != 0) return Fail(state.layout_code, "%s", state.layout_sentence.c_str());
  if (state.claim.stage != Claim::Stage::kRunning) return WhyNotRunning(state);
  return Fail(code::LAYOUT_PREPARING, "memory for this layout is being prepared (%" PRIu64 " of %" PRIu64 " bytes)",
              state.prepared_bytes, state.prepare_total);
}

int32_t WhyNoGrant(const State& state) {
  if (!state.connected) return Fail(code::AGENT_UNREACHABLE, "no free slot, and the agent does not answer");
  if (state.agent_code == code::DRAINING) return Fail(code::DRAINING, "the agent is draining");
  if (!state.SlotsAreGranted()) {
    return Fail(code::LAYOUT_PREPARING,
                "memory for this layout is prepared; the agent has not granted a slot of it yet");
  }
  return Fail(code::NO_FREE_SLOT, "no slot is free: the snapshots before are still needed");
}

// Which slot this save may use. Everything in it comes from shared memory and is checked here.
int32_t FindSlot(const State& state, uint64_t step, Granted* grant) {
  const Attachment& attachment = *state.attachment;
  if (!ReadGrant(attachment, grant) || grant->attempt != state.attempt) return WhyNoGrant(state);
  if (step < grant->floor) {
    return Fail(code::BELOW_FLOOR, "step %" PRIu64 " was dropped by another rank; saves go on at %" PRIu64, step,
                grant->floor);
  }
  uint64_t file_id = attachment.slot_state(grant->slot).file_id.load(std::memory_order_acquire);
  if (file_id != attachment.slots[grant->slot]->file_id) {
    return Fail(code::NO_FREE_SLOT, "slot %u was replaced; its new file has not arrived yet", grant->slot);
  }
  if (!IsOpen(attachment.bell_slot(grant->slot), grant->epoch)) return WhyNoGrant(state);
  return 0;
}

int32_t CheckMemory(const Registration& registration, const SaveRequest& request) {
  const auto& data = registration.data;
  if (request.data != nullptr && !data.empty() &&
      memcmp(request.data, data.data(), data.size() * sizeof(data[0])) != 0) {
    return Fail(code::MOVED, "step %" PRIu64 ": a tensor is at another address than the registered one", request.step);
  }
  if (request.extra_bytes > registration.shape->extra.bytes) {
    return Fail(code::LAYOUT_PREPARING,
                "%" PRIu64 " bytes of extra state, room for %" PRIu64 ": a larger layout is being prepared",
                request.extra_bytes, registration.shape->extra.bytes);
  }
  return 0;
}

// By the trainer's thread, without the mutex: only that thread replaces the registration.
int32_t CheckStreams(const State& state) {
  if (state.registration == nullptr) return 0;
  for (const auto& lane : state.registration->devices.lanes) {
    if (int32_t rc = RefuseCapturing(*lane, lane->caller())) return rc;
  }
  return 0;
}

// The copier, where it is prepared for just this: the same tensors into the same file.
void TakeLink(State& state) {
  Pull& pull = state.pull;
  Capture& capture = state.capture;
  capture.link.reset();
  if (!state.Pulls() || pull.file_ids[capture.slot] != capture.file->file_id) return;
  if (pull.compares && pull.choice.Next() == PathChoice::Path::kPush) return;
  capture.link = pull.link;
  capture.line = pull.link->NextLine();
  pull.in_use = true;
}

// Fills in the capture and claims the slot: from here on the agent's ABANDONED waits for our acknowledgement.
void Claimed(State& state, const SaveRequest& request, const Granted& grant) {
  Capture& capture = state.capture;
  const bool selfcheck = (request.flags & CKPT_SELFCHECK) != 0;
  if (selfcheck) capture.digests.resize(state.registration->lazy.size());  // may throw: before anything is claimed
  capture.phase = Capture::Phase::kSaving;
  capture.attachment = state.attachment;
  capture.registration = state.registration;
  capture.file = state.attachment->slots[grant.slot];
  capture.slot = grant.slot;
  capture.epoch = grant.epoch;
  capture.step = request.step;
  capture.attempt = state.attempt;
  capture.trace = ++state.traces ^ state.claim.ticket;
  capture.selfcheck = selfcheck;
  capture.needs_gate = !state.registration->lazy.empty() && !selfcheck;
  capture.gate_seen = false;
  capture.given_up = false;
  capture.submitted = false;
  capture.pulled = false;
  capture.armed = false;
  capture.orphaned = false;
  state.pull.clock.captures = true;
  TakeLink(state);
  capture.stop.store(false, std::memory_order_relaxed);
  capture.torn.clear();
  BellSlot& slot = capture.bell_slot();
  slot.attempt.store(capture.attempt, std::memory_order_relaxed);
  slot.trace.store(capture.trace, std::memory_order_relaxed);
  slot.begin_ns.store(MonotonicNs(), std::memory_order_relaxed);
  slot.end_ns.store(0, std::memory_order_relaxed);
  slot.blocked_ns.store(0, std::memory_order_relaxed);
  slot.step.store(capture.step, std::memory_order_release);
}

int32_t Admit(State& state, const SaveRequest& request) {
  if (state.broken) return Fail(code::INTERNAL, "%s", state.broken_sentence);
  if (state.fenced_by != 0) {
    return Fail(code::FENCED, "attempt %" PRIu64 " of this job runs; this process belongs to %" PRIu64, state.fenced_by,
                state.attempt);
  }
  if (state.registration == nullptr || !state.Ready()) return WhyNotReady(state);
  if (int32_t rc = CheckMemory(*state.registration, request)) return rc;
  if (state.capture.phase != Capture::Phase::kIdle) {
    return Fail(code::BUSY, "step %" PRIu64 " is still being captured", state.capture.step);
  }
  Granted grant;
  if (int32_t rc = FindSlot(state, request.step, &grant)) return rc;
  Claimed(state, request, grant);
  return 0;
}

// A copier completed it, and the agent may have told so: the copy thread has only to look.
bool IsEnding(const Capture& capture) {
  return capture.phase == Capture::Phase::kCopying && IsComplete(capture.bell_slot(), capture.epoch);
}

// Admit, and where agent or caller say so wait for a slot that becomes free, as long as a gate may hold training up;
// and for a moment where the capture before is ending: whoever waited for CKPT_CAPTURED may save. The step is not told
// to the bell meanwhile: a step that was passed without a capture is dropped on all ranks. The second clock is for a
// GRANT that a full socket lost.
int32_t AdmitInTime(State& state, const SaveRequest& request) {
  constexpr uint64_t kLookAgainNs = 100'000'000;
  constexpr uint64_t kEndsWithinNs = 1'000'000'000;
  const uint64_t deadline = DeadlineAfter(state.gate_timeout_ns);
  const uint64_t ended = std::min(deadline, MonotonicNs() + kEndsWithinNs);
  for (;;) {
    const int32_t rc = Admit(state, request);
    const bool patient = (request.flags & CKPT_WAIT_FOR_SLOT) != 0 || state.back_pressure == BackPressure::kWait;
    uint64_t until = 0;
    const bool first_slot = rc == -code::LAYOUT_PREPARING && state.Ready() && !state.SlotsAreGranted();
    if ((rc == -code::NO_FREE_SLOT || first_slot) && patient) until = deadline;
    if (rc == -code::BUSY && IsEnding(state.capture)) until = ended;
    const uint64_t now = MonotonicNs();
    if (state.stopping || now >= until) return rc;
    state.changed.WaitUntil(state.mutex, std::min(until, now + kLookAgainNs));
  }
}

// By the trainer's thread, without the mutex: phase kSaving is ours.
void CopyEagerHost(Capture& capture, const SaveRequest& request) {
  const Registration& registration = *capture.registration;
  const Shape& shape = *registration.shape;
  char* slot = capture.file->mapping.data();
  for (uint32_t tensor : registration.eager) {
    if (registration.devices.lane(tensor) != DeviceTensors::kHost) continue;
    const TensorPlace& place = shape.tensors[tensor];
    memcpy(slot + place.slot_offset, registration.data[tensor], place.bytes);
  }
  if (request.extra_bytes > 0) memcpy(slot + shape.extra.slot_offset, request.extra, request.extra_bytes);
  memset(slot + shape.extra.slot_offset + request.extra_bytes, ' ', shape.extra.bytes - request.extra_bytes);
}

// In stream order behind everything that is captured. A word that never comes is the deadline's business.
void TellReady(const Capture& capture) {
  const Lane& lane = *capture.registration->devices.lanes.front();
  ContextScope scope(lane.device());
  if (!scope.error().ok()) return;
  (void)capture.link->TellReady(lane.caller(), capture.line);
}

// 0, or why this save is lost. Streams first: what they copy, they copy while the host's bytes are copied here.
int32_t TakeEager(Capture& capture, SumTeam& team, const SaveRequest& request) {
  const Registration& registration = *capture.registration;
  if (int32_t rc = TakeEagerFromDevices(registration, capture.file->mapping.data())) return rc;
  if (capture.link != nullptr) TellReady(capture);
  CopyEagerHost(capture, request);
  if (!capture.selfcheck) return 0;
  DigestSources(registration, &capture.digests);
  return DigestOnDevices(registration, team, &capture.digests);
}

void HandOver(State& state, uint64_t eager_bytes, uint64_t begin_ns) {
  Capture& capture = state.capture;
  CaptureMessage message = {};
  message.head.type = static_cast<uint16_t>(MessageType::kSave);
  message.head.trace = capture.trace;
  message.attempt = capture.attempt;
  message.step = capture.step;
  message.epoch = capture.epoch;
  message.layout = capture.attachment->ready().layout;
  message.slot = capture.slot;
  state.hints.Push(message);
  if (StepState* step = state.steps.Find(capture.step)) {
    step->eager_bytes = eager_bytes;
    step->blocked_ns = MonotonicNs() - begin_ns;
    capture.bell_slot().blocked_ns.store(step->blocked_ns, std::memory_order_relaxed);
  }
  capture.phase = Capture::Phase::kCopying;
  state.copy_wanted.NotifyAll();
}

// The next saves of a table whose extra state outgrew its room. Its number stays: the memory is that of the same call
// of ckpt_register, and who made it keeps it by that number.
void Grow(State& state, const SaveRequest& request) {
  std::shared_ptr<const Registration> old = state.registration;
  if (old == nullptr || request.extra_bytes <= old->shape->extra.bytes) return;
  std::shared_ptr<const Shape> shape;
  std::shared_ptr<const Registration> grown;
  if (BuildShape(old->shape->table, state.rank, ExtraCapacity(request.extra_bytes), &shape) != 0) return;
  if (BuildRegistration(std::move(shape), old->data.data(), old->flags.data(), old->number, state.lanes, &grown) != 0)
    return;
  MutexLock lock(state.mutex);
  state.registration.swap(grown);
  state.layout_code = 0;
}

// What a step publishes for a copier, in case this process dies before the next one.
struct Rescuing {
  std::shared_ptr<Rescue> rescue;  // null: nothing
  std::shared_ptr<const Registration> registration;
  uint64_t attempt = 0;
  bool copying = false;  // the copies of eager tensors are being captured

  // They are of no step until Publish.
  void BeginStaging() const {
    if (rescue == nullptr || registration->devices.staged.empty()) return;
    const DeviceStream caller = registration->devices.lanes.front()->caller();
    rescue->Begin(&caller);
  }

  void Publish(State& state, const SaveRequest& request, bool staged) const {
    if (rescue == nullptr || (copying && !staged && !registration->devices.staged.empty())) return;
    if (rescue->Publish({request.step, attempt, request.extra, request.extra_bytes, staged})) return;
    MutexLock lock(state.mutex);
    Pull& pull = state.pull;
    if (pull.stage == Pull::Stage::kReady && pull.registration == registration) pull.stale = true;
    state.DropRescue("its memory is exported anew");
    state.changed.NotifyAll();
  }
};

// Without memory this save is lost and nothing else: it is told and passed as every other that is dropped, and what it
// has claimed is given back.
template <typename Body>
int32_t OrDrop(const SaveRequest& request, Body body) noexcept {
  try {
    return body();
  } catch (...) {
    return Fail(code::INTERNAL, "step %" PRIu64 ": %s", request.step, Thrown());
  }
}

// With the mutex held, before gated_step is forgotten.
Rescuing FindRescue(const State& state, const SaveRequest& request) {
  std::shared_ptr<Rescue> rescue = state.Rescuer();
  if (rescue == nullptr) return {};
  const bool gated = state.registration->lazy.empty() || (state.gating_trusted && state.gated_step);
  const bool known = gated && CheckMemory(*state.registration, request) == 0;
  if (!known) rescue->Disarm();
  if (!known || request.extra == nullptr) return {};
  return {std::move(rescue), state.registration, state.attempt, state.capture.phase != Capture::Phase::kIdle};
}

}  // namespace

int32_t SetCallerStream(State& state, int32_t ordinal, void* stream) {
  std::shared_ptr<Lane> lane;
  if (int32_t rc = state.lanes.Find(ordinal, &lane)) return rc;
  lane->SetCaller({stream});
  return 0;
}

// Who trains a step without a gate may be replaying a CUDA graph: what was being captured may have changed, the next
// save waits for a gate of its own, and nothing is left for a rescue.
int32_t PassStep(State& state, const SaveRequest& request) {
  uint64_t now = MonotonicNs();
  Rescuing rescuing;
  {
    MutexLock lock(state.mutex);
    NoteStep(state, now);
    if ((request.flags & CKPT_UNCHANGED) != 0) return 0;
    if (!state.gated_step) {
      RefuseUngated(state);
      state.gating_trusted = false;
    }
    rescuing = FindRescue(state, request);
    state.gated_step = false;
  }
  rescuing.Publish(state, request, false);
  return 0;
}

int32_t StartSave(State& state, const SaveRequest& request) {
  uint64_t begin = MonotonicNs();
  int32_t rc = CheckStreams(state);
  Rescuing rescuing;
  {
    MutexLock lock(state.mutex);
    if (request.step <= state.pos) {
      return Fail(code::INVALID_ARGUMENT,
                  "step %" PRIu64 " must be above %" PRIu64 ", the last one passed to ckpt_save", request.step,
                  state.pos);
    }
    if (request.extra == nullptr && request.extra_bytes > 0) return Fail(code::INVALID_ARGUMENT, "extra is null");
    RefuseUngated(state);
    NoteStep(state, begin);
    rescuing = FindRescue(state, request);
    state.gated_step = false;
    state.saves += 1;
    state.steps.Add(request.step);
    if (rc == 0) rc = OrDrop(request, [&] { return AdmitInTime(state, request); });
    state.pos = request.step;
    if (rc != 0) RecordDrop(state, request.step, state.attempt, -rc, LastSentence());
    PublishPos(state);
  }
  if (rc == 0) {
    rc = OrDrop(request, [&] {
      rescuing.BeginStaging();
      const int32_t taken = TakeEager(state.capture, state.sums, request);
      rescuing.Publish(state, request, taken == 0);
      return taken;
    });
    const Registration& registration = *state.capture.registration;
    MutexLock lock(state.mutex);
    // The copy thread ends a capture that was given up: it waits for what is under way.
    if (rc != 0) GiveUp(state, -rc, LastSentence());
    HandOver(state, registration.eager_bytes + registration.shape->extra.bytes, begin);
  } else {
    rescuing.Publish(state, request, false);
  }
  if (rc == -code::LAYOUT_PREPARING) Grow(state, request);
  state.Wake();  // after everything that the session thread should see
  return rc;
}

}  // namespace ckptd
