// What has been told to somebody, and when: the promise that every disk after that moment has to keep.
//
// Two kinds. To trainers: this step is durable; restore() stands on that step, and what came after it is undone. Inside
// the agent, by store.h: this name holds these bytes; this name is gone. A fact is noted with the number of operations
// that the log has then, so it binds the disks of later power failures only. What begins (a deletion, a roll-back) ends
// a promise when it begins, what is done makes a new one when it is done: between the two both are right.
//
// Who hears the facts is a Witness: SimWitness notes them here; a process that is to be killed writes them down where a
// kill cannot reach them (ack_file.h).
#ifndef CKPTD_TESTS_CRASH_CRASH_LEDGER_H_
#define CKPTD_TESTS_CRASH_CRASH_LEDGER_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "daemon/base/ids.h"
#include "daemon/os/testing/sim_files.h"
#include "daemon/storage/store.h"

namespace ckptd::crash {

inline constexpr char kRoot[] = "/store";
inline constexpr char kJob[] = "gpt";

struct Promise {
  SnapshotId least;                       // restore() gives this one or a newer one
  std::optional<SnapshotId> back;         // or this one: a roll-back to it was asked for and may have been decided
  std::set<SnapshotId> undone;            // rolled back: never given again
  std::map<std::string, uint64_t> named;  // name: hash of its content
  std::set<std::string> gone;             // names
  bool exact = false;                     // restore() gives `least`, nothing else
  AttemptId attempt = 0;                  // the newest that restore() answered, and on which step
  SnapshotId parent;
  bool may_skip = false;  // reads fail: restore() may give an older step where it says which ones it skipped, and why
  bool skipped = false;   // it did
  std::string broken;     // what was told contradicts what was told before

  [[nodiscard]] SnapshotId Least() const { return back ? std::min(*back, least) : least; }
  void TellDurable(const SnapshotId& id);
  void BeginRollBack(const SnapshotId& id) { back = id; }
  void TellSkipped(const SnapshotId& on);
  void TellStanding(AttemptId by, const SnapshotId& on, bool rolled_back);
};

struct Fact {
  enum Kind {
    kDurable,        // trainers: `id` is durable
    kBeginRollBack,  // a roll-back to `id` is asked for
    kStanding,       // trainers: attempt `attempt` stands on `id`
    kRolledBack,     // the same, by a roll-back
    kSkipped,        // newer ones than `id` are skipped because they cannot be read
    kComing,         // `name` is being made
    kCreated,        // `name` was made and had not been there
    kNamed,          // `name` is there, with bytes of this `hash`
    kLeaving,        // `name` is being deleted
    kGone,           // `name` is not there
  };
  Kind kind = kDurable;
  SnapshotId id{};
  AttemptId attempt = 0;
  std::string name{};
  uint64_t hash = 0;  // 0: of any
};
void Apply(const Fact& fact, Promise& promise);

class Witness {
 public:
  virtual ~Witness() = default;
  // At the moment that it is told.
  virtual void Hear(const Fact& fact) = 0;
  // Of what the store has under `name`; `bytes`: what it was given, empty where the caller does not know.
  virtual uint64_t HashOf(const std::string& name, absl::string_view bytes) = 0;
};

class Ledger {
 public:
  explicit Ledger(Promise promise = {}) : first_(std::move(promise)) {}

  using Change = std::function<void(Promise&)>;
  void Note(size_t op, Change change) { changes_.push_back({op, std::move(change)}); }

  // Steps through the log: At() with rising numbers.
  class Walk {
   public:
    explicit Walk(const Ledger& ledger) : ledger_(ledger), promise_(ledger.first_) {}
    const Promise& At(size_t op);

   private:
    const Ledger& ledger_;
    Promise promise_;
    size_t next_ = 0;
  };

 private:
  struct Noted {
    size_t op;
    Change change;
  };
  Promise first_;
  std::vector<Noted> changes_;
};

// Both outlive it.
class SimWitness final : public Witness {
 public:
  SimWitness(const SimFiles& files, Ledger& ledger) : files_(files), ledger_(ledger) {}
  void Hear(const Fact& fact) override;
  uint64_t HashOf(const std::string& name, absl::string_view bytes) override;

 private:
  const SimFiles& files_;
  Ledger& ledger_;
};

// Tells `witness` what `inner` answers. Both outlive it.
[[nodiscard]] std::unique_ptr<Store> MakeWitnessStore(Store& inner, Witness& witness);

}  // namespace ckptd::crash

#endif  // CKPTD_TESTS_CRASH_CRASH_LEDGER_H_
