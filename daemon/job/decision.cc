#include "daemon/job/decision.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/base/errors.h"
#include "daemon/format/snapshot_ref.h"
#include "daemon/job/lineage.h"

namespace ckptd::job {
namespace {

constexpr size_t kMaxSkipped = 16;
constexpr size_t kMostRanksNamed = 32;

std::string Few(const std::vector<Rank>& ranks) {
  if (ranks.size() <= kMostRanksNamed) return absl::StrJoin(ranks, ",");
  const auto few = ranks.begin() + kMostRanksNamed;
  return absl::StrCat(absl::StrJoin(ranks.begin(), few, ","), " and ", ranks.end() - few, " more");
}

class Chooser {
 public:
  Chooser(const Inventory& inventory, const Rules& rules)
      : in_(inventory), rules_(rules), base_(NewestBefore(inventory.decisions, inventory.attempt)) {}

  absl::StatusOr<Choice> Run() {
    if (in_.want.kind() == v1::Want::FRESH) return Choice{};
    CollectKnown();
    const SnapshotId best = Best();
    if (in_.want.kind() == v1::Want::STEP) return best.none() ? NoSuchStep() : Taken(best);
    if (in_.want.kind() == v1::Want::IMPLICIT && !(best.none() && known_.empty())) return NotRestored();
    if (const SnapshotId newer = NewestOfNewerFormat(); newer > best) return NewerFormat(newer, best);
    if (!best.none()) return Taken(best);
    if (!foreign_world_.none()) return OtherWorld();
    return FreshStart();
  }

 private:
  struct Known {
    SnapshotId id;
    std::vector<Rank> ranks;  // that hold it in memory
    bool committed = false;
    Obstacle obstacle;  // without a reason: every rank can get it
    bool usable() const { return obstacle.reason.empty(); }
  };

  bool OnHistory(const SnapshotId& id) const {
    if (!rules_.lineage_not_number) return true;
    return base_ != nullptr && OnLineage(*base_, id);
  }

  bool Same(const SnapshotId& a, const SnapshotId& b) const {
    return a.step == b.step && (a.attempt == b.attempt || !rules_.attempt_in_identity);
  }

  const v1::DecisionRecord* DecisionOf(AttemptId attempt) const {
    for (const v1::DecisionRecord& decision : in_.decisions) {
      if (decision.attempt() == attempt) return &decision;
    }
    return nullptr;
  }

  // 0 = not known. All of an attempt is of one world size: where its decision is damaged or pruned, the history or what
  // it committed tells.
  uint32_t WorldOf(AttemptId attempt) const {
    const v1::DecisionRecord* decision = DecisionOf(attempt);
    if (decision != nullptr) return static_cast<uint32_t>(decision->ranks_size());
    if (const uint32_t world = base_ == nullptr ? 0 : WorldIn(*base_, attempt); world != 0) return world;
    for (const StoredStep& step : in_.steps) {
      if (step.id.attempt == attempt && step.committed) return step.world_size;
    }
    return 0;
  }

  void CollectKnown() {
    std::set<SnapshotId> ids;
    for (const auto& sealed : in_.sealed) ids.insert(sealed.begin(), sealed.end());
    for (const auto& copied : in_.copied) ids.insert(copied.begin(), copied.end());
    for (const auto& [id, agent] : in_.elsewhere) ids.insert(id);
    for (const StoredStep& step : in_.steps) {
      if (step.committed || step.newer) ids.insert(step.id);
    }
    for (const SnapshotId& id : ids) {
      if (!OnHistory(id)) continue;
      if (const uint32_t world = WorldOf(id.attempt); world != 0 && world != in_.world_size) {
        foreign_world_ = std::max(foreign_world_, id);
        continue;
      }
      known_.push_back(Describe(id));
    }
  }

  Known Describe(const SnapshotId& id) const {
    Known known;
    known.id = id;
    for (Rank rank = 0; rank < in_.sealed.size(); ++rank) {
      const auto& sealed = in_.sealed[rank];
      const auto holds = [&](const SnapshotId& other) { return Same(id, other); };
      const bool copied = CopyOf(rank, id) && in_.excluded_copies.count(id) == 0;
      if (copied || std::any_of(sealed.begin(), sealed.end(), holds)) known.ranks.push_back(rank);
    }
    known.committed = Committed(id);
    known.obstacle = ObstacleTo(known);
    return known;
  }

  Obstacle ObstacleTo(const Known& known) const {
    const SnapshotId& id = known.id;
    if (BeingDeleted(id)) return {ErrorCode::REFUSED, "it is being deleted", {}};
    if (DecisionOf(id.attempt) == nullptr && WorldOf(id.attempt) == 0) return UnknownWorld(id);
    if (known.ranks.size() >= (rules_.intersection ? in_.world_size : 1)) return {};
    if (const auto it = in_.excluded.find(id); it != in_.excluded.end()) return it->second;
    if (known.committed) return {};
    Obstacle out =
        OfNewerFormat(id)
            ? Obstacle{ErrorCode::NEWER_VERSION, "committed by a newer ckptd, which this one cannot read", {}}
            : Incomplete(known);
    const auto it = in_.elsewhere.find(id);
    if (it != in_.elsewhere.end()) absl::StrAppend(&out.reason, "; agent ", it->second, " has a part too");
    return out;
  }

