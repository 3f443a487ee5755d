// The copier is told, this process's own bytes are copied meanwhile, and then its answer is awaited. What ends the wait
// otherwise, each by giving the capture up, which opens the gate:
//
//   the gate's deadline      a stream waits, and the copies are not done: the gate is opened, and kept open
//   no progress              copies are under way, and no chunk came for as long as a gate may wait
//   the capture was given up by anybody, and the copier does not answer to that
//
// A copier that does not answer, or lies, is killed. One that ended leaves the capture to a push while no stream waits
// at the gate line: a stream that waits there would hold our copies up too, where all streams share one queue.
#include "client/src/pull_copy.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>

#include "client/core/copy/capture_word.h"
#include "client/src/capture_end.h"
#include "client/src/exports.h"
#include "client/src/failure.h"
#include "client/src/piece_copier.h"
#include "client/src/pull_thread.h"
#include "client/src/state.h"

namespace ckptd {
namespace {

constexpr uint64_t kHostBlock = 64 << 20;
constexpr uint64_t kMostQuietNs = 10'000'000'000;
constexpr uint64_t kMostStopNs = 2'000'000'000;
constexpr uint64_t kLookAtLineNs = 10'000'000;
constexpr int kLookAtLineMs = kLookAtLineNs / 1'000'000;

class PullCopy {
 public:
  explicit PullCopy(State& state)
      : state_(state), capture_(state.capture), link_(capture_.link), quiet_ns_(QuietNs(state.gate_timeout_ns)) {}

  bool Begin() {
    if (!StillThere(state_.pull.allocations)) {
      MutexLock lock(state_.mutex);
      state_.pull.stale = true;
      return false;
    }
    CopierCopy copy = {};
    copy.serial = capture_.line.serial;
    copy.epoch = capture_.epoch;
    copy.step = capture_.step;
    copy.attempt = capture_.attempt;
    copy.slot = capture_.slot;
    copy.line = capture_.line.index;
    std::string why;
    bool sent = false;
    {
      MutexLock lock(state_.mutex);
      copy.complete = MayComplete() ? 1 : 0;
      sent = link_->Send(copy, CopierMessageType::kCopy, {}, &why);
      capture_.pulled = sent;
    }
    if (!sent) Lose(why);
    return sent;
  }

  void CopyOwnBytes() {
    CopyHostMemory();
    AwaitDirect();
    std::string why;
    CopierSerial done = {};
    done.serial = capture_.line.serial;
    if (result_.kind == CopyResult::Kind::kDone) (void)link_->Send(done, CopierMessageType::kHostDone, {}, &why);
    if (result_.kind != CopyResult::Kind::kDone) (void)TryAbandon(capture_.bell_slot(), capture_.epoch);
    MutexLock lock(state_.mutex);
    capture_.submitted = true;
    state_.changed.NotifyAll();
  }

  // False: the copier died, and the capture can be pushed.
  bool Await(CopyResult* out) {
    for (;;) {
      CopierEvent event = link_->Await(NextDeadline());
      uint64_t now = MonotonicNs();
      const bool answers = event.kind == CopierEvent::Kind::kAnswer;
      const bool lies = answers && !IsTrue(event.answer);
      if (answers && !lies) {
        Answered(event.answer);
        break;
      }
      if (event.kind == CopierEvent::Kind::kProgress) Progressed(now);
      if (!lies && event.kind != CopierEvent::Kind::kClosed && !IsLate(now)) continue;
      if (!Ended(lies ? "the copier answered what is not so" : "the copier died")) return false;
      break;
    }
    *out = std::move(result_);
    return true;
  }

 private:
  static uint64_t QuietNs(uint64_t gate_timeout_ns) { return std::min(kMostQuietNs, gate_timeout_ns); }

  // The copier alone moves the word where nobody has to look at the bytes first, and where memory outlives us: when we
  // are killed the driver may give away what it lent by a legacy handle, under the copy, before anyone can know. With
  // the mutex held.
  [[nodiscard]] bool MayComplete() const {
    const bool looked_at = capture_.selfcheck || (capture_.needs_gate && !state_.gating_trusted);
    const auto& allocations = state_.pull.allocations;
    return !looked_at && std::none_of(allocations.begin(), allocations.end(), [](const DeviceAllocation& allocation) {
      return allocation.kind == HandleKind::kLegacy;
    });
  }

  // Looks between blocks whether the capture was given up: offloaded state may be large.
  void CopyHostMemory() {
    PieceCopier copier(capture_.registration->pieces, capture_.file->fd.get(), capture_.file->mapping.data());
    const uint64_t slot_bytes = capture_.attachment->ready().slot_bytes;
    for (uint64_t at = 0; at < slot_bytes && result_.kind == CopyResult::Kind::kDone;) {
      at = std::min(slot_bytes, at + kHostBlock);
      result_.error = copier.CopyUntil(at, &result_.slot_offset);
      if (result_.error != 0) {
        result_.kind = CopyResult::Kind::kFault;
      } else if (!IsOpen(capture_.bell_slot(), capture_.epoch)) {
        result_.kind = CopyResult::Kind::kStopped;
      }
    }
  }

  // What left on our own stream inside ckpt_save: eager tensors without room on the GPU.
  void AwaitDirect() {
    if (capture_.registration->devices.direct.empty() || result_.kind != CopyResult::Kind::kDone) return;
    Lane& lane = *capture_.registration->devices.lanes.front();
    ContextScope scope(lane.device());
    DeviceError error = scope.error().ok() ? lane.AwaitEnd() : scope.error();
    if (error.ok()) return;
    result_.kind = CopyResult::Kind::kDevice;
    result_.ordinal = lane.ordinal();
    result_.device = error;
  }

