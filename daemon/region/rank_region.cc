#include "daemon/region/rank_region.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/failpoint.h"
#include "daemon/base/status_macros.h"
#include "daemon/base/units.h"
#include "daemon/region/adopt.h"
#include "daemon/region/bell.h"

namespace ckptd::region {
namespace {

uint64_t SlotsBytes(const CtlHead& head) { return head.block.slot_count * head.slot_file_bytes(); }

uint64_t SaturatingAdd(uint64_t a, uint64_t b) {
  uint64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<uint64_t>::max() : sum;
}

std::string Numbers(const LayoutPlan& plan) {
  const bool limited = plan.quota != std::numeric_limits<uint64_t>::max();
  return absl::StrCat("the new layout needs ", FormatBytes(plan.need), "; held ", FormatBytes(plan.held), ", free ",
                      FormatBytes(plan.free), ", quota leaves ", limited ? FormatBytes(plan.quota) : "no limit",
                      plan.freeing == 0 ? "" : absl::StrCat(", being freed ", FormatBytes(plan.freeing)),
                      ", the old layouts could give back ", FormatBytes(plan.shrinkable));
}

// The last writer of what is FREE is gone. Where no reader has the file either, its memory goes at once, though a
// process that a trainer forked holds it open; else with the last of them.
void LetGo(const std::shared_ptr<SlotFile>& file, SlotStateCode state) {
  if (file == nullptr) return;
  if (state == SlotStateCode::kFree && file.use_count() == 1)
    SlotFile::Discard(file);
  else
    file->Unlink();
}

bool SameImages(const std::vector<ImageExtent>& a, const std::vector<ImageExtent>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const ImageExtent& x, const ImageExtent& y) {
    return x.bytes == y.bytes && x.header_bytes == y.header_bytes;
  });
}

}  // namespace

LayoutBuild::~LayoutBuild() {
  if (slots_ != nullptr) slots_->progress().Cancel();
}

absl::StatusOr<std::unique_ptr<RankRegion>> RankRegion::Open(const RegionContext& context, const std::string& job_dir,
                                                             Rank rank) {
  return OpenAt(context, absl::StrCat(job_dir, "/", RankDirName(rank)), rank);
}

absl::StatusOr<std::unique_ptr<RankRegion>> RankRegion::OpenAt(const RegionContext& context, std::string dir,
                                                               Rank rank) {
  absl::Status made = context.files.Mkdir(dir, 0700);
  if (!made.ok() && !absl::IsAlreadyExists(made)) return made;
  return std::unique_ptr<RankRegion>(new RankRegion(context, std::move(dir), rank));
}

// ---------------------------------------------------------------------------------------------------- taking over

absl::Status RankRegion::AdoptLayout(const ScannedLayout& scanned, std::vector<std::string>& notes) {
  const Superblock& block = scanned.head.block;
  std::unique_ptr<LayoutSet> set(new LayoutSet(context_.files, context_.quota, context_.freeing, dir_, scanned.head));
  set->ctl_hold_ = context_.quota->TakeAdopted(scanned.head.job(), block.file_bytes + BellBytes(scanned.head));
  CKPTD_ASSIGN_OR_RETURN(set->ctl_, CtlFile::Open(context_.files, dir_, scanned.head));
  set->grant_ = scanned.grant;
  set->RevokeGrant();
  if (Epoch granted = scanned.grant.word >> 8; granted <= kMaxEpoch) set->max_epoch_ = granted;
  for (uint32_t slot = 0; slot < block.slot_count; ++slot)
    CKPTD_RETURN_IF_ERROR(AdoptSlot(*set, slot, scanned.slots[slot], notes));
  last_layout_ = std::max(last_layout_, block.layout);
  layouts_[block.layout] = std::move(set);
  return absl::OkStatus();
}

