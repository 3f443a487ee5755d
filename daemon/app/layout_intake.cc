#include "daemon/app/layout_intake.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/core/copy/crc32c.h"
#include "client/core/image/parser.h"
#include "daemon/base/status_macros.h"
#include "daemon/base/units.h"

namespace ckptd {
namespace {

constexpr Nanos kProgressEvery = std::chrono::milliseconds(200);
constexpr uint64_t kMaxSlot = uint64_t{1} << 46;

absl::Status FromImage(const ImageError& error) {
  return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat("layout: ", error.message, " (byte ", error.offset, ")"));
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

LayoutIntake::LayoutIntake(Services& services, region::RankRegion& region, std::string job, uint32_t uid)
    : services_(services), region_(region), job_(std::move(job)), uid_(uid) {}

LayoutIntake::~LayoutIntake() {
  if (tick_ != 0) services_.loop.CancelTimer(tick_);
}

void LayoutIntake::Take(Order order) {
  auto shared = std::make_shared<Order>(std::move(order));
  RunAsync<absl::StatusOr<HeaderFacts>>(
      services_.loop, services_.memory_work,
      [shared]() -> absl::StatusOr<HeaderFacts> {
        CKPTD_ASSIGN_OR_RETURN(std::string headers, shared->headers());
        return ReadHeaderFacts(headers);
      },
      [this, shared](absl::StatusOr<HeaderFacts> facts) { Continue(std::move(*shared), std::move(facts)); });
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
  uint64_t wanted = services_.config.region.chunk_bytes.bytes;
  spec.chunk_bytes = order.chunk_bytes != 0 ? order.chunk_bytes
                     : wanted != 0          ? wanted
                                            : region::ChunkBytesFor(slot_bytes);
  if (region::LayoutSet* same = region_.FindSame(spec)) return order.done(same, false);
  for (const auto& build : builds_) {
    if (build->spec.header_crc != spec.header_crc || build->spec.chunk_bytes != spec.chunk_bytes) continue;
    build->waiting.push_back(std::move(order));
    return;
  }
  absl::Status room = MakeRoom(spec);
  if (!room.ok()) return order.done(room, false);
  Start(std::move(order), spec);
}

// Orphans (jobs that nobody uses and that storage holds) go when their memory is needed; see region/reclaim.h.
absl::Status LayoutIntake::MakeRoom(const region::LayoutSpec& spec) {
  CKPTD_ASSIGN_OR_RETURN(auto plan, region_.PlanLayout(spec));
  if (plan.fit == region::LayoutFit::kFits) return absl::OkStatus();
  uint64_t short_of = plan.need > plan.free ? plan.need - plan.free : 0;
  std::vector<region::JobFacts> jobs;
  for (const auto& [name, job] : services_.region.jobs()) {
    region::JobFacts facts = job->Facts();
    facts.in_use = name == job_ || services_.claims.Holds(name);
    jobs.push_back(std::move(facts));
  }
  auto orphans = region::PlanReclaim(std::move(jobs), short_of);
  if (short_of == 0 || !orphans.ok() || !services_.forget_job) {
    return plan.refusal.ok() ? Error(ErrorCode::REGION_FULL,
                                     absl::StrCat("job ", job_, " rank ", region_.rank(), ": the new layout needs ",
                                                  FormatBytes(plan.need), ", free ", FormatBytes(plan.free),
                                                  " beside the layout in use"))
                             : plan.refusal;
  }
  for (const std::string& name : *orphans) {
    Log(kWarning, "region.reclaim").Job(name).Field("for", job_);
    CKPTD_RETURN_IF_ERROR(services_.forget_job(name));
  }
  return absl::OkStatus();
}

void LayoutIntake::Start(Order order, const region::LayoutSpec& spec) {
  auto build = std::make_unique<Build>();
  Build* raw = build.get();
  Loop& loop = services_.loop;
  build->spec = spec;
  builds_.push_back(std::move(build));
  auto layout = region_.StartLayout(spec, services_.memory_work, [this, raw, &loop](const absl::Status& status) {
    if (!loop.Post([this, raw, status] { Finish(raw, status); })) Log(kError, "app.post_lost");
  });
  if (!layout.ok()) {
    builds_.remove_if([raw](const auto& each) { return each.get() == raw; });
    return order.done(layout.status(), false);
  }
  raw->waiting.push_back(std::move(order));
  raw->layout = *std::move(layout);
  if (tick_ == 0) tick_ = loop.After(kProgressEvery, [this] { Tick(); });
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
  tick_ = builds_.empty() ? 0 : services_.loop.After(kProgressEvery, [this] { Tick(); });
  for (const auto& build : builds_) {
    for (const Order& order : build->waiting) {
      if (order.progress)
        order.progress(build->layout->progress().done_bytes(), build->layout->progress().total_bytes());
    }
  }
}

uint64_t LayoutIntake::prepared_bytes() const {
  return builds_.empty() ? 0 : builds_.back()->layout->progress().done_bytes();
}

uint64_t LayoutIntake::total_bytes() const {
  return builds_.empty() ? 0 : builds_.back()->layout->progress().total_bytes();
}

}  // namespace ckptd
