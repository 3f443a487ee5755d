// Slots to storage in the background: one RankFlush per fill, its work in order on a few workers.
//
// The control thread tells what it learns (Begin, Captured, Seal, Discard: none blocks); the outcome comes back
// through the listener on a worker's thread. A failed flush is reported once and forgotten; whoever decides to retry
// calls FlushSealed. Bytes streamed before the seal are only a head start: when they failed, Seal writes everything
// again.
#ifndef CKPTD_DAEMON_PERSIST_FLUSHER_H_
#define CKPTD_DAEMON_PERSIST_FLUSHER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "daemon/base/executor.h"
#include "daemon/base/mutex.h"
#include "daemon/persist/rank_flush.h"

namespace ckptd {

// One fill of one slot.
struct FlushKey {
  std::string job;
  Rank rank = 0;
  uint32_t layout = 0;
  uint32_t slot = 0;
  Epoch epoch = 0;
  auto operator<=>(const FlushKey&) const = default;
};

struct FlushOutcome {
  FlushKey key;
  SnapshotId id;
  absl::Status status;
  uint64_t bytes = 0;
  Nanos duration{0};  // from Seal or Begin, whichever was first, to the durable sidecar
};

class Flusher {
 public:
  using Listener = std::function<void(FlushOutcome)>;  // on a worker thread

  // All outlive the Flusher; the executor is stopped before it goes.
  Flusher(Store& store, const Clock& clock, Executor& workers, Listener listener);

  void Begin(const FlushKey& key, FlushSource source);
  // The first `chunks` of the slot are whole.
  void Captured(const FlushKey& key, uint32_t chunks);
  // Every chunk counts as done. Without Begin nothing happens.
  void Seal(const FlushKey& key, FlushSeal seal);
  void FlushSealed(const FlushKey& key, FlushSource source, FlushSeal seal);
  // What was written goes. A sealed flush reports its outcome, CANCELLED unless it was faster; the slot is not read
  // any more from then on. A fill that was only streamed reports nothing.
  void Discard(const FlushKey& key);

  [[nodiscard]] size_t active() CKPTD_EXCLUDES(mutex_);

 private:
  struct Task;

  std::shared_ptr<Task> Find(const FlushKey& key) CKPTD_EXCLUDES(mutex_);
  void Schedule(const std::shared_ptr<Task>& task);
  void Work(const std::shared_ptr<Task>& task);
  void Forget(const std::shared_ptr<Task>& task);
  void End(const std::shared_ptr<Task>& task, absl::Status status);
  absl::Status FinishTask(Task& task, const FlushSeal& seal);
  absl::Status WriteUpTo(Task& task, uint32_t chunks);

  Store& store_;
  const Clock& clock_;
  Executor& workers_;
  const Listener listener_;
  Mutex mutex_;
  std::map<FlushKey, std::shared_ptr<Task>> tasks_ CKPTD_GUARDED_BY(mutex_);
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_PERSIST_FLUSHER_H_
