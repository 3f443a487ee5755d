#include "daemon/app/layout_intake.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/core/copy/crc32c.h"
#include "client/core/image/parser.h"
#include "daemon/base/status_macros.h"
#include "daemon/base/units.h"
#include "daemon/protect/copy_keeper.h"

namespace ckptd {
namespace {

constexpr Nanos kProgressEvery = std::chrono::milliseconds(200);
constexpr uint64_t kMaxSlot = uint64_t{1} << 46;

absl::Status FromImage(const ImageError& error) {
  return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat("layout: ", error.message, " (byte ", error.offset, ")"));
}

// Ranks of one parity group are folded chunk by chunk, so theirs must not go by the size of each.
uint64_t ChunkBytesOf(const Config& config, uint64_t slot_bytes) {
  if (config.region.chunk_bytes.bytes != 0) return config.region.chunk_bytes.bytes;
  return config.peers.parity != 0 ? 4 * kMiB : region::ChunkBytesFor(slot_bytes);
}

// Also of one world: a layout names the files of its rank on the storage by it.
bool SameLayout(const region::LayoutSpec& a, const region::LayoutSpec& b) {
  return a.header_crc == b.header_crc && a.chunk_bytes == b.chunk_bytes && a.world == b.world;
}

}  // namespace

absl::StatusOr<HeaderFacts> ReadHeaderFacts(const std::string& headers) {
  std::vector<ImageInfo> parsed;
  ImageError error = ParseHeaders(headers, kMaxSlot, HeaderLimits(), &parsed);
  if (!error.ok()) return FromImage(error);
  if (parsed.size() > kMaxImages) return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat(parsed.size(), " images"));
  HeaderFacts facts;
  uint64_t offset = 0;
  for (const ImageInfo& image : parsed) {
    facts.images.push_back({offset, image.total_bytes, image.header_bytes});
    offset += image.total_bytes;
    facts.tensors += image.tensors.size();
  }
  facts.header_crc = Crc32c(0, headers.data(), headers.size());
  return facts;
}

struct LayoutIntake::Build {
  region::LayoutSpec spec;
  std::unique_ptr<region::LayoutBuild> layout;
  std::list<Order> waiting;
};

LayoutIntake::LayoutIntake(Services& services, region::RankRegion& region, std::string job, uint32_t uid,
                           std::function<void(bool)> need_room, std::function<region::Shrinkable()> elsewhere)
    : services_(services),
      region_(region),
      job_(std::move(job)),
      uid_(uid),
      need_room_(std::move(need_room)),
      elsewhere_(std::move(elsewhere)) {}

LayoutIntake::~LayoutIntake() {
  if (tick_ != 0) services_.loop.CancelTimer(tick_);
}

void LayoutIntake::Take(Order order) {
  ++orders_;
  order.done = [this, done = std::move(order.done)](absl::StatusOr<region::LayoutSet*> set, bool fresh) {
    --orders_;
    done(std::move(set), fresh);
  };
  auto shared = std::make_shared<Order>(std::move(order));
  if (shared->headers == nullptr) {
    HeaderFacts facts = std::move(shared->facts);
    return Continue(std::move(*shared), std::move(facts));
  }
  RunAsync<absl::StatusOr<HeaderFacts>>(
      services_.loop, services_.memory_work,
      [shared]() -> absl::StatusOr<HeaderFacts> {
        CKPTD_ASSIGN_OR_RETURN(std::string headers, shared->headers());
        return ReadHeaderFacts(headers);
      },
      scope_.Bind(
          [this, shared](absl::StatusOr<HeaderFacts> facts) { Continue(std::move(*shared), std::move(facts)); }));
}

void LayoutIntake::Continue(Order order, absl::StatusOr<HeaderFacts> facts) {
  if (!facts.ok()) return order.done(facts.status(), false);
  region::LayoutSpec spec;
  spec.job = job_;
  spec.uid = uid_;
  spec.rank = region_.rank();
  spec.world = order.world;
  spec.slot_count = static_cast<uint32_t>(services_.config.region.slots);
  spec.header_crc = facts->header_crc;
  spec.images = std::move(facts->images);
  uint64_t slot_bytes = spec.images.back().offset + spec.images.back().bytes;
  spec.chunk_bytes = order.chunk_bytes != 0 ? order.chunk_bytes : ChunkBytesOf(services_.config, slot_bytes);
  Place(std::move(order), spec);
}

void LayoutIntake::Place(Order order, const region::LayoutSpec& spec) {
  if (region::LayoutSet* same = region_.FindSame(spec)) return order.done(same, false);
  for (const auto& build : builds_) {
    if (!SameLayout(build->spec, spec)) continue;
    build->waiting.push_back(std::move(order));
    return;
  }
  absl::StatusOr<region::LayoutFit> room = FindRoom(spec);
  if (!room.ok()) return order.done(room.status(), false);
  if (*room == region::LayoutFit::kFits) return Start(std::move(order), spec);
  // The first news of it also makes libckpt acknowledge the grant that is taken back.
  if (order.progress) order.progress(0, spec.slot_count * (spec.images.back().offset + spec.images.back().bytes));
  waiting_.push_back({std::move(order), spec});
  if (*room == region::LayoutFit::kFitsAfterShrinking) Shrink();
  StartTick();
}

void LayoutIntake::Shrink() {
  if (!shrinking_) Log(kInfo, "layout.needs_room").Job(job_).Rank(region_.rank());
  shrinking_ = true;
  need_room_(true);
}

