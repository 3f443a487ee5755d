#include "tests/crash/crash_workloads.h"

#include <algorithm>
#include <cerrno>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/format/paths.h"
#include "daemon/storage/testing/store_around.h"
#include "tests/crash/crash_scripts.h"

namespace ckptd::crash {
namespace {

constexpr SnapshotId kFirst{1, 1};
constexpr SnapshotId kSecond{1, 2};

// An empty storage that has always been there.
SimFiles EmptyStorage() {
  SimFiles files;
  (void)files.Mkdir(kRoot, 0755);
  (void)files.SyncDir("/");
  return files.CrashImage(files.OpCount(), 0);
}

NodeOptions OptionsOf(const Mutant& mutant, uint32_t world, uint32_t keep_last, uint64_t seed = 1) {
  NodeOptions options;
  options.world = world;
  options.retention.keep_last = keep_last;
  options.seed = seed;
  options.around = mutant.around;
  if (mutant.rules) mutant.rules(options.rules);
  return options;
}

using Script = std::function<void(Run&)>;

// The run of `script` over `files`, without the fsyncs that the mutant drops: their numbers come from a run with them.
// Null where it has none of them.
std::unique_ptr<Run> RunScript(const Mutant& mutant, const NodeOptions& options, const std::function<SimFiles()>& start,
                               const Promise& promise, const Script& script) {
  const auto life = [&](const std::set<size_t>& dropped) {
    auto run = std::make_unique<Run>(start(), promise, options);
    run->files.DropSyncs(dropped);
    if (mutant.replace) run->files.ReplaceNames();
    script(*run);
    return run;
  };
  std::unique_ptr<Run> run = life({});
  if (mutant.sync.empty()) return run;
  const auto classes = SyncClasses(run->files, 0);
  const auto dropped = classes.find(mutant.sync);
  return dropped == classes.end() ? nullptr : life(dropped->second);
}

std::unique_ptr<Run> Simple(const Mutant& mutant, const NodeOptions& options,
                            const std::function<void(Node&)>& script) {
  return RunScript(mutant, options, EmptyStorage, {}, [&](Run& run) {
    Memory memory;
    Node node(run.files, memory, run.recovery, &run.witness);
    script(node);
  });
}

Workload Steps(const Mutant& mutant, const std::string& name, uint32_t world) {
  return {name, 64 * world, [=](size_t i) { return Simple(mutant, OptionsOf(mutant, world, 1, i + 1), ThreeSteps); }};
}

Workload WithoutLinks(const Mutant& mutant) {
  return {"no hard links", 1, [=](size_t) {
            const auto start = [] {
              SimFiles files = EmptyStorage();
              files.DisableLinks();
              return files;
            };
            return RunScript(mutant, OptionsOf(mutant, 1, 1), start, {}, [](Run& run) {
              Memory memory;
              Node node(run.files, memory, run.recovery, &run.witness);
              ThreeSteps(node);
            });
          }};
}

Workload RollBack(const Mutant& mutant) {
  return {"roll-back", 64,
          [=](size_t i) { return Simple(mutant, OptionsOf(mutant, 2, 3, i + 1), ThreeStepsRolledBack); }};
}

Workload Deletion(const Mutant& mutant) {
  return {"pins and deletion", 64,
          [=](size_t i) { return Simple(mutant, OptionsOf(mutant, 2, 2, i + 1), FiveStepsDeleted); }};
}

Workload DiskFull(const Mutant& mutant) {
  constexpr size_t kFills = 24;
  return {"disk full", kFills, [=](size_t i) {
            const NodeOptions options = OptionsOf(mutant, 4, 1, i + 1);
            return RunScript(mutant, options, EmptyStorage, {}, [i](Run& run) {
              Memory memory;
              Node node(run.files, memory, run.recovery, &run.witness);
              (void)node.Restore();
              node.Save(1);
              node.Drain();
              run.files.SetFree(3000 * (i + 1));
              node.Save(2);
              node.Drain();
              node.Retry();
              node.Drain();
              run.files.SetFree(UINT64_MAX);
              node.Retry();
              node.Drain();
              node.Save(3);
              node.Drain();
            });
          }};
}

bool DirectoryFailed(const SimFiles& files) {
  return std::any_of(files.log().begin(), files.log().end(), [&](const sim::Op& op) {
    return op.kind == sim::Op::kSyncFailed && files.live().at(op.inode).type == FileType::kDirectory;
  });
}

// One call fails, and then the agent is started anew. Not where the fsync of a directory failed: the agent refuses what
// was there as long as it lives, and says that the storage is to be looked at before the next one starts. It goes on
// with what comes later.
Workload IoErrors(const Mutant& mutant) {
  constexpr size_t kErrors = 150;
  return {"an I/O error", kErrors, [=](size_t i) {
            const NodeOptions options = OptionsOf(mutant, 2, 1, 3);
            return RunScript(mutant, options, EmptyStorage, {}, [i](Run& run) {
              Memory memory;
              {
                Node node(run.files, memory, run.recovery, &run.witness);
                (void)node.Restore();
                node.Save(1);
                node.Drain();
                run.files.FailCall(2 * i, i % 3 == 0 ? ENOSPC : EIO);
                node.Save(2);
                node.Drain();
                node.Retry();
                node.Drain();
                if (DirectoryFailed(run.files)) {
                  node.Save(3);
                  node.Drain();
                  return;
                }
              }
              Node node(run.files, memory, run.recovery, &run.witness);
              node.Drain();
              node.Retry();
              node.Drain();
              node.Save(3);
              node.Drain();
            });
          }};
}

// Kills the agent at one operation; the next agent goes on with the region, the trainers and what the kernel knew.
Workload KilledAgent(const Mutant& mutant) {
  constexpr size_t kKills = 260;
  return {"agent killed, then power", kKills, [=](size_t i) {
            const NodeOptions options = OptionsOf(mutant, 2, 1, 5);
            return RunScript(mutant, options, EmptyStorage, {}, [i](Run& run) {
              Memory memory;
              run.files.KillAt(i + 1);
              {
                Node node(run.files, memory, run.recovery, &run.witness);
                const std::vector<std::function<void()>> script = {
                    [&] { (void)node.Restore(); }, [&] { node.Save(1); },
                    [&] { node.Drain(); },         [&] { (void)node.RollBack(kFirst); },
                    [&] { node.Save(2); },         [&] { node.Drain(); },
                    [&] { node.Save(3); },         [&] { node.Drain(); },
                };
                for (const auto& act : script) {
                  if (!run.files.Killed()) act();
                }
              }
              run.first_op = run.files.OpCount();
              run.files.Revive();
              Node node(run.files, memory, run.recovery, &run.witness);
              node.Drain();
              if (memory.seats.empty() || !node.Running()) (void)node.Restore();
              node.Save(memory.seats[0].pos + 1);
              node.Drain();
            });
          }};
}

// Where the power fails in the life before, and what stays of it.
struct Failure {
  sim::Tree disk;
  Promise promise;
};

Failure FailureOf(const Run& run, size_t i) {
  std::minstd_rand random(static_cast<uint32_t>(7 * i + 1));
  random.discard(3);
  const size_t op = random() % (run.files.OpCount() + 1);
  return {run.files.CrashImage(op, i).live(), Ledger::Walk(run.ledger).At(op)};
}

Workload NewAttempt(const Mutant& mutant) {
  constexpr size_t kFailures = 40;
  auto before = std::make_shared<std::unique_ptr<Run>>();
  return {"a new attempt after a crash", kFailures, [=](size_t i) {
            if (*before == nullptr) *before = Simple({}, OptionsOf({}, 2, 1), ThreeSteps);
            const Failure failure = FailureOf(**before, i);
            const auto start = [&] { return SimFiles(failure.disk); };
            return RunScript(mutant, OptionsOf(mutant, 2, 1, i + 1), start, failure.promise, [](Run& run) {
              Memory memory;
              Node node(run.files, memory, run.recovery, &run.witness);
              if (!node.Restore().ok()) return;
              for (int saves = 0; saves < 2; ++saves) {
                node.Save(std::max(memory.seats[0].pos, node.parent().step) + 1);
                node.Drain();
              }
            });
          }};
}

// The second crash: the promise is what an undisturbed recovery of the first gives.
Workload CrashInRecovery(const Mutant& mutant) {
  constexpr size_t kFailures = 120;
  auto before = std::make_shared<std::unique_ptr<Run>>();
  return {"a crash during recovery", kFailures, [=](size_t i) -> std::unique_ptr<Run> {
            if (*before == nullptr) *before = Simple({}, OptionsOf({}, 4, 1), ThreeSteps);
            const Failure failure = FailureOf(**before, i);
            SecondAnswers seconds;
            const Answer undisturbed = Recover(failure.disk, OptionsOf({}, 4, 1), "", seconds);
            if (!undisturbed.status.ok()) return nullptr;
            Promise promise;
            promise.least = undisturbed.id;
            promise.exact = true;
            const auto start = [&] { return SimFiles(failure.disk); };
            return RunScript(mutant, OptionsOf(mutant, 4, 1, i + 1), start, promise, [](Run& run) {
              Memory memory;
              Node node(run.files, memory, run.recovery, &run.witness);
              (void)node.Restore();
              node.Drain();
            });
          }};
}

// Whoever asks this store to delete a name has to wait for a turn of somebody else first.
class SlowDeletion final : public StoreAround {
 public:
  SlowDeletion(std::unique_ptr<Store> under, Store& inner, std::function<void()> turn)
      : StoreAround(under ? *under : inner), under_(std::move(under)), turn_(std::move(turn)) {}
  absl::Status Delete(const std::string& name) override {
    turn_();
    return inner_.Delete(name);
  }

