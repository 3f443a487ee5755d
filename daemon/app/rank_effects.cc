// The effects of the snapshot machine, one overload each. Effects on the region cannot fail but by a broken machine, a
// broken region or a trainer that destroyed its own slot file; the first two are logged as bugs.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/app/rank_fetch.h"
#include "daemon/app/rank_runner.h"
#include "daemon/app/rescuer.h"
#include "daemon/base/failpoint.h"
#include "daemon/base/status_macros.h"

namespace ckptd {
namespace {

// Monotonic times of the trainer as wall clock times, for people. Any number may stand in a bell, so it may wrap.
int64_t ToWall(const Clock& clock, uint64_t monotonic_ns) {
  const auto offset = static_cast<uint64_t>(clock.Wall().count() - clock.Monotonic().count());
  return static_cast<int64_t>(offset + monotonic_ns);
}

}  // namespace

struct RankEffects {
  RankRunner& runner;

  void Bug(absl::string_view op, const snapshot::SlotId& slot, const absl::Status& status) const {
    if (status.ok()) return;
    Log(kError, op)
        .Job(runner.options_.job)
        .Rank(runner.options_.rank)
        .Field("slot", snapshot::ToString(slot))
        .Error(status);
  }

  void operator()(const snapshot::OpenGrant& e) const {
    region::LayoutSet* set = runner.Set(e.slot);
    region::Bell* bell = runner.bells_.Find(e.owner.process, e.slot.layout);
    absl::Status status = Error(ErrorCode::INTERNAL, "no bell for the grant");
    if (set != nullptr && bell != nullptr) {
      ProcessId process = UnpackProcess(e.owner.process);
      const region::SlotOwner owner{e.owner.ticket, e.owner.attempt, process.pid, process.start_time};
      status = set->OpenGrant(*bell, {e.slot.index, e.epoch, e.floor, owner, runner.parent_});
    }
    CKPTD_FP("grant.after_ctl");
    if (status.ok()) return runner.channel_.Grant(e.owner, e.slot, e.epoch, e.floor);
    Bug("slot.grant", e.slot, status);
    GiveBack(e);
  }

  // The grant never reached the trainer: to the machine it was abandoned and acknowledged, once the slot has a file
  // again.
  void GiveBack(const snapshot::OpenGrant& e) const {
    RankRunner* self = &runner;
    auto abandoned = [self, e] {
      snapshot::BellRead read = self->bells_.Read(e.owner.process);
      read.words.push_back({e.slot, e.epoch, CaptureState::kAbandoned, 0, e.epoch, false});
      self->Feed(std::move(read));
    };
    if (runner.Set(e.slot) != nullptr) runner.MendSlot(e.slot, abandoned);
  }

  void operator()(const snapshot::MoveFloor& e) const {
    region::LayoutSet* set = runner.Set(e.slot);
    if (set == nullptr) return;
    set->MoveFloor(e.floor);
    runner.channel_.Grant(e.owner, e.slot, e.epoch, e.floor);
  }

  void operator()(const snapshot::AbandonWord& e) const {
    if (region::LayoutSet* set = runner.Set(e.slot)) set->RevokeGrant();
    if (region::Bell* bell = runner.bells_.Find(e.process, e.slot.layout)) {
      if (bell->Abandon(e.slot.index, e.epoch) == region::AbandonOutcome::kAbandoned) Unstream(e.slot, e.epoch);
    }
    runner.Feed(runner.ReadBells(e.process));
  }

  void Unstream(const snapshot::SlotId& slot, Epoch epoch) const {
    const FlushKey key = runner.KeyOf(slot, epoch);
    const auto streamed = runner.streaming_.extract(key);
    if (!streamed) return;
    if (streamed.mapped().flushed) runner.services_.flusher.Discard(key);
    if (protect::CopySender* copies = runner.options_.early())
      copies->GivenUp(runner.options_.rank, streamed.mapped().id);
  }

  // The plan takes over what went out early; nobody does where the fill is sealed as another step than its bell told
  // when it began.
  void EndStream(const snapshot::SealSlot& e) const {
    const auto streamed = runner.streaming_.find(runner.KeyOf(e.slot, e.epoch));
    if (streamed == runner.streaming_.end()) return;
    const SnapshotId told = streamed->second.id;
    if (!streamed->second.flushed) runner.streaming_.erase(streamed);
    protect::CopySender* copies = told == e.snapshot ? nullptr : runner.options_.early();
    if (copies != nullptr) copies->GivenUp(runner.options_.rank, told);
  }

  void operator()(const snapshot::SealSlot& e) const {
    EndStream(e);
    const bool rescued = e.source == snapshot::Source::kRescued;
    const bool fetched = snapshot::IsFetched(e.source);
    absl::Status status = fetched ? SealFetched(e) : SealFill(e);
    Bug("slot.seal", e.slot, status);
    if (!status.ok()) return;
    CKPTD_FP("seal.done");
    Log(kInfo, rescued ? "rescue.captured" : "save.captured")
        .Job(runner.options_.job)
        .Rank(runner.options_.rank)
        .Snapshot(e.snapshot);
  }

