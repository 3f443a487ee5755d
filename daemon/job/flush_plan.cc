#include "daemon/job/flush_plan.h"

#include <algorithm>

namespace ckptd::job {
namespace {

template <typename Refs>
bool Lists(const Refs& refs, const SnapshotId& id) {
  return std::any_of(refs.begin(), refs.end(),
                     [&](const v1::SnapshotRef& ref) { return ref.attempt() == id.attempt && ref.step() == id.step; });
}

}  // namespace

void FlushPlan::Reset(AttemptId attempt, const SnapshotId& parent) {
  *this = FlushPlan();
  attempt_ = attempt;
  target_ = captured_ = parent;
}

bool FlushPlan::Update(const FlushPolicy& policy, const std::vector<const v1::RankReport*>& ranks,
                       const SnapshotId& watermark, const SnapshotId& durable) {
  if (!policy.selects()) return false;
  if (watermark > captured_) {
    captured_ = watermark;
    ++since_;
  }
  if (watermark == target_) return false;
  const bool busy = Busy(ranks, durable);
  const bool due = since_ >= policy.every || Asked(ranks, watermark, durable, busy);
  if (!due || (policy.newest_only && busy)) return false;
  target_ = watermark;
  passed_ = false;
  since_ = 0;
  return true;
}

// Not durable yet, no commit of it has failed, and no rank has said that it has it no more.
bool FlushPlan::Busy(const std::vector<const v1::RankReport*>& ranks, const SnapshotId& durable) const {
  if (target_.none() || passed_ || durable >= target_) return false;
  return std::all_of(ranks.begin(), ranks.end(), [&](const v1::RankReport* rank) {
    return rank == nullptr || Lists(rank->sealed(), target_) || Lists(rank->persisted(), target_);
  });
}

bool FlushPlan::Asked(const std::vector<const v1::RankReport*>& ranks, const SnapshotId& watermark,
                      const SnapshotId& durable, bool busy) const {
  StepId step = 0;
  for (const v1::RankReport* rank : ranks) {
    if (rank != nullptr) step = std::max<StepId>(step, rank->flush_wanted());
  }
  const SnapshotId wanted{attempt_, step};
  if (step == 0 || watermark < wanted || durable >= wanted) return false;
  return target_ < wanted || !busy;
}

}  // namespace ckptd::job
