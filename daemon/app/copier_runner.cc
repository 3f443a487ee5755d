#include "daemon/app/copier_runner.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "daemon/base/errors.h"
#include "daemon/base/log.h"
#include "daemon/base/status_macros.h"
#include "daemon/os/process_list.h"
#include "daemon/os/spawn.h"

namespace ckptd {
namespace {

constexpr char kName[] = "ckptd-copier";  // argv[0], wherever the program lies

absl::StatusOr<std::string> ProgramOf(const std::string& configured) {
  if (configured == "off") return Error(ErrorCode::REFUSED, "the agent starts no copiers: gpu.copier is off");
  if (!configured.empty()) return configured;
  CKPTD_ASSIGN_OR_RETURN(std::string self, OwnExecutable());
  return absl::StrCat(self.substr(0, self.rfind('/') + 1), kName);
}

// Of the agent, never of the trainer: a variable may make a program load a library, and what runs is the agent's to
// say.
std::vector<std::string> EnvironmentForCopiers() {
  std::vector<std::string> kept;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const absl::string_view text = *variable;
    const bool keep = std::ranges::any_of(std::array{"PATH=", "LD_LIBRARY_PATH=", "CUDA_", "NVIDIA_", "FAKECUDA_"},
                                          [text](const char* begin) { return absl::StartsWith(text, begin); });
    if (keep) kept.emplace_back(text);
  }
  return kept;
}

std::string Pids(const std::vector<pid_t>& pids) { return absl::StrJoin(pids, ", "); }

}  // namespace

CopierRunner::CopierRunner(Loop& loop, const Clock& clock, Server& server, AgentMetrics& metrics,
                           const Options& options, OnReaped on_reaped)
    : loop_(loop),
      clock_(clock),
      server_(server),
      metrics_(metrics),
      program_(ProgramOf(options.program)),
      token_(absl::StrFormat("%016x", options.region_id)),
      on_reaped_(std::move(on_reaped)) {}

CopierRunner::~CopierRunner() {
  for (const auto& [id, child] : children_) {
    loop_.Unwatch(child.pidfd.get());
    if (child.outcome.valid()) loop_.Unwatch(child.outcome.get());
  }
}

void CopierRunner::Ask(SessionId session, const Peer& peer, const GpuId& gpu) {
  absl::Status status = program_.status();
  if (status.ok()) status = copiers_.MayStart(peer.process, gpu, clock_.Monotonic());
  if (status.ok()) status = Start(session, peer, gpu);
  if (!status.ok()) Refuse(session, gpu, status);
}

void CopierRunner::Refuse(SessionId session, const GpuId& gpu, const absl::Status& why) {
  Log(kWarning, "copier.refused").Field("gpu", ToString(gpu)).Error(why);
  CopierReplyMessage reply{};
  std::copy(gpu.begin(), gpu.end(), std::begin(reply.gpu));
  reply.code = static_cast<uint32_t>(CodeOf(why));
  SetText(reply.sentence, absl::string_view(why.message().data(), why.message().size()));
  server_.Send(session, MessageType::kCopierReply, reply);
}

absl::Status CopierRunner::Start(SessionId session, const Peer& peer, const GpuId& gpu) {
  SpawnOptions options;
  options.program = *program_;
  options.arguments = {kName, "--socket", absl::StrCat(kSpawnedSocket), "--region", token_};
  options.environment = EnvironmentForCopiers();
  options.uid = peer.uid;
  options.gid = peer.gid;
  options.groups = peer.groups;
  CKPTD_ASSIGN_OR_RETURN(SpawnedProcess spawned, Spawn(options));
  Child child;
  child.pid = spawned.pid;
  child.trainers_end = std::move(spawned.socket);
  child.pidfd = std::move(spawned.pidfd);
  child.outcome = std::move(spawned.outcome);
  child.session = session;
  child.gpu = gpu;
  const CopierId id = ++last_;
  const CopierId before = copiers_.Started(peer.process, gpu, id, clock_.Monotonic());
  if (before != 0) Kill(before);
  return Watch(id, std::move(child));
}

// One that cannot be watched is killed, and counted for ever: its end will not be seen.
absl::Status CopierRunner::Watch(CopierId id, Child child) {
  auto added = children_.emplace(id, std::move(child)).first;
  absl::Status status = loop_.Watch(added->second.pidfd.get(), EPOLLIN, [this, id](uint32_t) { OnEnded(id); });
  if (status.ok() && added->second.outcome.valid()) {
    status = loop_.Watch(added->second.outcome.get(), EPOLLIN, [this, id](uint32_t) { OnOutcome(id); });
  }
  if (status.ok()) return status;
  added->second.outcome.Reset();
  copiers_.GiveUp(id);
  Kill(id);
  return status;
}

