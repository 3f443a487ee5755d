#include "client/src/state.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "client/core/copy/capture_word.h"
#include "client/src/failure.h"

namespace ckptd {
namespace {

bool IsUsed(const Capture& capture, const Attachment* attachment, uint32_t slot) {
  return capture.phase != Capture::Phase::kIdle && capture.attachment.get() == attachment && capture.slot == slot;
}

// Its copier may still write to it.
bool IsOrphan(State& state, const Attachment* attachment, uint32_t slot) {
  std::erase_if(state.orphans, [](const Orphan& orphan) { return orphan.link->EndsWithin(0); });
  return std::any_of(state.orphans.begin(), state.orphans.end(), [&](const Orphan& orphan) {
    return orphan.attachment.get() == attachment && orphan.slot == slot;
  });
}

}  // namespace

void HintQueue::Push(const CaptureMessage& message) {
  if (head_ - tail_ < ring_.size()) ring_[head_++ % ring_.size()] = message;
}

bool HintQueue::Pop(CaptureMessage* message) {
  if (head_ == tail_) return false;
  *message = ring_[tail_++ % ring_.size()];
  return true;
}

void State::Wake() const {
  uint64_t one = 1;
  [[maybe_unused]] ssize_t ignored = write(wake.get(), &one, sizeof one);  // a full counter wakes as well
}

void State::NoteRead() {
  constexpr uint64_t kToldEveryNs = 1'000'000'000;
  const uint64_t now = MonotonicNs();
  uint64_t told = read_at_ns.load();
  if (now < told + kToldEveryNs || !read_at_ns.compare_exchange_strong(told, now)) return;
  reads.fetch_add(1);
  Wake();
}

bool State::Ready() const {
  return registration != nullptr && attachment != nullptr && attempt != 0 &&
         attachment->ready().header_crc == registration->shape->header_crc &&
         attachment->ready().slot_bytes == registration->shape->slot_bytes;
}

bool State::SlotsAreGranted() const {
  return Ready() && attachment->grant().attempt.load(std::memory_order_acquire) == attempt;
}

bool State::Pulls() const {
  return pull.stage == Pull::Stage::kReady && !pull.stale && !pull.holds_only && pull.registration != nullptr &&
         pull.registration == registration && pull.attachment == attachment;
}

std::shared_ptr<Rescue> State::Rescuer() const {
  const bool counts = rescue_ready && rescue->registration() == registration.get() && attempt != 0 && fenced_by == 0;
  return counts ? rescue : nullptr;
}

// Without a reason of its own it is of a registration before, and the next is being prepared.
const char* State::RescueWhy() const { return rescue_why.empty() ? "a copier is being prepared" : rescue_why.c_str(); }

// It goes later, without the mutex: that may wait for a stream.
void State::DropRescue(const char* why) {
  if (rescue != nullptr) rescue->Disarm();
  rescue_ready = false;
  rescue_why = why;
}

void State::Remember(int32_t number, const char* sentence) {
  last_code = number;
  snprintf(last_sentence, sizeof last_sentence, "%s", sentence);
}

void State::Break(const char* thread, const char* why) noexcept {
  broken = true;
  snprintf(broken_sentence, sizeof broken_sentence,
           "thread %s of libckpt ended (%s): this process saves nothing more, and trains on", thread, why);
  Remember(-code::INTERNAL, broken_sentence);
  changed.NotifyAll();
}

Caller::Caller(State& state) : state_(state) {
  MutexLock lock(state_.mutex);
  state_.callers += 1;
  late_ = state_.stopping;
}

// The mutex is the last that it touches: behind that the state may be gone.
Caller::~Caller() {
  MutexLock lock(state_.mutex);
  state_.callers -= 1;
  if (state_.stopping) state_.changed.NotifyAll();
}

uint64_t RandomNumber() {
  uint64_t number = 0;
  if (getrandom(&number, sizeof number, GRND_NONBLOCK) != sizeof number || number == 0) {
    number = MonotonicNs() ^ static_cast<uint64_t>(getpid()) << 40;
  }
  return number;
}

std::shared_ptr<Attachment> Detach(State& state) {
  std::shared_ptr<Attachment> old = std::move(state.attachment);
  state.attachment.reset();
  if (old == nullptr) return old;
  bool news = false;
  for (uint32_t i = 0; i < old->slot_count(); ++i) {
    if (IsUsed(state.capture, old.get(), i) || IsOrphan(state, old.get(), i)) continue;
    BellSlot& slot = old->bell_slot(i);
    uint64_t epoch = CaptureEpoch(slot.word.load(std::memory_order_acquire));
    TryAbandon(slot, epoch);
    news = Acknowledge(slot, epoch) || news;
  }
  if (news) old->Hint();  // the bell goes: an agent that starts later never reads it
  return old;
}

// The agent may wait for it: it frees the slot, for another save or for a layout that needs the memory.
void AcknowledgeUnused(State& state) {
  if (state.attachment == nullptr) return;
  bool news = false;
  for (uint32_t i = 0; i < state.attachment->slot_count(); ++i) {
    if (IsUsed(state.capture, state.attachment.get(), i) || IsOrphan(state, state.attachment.get(), i)) continue;
    BellSlot& slot = state.attachment->bell_slot(i);
    news = Acknowledge(slot, CaptureEpoch(slot.word.load(std::memory_order_acquire))) || news;
  }
  if (news) state.attachment->Hint();
}

void WantDurable(State& state, uint64_t step) {
  if (step <= state.wanted) return;
  state.wanted = step;
  PublishPos(state);
  if (state.attachment != nullptr) state.attachment->Hint();
}

void PublishPos(const State& state) {
  if (state.attachment == nullptr || state.steps.Newest() == nullptr) return;
  BellHead& bell = state.attachment->bell();
  bell.wanted_attempt.store(state.attempt, std::memory_order_relaxed);
  bell.wanted.store(state.wanted, std::memory_order_release);
  bell.pos_attempt.store(state.attempt, std::memory_order_relaxed);
  bell.pos.store(state.pos, std::memory_order_release);
}

}  // namespace ckptd
