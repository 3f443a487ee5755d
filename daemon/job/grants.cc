#include "daemon/job/grants.h"

#include <algorithm>

namespace ckptd::job {
namespace {

constexpr StepId kMaxLead = 64;

bool Sealed(const v1::RankReport& report, const SnapshotId& id) {
  return std::any_of(report.sealed().begin(), report.sealed().end(),
                     [&](const v1::SnapshotRef& ref) { return ref.attempt() == id.attempt && ref.step() == id.step; });
}

}  // namespace

void Grants::Reset(AttemptId attempt, const SnapshotId& parent) {
  attempt_ = attempt;
  watermark_ = parent;
  floor_ = 1;
  lead_ = 1;
}

void Grants::Raise(const SnapshotId& watermark, StepId floor) {
  if (watermark.attempt == attempt_) watermark_ = std::max(watermark_, watermark);
  floor_ = std::max(floor_, floor);
}

bool Grants::Update(const std::vector<const v1::RankReport*>& ranks, const Rules& rules) {
  const StepId before = floor_;
  if (const StepId step = NewestCaptured(ranks); step != 0) {
    watermark_ = {attempt_, step};
    floor_ = std::max(floor_, step + 1);
    lead_ = 1;
  }
  const bool all = std::none_of(ranks.begin(), ranks.end(), [](const auto* rank) { return rank == nullptr; });
  if (!rules.drop_passed_steps || (!all && rules.drop_after_all_reported)) return floor_ != before;
  StepId dropped = 0;
  StepId alive = 0;  // the oldest that all may still come to have
  StepId passed = 0;
  std::set<StepId> steps;  // few, of however many ranks
  for (const v1::RankReport* rank : ranks) {
    if (rank == nullptr) continue;
    passed = std::max<StepId>(passed, rank->pos());
    AddSteps(*rank, &steps);
  }
  for (const StepId step : steps) {
    if (Dropped(step, ranks))
      dropped = step;
    else if (alive == 0)
      alive = step;
  }
  if (dropped != 0 && alive != 0) {
    floor_ = std::max(floor_, alive);
  } else if (dropped != 0) {
    floor_ = std::max(floor_, std::max(passed, dropped) + lead_);  // of a rank that is gone no pos tells it
    lead_ = std::min(2 * lead_, kMaxLead);
  }
  return floor_ != before;
}

// That it fills or has sealed in this attempt, and that are not dead yet. Most ranks have the same.
void Grants::AddSteps(const v1::RankReport& rank, std::set<StepId>* steps) const {
  const auto add = [&](StepId step) {
    const bool known = !steps->empty() && *steps->rbegin() == step;
    if (step >= floor_ && !known) steps->insert(step);
  };
  add(rank.fill());
  for (const v1::SnapshotRef& ref : rank.sealed()) {
    if (ref.attempt() == attempt_) add(ref.step());
  }
}

StepId Grants::NewestCaptured(const std::vector<const v1::RankReport*>& ranks) const {
  StepId newest = 0;
  if (ranks.empty() || ranks[0] == nullptr) return 0;
  for (const v1::SnapshotRef& ref : ranks[0]->sealed()) {
    const SnapshotId id{ref.attempt(), ref.step()};
    if (id.attempt != attempt_ || id.step < floor_ || id.step < newest) continue;
    const bool everywhere = std::all_of(
        ranks.begin(), ranks.end(), [&](const v1::RankReport* rank) { return rank != nullptr && Sealed(*rank, id); });
    if (everywhere) newest = id.step;
  }
  return newest;
}

bool Grants::Dropped(StepId step, const std::vector<const v1::RankReport*>& ranks) const {
  if (step == 0 || step < floor_) return false;
  return std::any_of(ranks.begin(), ranks.end(), [&](const v1::RankReport* rank) {
    if (rank == nullptr || rank->fill() == step || Sealed(*rank, {attempt_, step})) return false;
    return rank->gone() || rank->pos() >= step;
  });
}

}  // namespace ckptd::job