void CopierRunner::OnOutcome(CopierId id) {
  Child& child = children_.at(id);
  const UniqueFd outcome = std::move(child.outcome);
  const UniqueFd trainers_end = std::move(child.trainers_end);
  loop_.Unwatch(outcome.get());
  if (absl::Status status = ReadSpawnOutcome(outcome.get(), *program_); !status.ok()) {
    copiers_.GiveUp(id);
    return Refuse(child.session, child.gpu, Error(CodeOf(status), absl::StrCat("no copier: ", status.message())));
  }
  metrics_.copier_starts.With({}).Add();
  Log(kInfo, "copier.started").Field("gpu", ToString(child.gpu)).Field("pid", static_cast<uint64_t>(child.pid));
  CopierReplyMessage reply{};
  std::copy(child.gpu.begin(), child.gpu.end(), std::begin(reply.gpu));
  const int fds[] = {trainers_end.get(), child.pidfd.get()};
  server_.Send(child.session, MessageType::kCopierReply, reply, fds);
}

void CopierRunner::OnEnded(CopierId id) {
  if (children_.at(id).outcome.valid()) OnOutcome(id);
  const Child& child = children_.at(id);
  ReapLate();
  // No thread of it runs. A debugger that holds it may keep the rest of it from us for a while.
  const ProcessEnd end = ReapChild(child.pidfd.get()).value_or(ProcessEnd{});
  if (!copiers_.Ended(id, clock_.Monotonic())) {
    metrics_.copier_deaths.With({}).Add();
    Log(kWarning, "copier.died")
        .Field("gpu", ToString(child.gpu))
        .Field("pid", static_cast<uint64_t>(child.pid))
        .Field("code", static_cast<uint64_t>(end.code))
        .Field("signal", static_cast<uint64_t>(end.signal));
  }
  loop_.Unwatch(child.pidfd.get());
  unreaped_.push_back(std::move(children_.extract(id).mapped().pidfd));
  ReapLate();
  TellReaped();
}

void CopierRunner::ReapLate() {
  std::erase_if(unreaped_, [](const UniqueFd& pidfd) { return ReapChild(pidfd.get()).has_value(); });
}

void CopierRunner::Kill(CopierId id) {
  const auto found = children_.find(id);
  if (found == children_.end()) return;
  found->second.killed = true;
  if (absl::Status status = KillProcess(found->second.pidfd.get()); !status.ok()) {
    Log(kError, "copier.kill").Field("pid", static_cast<uint64_t>(found->second.pid)).Error(status);
  }
}

void CopierRunner::Release(const ProcessId& process) {
  for (CopierId copier : copiers_.Release(process)) Kill(copier);
}

void CopierRunner::ProcessDied(const ProcessId& process, bool held) {
  const std::vector<CopierId> unwanted = copiers_.ProcessDied(process);
  if (!held) std::for_each(unwanted.begin(), unwanted.end(), [this](CopierId copier) { Kill(copier); });
  TellReaped();
}

void CopierRunner::KillHeld(const ProcessId& process) {
  const auto waiting = copiers_.waiting();
  const auto found = waiting.find(process);
  if (found == waiting.end()) return;
  for (CopierId copier : found->second) Kill(copier);
}

void CopierRunner::TellReaped() {
  for (const ProcessId& process : copiers_.TakeReaped()) on_reaped_(process);
}

// The kernel sends them SIGKILL when an agent ends, so few are found: those that have not died of it yet. One of which
// the memory is gone already has no command line left; by then only its name tells. It is killed too: a stranger that
// looks like it must not keep anybody's slots.
void CopierRunner::EndOrphans() {
  const std::string file = program_.ok() ? program_->substr(program_->rfind('/') + 1) : kName;
  for (ListedProcess& process : ListProcesses({kName, file})) {
    const auto& words = process.command_line;
    const auto flag = std::find(words.begin(), words.end(), "--region");
    const bool ours =
        !words.empty() && words[0] == kName && flag != words.end() && flag + 1 != words.end() && *(flag + 1) == token_;
    if (!ours && !words.empty()) continue;
    if (!KillProcess(process.pidfd.get()).ok()) continue;  // not started by an agent of this user
    Log(kWarning, "copier.orphan").Field("pid", static_cast<uint64_t>(process.id.pid));
    AddOrphan(process.id, std::move(process.pidfd));
  }
}

void CopierRunner::AddOrphan(const ProcessId& process, UniqueFd pidfd) {
  const CopierId id = ++last_;
  copiers_.Orphan(process, id);
  Child child;
  child.pid = process.pid;
  child.pidfd = std::move(pidfd);
  child.killed = true;
  if (absl::Status status = Watch(id, std::move(child)); !status.ok()) Log(kError, "copier.orphan").Error(status);
}

pid_t CopierRunner::PidOf(const ProcessId& process, const GpuId& gpu) const {
  const auto found = children_.find(copiers_.Find(process, gpu));
  return found == children_.end() ? 0 : found->second.pid;
}

std::vector<std::string> CopierRunner::WaitingFor() const {
  std::vector<std::string> sentences;
  for (const auto& [process, copiers] : copiers_.waiting()) {
    std::vector<pid_t> pids;
    for (CopierId copier : copiers) {
      if (children_.at(copier).killed) pids.push_back(children_.at(copier).pid);
    }
    if (pids.empty()) continue;  // they rescue
    sentences.push_back(absl::StrCat("process ", process.pid, " has ended, its copier ", Pids(pids),
                                     " was killed and has not: slots that it may still write are not used again; ",
                                     "cat /proc/", pids.front(), "/stack shows what it waits for"));
  }
  return sentences;
}

}  // namespace ckptd
