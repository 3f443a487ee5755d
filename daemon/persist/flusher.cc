#include "daemon/persist/flusher.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"

namespace ckptd {

// What the mutex guards is shared, and so is `discarded`, which the worker looks at in the midst of its I/O; the rest
// belongs to the one worker that runs the task at a time.
struct Flusher::Task {
  FlushKey key;
  FlushSource source;
  Nanos began{0};
  std::atomic<bool> discarded{false};

  Mutex mutex;
  uint32_t captured CKPTD_GUARDED_BY(mutex) = 0;  // chunks from the first on
  std::optional<FlushSeal> seal CKPTD_GUARDED_BY(mutex);
  bool working CKPTD_GUARDED_BY(mutex) = false;

  std::unique_ptr<RankFlush> flush;
  uint32_t written = 0;  // chunks from the first on
  bool stream_failed = false;
};

Flusher::Flusher(Store& store, const Clock& clock, Executor& workers, Listener listener)
    : store_(store), clock_(clock), workers_(workers), listener_(std::move(listener)) {}

void Flusher::Begin(const FlushKey& key, FlushSource source) {
  auto task = std::make_shared<Task>();
  task->key = key;
  task->source = std::move(source);
  task->began = clock_.Monotonic();
  MutexLock lock(mutex_);
  tasks_[key] = std::move(task);
}

void Flusher::Captured(const FlushKey& key, uint32_t chunks) {
  std::shared_ptr<Task> task = Find(key);
  if (!task) return;
  {
    MutexLock lock(task->mutex);
    task->captured = std::max(task->captured, chunks);
  }
  Schedule(task);
}

void Flusher::Seal(const FlushKey& key, FlushSeal seal) {
  std::shared_ptr<Task> task = Find(key);
  if (!task) return;
  {
    MutexLock lock(task->mutex);
    task->seal = std::move(seal);
  }
  Schedule(task);
}

void Flusher::FlushSealed(const FlushKey& key, FlushSource source, FlushSeal seal) {
  Begin(key, std::move(source));
  Seal(key, std::move(seal));
}

void Flusher::Discard(const FlushKey& key) {
  std::shared_ptr<Task> task = Find(key);
  if (!task) return;
  task->discarded = true;
  Schedule(task);
}

size_t Flusher::active() {
  MutexLock lock(mutex_);
  return tasks_.size();
}

std::shared_ptr<Flusher::Task> Flusher::Find(const FlushKey& key) {
  MutexLock lock(mutex_);
  auto found = tasks_.find(key);
  return found == tasks_.end() ? nullptr : found->second;
}

void Flusher::Schedule(const std::shared_ptr<Task>& task) {
  {
    MutexLock lock(task->mutex);
    if (task->working) return;
    task->working = true;
  }
  if (workers_.Run([this, task] { Work(task); })) return;
  bool sealed = false;
  {
    MutexLock lock(task->mutex);
    task->working = false;
    sealed = task->seal.has_value();
  }
  if (task->discarded && !sealed) return Forget(task);
  // Streamed chunks may wait for the next call; a seal has none, so it fails now and is retried by the caller.
  if (sealed) End(task, Error(ErrorCode::STORAGE_HUNG, "too many flushes wait for the storage"));
}

void Flusher::Work(const std::shared_ptr<Task>& task) {
  while (true) {
    uint32_t captured = 0;
    std::optional<FlushSeal> seal;
    bool discarded = false;
    {
      MutexLock lock(task->mutex);
      discarded = task->discarded;
      captured = task->captured;
      seal.swap(task->seal);
      const bool more = captured > task->written && !task->stream_failed;
      if (!discarded && !more && !seal) {
        task->working = false;
        return;
      }
    }
    if (discarded && seal) return End(task, absl::CancelledError("the flush was given up"));
    if (discarded) return Forget(task);
    if (!task->stream_failed) task->stream_failed = !WriteUpTo(*task, captured).ok();
    if (seal) return End(task, FinishTask(*task, *seal));
  }
}

absl::Status Flusher::WriteUpTo(Task& task, uint32_t chunks) {
  if (!task.flush) task.flush = std::make_unique<RankFlush>(store_, clock_, task.source, &task.discarded);
  for (; task.written < chunks; ++task.written) CKPTD_RETURN_IF_ERROR(task.flush->WriteChunk(task.written));
  return absl::OkStatus();
}

absl::Status Flusher::FinishTask(Task& task, const FlushSeal& seal) {
  if (task.stream_failed) {
    task.flush.reset();
    task.written = 0;
    task.source.again = true;
  }
  CKPTD_RETURN_IF_ERROR(WriteUpTo(task, static_cast<uint32_t>(seal.chunk_crcs.size())));
  return task.flush->Finish(seal);
}

void Flusher::End(const std::shared_ptr<Task>& task, absl::Status status) {
  FlushOutcome outcome;
  outcome.key = task->key;
  outcome.id = task->source.id;
  outcome.status = std::move(status);
  outcome.bytes = task->source.slot.size();
  outcome.duration = clock_.Monotonic() - task->began;
  Forget(task);
  listener_(std::move(outcome));
}

void Flusher::Forget(const std::shared_ptr<Task>& task) {
  task->flush.reset();
  MutexLock lock(mutex_);
  auto found = tasks_.find(task->key);
  if (found != tasks_.end() && found->second == task) tasks_.erase(found);
}

}  // namespace ckptd