  void Progressed(uint64_t now) {
    if (progress_ns_ == 0) began_ns_ = now;
    progress_ns_ = now;
    capture_.attachment->Hint();
  }

  uint64_t NextDeadline() {
    MutexLock lock(state_.mutex);
    uint64_t deadline = UINT64_MAX;
    if (capture_.armed) deadline = opened_ ? MonotonicNs() + kLookAtLineNs : capture_.gate_deadline_ns;
    if (progress_ns_ != 0) deadline = std::min(deadline, progress_ns_ + quiet_ns_);
    if (stopped_ns_ != 0) deadline = std::min(deadline, stopped_ns_ + std::min(quiet_ns_, kMostStopNs));
    return deadline;
  }

  // True: the copier has had its time.
  bool IsLate(uint64_t now) {
    MutexLock lock(state_.mutex);
    OpenInTime(now);
    if (opened_ && !link_->IsReleased(capture_.line)) return true;  // it writes over it: only its end stops that
    if (progress_ns_ != 0 && now >= progress_ns_ + quiet_ns_) {
      GiveUpFor(code::DEVICE, "the copier makes no progress");
      return true;
    }
    if (stopped_ns_ == 0 && !IsOpen(capture_.bell_slot(), capture_.epoch)) stopped_ns_ = now;
    return stopped_ns_ != 0 && now >= stopped_ns_ + std::min(quiet_ns_, kMostStopNs);
  }

  // Also where the word is not ours to move any more: somebody else gave the capture up, or wrote over it. With the
  // mutex held.
  void OpenInTime(uint64_t now) {
    if (opened_ || !capture_.armed || now < capture_.gate_deadline_ns) return;
    opened_ = true;
    if (!capture_.given_up) {
      GiveUpFor(code::GATE_DEADLINE, "the capture was not done at the gate's deadline; training goes on");
    }
    link_->Release(capture_.line);
  }

  // With the mutex held.
  void GiveUpFor(int32_t number, const char* what) {
    char sentence[200];
    snprintf(sentence, sizeof sentence, "step %" PRIu64 ": %s", capture_.step, what);
    GiveUp(state_, number, sentence);
  }

  // A killed process needs a core to end, which a busy node may have none of: a stream that waits at the gate, or comes
  // there meanwhile, is not held up beyond its deadline by that.
  bool EndCopier() {
    link_->Kill();
    const uint64_t deadline = MonotonicNs() + uint64_t{CopierLink::kEndMs} * 1'000'000;
    while (!link_->EndsWithin(kLookAtLineMs)) {
      const uint64_t now = MonotonicNs();
      if (now >= deadline) return false;
      MutexLock lock(state_.mutex);
      OpenInTime(now);
      if (opened_ && !link_->IsReleased(capture_.line)) link_->Release(capture_.line);
    }
    return true;
  }

  void Lose(const std::string& why) {
    (void)EndCopier();
    MutexLock lock(state_.mutex);
    LosePull(state_, why);
  }

  // What is asked is answered once, in order, and done is what has every checksum. A copier that says otherwise is
  // broken: what it still copies, nobody knows.
  [[nodiscard]] bool IsTrue(const CopierAnswer& answer) const {
    if (answer.serial != capture_.line.serial) return false;
    if (answer.outcome != static_cast<uint32_t>(CopierOutcome::kDone)) return true;
    const Attachment& attachment = *capture_.attachment;
    const auto& check = attachment.chunk(capture_.slot, attachment.ready().chunk_count);
    return ChunkDone(check.load(std::memory_order_acquire), capture_.epoch);
  }

  void Answered(const CopierAnswer& answer) {
    auto outcome = static_cast<CopierOutcome>(answer.outcome);
    if (outcome == CopierOutcome::kDone) {
      MutexLock lock(state_.mutex);
      state_.pull.failures = 0;
      state_.pull.pulled += 1;
      if (began_ns_ != 0) state_.pull.copy_ns = MonotonicNs() - began_ns_;
    } else if (outcome == CopierOutcome::kStopped) {
      if (result_.kind == CopyResult::Kind::kDone) result_.kind = CopyResult::Kind::kStopped;
    } else {
      Fails(answer.sentence);
      Lose(answer.sentence);
    }
  }

  // Also where the copier's giving up was seen before its answer: by whom it was given up, the steps know.
  void Fails(const std::string& sentence) {
    if (result_.kind != CopyResult::Kind::kDone && result_.kind != CopyResult::Kind::kStopped) return;
    result_.kind = CopyResult::Kind::kCopier;
    result_.sentence = sentence;
  }

  // True when nothing can be done for this capture. A process that has ended writes no more; one that has not may.
  bool Ended(const char* why) {
    bool ended = EndCopier();
    MutexLock lock(state_.mutex);
    LosePull(state_, why);
    bool push = ended && !capture_.armed && result_.kind == CopyResult::Kind::kDone &&
                IsOpen(capture_.bell_slot(), capture_.epoch);
    if (push) {
      capture_.pulled = false;
      capture_.submitted = false;
    } else {
      Fails(why);
      capture_.orphaned = !ended;
    }
    return !push;
  }

  State& state_;
  Capture& capture_;
  const std::shared_ptr<CopierLink> link_;
  const uint64_t quiet_ns_;
  uint64_t began_ns_ = 0;     // the copies
  uint64_t progress_ns_ = 0;  // copies are under way since; of the last chunk
  uint64_t stopped_ns_ = 0;   // given up since
  bool opened_ = false;       // the gate's deadline is over
  CopyResult result_;
};

}  // namespace

bool CopyByCopier(State& state, CopyResult* result) {
  PullCopy copy(state);
  if (!copy.Begin()) return false;
  copy.CopyOwnBytes();
  return copy.Await(result);
}

}  // namespace ckptd
