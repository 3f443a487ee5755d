#include "client/core/threads/sum_team.h"

#include <algorithm>

#include "client/core/copy/crc32c.h"

namespace ckptd {
namespace {

// Of a range: to share less costs more than it gains, and more is not needed.
constexpr size_t kLeastPart = 64 << 10;
constexpr size_t kMostPart = 4 << 20;

}  // namespace

uint32_t SumTeam::HelpersFor(uint32_t cores) { return std::min(kMostHelpers, cores / 2); }

SumTeam::~SumTeam() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    pushed_.NotifyAll();
  }
  for (Thread& thread : threads_) thread.Join();
}

// Nothing that a helper does can throw. Fewer than wanted do it too.
void SumTeam::StartHelpers() {
  started_ = true;
  const auto broke = [](void*, const char*) noexcept {};
  while (helpers_ < wanted_ && threads_[helpers_].Start("ckpt-sum", &SumTeam::Run, broke, this)) ++helpers_;
}

void SumTeam::Run(void* self) {
  auto& team = *static_cast<SumTeam*>(self);
  MutexLock lock(team.mutex_);
  while (!team.stopping_) {
    if (team.next_ == team.tail_) {
      ++team.idle_;
      team.pushed_.Wait(team.mutex_);
      --team.idle_;
    } else {
      team.SumNext();
    }
  }
}

void SumTeam::SumNext() {
  Task& task = At(next_++);
  {
    MutexUnlock unlock(mutex_);
    task.sum.crc = Crc32c(0, task.block, task.sum.bytes);
  }
  task.done = true;
  summed_.NotifyAll();
}

// Alone, what is pushed is summed by whoever takes it: to collect blocks would only delay their sums.
bool SumTeam::IsFull() {
  MutexLock lock(mutex_);
  return tail_ - head_ >= (helpers_ == 0 && started_ ? 1 : 2 * (helpers_ + 1));
}

bool SumTeam::IsEmpty() {
  MutexLock lock(mutex_);
  return head_ == tail_;
}

void SumTeam::Push(const void* block, size_t bytes) {
  if (!started_) StartHelpers();
  MutexLock lock(mutex_);
  At(tail_++) = {block, {0, bytes}, false};
  if (idle_ > 0) pushed_.NotifyOne();
}

bool SumTeam::IsReady() {
  MutexLock lock(mutex_);
  return head_ != tail_ && At(head_).done;
}

SumTeam::Sum SumTeam::Pop() {
  MutexLock lock(mutex_);
  while (!At(head_).done) {
    if (next_ != tail_) {
      SumNext();
    } else {
      summed_.Wait(mutex_);
    }
  }
  return At(head_++).sum;
}

bool SumTeam::Help() {
  MutexLock lock(mutex_);
  if (next_ == tail_) return false;
  SumNext();
  return true;
}

uint32_t SumTeam::SumOf(const void* data, size_t bytes) {
  const size_t block = std::clamp(bytes / kRing, kLeastPart, kMostPart);
  const auto* at = static_cast<const char*>(data);
  uint32_t crc = 0;
  for (size_t pushed = 0, popped = 0; popped < bytes;) {
    if (pushed < bytes && !IsFull()) {
      const size_t part = std::min(block, bytes - pushed);
      Push(at + pushed, part);
      pushed += part;
    } else {
      const Sum sum = Pop();
      crc = Crc32cCombine(crc, sum.crc, sum.bytes);
      popped += sum.bytes;
    }
  }
  return crc;
}

void SumTeam::Drop() {
  MutexLock lock(mutex_);
  for (tail_ = next_; head_ != tail_; ++head_) {
    while (!At(head_).done) summed_.Wait(mutex_);
  }
}

}  // namespace ckptd