  absl::Status SealFill(const snapshot::SealSlot& e) const {
    CKPTD_ASSIGN_OR_RETURN(Bells::Fill fill, runner.TakeFill(e.slot, e.epoch));
    region::LayoutSet* set = runner.Set(e.slot);
    const region::BellSlotView& view = fill.view;
    RecordHead head{};
    head.epoch = e.epoch;
    head.attempt = e.snapshot.attempt;
    head.step = e.snapshot.step;
    head.parent_attempt = runner.parent_.attempt;
    head.parent_step = runner.parent_.step;
    head.ticket = e.ticket;
    head.trace = view.trace;
    head.begin_unix_ns = ToWall(runner.services_.clock, view.begin_ns);
    head.captured_unix_ns = ToWall(runner.services_.clock, view.end_ns);
    head.blocked_ns = view.blocked_ns;
    const bool rescued = e.source == snapshot::Source::kRescued;
    const region::SlotOwner owner = set->Slot(e.slot.index).owner;
    CKPTD_RETURN_IF_ERROR(
        set->WriteRecord(e.slot.index, head, std::move(fill.crcs), kSlotVerified | (rescued ? kSlotRescued : 0)));
    runner.services_.rescuer.Sealed({owner.pid, owner.start_time}, e.snapshot);
    if (rescued) return absl::OkStatus();  // that was no save
    runner.metrics_.Captured(head, set->head().block.slot_bytes);
    runner.saves_.Captured(head, set->head().block.slot_bytes);
    return absl::OkStatus();
  }

  absl::Status SealFetched(const snapshot::SealSlot& e) const {
    auto found = runner.fetched_.find(e.slot);
    region::LayoutSet* set = runner.Set(e.slot);
    if (set == nullptr || found == runner.fetched_.end() || found->second.snapshot != e.snapshot) {
      return Error(ErrorCode::INTERNAL, "sealed what was not fetched");
    }
    FetchedSlot fetched = std::move(found->second);
    runner.fetched_.erase(found);
    RecordHead head{};
    head.epoch = e.epoch;
    head.attempt = e.snapshot.attempt;
    head.step = e.snapshot.step;
    head.parent_attempt = fetched.parent.attempt;
    head.parent_step = fetched.parent.step;
    head.ticket = e.ticket;
    head.trace = fetched.trace;
    head.begin_unix_ns = fetched.captured_unix_ns;
    head.captured_unix_ns = fetched.captured_unix_ns;
    uint64_t flags = kSlotVerified | (e.persisted ? kSlotPersisted : 0);
    return set->WriteRecord(e.slot.index, head, std::move(fetched.chunk_crcs), flags);
  }

  void operator()(const snapshot::SetSlotState& e) const {
    region::LayoutSet* set = runner.Set(e.slot);
    if (set == nullptr) return;
    Epoch epoch = set->Slot(e.slot.index).epoch;
    if (e.state == SlotStateCode::kFree || e.state == SlotStateCode::kRetired) Unstream(e.slot, epoch);
    if (e.state == SlotStateCode::kFree) {
      absl::Status freed = set->FreeSlot(e.slot.index);
      Bug("slot.free", e.slot, freed);
      if (!freed.ok()) runner.MendSlot(e.slot, [] {});
    } else if (e.state == SlotStateCode::kRetired) {
      Bug("slot.retire", e.slot, set->RetireSlot(e.slot.index));
    } else {
      Bug("slot.state", e.slot, set->SetState(e.slot.index, e.state, epoch));
    }
  }

  void operator()(const snapshot::SetPersisted& e) const {
    if (region::LayoutSet* set = runner.Set(e.slot)) set->SetFlags(e.slot.index, kSlotPersisted);
    CKPTD_FP("flush.after_flag");
  }

  void operator()(const snapshot::DropFile& e) const {
    region::LayoutSet* set = runner.Set(e.slot);
    if (set == nullptr) return;
    Bug("slot.drop", e.slot, set->DropFile(e.slot.index));
    CKPTD_FP("layout.dropped");
    runner.intake_.RoomMade();
  }

  void operator()(const snapshot::RemoveLayout& e) const {
    runner.bells_.ForgetLayout(e.layout);
    std::erase_if(runner.unflushed_, [&](const auto& each) { return each.first.layout == e.layout; });
    Bug("layout.remove", {e.layout, 0}, runner.region_.RemoveLayout(e.layout));
  }

  void operator()(const snapshot::ReplaceFile& e) const {
    RankRunner* self = &runner;
    Loop& loop = runner.services_.loop;
    auto build = std::make_shared<std::shared_ptr<region::SlotBuild>>();
    auto replaced = runner.scope_.Bind([self, e, build](const absl::Status& status) {
      self->options_.enqueue([self, e, build, status] { RankEffects{*self}.FinishReplace(e.slot, *build, status); });
    });
    auto done = [replaced, &loop](const absl::Status& status) {
      (void)loop.Post([replaced, status]() mutable { replaced(status); });
    };
    region::LayoutSet* set = runner.Set(e.slot);
    if (set == nullptr) return;
    auto started = set->StartReplace(e.slot.index, runner.services_.memory_work, done);
    if (started.ok()) runner.KeepBuild(*started, *build);
    if (!started.ok()) runner.Feed(snapshot::FileReplaced{e.slot, started.status()});
  }

