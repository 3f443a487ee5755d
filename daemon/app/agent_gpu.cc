// What the agent does for trainers with tensors on GPUs, and the end of processes, which is twofold since copiers write
// for them: the trainer is dead, and it is reaped.
#include <set>
#include <string>
#include <utility>

#include "daemon/app/agent.h"
#include "daemon/app/copier_runner.h"
#include "daemon/app/registrar.h"
#include "daemon/app/rescuer.h"

namespace ckptd {

void Agent::MakeGpuParts() {
  registrar_ = std::make_unique<Registrar>(*loop_, clock_);
  copiers_ = std::make_unique<CopierRunner>(*loop_, clock_, *server_, metrics_,
                                            CopierRunner::Options{config_.gpu.copier, region_->id()},
                                            [this](const ProcessId& process) { OnReaped(process); });
  copiers_->EndOrphans();
  Rescuer::Hooks hooks;
  hooks.has_copiers = [this](const ProcessId& process) { return copiers_->HasAny(process); };
  hooks.read_bells = [this](const ProcessId& process) {
    for (auto& [name, job] : jobs_) job->ReadBells(PackProcess(process));
  };
  hooks.kill_copiers = [this](const ProcessId& process) { copiers_->KillHeld(process); };
  hooks.join = [this](SessionId session, const Peer& peer, const JoinRequest& join) { On(session, peer, join, {}); };
  rescuer_ = std::make_unique<Rescuer>(*loop_, clock_, metrics_, std::move(hooks), kKernelLog);
}

// Whoever holds a rank: its claim ends with it, so nothing that a dead process left in its socket starts a process.
void Agent::On(SessionId session, const Peer& peer, const CopierRequest& copier, const std::vector<UniqueFd>&) {
  if (claims_.HoldsAny(static_cast<uint32_t>(peer.process.pid), peer.process.start_time)) {
    return copiers_->Ask(session, peer, copier.gpu);
  }
  copiers_->Refuse(session, copier.gpu, Error(ErrorCode::REFUSED, "COPIER needs a rank: JOIN or RESUME comes first"));
}

void Agent::On(SessionId session, const Peer&, const DevicesRequest& devices, const std::vector<UniqueFd>&) {
  if (Binding* bound = Bound(session, MessageType::kDevices)) {
    bound->job->OnDevices(bound->rank, bound->process, devices);
  }
}

// Whoever holds a rank, as for COPIER; BYE takes it back.
void Agent::On(SessionId session, const Peer& peer, const RescueRequest& rescue, const std::vector<UniqueFd>&) {
  if (claims_.HoldsAny(static_cast<uint32_t>(peer.process.pid), peer.process.start_time)) {
    return rescuer_->Tell(peer.process, rescue);
  }
  server_->SendError(session, MessageType::kRescue,
                     Error(ErrorCode::REFUSED, "RESCUE needs a rank: JOIN or RESUME comes first"));
}

// At once: the rank is free for another process, its job is told, its copiers are killed, or left to rescue what they
// can. What frees slots waits for their end (OnReaped).
void Agent::OnProcessDead(const ProcessId& process) {
  std::set<std::string> held_ranks_of;
  for (const auto& [job, rank] : claims_.EndProcess(static_cast<uint32_t>(process.pid), process.start_time)) {
    held_ranks_of.insert(job);
  }
  for (const std::string& job : held_ranks_of)
    Log(kInfo, "trainer.died").Job(job).Field("pid", static_cast<uint64_t>(process.pid));
  registrar_->ProcessEnded(PackProcess(process));
  const bool held = rescuer_->ProcessDied(process, held_ranks_of);
  for (auto& [name, job] : jobs_) job->OnProcessDead(PackProcess(process));
  copiers_->ProcessDied(process, held);
}

void Agent::OnReaped(const ProcessId& process) {
  for (auto& [name, job] : jobs_) job->OnReaped(PackProcess(process));
  rescuer_->Reaped(process);
}

// Copiers are a process', not a rank's: they stay while it holds another one.
void Agent::EndUnusedCopiers(const ProcessId& process) {
  if (claims_.HoldsAny(static_cast<uint32_t>(process.pid), process.start_time)) return;
  copiers_->Release(process);
  rescuer_->Forget(process);
}

void Agent::EndCopiersOf(const std::string& job) {
  for (const Holder& holder : claims_.HoldersOf(job)) {
    const ProcessId process{static_cast<pid_t>(holder.pid), holder.start_time};
    if (claims_.HoldsAny(holder.pid, holder.start_time, job)) continue;
    copiers_->Release(process);
    rescuer_->Forget(process);
  }
}

}  // namespace ckptd