absl::Status RankRegion::AdoptSlot(LayoutSet& set, uint32_t slot, const ScannedSlot& scanned,
                                   std::vector<std::string>& notes) {
  SlotSnapshot now = AdoptedState(scanned);
  if (!scanned.problem.empty())
    notes.push_back(
        absl::StrCat(set.Name(slot), ": was in state ", static_cast<int>(scanned.now.state), ": ", scanned.problem));
  if (now.file_id != 0) {
    QuotaHold hold = context_.quota->TakeAdopted(set.head().job(), set.head().slot_file_bytes());
    CKPTD_ASSIGN_OR_RETURN(set.files_of_[slot],
                           SlotFile::Open(context_.files, dir_, now.file_id, set.head().slot_file_bytes(),
                                          std::move(hold), context_.freeing));
  }
  set.StoreWord(slot, now.state, now.epoch);
  set.SetOwner(slot, now.owner);
  set.ctl_->slot(slot).flags.store(now.flags, std::memory_order_release);
  set.ctl_->slot(slot).file_id.store(now.file_id, std::memory_order_release);
  set.slots_[slot] = std::move(now);
  return absl::OkStatus();
}

// -------------------------------------------------------------------------------------------------------- layouts

uint64_t RankRegion::bytes() const {
  uint64_t bytes = 0;
  for (const auto& [number, set] : layouts_) bytes += set->bytes();
  return bytes;
}

uint64_t RankRegion::shrinkable_bytes(uint32_t below) const {
  uint64_t bytes = 0;
  for (const auto& [number, set] : layouts_) bytes += number < below ? set->shrinkable_bytes() : 0;
  return bytes;
}

// What is being made for others is not in the tmpfs yet, but is promised: all ranks of a node register at once.
// The quota first: what is freed between the two is then missed in neither.
absl::Status RankRegion::Measure(absl::string_view job, LayoutPlan* plan) const {
  plan->quota = context_.quota->Left(job, QuotaAt::kNow);
  plan->quota_soon = context_.quota->Left(job, QuotaAt::kOnceFreed);
  const QuotaUse promised = context_.quota->NodeUse();
  plan->freeing = promised.leaving;
  CKPTD_ASSIGN_OR_RETURN(const SpaceInfo space, context_.files.Space(dir_));
  const auto unpromised = [&](QuotaAt at) { return space.total - std::min(space.total, promised.At(at)); };
  plan->free = std::min(space.available, unpromised(QuotaAt::kNow));
  plan->free_soon = std::min(space.available + promised.leaving, unpromised(QuotaAt::kOnceFreed));
  return absl::OkStatus();
}

// A layout pays for its bell from the start, so that the bell of the process that holds the rank never fails for want
// of quota. A second one, of a stopped process that a new attempt fenced, lives until that process is reaped, and is
// thousands of times smaller than a slot: it is not counted.
absl::StatusOr<LayoutPlan> RankRegion::PlanLayout(const LayoutSpec& spec, const Shrinkable& elsewhere) const {
  CKPTD_ASSIGN_OR_RETURN(CtlHead head, MakeCtlHead(spec, context_.region_id, last_layout_ + 1, 0));
  LayoutPlan plan;
  plan.need = SaturatingAdd(SlotsBytes(head), head.block.file_bytes + BellBytes(head));
  plan.held = bytes();
  plan.shrinkable = SaturatingAdd(shrinkable_bytes(), elsewhere.surely);
  CKPTD_RETURN_IF_ERROR(Measure(spec.job, &plan));
  const uint64_t gives = SaturatingAdd(plan.shrinkable, elsewhere.perhaps);
  if (plan.need <= std::min(plan.free, plan.quota))
    plan.fit = LayoutFit::kFits;
  else if (plan.need <= plan.soon())
    plan.fit = LayoutFit::kFitsOnceFreed;
  else if (plan.shrinkable > 0 && plan.need <= SaturatingAdd(plan.soon(), gives))
    plan.fit = LayoutFit::kFitsAfterShrinking;
  else
    plan.refusal = Error(plan.quota_soon < plan.free_soon ? ErrorCode::QUOTA_EXCEEDED : ErrorCode::REGION_FULL,
                         absl::StrCat("job ", spec.job, " rank ", spec.rank, ": ", Numbers(plan)));
  return plan;
}