  void FinishReplace(const snapshot::SlotId& slot, const std::shared_ptr<region::SlotBuild>& build,
                     absl::Status status) const {
    region::LayoutSet* set = runner.Set(slot);
    if (status.ok() && set != nullptr && build) status = set->FinishReplace(slot.index, *build).status();
    runner.Feed(snapshot::FileReplaced{slot, status});
    snapshot::View view = runner.machine_.view();
    if (status.ok() && set != nullptr && view.process != 0 && set->FileOf(slot.index)) {
      runner.channel_.FreshSlot(view.process, slot, *set->FileOf(slot.index));
    }
  }

  void operator()(const snapshot::FindLayout& e) const { RankFetch{runner}.Find(e); }
  void operator()(const snapshot::Fetch& e) const { RankFetch{runner}.Fetch(e); }

  void operator()(const snapshot::StartFlush& e) const {
    region::LayoutSet* set = runner.Set(e.slot);
    const region::SlotSnapshot& now = set->Slot(e.slot.index);
    if (!now.record)
      return runner.Feed(snapshot::FlushEnded{e.slot, e.snapshot, Error(ErrorCode::INTERNAL, "no record")});
    FlushSeal seal;
    seal.parent = {now.record->head.parent_attempt, now.record->head.parent_step};
    seal.chunk_crcs = now.record->chunk_crcs;
    seal.trace = now.record->head.trace;
    seal.captured_unix_ns = static_cast<int64_t>(now.record->head.captured_unix_ns);
    FlushKey key = runner.KeyOf(e.slot, now.epoch);
    auto streamed = runner.streaming_.extract(key);
    if (streamed && streamed.mapped().id == e.snapshot) return runner.services_.flusher.Seal(key, std::move(seal));
    if (streamed) runner.services_.flusher.Discard(key);  // begun under a step that the sealed fill is not
    auto source = runner.SourceOf(e.slot, e.snapshot);
    if (!source.ok()) return runner.Feed(snapshot::FlushEnded{e.slot, e.snapshot, source.status()});
    const auto unflushed = runner.unflushed_.find(e.slot);
    source->again = unflushed != runner.unflushed_.end() && unflushed->second == now.epoch;
    runner.services_.flusher.FlushSealed(key, *std::move(source), std::move(seal));
  }

  void operator()(const snapshot::CancelFlush& e) const {
    if (region::LayoutSet* set = runner.Set(e.slot)) {
      runner.services_.flusher.Discard(runner.KeyOf(e.slot, set->Slot(e.slot.index).epoch));
    }
  }

  void operator()(const snapshot::Superseded& e) const {
    runner.metrics_.Superseded();
    Log(kInfo, "flush.superseded").Job(runner.options_.job).Rank(runner.options_.rank).Snapshot(e.snapshot);
  }

  void operator()(const snapshot::RetryAt& e) const {
    RankRunner* self = &runner;
    runner.services_.loop.After(e.soon ? RankRunner::kAnswerPause : RankRunner::kRetryPause, runner.scope_.Bind([self] {
      self->options_.enqueue([self] { self->Feed(snapshot::RetryTimer{}); });
    }));
  }

  void operator()(const snapshot::SendLoad& e) const {
    bool with_snapshot = !e.snapshot.none();
    runner.metrics_.Loading(with_snapshot ? e.source : snapshot::Source::kNone);
    absl::Status sent = runner.channel_.Load(e, with_snapshot ? runner.Set(e.slot) : nullptr);
    // As if the trainer had found it: the slot is quarantined, and another source is tried.
    if (!sent.ok()) runner.Feed(snapshot::LoadFailed{e.attempt, e.ticket, CodeOf(sent), std::string(sent.message())});
  }
  void operator()(const snapshot::SendGo& e) const {
    runner.metrics_.WentOn();
    runner.channel_.Go(e);
  }
  void operator()(const snapshot::SendNews& e) const { runner.channel_.News(e); }
  void operator()(const snapshot::ReportChanged& e) const { runner.options_.on_report(e.report); }
};

void RankRunner::KeepBuild(const std::shared_ptr<region::SlotBuild>& started,
                           std::shared_ptr<region::SlotBuild>& build) const {
  services_.region.under_way().Add(region::SlotBuild::ProgressOf(started));
  build = started;
}

void RankRunner::Execute(const snapshot::Effects& effects) {
  for (const snapshot::Effect& effect : effects) {
    if (LogEnabled(kDebug))
      Log(kDebug, "rank.effect").Job(options_.job).Rank(options_.rank).Field("effect", ToString(effect));
    std::visit(RankEffects{*this}, effect);
  }
}

}  // namespace ckptd
