#include "daemon/persist/flusher.h"

#include <atomic>
#include <optional>
#include <set>
#include <utility>

#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"

namespace ckptd {

// `inbox` and `working` are shared; the rest belongs to the one worker that runs the task at a time.
struct Flusher::Task {
  FlushKey key;
  FlushSource source;
  Nanos began{0};

  Mutex mutex;
  std::vector<uint32_t> chunks CKPTD_GUARDED_BY(mutex);
  std::optional<FlushSeal> seal CKPTD_GUARDED_BY(mutex);
  bool discarded CKPTD_GUARDED_BY(mutex) = false;
  bool working CKPTD_GUARDED_BY(mutex) = false;

  std::unique_ptr<RankFlush> flush;
  std::set<uint32_t> written;
  bool stream_failed = false;
  std::atomic<uint64_t> written_bytes{0};
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

void Flusher::ChunksDone(const FlushKey& key, const std::vector<uint32_t>& chunks) {
  std::shared_ptr<Task> task = Find(key);
  if (!task) return;
  {
    MutexLock lock(task->mutex);
    task->chunks.insert(task->chunks.end(), chunks.begin(), chunks.end());
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
  {
    MutexLock lock(task->mutex);
    task->discarded = true;
  }
  Schedule(task);
}

size_t Flusher::active() {
  MutexLock lock(mutex_);
  return tasks_.size();
}

uint64_t Flusher::WrittenBytes(const FlushKey& key) {
  std::shared_ptr<Task> task = Find(key);
  return task ? task->written_bytes.load() : 0;
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
  bool discarded = false;
  {
    MutexLock lock(task->mutex);
    task->working = false;
    sealed = task->seal.has_value();
    discarded = task->discarded;
  }
  if (discarded && !sealed) return Forget(task);
  // Streamed chunks may wait for the next call; a seal has none, so it fails now and is retried by the caller.
  if (sealed) End(task, Error(ErrorCode::STORAGE_HUNG, "too many flushes wait for the storage"));
}

void Flusher::Work(const std::shared_ptr<Task>& task) {
  while (true) {
    std::vector<uint32_t> chunks;
    std::optional<FlushSeal> seal;
    bool discarded = false;
    {
      MutexLock lock(task->mutex);
      discarded = task->discarded;
      chunks.swap(task->chunks);
      seal.swap(task->seal);
      if (!discarded && chunks.empty() && !seal) {
        task->working = false;
        return;
      }
    }
    if (discarded && seal) return End(task, absl::CancelledError("the flush was given up"));
    if (discarded) return Forget(task);
    StreamChunks(*task, chunks);
    if (seal) return End(task, FinishTask(*task, *seal));
  }
}

void Flusher::StreamChunks(Task& task, const std::vector<uint32_t>& chunks) {
  if (!task.flush) task.flush = std::make_unique<RankFlush>(store_, clock_, task.source);
  for (uint32_t chunk : chunks) {
    if (task.stream_failed || !task.written.insert(chunk).second) continue;
    task.stream_failed = !task.flush->WriteChunk(chunk).ok();
    task.written_bytes = task.flush->written_bytes();
  }
}

absl::StatusOr<v1::Sidecar> Flusher::FinishTask(Task& task, const FlushSeal& seal) {
  if (task.stream_failed) {
    task.flush = std::make_unique<RankFlush>(store_, clock_, task.source);
    task.written.clear();
  }
  for (uint32_t chunk = 0; chunk < seal.chunk_crcs.size(); ++chunk) {
    if (!task.written.insert(chunk).second) continue;
    CKPTD_RETURN_IF_ERROR(task.flush->WriteChunk(chunk));
    task.written_bytes = task.flush->written_bytes();
  }
  return task.flush->Finish(seal);
}

void Flusher::End(const std::shared_ptr<Task>& task, absl::StatusOr<v1::Sidecar> result) {
  FlushOutcome outcome;
  outcome.key = task->key;
  outcome.id = task->source.id;
  outcome.status = result.status();
  outcome.bytes = task->source.slot.size();
  outcome.duration = clock_.Monotonic() - task->began;
  if (result.ok()) outcome.sidecar = *std::move(result);
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
