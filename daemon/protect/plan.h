// What this agent owes to others, as decisions: of the step that the job protects now (State.protecting), each rank's
// copy to each of its holders, or its pieces to those who keep parity. Both are called copies here.
//
//   waiting ── Next ──► under way ── Ended(ok) ──► done
//      ▲                    │
//      └──── a pause ◄──────┘ Ended(error)
//
// What is done may be lost again, with its holder's memory; only the coordinator sees that. So as long as it has not
// counted all copies of the step, those that are done are started again now and then: a holder that has one says so.
// A copy that fails is tried again after a pause that doubles; one that is not wanted any more (another step is
// protected, the holder is another, the rank has lost the snapshot) is cancelled. What became of it still has to be
// told: a key has one copy under way at a time.
//
// A holder that has no room yet is no failure, but one that has none for long is: the target keeps a slot of every rank
// until it is protected. After `patience` the copy is overdue, which is told; it is still tried. A holder that has
// given it a slot takes it when its turn comes, after others' copies: it is waited for as long as the holder takes any,
// and `turn` beyond that.
//
// While it is held nothing is started, and no time counts against a holder: nobody asks it.
//
// Pure: no I/O, no clock. One thread.
#ifndef CKPTD_DAEMON_PROTECT_PLAN_H_
#define CKPTD_DAEMON_PROTECT_PLAN_H_

#include <compare>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "daemon/base/clock.h"
#include "daemon/base/ids.h"

namespace ckptd::protect {

inline constexpr uint32_t kWholeImage = UINT32_MAX;

// Whose snapshot goes to whom.
struct CopyKey {
  Rank rank = 0;
  std::string agent;
  uint32_t stripe = kWholeImage;  // else the block for this stripe's parity; a holder keeps one row of it at most
  auto operator<=>(const CopyKey&) const = default;
};

struct Order {
  enum class Kind { kStart, kCancel };
  Kind kind = Kind::kStart;
  CopyKey to;
  SnapshotId snapshot;
};

// A holder that has no room yet, or has not heard of the attempt, is no failure.
[[nodiscard]] bool IsWaiting(const absl::Status& status);

struct Pauses {
  Nanos first = std::chrono::milliseconds(200);
  Nanos longest = std::chrono::seconds(10);   // also between a copy and the question whether it is still there
  Nanos patience = std::chrono::seconds(30);  // with a holder that does not take it
  Nanos turn = std::chrono::minutes(10);      // with one that has room, and takes none of this agent's copies
};

class Plan {
 public:
  explicit Plan(Pauses pauses = {}) : pauses_(pauses) {}

  // All ranks copy `snapshot` now (none: nothing). `owed`: by those of this agent that have it sealed. `counted`: the
  // coordinator knows of all copies.
  void SetTarget(const SnapshotId& snapshot, std::set<CopyKey> owed, bool counted);

  void Hold(bool hold);
  [[nodiscard]] bool held() const { return held_; }

  // An order to start `to` has ended: OK, the holder has verified it. `had_room`: it had given it a slot, and not taken
  // that back.
  void Ended(const CopyKey& to, const SnapshotId& snapshot, const absl::Status& status, Nanos now,
             bool had_room = false);

  // What is to be done now; each order is given once.
  [[nodiscard]] std::vector<Order> Next(Nanos now);
  // When Next() is worth asking again; nothing where only an event changes anything.
  [[nodiscard]] std::optional<Nanos> wake() const;

  [[nodiscard]] const SnapshotId& target() const { return target_; }
  struct Count {
    size_t owed = 0;  // copies of the target
    size_t done = 0;
    size_t under_way = 0;
  };
  [[nodiscard]] Count count() const;
  // At its last Ended() it had failed, for `patience`, or not had its `turn`; until it succeeds, or another step is the
  // target. Then it is so again with the first failure: it was waited for already.
  [[nodiscard]] bool IsOverdue(const CopyKey& to) const;
  // Why the last copy of the target that failed did so; OK when none has since the last that did not. IsWaiting() only
  // when it is overdue.
  [[nodiscard]] const absl::Status& last_error() const { return last_error_; }

 private:
  enum class State { kWaiting, kUnderWay, kDone };
  struct Copy {
    State state = State::kWaiting;
    SnapshotId snapshot;  // under way or done
    bool cancelled = false;
    Nanos not_before{0};
    Nanos pause{0};                      // the last one
    bool only_waits = false;             // its last failure was none
    bool taken = false;                  // once, of the target
    std::optional<Nanos> failing_since;  // the target's copy; of one that is late, those before it
    std::optional<Nanos> unserved_since;
    bool overdue = false;
    bool late = false;  // it was overdue for a step before, and its holder has shown no room since
  };

  [[nodiscard]] bool Wanted(const CopyKey& key) const;
  [[nodiscard]] bool Startable(const Copy& copy) const;
  [[nodiscard]] static Copy Anew(const Copy& copy);
  static void ShowsRoom(Copy& copy);
  void Taken(const CopyKey& to, Copy& copy, Nanos now);
  void Failed(const CopyKey& to, Copy& copy, const absl::Status& status, Nanos now, bool had_room);

  const Pauses pauses_;
  SnapshotId target_;
  std::set<CopyKey> owed_;
  bool counted_ = false;
  bool held_ = false;
  std::map<CopyKey, Copy> copies_;
  absl::Status last_error_;
};

}  // namespace ckptd::protect

#endif  // CKPTD_DAEMON_PROTECT_PLAN_H_
