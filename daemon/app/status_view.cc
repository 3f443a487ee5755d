#include "daemon/app/status_view.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <string>

#include "daemon/app/copier_runner.h"
#include "daemon/app/health.h"
#include "daemon/app/held_copies.h"
#include "daemon/app/rescuer.h"
#include "daemon/app/storage_watch.h"
#include "daemon/base/marks.h"
#include "daemon/format/snapshot_ref.h"
#include "daemon/job/lineage.h"

namespace ckptd {
namespace {

constexpr size_t kMaxNotes = 20;  // of what the last start gave up; the log has all

v1::SlotStatus::State ToState(SlotStateCode state) {
  switch (state) {
    case SlotStateCode::kFilling:
    case SlotStateCode::kLoading:
      return v1::SlotStatus::FILLING;
    case SlotStateCode::kSealed:
      return v1::SlotStatus::SEALED;
    case SlotStateCode::kQuarantined:
      return v1::SlotStatus::QUARANTINED;
    case SlotStateCode::kRetired:
      return v1::SlotStatus::RETIRED;
    case SlotStateCode::kFree:
    case SlotStateCode::kPreparing:
      break;
  }
  return v1::SlotStatus::FREE;
}

v1::RankStatus::TicketState ToTicket(const snapshot::View& view) {
  if (view.process == 0) return v1::RankStatus::NONE;
  if (view.fenced_by != 0) return v1::RankStatus::FENCED;
  switch (view.load) {
    case v1::RankReport::WAIT:
      return v1::RankStatus::WAIT;
    case v1::RankReport::LOADED:
      return v1::RankStatus::LOADED;
    case v1::RankReport::FAILED:
      return v1::RankStatus::FAILED;
    case v1::RankReport::RUN:
      return v1::RankStatus::RUNNING;
    default:
      return view.running != 0 ? v1::RankStatus::RUNNING : v1::RankStatus::LOADING;
  }
}

v1::JobStatus::State ToState(const job::View& view, bool connected) {
  if (!connected) return v1::JobStatus::IDLE;
  if (view.told == v1::State::RUN) return v1::JobStatus::RUN;
  return view.told == v1::State::LOAD ? v1::JobStatus::LOAD : v1::JobStatus::GATHER;
}

void FillSlot(const snapshot::SlotView& slot, const region::LayoutSet* set, v1::SlotStatus* out) {
  out->set_index(slot.id.index);
  out->set_state(ToState(slot.state));
  out->set_attempt(slot.snapshot.attempt);
  out->set_step(slot.snapshot.step);
  out->set_epoch(slot.epoch);
  out->set_persisted(slot.persisted);
  out->set_pins(static_cast<uint32_t>(slot.read_pins) + (slot.flushing ? 1 : 0));
  if (set == nullptr) return;
  const uint64_t flags = set->Slot(slot.id.index).flags;
  out->set_verified((flags & kSlotVerified) != 0);
  out->set_rescued((flags & kSlotRescued) != 0);
}

void FillLayout(const RankRunner& rank, const region::LayoutSet& set, v1::LayoutStatus* out) {
  const Superblock& block = set.head().block;
  out->set_id(block.layout);
  out->set_bytes(block.slot_bytes);
  out->set_images(block.image_count);
  out->set_chunk_bytes(block.chunk_bytes);
  uint64_t whole = block.slot_bytes * block.slot_count;
  out->set_prepared_bytes(whole);
  out->set_prepare_bytes(whole);
  (void)rank;
}

void FillGpu(const GpuReport& gpu, v1::DeviceStatus* out) {
  constexpr double kMillion = 1e6;
  out->set_uuid(ToString(gpu.gpu));
  out->set_path(gpu.path == CapturePath::kPull ? v1::DeviceStatus::PULL : v1::DeviceStatus::PUSH);
  out->set_why(gpu.why);
  out->set_bytes(gpu.bytes);
  out->set_samples(gpu.samples);
  out->set_push_loss(static_cast<double>(gpu.push_loss_ppm) / kMillion);
  out->set_pull_loss(static_cast<double>(gpu.pull_loss_ppm) / kMillion);
}

void FillDevices(const RankRunner& rank, snapshot::ProcessId process, const CopierRunner& copiers,
                 v1::RankStatus* out) {
  const DevicesRequest* told = rank.devices();
  if (told == nullptr) return;
  v1::DevicesStatus* devices = out->mutable_devices();
  devices->set_pinned_bytes(told->pinned_bytes);
  devices->set_pin_error(told->pin_error);
  devices->set_pin_seconds(Seconds(told->pin_time));
  devices->set_longest_step_seconds(Seconds(told->longest_step));
  devices->set_waits_to_pin(rank.waits_to_pin());
  for (const GpuReport& gpu : told->gpus) {
    v1::DeviceStatus* added = devices->add_gpus();
    FillGpu(gpu, added);
    added->set_copier_pid(static_cast<uint32_t>(copiers.PidOf(UnpackProcess(process), gpu.gpu)));
  }
}

void FillRescue(const Rescues::Told* told, v1::RankStatus* out) {
  if (told == nullptr) return;
  out->mutable_rescue()->set_armed(told->hold > Nanos(0));
  out->mutable_rescue()->set_hold_seconds(Seconds(told->hold));
  out->mutable_rescue()->set_why(told->why);
}

void FillRank(RankRunner& rank, const Services& services, v1::RankStatus* out) {
  snapshot::View view = rank.view();
  out->set_rank(rank.options().rank);
  out->set_pid(view.process == 0 ? 0 : static_cast<uint32_t>(UnpackProcess(view.process).pid));
  out->set_ticket(ToTicket(view));
  out->set_connected(rank.channel().Connected(view.process));
  out->set_position(view.pos);
  if (const region::LayoutSet* set = rank.region().FindLayout(view.layout))
    FillLayout(rank, *set, out->mutable_layout());
  if (rank.intake().busy()) {
    out->mutable_next_layout()->set_prepared_bytes(rank.intake().prepared_bytes());
    out->mutable_next_layout()->set_prepare_bytes(rank.intake().total_bytes());
  }
  for (const snapshot::SlotView& slot : view.slots) {
    FillSlot(slot, rank.region().FindLayout(slot.id.layout), out->add_slots());
  }
  rank.saves().Fill(view.seen, out);
  FillDevices(rank, view.process, services.copiers, out);
  FillRescue(services.rescuer.Find(UnpackProcess(view.process)), out);
}

bool IsProtectionLost(const v1::State& state) {
  const SnapshotId id = ToId(state.protected_());
  return !id.none() && !IsInForce(id, ToId(state.unprotected()), state.protection_turns());
}

using Steps = std::map<SnapshotId, v1::StepStatus, std::greater<>>;

// What this node holds for others, and what the coordinator says of steps whose other ranks are on other nodes.
void AddCopies(Agent& agent, const JobRunner& job, Steps* steps) {
  for (const v1::HeldCopies& copies : agent.services().keeper.CopiesOf(job.name())) {
    for (const v1::SnapshotRef& ref : copies.complete()) {
      v1::StepStatus& step = (*steps)[ToId(ref)];
      const auto& sources = step.sources();
      if (std::find(sources.begin(), sources.end(), "replica") == sources.end()) step.add_sources("replica");
    }
  }
  for (const v1::HeldParity& parity : agent.services().keeper.ParityOf(job.name())) {
    for (const v1::SnapshotRef& ref : parity.complete()) {
      v1::StepStatus& step = (*steps)[ToId(ref)];
      const auto& sources = step.sources();
      if (std::find(sources.begin(), sources.end(), "parity") == sources.end()) step.add_sources("parity");
    }
  }
  if (job.last_state() == nullptr) return;
  const v1::State& state = *job.last_state();
  const auto captured = steps->find(ToId(state.watermark()));
  if (captured != steps->end()) captured->second.set_captured(true);
  const auto kept = steps->find(ToId(state.protected_()));
  if (kept == steps->end()) return;
  kept->second.set_captured(true);
  kept->second.set_protected_(!IsProtectionLost(state));
}

// Steps in memory on this node and steps on storage, as one list, newest attempt and step first.
void FillSteps(Agent& agent, JobRunner& job, const job::View& view, v1::JobStatus* out) {
  Steps steps;
  for (const auto& [number, rank] : job.ranks()) {
    for (const snapshot::SlotView& slot : rank->view().slots) {
      if (slot.state != SlotStateCode::kSealed) continue;
      v1::StepStatus& step = steps[slot.snapshot];
      step.set_ranks_captured(step.ranks_captured() + 1);
      step.set_ranks_flushed(step.ranks_flushed() + (slot.persisted ? 1 : 0));
      step.set_captured(step.ranks_captured() >= view.world_size && view.world_size != 0);
      const region::LayoutSet* set = rank->region().FindLayout(slot.id.layout);
      const bool rescued = set != nullptr && (set->Slot(slot.id.index).flags & kSlotRescued) != 0;
      if (step.sources().empty()) step.add_sources("region");
      if (rescued) step.set_sources(0, "rescued");
      if (set != nullptr) {
        const auto& record = set->Slot(slot.id.index).record;
        step.set_bytes(step.bytes() + set->head().block.slot_bytes);
        if (record) step.set_age_seconds(Seconds(agent.services().clock.Wall() - Nanos(record->head.captured_unix_ns)));
      }
    }
  }
  AddCopies(agent, job, &steps);
  for (const job::StoredStep& stored : view.stored) {
    if (stored.marker != 0 && !stored.committed) continue;
    v1::StepStatus& step = steps[stored.id];
    step.set_durable(stored.committed);
    step.set_pinned(stored.pinned);
    step.set_ranks_flushed(stored.sidecars);
    if (stored.committed) step.add_sources("storage");
    step.set_protected_(step.protected_() || stored.committed);
  }
  const v1::DecisionRecord* decision = job.decision();
  for (auto& [id, step] : steps) {
    step.set_on_lineage(decision == nullptr || job::OnLineage(*decision, id));
    step.set_attempt(id.attempt);
    step.set_step(id.step);
    *out->add_steps() = step;
  }
}

void FillProtection(const JobRunner& job, v1::JobStatus* out) {
  if (job.last_state() == nullptr) return;
  const v1::State& state = *job.last_state();
  out->set_copies(state.copies());
  out->set_parity(state.parity());
  out->set_protected_attempt(state.protected_().attempt());
  out->set_protected_step(state.protected_().step());
  out->set_protection_lost(IsProtectionLost(state));
  out->set_copy_error(std::string(job.sender().plan().last_error().message()));
}

void FillJob(Agent& agent, JobRunner& job, v1::JobStatus* out) {
  job::View view = job.view();
  bool connected = false;
  for (const auto& [number, rank] : job.ranks()) {
    FillRank(*rank, agent.services(), out->add_ranks());
    rank->saves().AddTo(out->mutable_saves());
    connected = connected || out->ranks(out->ranks_size() - 1).connected();
    snapshot::View slots = rank->view();
    if (!slots.last_error.empty()) out->set_last_error(slots.last_error);
  }
  out->set_name(job.name());
  out->set_uid(job.uid());
  out->set_state(ToState(view, connected));
  out->set_attempt(view.seen);
  out->set_coordinator(view.coordinator);
  out->set_coordinator_is_me(view.coordinator == agent.services().agent_id);
  out->set_parent_attempt(view.parent.attempt);
  out->set_parent_step(view.parent.step);
  out->set_watermark_attempt(view.watermark.attempt);
  out->set_watermark_step(view.watermark.step);
  out->set_floor_step(view.floor);
  FillProtection(job, out);
  out->set_durable_attempt(view.durable.attempt);
  out->set_durable_step(view.durable.step);
  out->set_world_size(view.world_size);
  out->set_region_bytes(agent.services().region.quota().UsedBy(job.name()));
  if (!view.last_error.empty()) out->set_last_error(view.last_error);
  FillSteps(agent, job, view, out);
}

void FillProblems(Agent& agent, v1::AgentStatus* out) {
  for (const Problem& problem : ProblemsOf(agent)) {
    v1::Problem* added = out->add_problems();
    const ErrorInfo& info = InfoOf(CodeOf(problem.what));
    added->set_code(info.name);
    added->set_text(std::string(problem.what.message()));
    added->set_next_step(problem.next.empty() ? info.next_step : problem.next);
    added->set_job(problem.job);
  }
}

void FillHeld(const region::PeerJob& held, v1::HeldJob* out) {
  out->set_job(held.job);
  out->set_bytes(held.bytes);
  for (uint32_t rank : held.ranks) out->add_ranks(rank);
  out->set_attempt(held.newest.attempt);
  out->set_step(held.newest.step);
  out->set_on_storage(held.newest <= held.durable);
  out->set_heard_seconds(Seconds(held.silent));
  out->set_ended(held.silent >= kEndedAfter);
  if (out->ended()) out->set_next_step(NextStepFor(held));
}

void FillAgent(Agent& agent, v1::AgentStatus* out) {
  Services& services = agent.services();
  out->set_agent_id(services.agent_id);
  out->set_node(NodeName(services.config));
  out->set_version(kVersion);
  out->set_pid(static_cast<uint32_t>(getpid()));
  out->set_uid(geteuid());
  out->set_uptime_seconds(Seconds(services.clock.Monotonic() - agent.started()));
  out->set_draining(agent.draining());
  out->set_sessions(static_cast<uint32_t>(services.server.sessions()));
  v1::RegionStatus* region = out->mutable_region();
  region->set_dir(services.config.region.dir);
  if (auto usage = services.region.Usage(); usage.ok()) {
    region->set_size_bytes(usage->size_limit != 0 ? usage->size_limit : usage->total);
    region->set_used_bytes(usage->held);
    region->set_free_bytes(usage->available);
    region->set_job_quota_bytes(usage->job_quota);
    region->set_huge_pages(usage->huge_pages);
    region->set_may_swap(usage->may_swap);
  }
  for (const std::string& warning : services.region.warnings()) out->add_notes(warning);
  const auto& given_up = services.region.adopted().notes;
  for (size_t i = 0; i < std::min(given_up.size(), kMaxNotes); ++i) out->add_notes(given_up[i]);
  for (const std::string& sentence : services.copiers.WaitingFor()) out->add_notes(sentence);
  out->set_copiers(static_cast<uint32_t>(services.copiers.running()));
  FillProblems(agent, out);
  v1::StorageStatus* storage = out->mutable_storage();
  storage->set_root(services.config.storage.root);
  storage->set_io(services.store.Describe());
  storage->set_direct(services.store.IsDirect());
  storage->set_flushes_running(static_cast<uint32_t>(services.flusher.active()));
  services.storage_watch.Fill(storage);
  agent.peers().Fill(out->mutable_peers());
  agent.links().Fill(out->mutable_peers());
  agent.certificates().Fill(out->mutable_peers());
  for (const region::PeerJob& held : services.region.peers().Jobs()) FillHeld(held, out->mutable_peers()->add_held());
}

}  // namespace

v1::StatusView BuildStatus(Agent& agent) {
  v1::StatusView view;
  view.set_taken_unix_ns(agent.services().clock.Wall().count());
  FillAgent(agent, view.mutable_agent());
  for (const auto& [name, job] : agent.jobs()) FillJob(agent, *job, view.add_jobs());
  return view;
}

}  // namespace ckptd