 private:
  const std::unique_ptr<Store> under_;
  const std::function<void()> turn_;
};

// Rank 0 moved to another agent, and the old one does not know yet: it commits and deletes on. The order is random, in
// spells; a deletion is interrupted between its files.
void TwoLives(Run& run, size_t i) {
  std::minstd_rand random(static_cast<uint32_t>(i + 1));
  random.discard(2);
  Memory memory, other;
  Node* interrupts = nullptr;
  const auto turn = [&] {
    if (interrupts != nullptr && random() % 2 == 0) WorkSome(*interrupts, static_cast<int>(random() % 16));
  };
  NodeOptions first = run.recovery, second = run.recovery;
  first.around = [&](Store& inner, Files& files) {
    auto under = run.recovery.around ? run.recovery.around(inner, files) : nullptr;
    return std::make_unique<SlowDeletion>(std::move(under), inner, turn);
  };
  second.agent.assign(1, 'B');  // gcc 12 at -O2 sees an overflow in the assignment of a literal
  Node old(run.files, memory, first, &run.witness);
  Node fresh(run.files, other, second, &run.witness);
  (void)old.Restore();
  old.Save(1);
  old.Drain();
  old.Save(2);
  WorkSome(old, static_cast<int>(random() % 16));
  if (i % 4 == 0) old.BeginRestore();  // both at once: who is first gets the record
  i % 2 == 1 ? fresh.BeginRollBack(kFirst) : fresh.BeginRestore();
  interrupts = &fresh;
  for (bool saved = false, idle = false; !idle || old.Work() || fresh.Work();) {
    Node& next = random() % 2 == 0 ? old : fresh;
    const int spell = static_cast<int>(random() % 12);
    idle = true;
    for (int works = 0; works < spell && next.Work(); ++works) idle = false;
    if (saved || !fresh.Running()) continue;
    saved = true;
    fresh.Save(fresh.parent().step + 1);
  }
}

Workload TwoAgents(const Mutant& mutant) {
  constexpr size_t kOrders = 240;
  return {"two agents", kOrders, [=](size_t i) {
            return RunScript(mutant, OptionsOf(mutant, 1, 1, i + 1), EmptyStorage, {},
                             [i](Run& run) { TwoLives(run, i); });
          }};
}

// A byte of a committed image changes before anything is deleted: its predecessor is the last good one.
void Rot(Run& run, const Node& node) {
  run.spared = InStep(kJob, node.durable(), ImageFileName(0, 1, 0));
  const size_t op = run.files.OpCount();
  run.ledger.Note(op, [name = run.spared](Promise& promise) {
    promise.named.erase(name);
    promise.least = kFirst;
  });
  auto file = run.files.Open(absl::StrCat(kRoot, "/", run.spared), {.write = true});
  constexpr std::byte kBad{0x5a};
  if (file.ok() && (*file)->PWrite(5000, {&kBad, 1}).ok()) (void)(*file)->Sync();
}

Workload Rotten(const Mutant& mutant) {
  return {"a damaged step", 2, [=](size_t i) {
            return RunScript(mutant, OptionsOf(mutant, 1, 1, i + 1), EmptyStorage, {}, [](Run& run) {
              Memory memory;
              Node node(run.files, memory, run.recovery, &run.witness);
              (void)node.Restore();
              node.Save(1);
              node.Drain();
              node.Save(2);
              while (node.durable() != kSecond && node.Work()) continue;
              Rot(run, node);
              node.Drain();
            });
          }};
}

}  // namespace

std::vector<Workload> Workloads(const Mutant& mutant) {
  return {Rotten(mutant),          WithoutLinks(mutant), Steps(mutant, "one rank", 1),
          TwoAgents(mutant),       NewAttempt(mutant),   RollBack(mutant),
          Deletion(mutant),        KilledAgent(mutant),  IoErrors(mutant),
          CrashInRecovery(mutant), DiskFull(mutant),     Steps(mutant, "four ranks", 4)};
}

}  // namespace ckptd::crash