  // Ranks 0 and 1 of four look like both ranks of two.
  Obstacle UnknownWorld(const SnapshotId& id) const {
    return {ErrorCode::CORRUPT,
            absl::StrCat("the decision of attempt ", id.attempt,
                         in_.unreadable.count(id.attempt) != 0 ? " is damaged" : " is gone",
                         ", and nothing else tells its world size"),
            {}};
  }

  // Parts that are nowhere are no damage, unless one was found damaged.
  Obstacle Incomplete(const Known& known) const {
    const bool damaged = in_.quarantined.count(known.id) != 0;
    const auto losses = in_.losses.find(known.id);
    const std::string where =
        losses != in_.losses.end()
            ? absl::StrCat("in the memory of ", known.ranks.size(), " of ", in_.world_size, " ranks: ", losses->second)
            : absl::StrCat("in the memory of ranks ", Few(known.ranks), " only (of ", in_.world_size, ")");
    Obstacle out{damaged ? ErrorCode::CORRUPT : ErrorCode::NOT_FOUND,
                 absl::StrCat("not committed, and ", where, damaged ? "; a part was found damaged" : ""),
                 {}};
    Rank missing = 0;  // if it is one only
    while (missing < known.ranks.size() && known.ranks[missing] == missing) ++missing;
    if (known.ranks.size() + 1 == in_.world_size) out.rank = missing;
    return out;
  }

  // Its files may go at any moment. Who took it from memory would flush it under the deletion.
  bool BeingDeleted(const SnapshotId& id) const {
    return rules_.listing_skips_marked && AnyStored([&](const StoredStep& step) {
             return step.id == id && MarkerHolds(step, in_.decisions, rules_.void_markers);
           });
  }

  bool Copying() const { return !in_.copied.empty(); }

  bool CopyOf(Rank rank, const SnapshotId& id) const {
    return rank < in_.copied.size() && in_.copied[rank].count(id) != 0;
  }

  bool Committed(const SnapshotId& id) const {
    return !BeingDeleted(id) && AnyStored([&](const StoredStep& step) { return step.id == id && step.committed; });
  }

  bool OfNewerFormat(const SnapshotId& id) const {
    return AnyStored([&](const StoredStep& step) { return step.id == id && step.newer; });
  }

  template <typename Predicate>
  bool AnyStored(Predicate holds) const {
    return std::any_of(in_.steps.begin(), in_.steps.end(), holds);
  }

  // On the history, and in no memory that could serve it.
  SnapshotId NewestOfNewerFormat() const {
    SnapshotId newest;
    for (const Known& known : known_) {
      if (!known.usable() && OfNewerFormat(known.id)) newest = known.id;
    }
    return newest;
  }

  SnapshotId Best() const {
    SnapshotId best;
    for (const Known& known : known_) {
      if (!known.usable()) continue;
      if (in_.want.kind() == v1::Want::STEP && known.id.step != in_.want.step()) continue;
      const bool by_number = !rules_.lineage_not_number;
      const bool newer = by_number ? known.id.step >= best.step : known.id > best;
      if (best.none() || newer) best = known.id;
    }
    return best;
  }

  absl::StatusOr<Choice> Taken(const SnapshotId& best) const {
    Choice choice{best, {}};
    for (const Known& known : known_) {
      if (known.id <= best || choice.skipped.size() == kMaxSkipped) continue;
      v1::SkippedStep& skipped = choice.skipped.emplace_back();
      SetRef(known.id, skipped.mutable_snapshot());
      const Obstacle asked{ErrorCode::REFUSED, absl::StrCat("step ", in_.want.step(), " was asked for"), {}};
      const Obstacle& why = known.usable() ? asked : known.obstacle;
      skipped.set_code(static_cast<uint32_t>(why.code));
      skipped.set_reason(why.reason);
      if (why.rank) skipped.set_rank(*why.rank);
    }
    return choice;
  }

  // What is known of the steps that exist but cannot be taken.
  std::string Obstacles() const {
    std::string out;
    for (const Known& known : known_) {
      if (!known.usable()) absl::StrAppend(&out, "; step ", ToString(known.id), ": ", known.obstacle.reason);
    }
    for (const auto& [id, why] : in_.excluded) absl::StrAppend(&out, "; step ", ToString(id), ": ", why.reason);
    return out;
  }

  absl::Status NoSuchStep() const {
    return Error(ErrorCode::NOT_FOUND, absl::StrCat("job ", in_.job, ": step ", in_.want.step(),
                                                    " is not on the history of the job, or not every one of ",
                                                    in_.world_size, " ranks can get it", Obstacles()));
  }

