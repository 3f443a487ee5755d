// One node of a training job in one thread: the real agent's logic (job::Machine, its storage operations, RankFlush,
// the publish protocol below) over any Files, and around it the little of trainers and region that it needs.
//
// What waits to be done, chunks of every rank's flush and requests to the storage, is done one at a time in a random
// order that follows from a seed: the order in which real workers might do it.
#ifndef CKPTD_TESTS_CRASH_CRASH_NODE_H_
#define CKPTD_TESTS_CRASH_CRASH_NODE_H_

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "daemon/app/job_storage.h"
#include "daemon/job/machine.h"
#include "daemon/os/files.h"
#include "daemon/os/io_queue.h"
#include "daemon/persist/rank_flush.h"
#include "tests/crash/crash_ledger.h"

namespace ckptd::crash {

// What survives a killed agent and not a power failure: the region, and the trainers.
struct Memory {
  struct Seat {
    job::ProcessId process = 0;
    Ticket ticket = 0;
    bool running = false;
    StepId pos = 0;
  };
  AttemptId seen = 0;
  SnapshotId parent;  // of what is captured
  std::map<Rank, Seat> seats;
  std::map<SnapshotId, std::set<Rank>> sealed;  // captured on every rank; the ranks whose part is on the storage
  v1::Want want;                                // of the last restore()
};

struct NodeOptions {
  uint32_t world = 1;
  std::string agent = "A";
  job::Retention retention;
  job::Rules rules;
  uint64_t seed = 1;
  uint64_t ids = 0;       // the processes' ids count from here; 0: unlike those of any other node
  bool stubborn = false;  // what failed is tried again some times, as timers and launchers make it
  IoQueueFactory make_queue = [] { return MakeInlineIoQueue(2); };
  // Mutants: a store between the agent and the real one. The second is the disk under it.
  std::function<std::unique_ptr<Store>(Store&, Files&)> around;
};

class Node {
 public:
  // The agent starts. `witness` may be null.
  Node(Files& files, Memory& memory, NodeOptions options, Witness* witness);

  // Trainers are killed where they live, new ones call restore(). OK: all ranks stand on parent().
  absl::Status Restore();
  absl::Status RollBack(const SnapshotId& id);
  // The same, to be gone on with by Work().
  void BeginRestore();
  void BeginRollBack(const SnapshotId& id);
  // All ranks save a step: captured, its flush begins.
  void Save(StepId step);
  // One thing that waits; false when nothing does.
  bool Work();
  void Drain();
  // What failed is tried again.
  void Retry();
  void Delete(const SnapshotId& id);
  void SetPinned(const SnapshotId& id, bool pinned);

  [[nodiscard]] bool Running() const;  // every rank has its restore() behind it
  [[nodiscard]] const SnapshotId& parent() const { return memory_.parent; }
  [[nodiscard]] SnapshotId durable() const { return machine_.view().durable; }
  [[nodiscard]] AttemptId attempt() const { return machine_.view().attempt; }
  [[nodiscard]] const std::string& wrong() const { return wrong_; }  // a load gave other bytes than were saved

 private:
  struct RankLife {
    v1::RankReport::Load load = v1::RankReport::NONE;
    AttemptId loaded = 0;
    absl::Status failure;
  };
  struct Flush {
    Rank rank = 0;
    SnapshotId id;
    FlushSource source;
    std::vector<uint32_t> chunks;  // still to be written
    std::unique_ptr<RankFlush> flush;
  };
  friend struct NodeEffects;

  uint64_t NextId();
  void Feed(job::Event event);
  void DoRequest(size_t index);
  void DoFlush(size_t index);
  void EndFlush(const Flush& flush, const absl::Status& status);
  void StartFlush(const SnapshotId& id, Rank rank);
  absl::Status Await();
  absl::Status RestoreAs(const v1::Want& want);
  v1::Want WantBack(const SnapshotId& id);
  void BeginRestore(const v1::Want& want);
  void JoinAll();
  void TakeState(const job::StatePtr& state);
  void TakeStateOfRank(const v1::State& state, Rank rank);
  absl::Status Load(const SnapshotId& id, Rank rank);
  void Told(const v1::State& state);
  [[nodiscard]] job::RankReportPtr FactsOf(Rank rank) const;
  void Tell(const Fact& fact);

  Memory& memory_;
  const NodeOptions options_;
  uint64_t given_ids_ = 0;
  Witness* const witness_;
  std::unique_ptr<Store> posix_, watched_, around_;
  Store* store_ = nullptr;
  std::optional<JobStorage> storage_;
  job::Machine machine_;
  std::vector<RankLife> lives_;
  std::deque<job::Event> events_;
  bool feeding_ = false;
  std::vector<job::Effect> requests_;
  std::vector<std::unique_ptr<Flush>> flushes_, failed_;
  std::vector<job::StartTimer> retries_;
  AttemptId told_ = 0;  // of the last restore() that was answered
  SnapshotId told_durable_;
  absl::Status refused_;
  std::string wrong_;
  std::minstd_rand random_;
};

}  // namespace ckptd::crash

#endif  // CKPTD_TESTS_CRASH_CRASH_NODE_H_
