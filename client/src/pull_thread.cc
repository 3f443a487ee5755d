#include "client/src/pull_thread.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "client/src/exports.h"
#include "client/src/failure.h"

namespace ckptd {
namespace {

constexpr uint64_t kSecondNs = 1'000'000'000;
constexpr uint64_t kReplyTimeoutNs = 10 * kSecondNs;
constexpr uint64_t kStartTimeoutNs = 60 * kSecondNs;  // making a context took seconds on busy nodes
constexpr uint64_t kAskTimeoutNs = 300 * kSecondNs;   // pinning runs at some GB/s, and waits for its turn
constexpr uint32_t kMostFailures = 6;                 // in a row

std::vector<uint64_t> FileIds(const Attachment& attachment) {
  std::vector<uint64_t> ids;
  for (uint32_t i = 0; i < attachment.slot_count(); ++i) ids.push_back(attachment.slots[i]->file_id);
  return ids;
}

// With the mutex held.
bool IsPrepared(const State& state) {
  const Pull& pull = state.pull;
  return pull.stage == Pull::Stage::kReady && !pull.stale && pull.registration == state.registration &&
         pull.attachment == state.attachment && pull.file_ids == FileIds(*state.attachment);
}

bool MayPrepare(State& state) {
  Pull& pull = state.pull;
  if (pull.stage != Pull::Stage::kWaiting && pull.stage != Pull::Stage::kReady) return false;
  if (!state.Ready() || pull.in_use || pull.paused || (pull.link == nullptr && !state.connected)) return false;
  const size_t lanes = state.registration->devices.lanes.size();
  if (lanes > 1) pull.why = state.rescue_why = "its tensors are on several GPUs";
  if (lanes == 0) pull.why = state.rescue_why = "none of its tensors is on a GPU";
  return lanes == 1 && MonotonicNs() >= pull.retry_ns;
}

bool MustClose(const State& state) {
  const Pull& pull = state.pull;
  return pull.paused && pull.exported != 0 && pull.stage == Pull::Stage::kReady && !pull.in_use;
}

bool EndedIdle(const State& state) {
  const Pull& pull = state.pull;
  return pull.ended && pull.stage == Pull::Stage::kReady && !pull.in_use;
}

bool PushWon(const State& state) {
  const Pull& pull = state.pull;
  return pull.choice.verdict() == PathChoice::Verdict::kPush && !pull.in_use && !pull.holds_only;
}

}  // namespace

void LosePull(State& state, const std::string& why) {
  Pull& pull = state.pull;
  state.DropRescue("there is no copier");
  pull.link.reset();
  pull.ended = false;
  pull.exported = 0;
  pull.registration.reset();
  pull.attachment.reset();
  pull.allocations.clear();
  pull.why = why;
  pull.failures += 1;
  pull.stage = pull.failures < kMostFailures ? Pull::Stage::kWaiting : Pull::Stage::kOff;
  pull.retry_ns = DeadlineAfter(kSecondNs << pull.failures);
  state.changed.NotifyAll();
}

namespace {

// The first answer, or another one. Where push wins, the pull thread lets go of the copier.
void Judge(Pull& pull, PathChoice::Verdict before) {
  PathChoice::Verdict verdict = pull.choice.verdict();
  if (verdict == before || verdict == PathChoice::Verdict::kOpen) return;
  char why[128];
  snprintf(why, sizeof why, "a save costs %.3f of a step pushed, %.3f pulled (%u of each)",
           static_cast<double>(pull.choice.loss_ppm(PathChoice::Path::kPush)) / 1e6,
           static_cast<double>(pull.choice.loss_ppm(PathChoice::Path::kPull)) / 1e6, pull.choice.samples());
  pull.why = why;
}

}  // namespace

int32_t Unexport(State& state, uint64_t timeout_ns) {
  const uint64_t deadline = DeadlineAfter(timeout_ns);
  MutexLock lock(state.mutex);
  if (!state.pull_wanted) return 0;
  state.pull.paused = true;
  state.DropRescue("its memory was taken back");
  state.changed.NotifyAll();
  bool in_time = true;
  while (in_time && state.pull.exported != 0) in_time = state.changed.WaitUntil(state.mutex, deadline);
  if (state.pull.exported == 0) return 0;
  return Fail(code::TIMEOUT, "the copier did not let go of the tensors' memory");
}

void NoteStep(State& state, uint64_t now_ns) {
  Pull& pull = state.pull;
  StepClock& clock = pull.clock;
  if (!pull.compares) return;
  const uint64_t began = std::exchange(clock.step_ns, now_ns);
  if (began == 0) return;
  if (!clock.captures) return pull.choice.Idle(now_ns - began);
  clock.beside += 1;
  clock.beside_ns += now_ns - began;
  if (state.capture.phase != Capture::Phase::kIdle) return;
  PathChoice::Verdict before = pull.choice.verdict();
  pull.choice.Saved(state.capture.pulled ? PathChoice::Path::kPull : PathChoice::Path::kPush, clock.beside,
                    clock.beside_ns);
  clock = {.step_ns = now_ns};
  Judge(pull, before);
  state.changed.NotifyAll();
}

bool PullThread::Start() { return thread_.Start("ckpt-pull", &PullThread::Run, &PullThread::Broke, this); }

// Saves are pushed from now on, and nothing is captured post mortem.
void PullThread::Broke(void* self, const char* why) noexcept {
  auto* thread = static_cast<PullThread*>(self);
  if (thread->link_ != nullptr) (void)thread->link_->End();
  MutexLock lock(thread->state_.mutex);
  try {
    thread->TurnOff(why);
  } catch (...) {  // no memory for the reason
  }
}

// With the mutex held. What counts comes first: texts need memory.
void PullThread::TurnOff(const char* why) {
  Pull& pull = state_.pull;
  pull.stage = Pull::Stage::kOff;
  pull.exported = 0;
  state_.changed.NotifyAll();
  state_.DropRescue("a thread of libckpt ended");
  pull.why = std::string("a thread of libckpt ended: ") + why;
}

void PullThread::Join() {
  {
    MutexLock lock(state_.mutex);
    if (state_.pull.link != nullptr) state_.pull.link->Shut();
    state_.changed.NotifyAll();
  }
  thread_.Join();
}

void PullThread::Run(void* self) {
  auto* thread = static_cast<PullThread*>(self);
  for (Goal goal; thread->AwaitGoal(&goal); goal = {}) {
    std::string why;
    if (thread->Prepare(goal, &why)) {
      thread->Done(goal);
    } else {
      thread->Failed(why);
    }
  }
}

// With the mutex held, which is let go of meanwhile.
void PullThread::CloseNow() {
  link_ = state_.pull.link;
  state_.pull.stage = Pull::Stage::kBusy;
  std::string why;
  bool closed = false;
  {
    const MutexUnlock unlock(state_.mutex);
    closed = Close(&why);
    if (!closed) link_->End();
  }
  state_.pull.registration.reset();
  state_.pull.stage = Pull::Stage::kReady;
  if (!closed) LosePull(state_, why);
  state_.changed.NotifyAll();
}

// Its context takes GPU memory. With the mutex held, which is let go of meanwhile.
void PullThread::LetGo() {
  Pull& pull = state_.pull;
  std::shared_ptr<CopierLink> last = std::move(pull.link);
  pull.stage = Pull::Stage::kOff;
  {
    const MutexUnlock unlock(state_.mutex);
    if (last != nullptr) last->End();
    last.reset();
    state_.Wake();
  }
  pull.registration.reset();
  pull.attachment.reset();
  pull.exported = 0;
}

// Saves are pushed, and nothing is rescued, until there is another one. With the mutex held, which is let go of
// meanwhile.
void PullThread::LoseEnded() {
  std::shared_ptr<CopierLink> last = state_.pull.link;
  state_.pull.failures = 0;  // it had been prepared; one that dies again and again the agent refuses
  LosePull(state_, "the copier ended");
  const MutexUnlock unlock(state_.mutex);
  last.reset();
  state_.Wake();
}

// False: nothing is pulled any more.
bool PullThread::AwaitGoal(Goal* goal) {
  MutexLock lock(state_.mutex);
  for (;;) {
    if (state_.stopping) return false;
    if (EndedIdle(state_)) LoseEnded();
    if (PushWon(state_) && state_.rescue_wanted) {
      state_.pull.holds_only = true;
      state_.pull.compares = false;
    } else if (PushWon(state_)) {
      LetGo();
      return false;
    }
    if (MustClose(state_)) CloseNow();
    if (MayPrepare(state_) && !IsPrepared(state_)) break;
    const Pull& pull = state_.pull;
    uint64_t again = pull.stage == Pull::Stage::kWaiting && pull.retry_ns > MonotonicNs() ? pull.retry_ns : UINT64_MAX;
    state_.changed.WaitUntil(state_.mutex, again);
  }
  goal->registration = state_.registration;
  goal->attachment = state_.attachment;
  for (uint32_t i = 0; i < goal->attachment->slot_count(); ++i) goal->slots.push_back(goal->attachment->slots[i]);
  goal->file_ids = FileIds(*goal->attachment);
  link_ = state_.pull.link;
  state_.pull.stage = Pull::Stage::kBusy;
  state_.DropRescue("a copier is being prepared");
  return true;
}

bool PullThread::Prepare(const Goal& goal, std::string* why) {
  const std::shared_ptr<Lane>& lane = goal.registration->devices.lanes.front();
  if (!lane->device().facts().wait_value64) {
    *why = "the driver has no stream memory operations";
    return false;
  }
  if (link_ == nullptr) {
    if (!ObtainCopier(lane->device(), why) || !link_->Open(lane->shared_device(), kStartTimeoutNs, why)) return false;
  }
  const Pull& pull = state_.pull;  // these fields are this thread's in kBusy
  bool same_slots = pull.attachment == goal.attachment && pull.file_ids == goal.file_ids;
  if (!same_slots && !HandOverSlots(goal, why)) return false;
  const bool same_memory = pull.registration == goal.registration && !pull.stale;
  if (!same_memory && !((pull.registration == nullptr || Close(why)) && Export(goal, why))) return false;
  if (state_.rescue_wanted) Watch(goal);
  return true;
}

// Whatever keeps the copier from it: saves can be pulled.
void PullThread::Watch(const Goal& goal) {
  std::string why;
  std::shared_ptr<Rescue> rescue = Rescue::Make(goal.registration, state_.pull.allocations, &why);
  const UniqueFd self(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  if (rescue != nullptr) {
    CopierWatch watch = {};
    watch.hold_ns = kMostHoldNs;
    const auto files = rescue->files();
    std::vector<int> fds(files.begin(), files.end());
    fds.push_back(self.get());
    CopierAnswer answer;
    if (!link_->Ask(watch, CopierMessageType::kWatch, fds, kAskTimeoutNs, &answer, &why)) rescue.reset();
  }
  MutexLock lock(state_.mutex);  // the one before goes after it: that may wait for a stream
  state_.rescue.swap(rescue);
  state_.rescue_why = why;
}

bool PullThread::ObtainCopier(const Device& device, std::string* why) {
  {
    MutexLock lock(state_.mutex);
    Pull& pull = state_.pull;
    memcpy(pull.gpu, device.facts().uuid.data(), sizeof pull.gpu);
    pull.stage = Pull::Stage::kAsked;
    pull.replied = false;
    pull.requests += 1;
  }
  state_.Wake();
  return AwaitReply(why);
}

bool PullThread::AwaitReply(std::string* why) {
  const uint64_t deadline = DeadlineAfter(kReplyTimeoutNs);
  MutexLock lock(state_.mutex);
  Pull& pull = state_.pull;
  bool in_time = true;
  while (in_time && !pull.replied && !state_.stopping) in_time = state_.changed.WaitUntil(state_.mutex, deadline);
  pull.stage = Pull::Stage::kBusy;
  if (!pull.replied || state_.stopping) {
    *why = "the agent did not answer the question for a copier";
    return false;
  }
  if (pull.reply.code != 0) {
    *why = pull.reply.sentence;
    return false;
  }
  link_ = std::make_shared<CopierLink>(std::move(pull.socket), std::move(pull.process));
  pull.link = link_;
  return true;
}

bool PullThread::HandOverSlots(const Goal& goal, std::string* why) {
  CopierSlots slots = {};
  const LayoutReadyMessage& ready = goal.attachment->ready();
  slots.slot_bytes = ready.slot_bytes;
  slots.chunk_bytes = ready.chunk_bytes;
  slots.slot_count = ready.slot_count;
  slots.chunk_count = ready.chunk_count;
  std::vector<int> fds = {goal.attachment->bell_fd()};
  for (const auto& slot : goal.slots) fds.push_back(slot->fd.get());
  CopierAnswer answer;
  return link_->Ask(slots, CopierMessageType::kSlots, fds, kAskTimeoutNs, &answer, why);
}

bool PullThread::Close(std::string* why) {
  CopierSerial release = {};
  CopierAnswer answer;
  if (!link_->Ask(release, CopierMessageType::kRelease, {}, kAskTimeoutNs, &answer, why)) return false;
  MutexLock lock(state_.mutex);
  state_.pull.exported = 0;
  return true;
}

bool PullThread::Export(const Goal& goal, std::string* why) {
  Exports exports;
  if (!exports.Find(*goal.registration, why)) return false;
  {
    MutexLock lock(state_.mutex);
    state_.pull.exported = goal.registration->number;
  }
  ContextScope scope(goal.registration->devices.lanes.front()->device());
  for (size_t first = 0; first < exports.allocations().size(); first += kImportBatch) {
    CopierImport import = {};
    std::vector<UniqueFd> files;
    if (!exports.Batch(first, &import, &files, why)) return false;
    std::vector<int> fds;
    fds.reserve(files.size());
    for (const UniqueFd& file : files) fds.push_back(file.get());
    CopierAnswer answer;
    if (!link_->Ask(import, CopierMessageType::kImport, fds, kAskTimeoutNs, &answer, why)) return false;
  }
  UniqueFd file;
  if (!exports.PlanFile(&file, why)) return false;
  CopierPlan plan = {};
  plan.count = exports.pieces();
  int fd = file.get();
  CopierAnswer answer;
  if (!link_->Ask(plan, CopierMessageType::kPlan, {&fd, 1}, kAskTimeoutNs, &answer, why)) return false;
  MutexLock lock(state_.mutex);
  state_.pull.allocations = exports.allocations();
  return true;
}

void PullThread::Done(const Goal& goal) {
  MutexLock lock(state_.mutex);
  Pull& pull = state_.pull;
  pull.registration = goal.registration;
  pull.attachment = goal.attachment;
  pull.file_ids = goal.file_ids;
  pull.stale = false;
  state_.rescue_ready = state_.rescue != nullptr && state_.rescue->registration() == goal.registration.get();
  if (pull.choice.verdict() == PathChoice::Verdict::kOpen) pull.why = pull.compares ? "being compared" : "asked for";
  pull.stage = Pull::Stage::kReady;
  state_.changed.NotifyAll();
  state_.Wake();
}

void PullThread::Failed(const std::string& why) {
  std::shared_ptr<CopierLink> last = std::exchange(link_, nullptr);  // closed without the mutex
  if (last != nullptr) last->End();
  {
    MutexLock lock(state_.mutex);
    LosePull(state_, why);
  }
  state_.Wake();
}

}  // namespace ckptd
