#include "daemon/app/job_runner.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/app/peer_links.h"
#include "daemon/app/registrar.h"
#include "daemon/base/status_macros.h"
#include "daemon/persist/records_io.h"
#include "daemon/protect/copy_placement.h"

namespace ckptd {
namespace {

v1::Want ToWant(const JoinRequest& join) {
  v1::Want want;
  if (join.implicit) {
    want.set_kind(v1::Want::IMPLICIT);
  } else if (join.want == Want::kStep) {
    want.set_kind(v1::Want::STEP);
    want.set_step(join.want_step);
  } else if (join.want == Want::kFresh) {
    want.set_kind(v1::Want::FRESH);
  }
  return want;
}

job::Retention ToRetention(const RetentionConfig& config) {
  return {static_cast<uint32_t>(config.keep_last), config.keep_every};
}

}  // namespace

job::Config JobRunner::MachineConfig(const Services& services, region::JobRegion& region) {
  job::Config config;
  config.job = region.job();
  config.user = std::to_string(region.journal().uid());
  config.agent = services.agent_id;
  config.members = services.links.members();
  config.incarnation = services.incarnation;
  config.numbers = services.report_numbers;
  config.decide_timeout = services.config.agent.decide_timeout;
  config.resend = std::chrono::seconds(1);
  config.retry = std::chrono::seconds(2);
  config.retention = ToRetention(services.config.retention);
  config.flush.every = services.config.durability.flush_every;
  config.flush.newest_only = services.config.durability.back_pressure == BackPressureChoice::kReplaceQueued;
  const PeersConfig& peers = services.config.peers;
  const bool speaks = services.links.speaks();
  config.parity = speaks ? static_cast<uint32_t>(peers.parity) : 0;
  config.copies = speaks && config.parity == 0 ? static_cast<uint32_t>(peers.copies) : 0;
  config.place = config.parity == 0 ? protect::PlacerOf(services.links.membership(), config.copies)
                                    : protect::ParityPlacerOf(services.links.membership(), peers.data, config.parity);
  return config;
}

JobRunner::JobRunner(Services& services, region::JobRegion& region)
    : services_(services),
      region_(region),
      machine_(MachineConfig(services, region)),
      metrics_(services.metrics, services.clock, region.job()),
      sender_(services.loop, services.clock, region.job(), services.agent_id, SenderHandler()) {}

JobRunner::~JobRunner() {
  for (Loop::TimerId timer : timers_) services_.loop.CancelTimer(timer);
}

void JobRunner::Start(const region::AdoptedJob* adopted) {
  SweepLeftovers();
  const region::JobJournal& journal = region_.journal();
  Push(job::Event(job::Started{journal.seen(), services_.region.id(), journal.lost(), journal.marks()}));
  OnCopies();
  if (adopted == nullptr) return;
  for (const region::AdoptedRank& rank : adopted->ranks) {
    auto runner = ObtainRank(rank.rank);
    if (!runner.ok()) {
      Log(kError, "adopt.rank").Job(name()).Rank(rank.rank).Error(runner.status());
      continue;
    }
    Push([runner = *runner, &rank, seen = adopted->seen] { runner->Adopt(rank, seen); });
  }
}

// What a killed predecessor was writing when it died. Nobody waits for it.
void JobRunner::SweepLeftovers() {
  using Removed = absl::StatusOr<size_t>;
  ++*asking_;
  RunAsync<Removed>(
      services_.loop, services_.chore_work,
      [&store = services_.store, job = name()]() -> Removed { return RemoveJobLeftovers(store, job); },
      [asking = asking_, job = name()](const Removed& removed) {
        --*asking;
        if (!removed.ok()) Log(kWarning, "storage.not_swept").Job(job).Error(removed.status());
        if (removed.ok() && *removed != 0)
          Log(kInfo, "storage.swept").Job(job).Field("temporary_files", uint64_t{*removed});
      });
}

// It ends between two pieces of what it reads.
void JobRunner::EndVerification() {
  if (verification_ended_ != nullptr) *verification_ended_ = true;
}

void JobRunner::Stop() {
  stopped_ = true;
  EndVerification();
  sender_.Stop();
  for (auto& [rank, runner] : ranks_) runner->Stop();
  const auto deletions = std::move(deletions_);
  for (const auto& [request, done] : deletions)
    done(Error(ErrorCode::REFUSED, absl::StrCat("job ", name(), " has left this agent")));
}

absl::StatusOr<RankRunner*> JobRunner::ObtainRank(Rank rank) {
  if (RankRunner* known = FindRank(rank)) return known;
  CKPTD_ASSIGN_OR_RETURN(region::RankRegion * memory, region_.OpenRank(rank));
  RankRunner::Options options;
  options.job = name();
  options.rank = rank;
  options.uid = uid();
  options.enqueue = [this](std::function<void()> call) { Push(std::move(call)); };
  options.on_report = [this](snapshot::RankReportPtr report) {
    Push(job::Event(job::RankChanged{std::move(report)}));
    Push([this] { sender_.Refresh(); });
  };
  options.early = [this] { return sender_.sends_early() ? &sender_ : nullptr; };
  options.on_room_needed = [this, rank](bool on) { RoomNeeded(rank, on); };
  options.elsewhere = [this, rank] { return ShrinkableBeside(rank); };
  auto runner = std::make_unique<RankRunner>(services_, *memory, std::move(options));
  RankRunner* made = (ranks_[rank] = std::move(runner)).get();
  if (draining_) PostToRank(rank, snapshot::Draining{true});
  return made;
}

void JobRunner::RoomNeeded(Rank rank, bool on) {
  if (on) need_room_.insert(rank);
  if (!on) need_room_.erase(rank);
  for (const auto& [other, runner] : ranks_) runner->OthersNeedRoom(need_room_.size() > need_room_.count(other));
}

region::Shrinkable JobRunner::ShrinkableBeside(Rank rank) const {
  region::Shrinkable sum;
  for (const auto& [other, runner] : ranks_) {
    if (other == rank) continue;
    const region::Shrinkable theirs = runner->shrinkable();
    sum.surely += theirs.surely;
    sum.perhaps += theirs.perhaps;
  }
  return sum;
}

// A rank that is new to this agent begins with what its job has seen and heard: nobody repeats it for one member.
absl::StatusOr<RankRunner*> JobRunner::EnterRank(Rank rank) {
  if (RankRunner* known = FindRank(rank)) return known;
  CKPTD_ASSIGN_OR_RETURN(RankRunner * runner, ObtainRank(rank));
  Push([this, runner, rank] {
    runner->Adopt({rank, {}}, region_.journal().seen());
    if (last_state_) runner->Feed(snapshot::JobState{last_state_});
  });
  return runner;
}

// In this order: what is marked in the peer store holds before it is told.
void JobRunner::Forward(const job::StatePtr& state) {
  last_state_ = state;
  if (state->has_decision()) decided_ = state;
  metrics_.StateIs(
      *state, [this](const SnapshotId& id) { return CapturedAt(id); },
      [this](const SnapshotId& id) { return CommittedAt(id); });
  for (auto& [rank, machine] : ranks_) machine->Feed(snapshot::JobState{state});
  services_.keeper.Heard(*state);
  OnCopies();
  Push([this] { sender_.OnState(last_state_); });
}

int64_t JobRunner::CapturedAt(const SnapshotId& id) const {
  int64_t last = 0;
  for (const auto& [number, rank] : ranks_) {
    for (const snapshot::SlotView& slot : rank->view().slots) {
      const region::LayoutSet* set = rank->region().FindLayout(slot.id.layout);
      if (slot.state != SlotStateCode::kSealed || slot.snapshot != id || set == nullptr) continue;
      const auto& record = set->Slot(slot.id.index).record;
      if (record) last = std::max(last, static_cast<int64_t>(record->head.captured_unix_ns));
    }
  }
  return last;
}

int64_t JobRunner::CommittedAt(const SnapshotId& id) const {
  for (const job::StoredStep& step : machine_.view().stored) {
    if (step.id == id) return step.created_unix_ns;
  }
  return 0;
}

void JobRunner::OnCopies() {
  const AttemptId seen = last_state_ == nullptr ? region_.journal().seen() : last_state_->attempt();
  Post(job::CopiesChanged{seen, services_.keeper.CopiesOf(name()), services_.keeper.ParityOf(name())});
}

absl::StatusOr<protect::HeldSnapshot> JobRunner::OpenSealed(Rank rank, const SnapshotId& id) {
  const absl::Status nowhere = Error(ErrorCode::NOT_FOUND, absl::StrCat("job ", name(), " rank ", rank, ": step ",
                                                                        id.step, " is in no slot of this node"));
  RankRunner* runner = FindRank(rank);
  if (runner == nullptr) return nowhere;
  const snapshot::View view = runner->view();
  for (const snapshot::SlotView& slot : view.slots) {
    if (slot.state != SlotStateCode::kSealed || slot.snapshot != id) continue;
    region::LayoutSet* set = runner->region().FindLayout(slot.id.layout);
    if (set == nullptr || set->FileOf(slot.id.index) == nullptr || !set->Slot(slot.id.index).record) continue;
    PostToRank(rank, snapshot::ReadPinned{slot.id, id});
    auto unpin = scope_.Bind([this, rank, slot = slot.id, id](int) {
      PostToRank(rank, snapshot::ReadUnpinned{slot, id});
    });
    std::shared_ptr<void> keep(nullptr, [unpin](void*) mutable { unpin(0); });
    return protect::HeldSnapshot{set->head(), set->Slot(slot.id.index).record, set->FileOf(slot.id.index),
                                 std::move(keep)};
  }
  return nowhere;
}

protect::CopySender::Handler JobRunner::SenderHandler() {
  return {[this] { return services_.links.copies(); },
          [this](const SnapshotId& id) {
            std::set<Rank> having;
            for (const auto& [rank, runner] : ranks_) {
              const snapshot::View view = runner->view();
              if (std::any_of(view.slots.begin(), view.slots.end(), [&](const snapshot::SlotView& slot) {
                    return slot.state == SlotStateCode::kSealed && slot.snapshot == id;
                  }))
                having.insert(rank);
            }
            return having;
          },
          [this](Rank rank, const SnapshotId& id) { return OpenSealed(rank, id); },
          [this](const SnapshotId& id) { Post(job::CopyRefused{id}); },
          [this](const absl::Status& status, uint64_t bytes) { metrics_.Copied(status, bytes); }};
}

RankRunner* JobRunner::FindRank(Rank rank) {
  auto found = ranks_.find(rank);
  return found == ranks_.end() ? nullptr : found->second.get();
}

void JobRunner::Push(Item item) {
  if (stopped_) return;
  queue_.push_back(std::move(item));
  if (running_) return;
  running_ = true;
  for (size_t i = 0; i < queue_.size(); ++i) Work(Item(std::move(queue_[i])));  // which may queue more
  queue_.clear();
  running_ = false;
}

void JobRunner::Work(Item item) {
  if (auto* call = std::get_if<std::function<void()>>(&item)) return (*call)();
  if (auto* to_rank = std::get_if<RankItem>(&item)) {
    if (RankRunner* rank = FindRank(to_rank->first)) rank->Feed(std::move(to_rank->second));
    return;
  }
  const job::Event& event = std::get<job::Event>(item);
  if (LogEnabled(kDebug)) Log(kDebug, "job.event").Job(name()).Field("event", job::ToString(event));
  machine_.Step(event, effects_);
  Execute(effects_);
  effects_.clear();
}

void JobRunner::OnStorageHangs(const std::string& call) { Post(job::StorageHangs{0, call}); }

void JobRunner::Post(job::Event event) { Push(std::move(event)); }
void JobRunner::PostToRank(Rank rank, snapshot::Event event) { Push(RankItem(rank, std::move(event))); }

void JobRunner::OnJoin(const Peer& peer, SessionId session, const JoinRequest& join) {
  auto rank = EnterRank(join.rank);
  if (!rank.ok()) return services_.server.SendError(session, MessageType::kJoin, rank.status());
  uint64_t process = PackProcess(peer.process);
  (*rank)->Attach(process, session);
  (*rank)->metrics().Joined();
  Post(job::Join{join.rank, join.ticket, process, join.world, ToWant(join), join.timeout});
}

void JobRunner::OnLoaded(Rank rank, const LoadedRequest& loaded) {
  if (loaded.code == ErrorCode::OK) return PostToRank(rank, snapshot::Loaded{loaded.attempt, loaded.ticket});
  Log(kWarning, "restore.failed")
      .Job(name())
      .Rank(rank)
      .Field("code", InfoOf(loaded.code).name)
      .Field("error", loaded.reason);
  if (RankRunner* runner = FindRank(rank)) runner->metrics().LoadFailed();
  PostToRank(rank, snapshot::LoadFailed{loaded.attempt, loaded.ticket, loaded.code, loaded.reason});
}

void JobRunner::OnLoading(Rank rank, const LoadingRequest& loading) {
  PostToRank(rank, snapshot::LoadGoesOn{loading.attempt, loading.ticket});
}

void JobRunner::OnLayout(Rank rank, snapshot::ProcessId process, uint32_t world, const LayoutRequest& request,
                         UniqueFd headers) {
  if (RankRunner* runner = FindRank(rank)) runner->OnLayout(process, world, request, std::move(headers));
}

void JobRunner::OnResume(const Peer& peer, SessionId session, const ResumeRequest& resume, UniqueFd bell) {
  auto rank = EnterRank(resume.rank);
  if (!rank.ok()) return services_.server.SendError(session, MessageType::kResume, rank.status());
  uint64_t process = PackProcess(peer.process);
  auto held = std::make_shared<UniqueFd>(std::move(bell));
  Push([runner = *rank, process, session, resume, held] {
    runner->Attach(process, session);
    (void)runner->OnResume(process, resume, std::move(*held));
  });
  Post(job::Resumed{resume.rank, process, resume.attempt});
}

void JobRunner::OnCapture(Rank rank, snapshot::ProcessId process) {
  if (RankRunner* runner = FindRank(rank)) Push([runner, process] { runner->OnHint(process); });
}

void JobRunner::OnBye(Rank rank, Ticket ticket, snapshot::ProcessId process) {
  PostToRank(rank, snapshot::Withdrawn{ticket, true});
  OnCapture(rank, process);
  Post(job::Withdrawn{rank, ticket});
  services_.registrar.Leave({process, name(), rank});
}

void JobRunner::OnDisconnected(SessionId session) {
  for (auto& [rank, runner] : ranks_) runner->OnDisconnected(session);
}

void JobRunner::OnDevices(Rank rank, snapshot::ProcessId process, DevicesRequest devices) {
  if (RankRunner* runner = FindRank(rank)) runner->OnDevices(process, std::move(devices));
}

// Room job needs not wait for copiers: to it a process is who sits on a rank and may ask for something, and the dead
// ask for nothing. What the rank still may seal, room snapshot tells it, which says that the rank is gone when nobody
// writes for it any more.
void JobRunner::OnProcessDead(snapshot::ProcessId process) {
  for (auto& [rank, runner] : ranks_) {
    Push([runner = runner.get(), process] { runner->OnProcessDead(process); });
    Post(job::Reaped{rank, process});
  }
}

void JobRunner::ReadBells(snapshot::ProcessId process) {
  for (auto& [rank, runner] : ranks_) OnCapture(rank, process);
}

void JobRunner::OnReaped(snapshot::ProcessId process) {
  for (auto& [rank, runner] : ranks_) Push([runner = runner.get(), process] { runner->OnReaped(process); });
}

void JobRunner::OnFlushed(const FlushOutcome& outcome) {
  if (RankRunner* runner = FindRank(outcome.key.rank)) {
    Push([runner, outcome] { runner->OnFlushed(outcome); });
  }
}

void JobRunner::FlushNewest() {
  for (auto& [rank, runner] : ranks_) PostToRank(rank, snapshot::FlushNewest{});
}

void JobRunner::SetDraining(bool on) {
  draining_ = on;
  for (auto& [rank, runner] : ranks_) PostToRank(rank, snapshot::Draining{on});
}

void JobRunner::SetRetention(const RetentionConfig& retention) { Post(job::RetentionChanged{ToRetention(retention)}); }

void JobRunner::Delete(const SnapshotId& id, DeleteDone done) {
  uint64_t request = next_request_++;
  deletions_[request] = std::move(done);
  Post(job::DeleteRequested{request, id});
}

bool JobRunner::busy() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const auto& rank) { return rank.second->busy(); });
}

bool JobRunner::flushing() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const auto& rank) { return rank.second->flushing(); });
}

}  // namespace ckptd