absl::StatusOr<std::unique_ptr<LayoutBuild>> RankRegion::StartLayout(const LayoutSpec& spec, Preparation preparation,
                                                                     Executor& executor, SlotBuild::Done done) {
  CKPTD_ASSIGN_OR_RETURN(LayoutPlan plan, PlanLayout(spec));
  CKPTD_RETURN_IF_ERROR(plan.refusal);
  if (plan.need > plan.free)
    return Error(ErrorCode::REGION_FULL, absl::StrCat("job ", spec.job, " rank ", spec.rank, ": ", Numbers(plan)));
  std::unique_ptr<LayoutBuild> build(new LayoutBuild());
  const auto now = static_cast<uint64_t>(context_.clock.Wall().count());
  CKPTD_ASSIGN_OR_RETURN(build->head_, MakeCtlHead(spec, context_.region_id, ++last_layout_, now));
  CKPTD_ASSIGN_OR_RETURN(build->ctl_hold_, context_.quota->Take(spec.job, plan.need));
  SlotBuildOrder order{
      dir_,        spec.slot_count, build->head_.slot_file_bytes(), build->ctl_hold_.Split(SlotsBytes(build->head_)),
      preparation, context_.freeing};
  CKPTD_ASSIGN_OR_RETURN(build->slots_, SlotBuild::Start(context_.files, std::move(order), executor, std::move(done)));
  return build;
}

absl::StatusOr<LayoutSet*> RankRegion::FinishLayout(std::unique_ptr<LayoutBuild> build) {
  std::unique_ptr<LayoutSet> set(new LayoutSet(context_.files, context_.quota, context_.freeing, dir_, build->head_));
  set->ctl_hold_ = std::move(build->ctl_hold_);
  set->files_of_ = build->slots_->Take();
  std::vector<uint64_t> file_ids;
  for (const auto& file : set->files_of_) file_ids.push_back(file->file_id());
  absl::StatusOr<std::unique_ptr<CtlFile>> ctl = CtlFile::Create(context_.files, dir_, set->head_, file_ids);
  if (!ctl.ok()) {
    for (const auto& file : set->files_of_) file->Unlink();
    return ctl.status();
  }
  set->ctl_ = *std::move(ctl);
  for (uint32_t slot = 0; slot < set->slot_count(); ++slot) set->slots_[slot].file_id = file_ids[slot];
  LayoutSet* raw = set.get();
  layouts_[raw->layout()] = std::move(set);
  return raw;
}

absl::Status RankRegion::RemoveLayout(uint32_t layout) {
  auto found = layouts_.find(layout);
  if (found == layouts_.end()) return Error(ErrorCode::NOT_FOUND, absl::StrCat(dir_, ": no layout ", layout));
  LayoutSet& set = *found->second;
  CKPTD_RETURN_IF_ERROR(set.ctl_->Unlink());
  CKPTD_FP("region.layout.unlinked");
  for (uint32_t slot = 0; slot < set.slot_count(); ++slot) LetGo(set.files_of_[slot], set.Slot(slot).state);
  last_epoch_ = std::max(last_epoch_, set.max_epoch());
  layouts_.erase(found);
  return absl::OkStatus();
}

absl::Status RankRegion::Remove() {
  while (!layouts_.empty()) CKPTD_RETURN_IF_ERROR(RemoveLayout(layouts_.begin()->first));
  return context_.files.Rmdir(dir_);
}

LayoutSet* RankRegion::FindLayout(uint32_t layout) {
  auto found = layouts_.find(layout);
  return found == layouts_.end() ? nullptr : found->second.get();
}

LayoutSet* RankRegion::FindSame(const LayoutSpec& spec) {
  for (const auto& [number, set] : layouts_) {
    const Superblock& block = set->head().block;
    if (block.header_crc == spec.header_crc && block.world == spec.world && block.slot_count == spec.slot_count &&
        block.chunk_bytes == spec.chunk_bytes && SameImages(set->head().images, spec.images) &&
        set->DescriptorsForSaving().ok())
      return set.get();
  }
  return nullptr;
}

Epoch RankRegion::NextEpoch() {
  for (const auto& [number, set] : layouts_) last_epoch_ = std::max(last_epoch_, set->max_epoch());
  ++last_epoch_;
  if ((last_epoch_ & 0xffffffffu) == 0) ++last_epoch_;
  return last_epoch_;
}

}  // namespace ckptd::region