  absl::Status NotRestored() const {
    const SnapshotId newest = known_.empty() ? foreign_world_ : known_.back().id;
    return Error(ErrorCode::NOT_RESTORED,
                 absl::StrCat("job ", in_.job, " has checkpoints (step ", ToString(newest),
                              "), and this process did not call restore() before its first save"));
  }

  // To go on from an older step would lose what the newer ckptd saved, so the user has to say so.
  absl::Status NewerFormat(const SnapshotId& newer, const SnapshotId& best) const {
    const std::string older = best.none() ? "" : absl::StrCat("; restore(step=", best.step, ") takes an older one");
    return Error(ErrorCode::NEWER_VERSION,
                 absl::StrCat("job ", in_.job, ": step ", ToString(newer), " was committed by a newer ckptd", older));
  }

  absl::Status OtherWorld() const {
    return Error(ErrorCode::LAYOUT_MISMATCH,
                 absl::StrCat("job ", in_.job, ": step ", ToString(foreign_world_), " was saved with world size ",
                              WorldOf(foreign_world_.attempt), ", restore() was called with ", in_.world_size));
  }

  // Parts are in memory, and yet the step was never captured: a rank that wrote to a region which is still there, and
  // whose agent answered, has no part of it. (Of the newest captured step no part is freed.) So it is when a job dies
  // before its first capture, and nobody should have to look at that. It is no proof where parts were destroyed
  // (Lossy).
  bool NeverCaptured(const SnapshotId& id) const {
    const v1::DecisionRecord* decision = DecisionOf(id.attempt);
    if (Copying() && WasParent(id)) return false;  // owners of then may have freed it, and others took it from copies
    if (decision == nullptr || in_.elsewhere.count(id) != 0 || in_.quarantined.count(id) != 0) return false;
    return std::any_of(decision->ranks().begin(), decision->ranks().end(), [&](const v1::RankClaim& claim) {
      const auto answer = in_.answered.find(claim.agent());
      if (answer == in_.answered.end() || claim.region_id() == 0) return false;
      const bool same_region = answer->second.region_id == claim.region_id();
      const bool same_world = claim.rank() < in_.sealed.size();
      return same_region && same_world && in_.sealed[claim.rank()].count(id) == 0 && !CopyOf(claim.rank(), id);
    });
  }

  // Of the decisions that made the history, its own lineage tells, also where they were pruned.
  bool WasParent(const SnapshotId& id) const {
    const auto& lineage = base_->lineage();
    const auto chosen = [&](const v1::LineageEntry& entry) {
      return entry.attempt() == id.attempt && entry.last_step() == id.step;
    };
    if (std::any_of(lineage.begin(), lineage.end(), chosen)) return true;
    return std::any_of(in_.decisions.begin(), in_.decisions.end(),
                       [&](const v1::DecisionRecord& decision) { return ToId(decision.parent()) == id; });
  }

  bool NothingExists() const {
    return in_.excluded.empty() && std::all_of(known_.begin(), known_.end(), [&](const Known& known) {
             return !known.committed && !OfNewerFormat(known.id) && NeverCaptured(known.id);
           });
  }

  // Agents that found snapshots destroyed which may have been of the present history.
  std::set<std::string> Lossy() const {
    const auto& lineage = base_->lineage();
    const AttemptId oldest = lineage.empty() ? base_->attempt() : lineage[lineage.size() - 1].attempt();
    std::set<std::string> lossy;
    for (const auto& [agent, memory] : in_.answered) {
      if (memory.lost >= oldest && rules_.lost_proves_nothing) lossy.insert(agent);
    }
    return lossy;
  }

  // Nothing can be taken. 0 only when it is certain that nothing exists.
  absl::StatusOr<Choice> FreshStart() const {
    if (base_ == nullptr) return Choice{};
    std::set<std::string> silent = in_.silent;
    for (const v1::RankClaim& claim : base_->ranks()) {
      if (in_.answered.count(claim.agent()) == 0) silent.insert(claim.agent());
    }
    const std::set<std::string> lossy = Lossy();
    const bool certain = silent.empty() && lossy.empty() && in_.unreadable.empty() && NothingExists();
    if (certain || !rules_.all_agents_before_zero) return Taken({});
    return Error(ErrorCode::RESTORE_FAILED,
                 absl::StrCat("job ", in_.job, ": no step can be restored, but it is not certain that none exists",
                              silent.empty() ? "" : "; no answer from agents ", absl::StrJoin(silent, ", "),
                              lossy.empty() ? "" : "; memory was found damaged by agents ", absl::StrJoin(lossy, ", "),
                              in_.unreadable.empty() ? "" : "; damaged on storage: the decision of attempt ",
                              absl::StrJoin(in_.unreadable, ", "), Obstacles()));
  }

  const Inventory& in_;
  const Rules& rules_;
  const v1::DecisionRecord* base_;
  std::vector<Known> known_;  // rising
  SnapshotId foreign_world_;  // newest one of another world size
};

}  // namespace

absl::StatusOr<Choice> Choose(const Inventory& inventory, const Rules& rules) {
  return Chooser(inventory, rules).Run();
}

}  // namespace ckptd::job