// What the tmpfs, or region.size, has too little. None where the job's own quota is below what is needed: others would
// go for nothing.
uint64_t LayoutIntake::ShortOf(const region::LayoutPlan& plan) const {
  region::Quota& quota = services_.region.quota();
  if (plan.need > quota.LeftOfJob(job_, region::QuotaAt::kOnceFreed)) return 0;
  const uint64_t left = std::min(plan.free_soon, quota.LeftOfNode(region::QuotaAt::kOnceFreed));
  return plan.need - std::min(plan.need, left);
}

// Orphans (jobs that nobody uses and that storage holds) go first, see region/reclaim.h; then the old layouts of this
// rank shrink, and those of ranks that have moved on. What was let go is waited for before more goes.
absl::StatusOr<region::LayoutFit> LayoutIntake::FindRoom(const region::LayoutSpec& spec) {
  CKPTD_ASSIGN_OR_RETURN(auto plan, region_.PlanLayout(spec, elsewhere_()));
  const uint64_t short_of = ShortOf(plan);
  if (short_of > 0 && ForgetOrphans(short_of).ok()) {
    CKPTD_ASSIGN_OR_RETURN(plan, region_.PlanLayout(spec, elsewhere_()));
  }
  if (plan.fit == region::LayoutFit::kRefused) return plan.refusal;
  return plan.fit;
}

// Of ranks that ran here, and copies for other nodes.
absl::Status LayoutIntake::ForgetOrphans(uint64_t short_of) {
  std::vector<region::JobFacts> jobs = services_.region.peers().Facts();
  for (const auto& [name, job] : services_.region.jobs()) jobs.push_back(job->Facts());
  for (region::JobFacts& facts : jobs) facts.in_use = facts.in_use || facts.job == job_ || services_.in_use(facts.job);
  CKPTD_ASSIGN_OR_RETURN(auto orphans, region::ChooseOrphans(std::move(jobs), {.bytes = short_of}));
  for (const region::JobFacts& orphan : orphans) {
    Log(kWarning, "region.reclaim").Job(orphan.job).Field("for", job_).Field("copies", uint64_t{orphan.copies});
    CKPTD_RETURN_IF_ERROR(orphan.copies ? services_.keeper.GiveUp(orphan.job) : services_.forget_job(orphan.job));
  }
  return absl::OkStatus();
}

// Later: it is called in the middle of the effects that make the room.
void LayoutIntake::RoomMade() {
  if (waiting_.empty() || retry_posted_) return;
  retry_posted_ = services_.loop.Post(scope_.Bind([this] { Retry(); }));
}

void LayoutIntake::Retry() {
  retry_posted_ = false;
  std::list<Waiting> waiting = std::move(waiting_);
  waiting_.clear();
  for (Waiting& each : waiting) {
    if (!each.order.wanted || each.order.wanted()) {
      Place(std::move(each.order), each.spec);
    } else {
      --orders_;
    }
  }
  if (!waiting_.empty() || !std::exchange(shrinking_, false)) return;
  need_room_(false);
}

void LayoutIntake::Start(Order order, const region::LayoutSpec& spec) {
  auto build = std::make_unique<Build>();
  Build* raw = build.get();
  Loop& loop = services_.loop;
  build->spec = spec;
  builds_.push_back(std::move(build));
  auto finish = scope_.Bind([this, raw](const absl::Status& status) { Finish(raw, status); });
  auto layout =
      region_.StartLayout(spec, order.preparation, services_.memory_work, [finish, &loop](const absl::Status& status) {
        if (!loop.Post([finish, status]() mutable { finish(status); })) Log(kError, "app.post_lost");
      });
  if (!layout.ok()) {
    builds_.remove_if([raw](const auto& each) { return each.get() == raw; });
    return order.done(layout.status(), false);
  }
  raw->waiting.push_back(std::move(order));
  raw->layout = *std::move(layout);
  services_.region.under_way().Add(raw->layout->shared_progress());
  StartTick();
}

void LayoutIntake::StartTick() {
  if (tick_ == 0) tick_ = services_.loop.After(kProgressEvery, [this] { Tick(); });
}

void LayoutIntake::Finish(Build* raw, const absl::Status& status) {
  auto found = std::find_if(builds_.begin(), builds_.end(), [raw](const auto& each) { return each.get() == raw; });
  if (found == builds_.end()) return;
  std::unique_ptr<Build> build = std::move(*found);
  builds_.erase(found);
  absl::StatusOr<region::LayoutSet*> set =
      status.ok() ? region_.FinishLayout(std::move(build->layout)) : absl::StatusOr<region::LayoutSet*>(status);
  bool fresh = set.ok();
  for (Order& order : build->waiting) {
    order.done(set, fresh);
    fresh = false;
  }
}

void LayoutIntake::Tick() {
  tick_ = 0;
  if (busy()) StartTick();
  for (const auto& build : builds_) {
    for (const Order& order : build->waiting) {
      if (order.progress)
        order.progress(build->layout->progress().done_bytes(), build->layout->progress().total_bytes());
    }
  }
  if (!waiting_.empty()) Retry();  // room also comes from elsewhere: another rank, a reader
}

uint64_t LayoutIntake::prepared_bytes() const {
  return builds_.empty() ? 0 : builds_.back()->layout->progress().done_bytes();
}

uint64_t LayoutIntake::total_bytes() const {
  return builds_.empty() ? 0 : builds_.back()->layout->progress().total_bytes();
}

}  // namespace ckptd
