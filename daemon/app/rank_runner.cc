#include "daemon/app/rank_runner.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/app/peer_links.h"
#include "daemon/app/registrar.h"
#include "daemon/base/failpoint.h"
#include "daemon/base/status_macros.h"
#include "daemon/os/memfd.h"

namespace ckptd {
namespace {

constexpr size_t kMaxHeaderBytes = 512u << 20;  // all images of a slot
constexpr size_t kMaxOrders = 4;                // of layouts, at once: a trainer has one, and one more when it changes
constexpr size_t kMaxUnused = 16;               // layouts, before the first save

snapshot::AdoptedSlot ToAdopted(uint32_t layout, uint32_t index, const region::SlotSnapshot& slot) {
  snapshot::AdoptedSlot out;
  out.id = {layout, index};
  out.state = slot.state;
  out.epoch = slot.epoch;
  if (slot.owner.pid != 0) {
    ProcessId process{slot.owner.pid, slot.owner.start_time};
    out.owner = {slot.owner.attempt, slot.owner.ticket, PackProcess(process)};
  }
  if (slot.record) out.snapshot = slot.record->id();
  out.persisted = (slot.flags & kSlotPersisted) != 0;
  out.rescued = (slot.flags & kSlotRescued) != 0;
  out.unchecked = slot.state == SlotStateCode::kSealed;
  return out;
}

}  // namespace

RankRunner::RankRunner(Services& services, region::RankRegion& region, Options options)
    : services_(services),
      region_(region),
      options_(std::move(options)),
      machine_(snapshot::Config{options_.job, options_.rank, {}, services.agent_id}),
      channel_(services, options_.job, options_.rank),
      bells_(services.loop,
             [this](snapshot::ProcessId process) { options_.enqueue([this, process] { OnHint(process); }); }),
      intake_(
          services, region, options_.job, options_.uid,
          [this](bool on) { options_.enqueue([this, on] { NeedRoom(on); }); }, options_.elsewhere),
      copy_fetch_(services.loop, services.clock, services.fetch_work,
                  {services.agent_id, options_.job, options_.uid, options_.rank},
                  {[this] { return services_.links.copies(); },
                   [this](const SnapshotId& id) { return services_.keeper.Open(options_.job, options_.rank, id); },
                   [this](const SnapshotId& id) { return OnStorage(id); }, [this] { return seen_.load(); }}),
      parity_fetch_(EndsOfRebuild()),
      metrics_(services.metrics, services.clock, options_.job) {}

void RankRunner::Adopt(const region::AdoptedRank& adopted, AttemptId seen) {
  snapshot::Adopted event;
  event.seen = seen;
  for (const region::AdoptedLayout& layout : adopted.layouts) {
    for (uint32_t i = 0; i < layout.slots.size(); ++i) {
      event.slots.push_back(ToAdopted(layout.layout, i, layout.slots[i]));
      const snapshot::AdoptedSlot& slot = event.slots.back();
      if (slot.owner.process != 0) {
        absl::Status status = services_.server.WatchProcess(UnpackProcess(slot.owner.process));
        if (!status.ok()) Log(kWarning, "adopt.owner").Job(options_.job).Rank(options_.rank).Error(status);
      }
    }
  }
  for (const auto& [layout, set] : region_.layouts()) {
    if (set->grant().attempt == seen) parent_ = set->grant().parent;
  }
  std::vector<snapshot::AdoptedSlot> slots = event.slots;
  Feed(std::move(event));
  for (const snapshot::AdoptedSlot& slot : slots) {
    if (slot.state == SlotStateCode::kSealed) VerifyAdopted(slot.id);
  }
}

void RankRunner::Feed(snapshot::Event event) {
  queue_.push_back(std::move(event));
  if (running_) return;
  running_ = true;
  for (size_t i = 0; i < queue_.size(); ++i) {
    snapshot::Event next = std::move(queue_[i]);  // what follows may queue more
    if (LogEnabled(kDebug))
      Log(kDebug, "rank.event").Job(options_.job).Rank(options_.rank).Field("event", ToString(next));
    if (const auto* state = std::get_if<snapshot::JobState>(&next); state != nullptr && state->state->has_decision()) {
      const v1::SnapshotRef& parent = state->state->decision().parent();
      parent_ = {parent.attempt(), parent.step()};
    }
    machine_.Step(next, effects_);
    seen_ = machine_.view().seen;
    Execute(effects_);
    effects_.clear();
  }
  queue_.clear();
  running_ = false;
}

// Old layouts go when a newer one is saved from, and stay during restore(): who registered one after the other would
// never be stopped.
absl::Status RankRunner::MayRegister() const {
  if (intake_.orders() >= kMaxOrders)
    return Error(ErrorCode::LAYOUT_PREPARING,
                 absl::StrCat(intake_.orders(), " layouts of this rank are being prepared"));
  if (machine_.view().running != 0 || region_.layouts().size() < kMaxUnused) return absl::OkStatus();
  return Error(ErrorCode::REFUSED, absl::StrCat("job ", options_.job, " rank ", options_.rank, " has ",
                                                region_.layouts().size(), " layouts already; restore() comes first"));
}

void RankRunner::OnLayout(snapshot::ProcessId process, uint32_t world, const LayoutRequest& request, UniqueFd headers) {
  if (absl::Status status = MayRegister(); !status.ok()) {
    return channel_.Refuse(process, MessageType::kLayout, status);
  }
  auto fd = std::make_shared<UniqueFd>(std::move(headers));
  LayoutIntake::Order order;
  order.world = world;
  order.headers = [fd, request]() -> absl::StatusOr<std::string> {
    CKPTD_ASSIGN_OR_RETURN(std::string text, ReadSealedMemfd(fd->get(), kMaxHeaderBytes));
    if (text.size() == request.header_bytes) return text;
    return Error(ErrorCode::INVALID_ARGUMENT,
                 absl::StrCat("layout: ", text.size(), " header bytes, announced ", request.header_bytes));
  };
  uint32_t crc = request.header_crc;
  asked_[process] = crc;
  order.wanted = [this, process, crc] {
    auto last = asked_.find(process);
    return last != asked_.end() && last->second == crc;
  };
  order.progress = [this, process, crc](uint64_t prepared, uint64_t total) {
    LayoutStateMessage message{};
    message.header_crc = crc;
    message.prepared_bytes = prepared;
    message.total_bytes = total;
    channel_.LayoutProgress(process, message);
  };
  order.done = [this, process, attempt = request.attempt, wanted = order.wanted](absl::StatusOr<region::LayoutSet*> set,
                                                                                 bool) {
    layout_problem_ = set.status();
    if (!set.ok()) return channel_.Refuse(process, MessageType::kLayout, set.status());
    options_.enqueue([this, process, attempt, wanted, layout = (*set)->layout()] {
      region::LayoutSet* there = region_.FindLayout(layout);
      if (there == nullptr) return;
      Feed(snapshot::LayoutAdded{layout, there->slot_count()});
      there = region_.FindLayout(layout);  // gone at once: the process died, and the rank is another agent's
      if (there != nullptr && wanted()) LayoutIsReady(process, attempt, *there);
    });
  };
  intake_.Take(std::move(order));
}

void RankRunner::LayoutIsReady(snapshot::ProcessId process, AttemptId attempt, region::LayoutSet& set) {
  if (!channel_.Connected(process)) return;  // it asks again when it is back
  const PinTurns::Who who{process, options_.job, options_.rank};
  if (devices_of_ != process || devices_.gpus.empty()) {
    services_.registrar.Leave(who);
    return SendLayout(process, attempt, set);
  }
  services_.registrar.WhenFree(who, scope_.Bind([this, process, attempt, layout = set.layout()] {
    options_.enqueue([this, process, attempt, layout] { SendLayoutInTurn(process, attempt, layout); });
  }));
}

void RankRunner::SendLayoutInTurn(snapshot::ProcessId process, AttemptId attempt, uint32_t layout) {
  region::LayoutSet* set = region_.FindLayout(layout);
  const bool there = channel_.Connected(process);
  const auto asked = asked_.find(process);
  const bool newer = set != nullptr && asked != asked_.end() && asked->second != set->head().block.header_crc;
  if (there && set != nullptr && !newer) return SendLayout(process, attempt, *set);
  services_.registrar.Leave({process, options_.job, options_.rank});
  if (!there || newer) return;  // it asks again, or has
  channel_.Refuse(process, MessageType::kLayout,
                  Error(ErrorCode::LAYOUT_PREPARING, "the memory of this layout was given up while it waited"));
}

void RankRunner::SendLayout(snapshot::ProcessId process, AttemptId attempt, region::LayoutSet& set) {
  auto bell = bells_.Obtain(process, set.head());
  if (!bell.ok()) return channel_.Refuse(process, MessageType::kLayout, bell.status());
  channel_.LayoutReady(process, attempt, set, **bell, services_.region.id());
  Feed(snapshot::LayoutChosen{process, set.layout()});
  CKPTD_FP("layout.told");
  OnHint(process);  // a slot that it filled by a bell that is lost comes back now, not behind its next save
}

// What the bell says first: a capture that began meanwhile is not taken for an unused grant.
void RankRunner::NeedRoom(bool on) {
  if (snapshot::ProcessId process = machine_.view().process; on && process != 0) OnHint(process);
  Feed(snapshot::RoomNeeded{on});
  options_.on_room_needed(on);
}

// A rank whose new layout is being made, or waits for room too, will move on. One that has left this node has.
region::Shrinkable RankRunner::shrinkable() const {
  const uint64_t all = region_.shrinkable_bytes();
  const snapshot::View view = machine_.view();
  if (intake_.busy() || view.left) return {all, 0};
  const uint64_t old = region_.shrinkable_bytes(view.layout);
  return old > 0 ? region::Shrinkable{old, 0} : region::Shrinkable{0, all};
}

bool RankRunner::OnResume(snapshot::ProcessId process, const ResumeRequest& request, UniqueFd bell) {
  region::LayoutSet* set = region_.FindLayout(request.layout);
  absl::Status status;
  if (set == nullptr || request.region_id != services_.region.id() ||
      set->head().block.header_crc != request.header_crc) {
    status = Error(ErrorCode::REFUSED, "the region of this layout is gone");
  } else {
    status = bells_.Attach(process, set->head(), std::move(bell)).status();
    // It was giving its memory up when the agent before ended. What the bell tells still counts.
    if (status.ok()) status = set->DescriptorsForSaving().status();
  }
  // What the process holds is worth knowing also without its bell: it runs, whatever became of its fills.
  Feed(snapshot::Attached{process, request.ticket, request.attempt});
  // Before it hears of us: a grant that is taken back here it acknowledges as it takes the answer.
  OnHint(process);
  if (!status.ok()) {
    ResumeRefusedMessage refused{};
    refused.code = static_cast<uint32_t>(CodeOf(status));
    SetText(refused.sentence, status.message());
    channel_.ResumeRefused(process, refused);
    return false;
  }
  channel_.LayoutReady(process, request.attempt, *set, *bells_.Find(process, request.layout), services_.region.id());
  Feed(snapshot::LayoutChosen{process, request.layout});
  OnHint(process);
  return true;
}

void RankRunner::OnProcessDead(snapshot::ProcessId process) {
  Feed(ReadBells(process));
  Feed(snapshot::Died{process});
  channel_.Forget(process);
  asked_.erase(process);
  if (devices_of_ == process) devices_of_ = 0;
}

// Its bell was kept till now: a copier may have completed a fill for it.
void RankRunner::OnReaped(snapshot::ProcessId process) {
  Feed(ReadBells(process));
  Feed(snapshot::Reaped{process});
  bells_.Forget(process);
}

// It also ends the turn in which this one could pin its memory, whatever came of it.
void RankRunner::OnDevices(snapshot::ProcessId process, DevicesRequest devices) {
  devices_ = std::move(devices);
  devices_of_ = process;
  services_.registrar.EndTurn({process, options_.job, options_.rank});
}

const DevicesRequest* RankRunner::devices() const {
  const bool told = devices_of_ != 0 && !devices_.gpus.empty();
  return told && machine_.view().process == devices_of_ ? &devices_ : nullptr;
}

bool RankRunner::waits_to_pin() const { return services_.registrar.Waits({devices_of_, options_.job, options_.rank}); }

absl::StatusOr<Bells::Fill> RankRunner::TakeFill(const snapshot::SlotId& slot, Epoch epoch) {
  region::LayoutSet* set = Set(slot);
  if (set == nullptr) return Error(ErrorCode::INTERNAL, absl::StrCat(snapshot::ToString(slot), " has no layout"));
  const region::SlotOwner& owner = set->Slot(slot.index).owner;
  return bells_.TakeFill(PackProcess({owner.pid, owner.start_time}), slot, epoch);
}

bool RankRunner::busy() const {
  const snapshot::View view = machine_.view();
  const auto at_work = [](const snapshot::SlotView& slot) {
    return slot.read_pins > 0 || slot.state == SlotStateCode::kLoading;
  };
  return flushing() || intake_.orders() != 0 || std::any_of(view.slots.begin(), view.slots.end(), at_work);
}

// A slot whose file the trainer destroyed gets a new one before anything else happens to it.
void RankRunner::MendSlot(const snapshot::SlotId& slot, std::function<void()> then) {
  std::vector<std::function<void()>>& waiting = mending_[slot];
  waiting.push_back(std::move(then));
  if (waiting.size() == 1) StartMending(slot);
}

// Without the old file, which is worth nothing: there may be no memory for both.
void RankRunner::StartMending(const snapshot::SlotId& slot) {
  region::LayoutSet* set = Set(slot);
  if (set == nullptr) return (void)mending_.erase(slot);
  if (set->Slot(slot.index).state == SlotStateCode::kFree) return MendLater(slot);
  if (set->Slot(slot.index).state == SlotStateCode::kRetired) (void)set->DropFile(slot.index);
  auto build = std::make_shared<std::shared_ptr<region::SlotBuild>>();
  Loop& loop = services_.loop;
  auto mended = scope_.Bind([this, slot, build](const absl::Status& status) {
    options_.enqueue([this, slot, build, status] { Mended(slot, *build, status); });
  });
  auto done = [mended, &loop](const absl::Status& status) {
    (void)loop.Post([mended, status]() mutable { mended(status); });
  };
  auto started = set->StartReplace(slot.index, services_.memory_work, done);
  if (started.ok()) KeepBuild(*started, *build);
  if (!started.ok()) Mended(slot, nullptr, started.status());
}

void RankRunner::Mended(const snapshot::SlotId& slot, const std::shared_ptr<region::SlotBuild>& build,
                        absl::Status status) {
  region::LayoutSet* set = Set(slot);
  if (set == nullptr) return (void)mending_.erase(slot);
  if (status.ok() && build) status = set->FinishReplace(slot.index, *build).status();
  if (status.ok()) status = set->SetState(slot.index, SlotStateCode::kFree, set->Slot(slot.index).epoch);
  if (status.ok()) {
    const snapshot::View view = machine_.view();
    if (view.process != 0) channel_.FreshSlot(view.process, slot, *set->FileOf(slot.index));
    return EndMending(slot);
  }
  Log(kError, "slot.mend").Job(options_.job).Rank(options_.rank).Error(status);
  MendLater(slot);
}

void RankRunner::MendLater(const snapshot::SlotId& slot) {
  auto again = [this, slot] {
    const region::LayoutSet* set = Set(slot);
    if (set != nullptr && set->Slot(slot.index).state == SlotStateCode::kFree) return EndMending(slot);
    StartMending(slot);
  };
  services_.loop.After(kRetryPause, scope_.Bind([this, again] { options_.enqueue(again); }));
}

void RankRunner::EndMending(const snapshot::SlotId& slot) {
  const auto waited = mending_.extract(slot);
  if (waited.empty()) return;
  for (const std::function<void()>& then : waited.mapped()) then();
}

void RankRunner::VerifyAdopted(const snapshot::SlotId& slot) {
  region::LayoutSet* set = Set(slot);
  const region::SlotSnapshot& now = set->Slot(slot.index);
  SnapshotId id = now.record->id();
  Loop& loop = services_.loop;
  auto verified = scope_.Bind([this, slot, id](const absl::Status& status) {
    options_.enqueue([this, slot, id, status] { Verified(slot, id, status); });
  });
  auto done = [verified, &loop](absl::Status status) {  // moved on: one thread at a time owns it
    (void)loop.Post([verified, status = std::move(status)]() mutable { verified(status); });
  };
  auto started = region::StartVerify(set->FileOf(slot.index), now.record, services_.memory_work, done);
  if (started.ok()) return services_.region.under_way().Add(*started);
  Log(kWarning, "slot.verify").Job(options_.job).Rank(options_.rank).Error(started.status());
  Feed(snapshot::Checked{slot, id});
}

void RankRunner::Verified(const snapshot::SlotId& slot, const SnapshotId& id, const absl::Status& status) {
  region::LayoutSet* set = Set(slot);
  bool same = set != nullptr && set->Slot(slot.index).record && set->Slot(slot.index).record->id() == id;
  if (!same) return;
  if (status.ok()) {
    set->SetFlags(slot.index, kSlotVerified);
    return Feed(snapshot::Checked{slot, id});
  }
  metrics_.DamagedInRegion();
  Log(kError, "slot.damaged").Job(options_.job).Rank(options_.rank).Snapshot(id).Error(status);
  Feed(snapshot::DamageFound{slot, id});
}

}  // namespace ckptd
