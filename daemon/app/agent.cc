#include "daemon/app/agent.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/core/copy/crc32c.h"
#include "client/core/threads/cores.h"
#include "daemon/app/copier_runner.h"
#include "daemon/app/notify.h"
#include "daemon/app/registrar.h"
#include "daemon/app/rescuer.h"
#include "daemon/app/storage_start.h"
#include "daemon/base/status_macros.h"
#include "daemon/membership/incarnation.h"
#include "daemon/os/group.h"
#include "daemon/os/posix_files.h"
#include "daemon/protect/held_here.h"
#include "daemon/storage/posix_store.h"

namespace ckptd {
namespace {

constexpr size_t kQueue = 8192;
constexpr size_t kPosts = 65536;  // above all that the executors' queues can hold, so that no answer is lost
constexpr Nanos kFlushPoll = std::chrono::milliseconds(50);
constexpr Nanos kJoinWorkers = std::chrono::seconds(2);  // what is in the storage at the end and does not hang
constexpr Nanos kShortestWatch = std::chrono::seconds(1);

}  // namespace

std::string NodeName(const Config& config) {
  if (!config.agent.node_name.empty()) return config.agent.node_name;
  char name[65] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "node";
}

namespace {

// Stable over restarts and reboots, and different for the system's and a user's agent of one node.
std::string AgentIdOf(const Config& config) {
  const std::string& dir = config.region.dir;
  return absl::StrFormat("%s-%08x", NodeName(config), Crc32c(0, dir.data(), dir.size()));
}

size_t MemoryThreads(const RegionConfig& region) {
  if (region.populate_threads != 0) return region.populate_threads;
  const size_t cores = UsableCores();
  return std::clamp<size_t>(cores / 4, std::min<size_t>(cores, 2), 16);
}

BackPressure ToWire(BackPressureChoice choice) {
  if (choice == BackPressureChoice::kWait) return BackPressure::kWait;
  return choice == BackPressureChoice::kReplaceQueued ? BackPressure::kReplaceQueued : BackPressure::kSkip;
}

IoQueueChoice QueueChoice(IoChoice choice) {
  switch (choice) {
    case IoChoice::kUring:
      return IoQueueChoice::kUring;
    case IoChoice::kThreads:
      return IoQueueChoice::kThreads;
    case IoChoice::kAuto:
      break;
  }
  return IoQueueChoice::kAuto;
}

}  // namespace

absl::StatusOr<std::optional<gid_t>> SocketGroup(const Config& config) {
  if (config.security.socket_group.empty()) return std::optional<gid_t>();
  CKPTD_ASSIGN_OR_RETURN(gid_t group, FindGroup(config.security.socket_group));
  return std::optional<gid_t>(group);
}

Agent::Agent(Config config, Files& files, const Clock& clock)
    : config_(std::move(config)), files_(files), clock_(clock), started_(clock.Monotonic()), metrics_(kVersion, "") {}

std::array<ThreadPool*, 8> Agent::Pools() const {
  return {flush_work_.get(),  fetch_work_.get(),  beside_work_.get(), chore_work_.get(),
          memory_work_.get(), record_work_.get(), close_work_.get(),  free_work_.get()};
}

Agent::~Agent() {
  scrubber_.reset();
  for (ThreadPool* pool : Pools())
    if (pool != nullptr) pool->Stop();
}

bool Agent::StopWorkers() {
  const Nanos deadline = clock_.Monotonic() + (flushed_all_ ? kJoinWorkers : Nanos(0));
  region_->under_way().CancelAll();
  bool stopped = scrubber_->StopWithin(deadline - clock_.Monotonic());
  links_->Stop();
  stopped = peers_->StopWithin(deadline - clock_.Monotonic()) && stopped;
  for (ThreadPool* pool : Pools()) stopped = pool->StopWithin(deadline - clock_.Monotonic()) && stopped;
  return stopped;
}

// A thread that sleeps in the kernel keeps every descriptor open until it wakes: what others wait for is closed now.
// Memory that is still being prepared has a writer, which _exit ends; then the lock goes with the process.
void Agent::LetGo() {
  server_.reset();
  if (memory_work_->StopWithin(kFlushPoll)) region_->GiveUpLock();
}

absl::StatusOr<std::unique_ptr<Agent>> Agent::Start(Config config, Files& files, const Clock& clock) {
  std::unique_ptr<Agent> agent(new Agent(std::move(config), files, clock));
  CKPTD_ASSIGN_OR_RETURN(agent->loop_, Loop::Create(clock, kPosts));
  CKPTD_RETURN_IF_ERROR(agent->OpenRegion());
  CKPTD_RETURN_IF_ERROR(agent->StartPeers());
  agent->close_work_ = std::make_unique<ThreadPool>("ckptd-close", 1, kQueue);
  agent->record_work_ = std::make_unique<ThreadPool>("ckptd-record", 2, kQueue);
  agent->fetch_work_ = std::make_unique<ThreadPool>("ckptd-fetch", 2, kQueue);
  agent->beside_work_ = std::make_unique<ThreadPool>("ckptd-beside", 2, kQueue);
  agent->chore_work_ = std::make_unique<ThreadPool>("ckptd-chore", 2, kQueue);
  agent->flush_work_ = std::make_unique<ThreadPool>("ckptd-flush", 4, kQueue);
  agent->memory_work_ = std::make_unique<ThreadPool>("ckptd-memory", MemoryThreads(agent->config_.region), kQueue);
  CKPTD_RETURN_IF_ERROR(agent->MakeServer());
  CKPTD_RETURN_IF_ERROR(agent->OpenStorage());  // nothing that may fail comes after it: a worker may hang by now
  Agent* self = agent.get();
  agent->flusher_ = std::make_unique<Flusher>(*agent->store_, clock, *agent->flush_work_, [self](FlushOutcome outcome) {
    auto shared = std::make_shared<FlushOutcome>(std::move(outcome));
    if (!self->loop_->Post([self, shared] { self->OnFlushed(*shared); })) Log(kError, "app.post_lost");
  });
  agent->storage_watch_ = std::make_unique<StorageWatch>(*agent->loop_, clock, *agent->store_, *agent->calls_,
                                                         *agent->chore_work_, agent->config_.storage.timeout);
  agent->MakeGpuParts();
  agent->MakeKeeper();
  agent->MakeLinks();
  agent->MakeServices();
  agent->AdoptAll();
  agent->links_->Start();
  agent->certificates_->Start();
  agent->scrubber_ = std::make_unique<Scrubber>(*agent->services_, agent->jobs_);
  agent->storage_watch_->Probe();
  agent->WatchCalls();
  return agent;
}

absl::Status Agent::OpenRegion() {
  CKPTD_RETURN_IF_ERROR(MakePath(files_, ParentOf(config_.agent.socket), 0755));
  CKPTD_RETURN_IF_ERROR(MakePath(files_, ParentOf(config_.region.dir), 0755));
  region::RegionOptions region;
  region.dir = config_.region.dir;
  region.uid = geteuid();
  region.size_limit = config_.region.size.bytes;
  region.job_quota = config_.region.job_quota.bytes;
  region.peers_memory = config_.peers.memory.bytes;
  free_work_ = std::make_unique<ThreadPool>("ckptd-free", 1, kQueue);
  region.freeing = free_work_.get();
  CKPTD_ASSIGN_OR_RETURN(region_, region::Region::Open(files_, clock_, region));
  for (const std::string& warning : region_->warnings()) Log(kWarning, "region.warning").Field("text", warning);
  return absl::OkStatus();
}

// Its number pushed up by the clock: state_dir may be lost with a disk.
absl::Status Agent::StartPeers() {
  uint64_t incarnation = 0;
  if (SpeaksToPeers(config_.peers)) {
    const std::string& dir = config_.agent.state_dir;
    CKPTD_RETURN_IF_ERROR(MakePath(files_, dir, 0700));
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(clock_.Wall()).count();
    CKPTD_ASSIGN_OR_RETURN(incarnation, membership::ClaimIncarnation(files_, dir, static_cast<uint64_t>(seconds)));
  }
  CKPTD_ASSIGN_OR_RETURN(peers_, Peers::Start(*loop_, clock_, files_, config_.peers, NodeName(config_), incarnation));
  return absl::OkStatus();
}

absl::Status Agent::OpenStorage() {
  PosixStoreOptions storage;
  storage.root = config_.storage.root;
  storage.owner = AgentIdOf(config_);
  storage.direct = config_.storage.direct != DirectChoice::kOff;
  IoQueueChoice choice = QueueChoice(config_.storage.io);
  size_t depth = config_.storage.write_depth;
  storage.make_queue = MakeIoQueueFactory(choice, depth);
  storage_files_ = MakeFilesBelow(storage.root);
  CKPTD_ASSIGN_OR_RETURN(disk_, MakePosixStore(*storage_files_, storage));
  calls_ = std::make_unique<StoreCalls>(clock_, config_.storage.root);
  store_ = MakeWatchedStore(*disk_, *calls_, /*awaited=*/false);
  restore_store_ = MakeWatchedStore(*disk_, *calls_, /*awaited=*/true);
  return LookAtStorage(files_, *store_, config_.storage.root, *chore_work_);
}

// Tells the log when the storage begins to hang and when it answers again, and every rank that waits in restore() which
// call it is that hangs: in time, before the trainer's own patience is over.
void Agent::WatchCalls() {
  std::optional<StoreCalls::Silence> longest = calls_->Longest();
  const bool hangs = longest && longest->since > config_.storage.timeout;
  if (hangs && !storage_hangs_) Log(kError, "storage.hung").Field("call", longest->ToString());
  if (!hangs && storage_hangs_) Log(kInfo, "storage.answers");
  storage_hangs_ = hangs;
  std::optional<StoreCalls::Silence> awaited = calls_->Longest(/*awaited=*/true);
  if (awaited && awaited->since > config_.storage.timeout) {
    for (auto& [name, job] : jobs_) job->OnStorageHangs(awaited->ToString());
  }
  loop_->After(std::max(config_.storage.timeout / 4, kShortestWatch), [this] { WatchCalls(); });
}

absl::Status Agent::MakeServer() {
  ServerOptions options;
  options.listen.path = config_.agent.socket;
  options.listen.mode = config_.security.socket_mode;
  CKPTD_ASSIGN_OR_RETURN(options.listen.group, SocketGroup(config_));
  options.hello = HelloReplyMessage{};
  options.hello.slots = static_cast<uint32_t>(config_.region.slots);
  options.hello.region_id = region_->id();
  options.hello.back_pressure = static_cast<uint16_t>(ToWire(config_.durability.back_pressure));
  options.hello.job_quota = config_.region.job_quota.bytes;
  SetText(options.hello.agent, kVersion);
  SetText(options.hello.node, NodeName(config_));
  server_ = std::make_unique<Server>(*loop_, *this, *close_work_, options);
  return absl::OkStatus();
}

// A node that speaks to others has one agent of its name among them; one that does not may have two, the system's and a
// user's.
void Agent::MakeLinks() {
  PeerLinks::Self self{SpeaksToPeers(config_.peers) ? peers_->membership().self().name : AgentIdOf(config_),
                       incarnation_};
  bystander_ =
      std::make_unique<job::Bystander>(job::ReporterId{self.agent, incarnation_, region_->id()}, report_numbers_);
  agent_id_ = self.agent;
  links_ = std::make_unique<PeerLinks>(
      *loop_, clock_, files_, config_.peers, peers_->membership(), std::move(self),
      PeerLinks::Handler{[this](const transport::LinkMessage& message) { OnPeerMessage(message); },
                         [this] { OnMembersChanged(); }, keeper_.get()});
  certificates_ = std::make_unique<CertificateWatch>(*loop_, clock_, files_, *memory_work_, config_.peers);
}

void Agent::MakeKeeper() {
  keeper_ = std::make_unique<protect::CopyKeeper>(
      *loop_, clock_, *region_, *memory_work_,
      protect::CopyKeeper::Handler{[this](const std::string& job) {
                                     const JobRunner* runner = FindJob(job);
                                     return runner == nullptr ? nullptr : runner->last_state();
                                   },
                                   [this](const std::string& job, Rank rank, const SnapshotId& id) {
                                     JobRunner* runner = FindJob(job);
                                     if (runner != nullptr) return runner->OpenSealed(rank, id);
                                     return absl::StatusOr<protect::HeldSnapshot>(Error(
                                         ErrorCode::NOT_FOUND, absl::StrCat("job ", job, " is not on this node")));
                                   },
                                   [this](const std::string& job) {
                                     if (JobRunner* runner = FindJob(job)) runner->OnCopies();
                                   },
                                   [this](const std::string& job) {
                                     const JobRunner* runner = FindJob(job);
                                     const auto state = runner == nullptr ? nullptr : runner->last_state();
                                     return state == nullptr ? std::set<region::PeerKey>()
                                                             : protect::HeldHere(agent_id_, *state);
                                   }});
}

void Agent::MakeServices() {
  services_.reset(new Services{config_,
                               clock_,
                               *loop_,
                               *region_,
                               *store_,
                               *restore_store_,
                               *calls_,
                               *record_work_,
                               *fetch_work_,
                               *beside_work_,
                               *chore_work_,
                               *memory_work_,
                               *flusher_,
                               *server_,
                               claims_,
                               *storage_watch_,
                               *copiers_,
                               *registrar_,
                               *rescuer_,
                               *links_,
                               *keeper_,
                               metrics_,
                               agent_id_,
                               incarnation_,
                               report_numbers_,
                               [this](const std::string& job) { return ForgetJob(job); },
                               [this](const std::string& job) { return InUse(job); }});
}

void Agent::OnRequest(SessionId session, const Peer& peer, Request request, std::vector<UniqueFd> fds) {
  std::visit([&](const auto& typed) { On(session, peer, typed, std::move(fds)); }, request);
}

void Agent::On(SessionId session, const Peer& peer, const JoinRequest& join, const std::vector<UniqueFd>&) {
  if (rescuer_->Delay(session, peer, join)) return;
  absl::Status status = Claim(session, peer, join.job, join.rank, join.world, join.ticket);
  if (!status.ok()) return server_->SendError(session, MessageType::kJoin, status);
  bindings_[session].job->OnJoin(peer, session, join);
}

void Agent::On(SessionId session, const Peer& peer, const ResumeRequest& resume, std::vector<UniqueFd> fds) {
  absl::Status status = fds.size() == 1 ? absl::OkStatus() : Error(ErrorCode::PROTOCOL, "RESUME needs one descriptor");
  if (status.ok()) status = Claim(session, peer, resume.job, resume.rank, resume.world, resume.ticket);
  if (!status.ok()) return server_->SendError(session, MessageType::kResume, status);
  bindings_[session].job->OnResume(peer, session, resume, std::move(fds[0]));
}

Agent::Binding* Agent::Bound(SessionId session, MessageType answers) {
  auto found = bindings_.find(session);
  if (found != bindings_.end() && found->second.job != nullptr) return &found->second;
  server_->SendError(session, answers, Error(ErrorCode::PROTOCOL, "JOIN or RESUME must come first"));
  return nullptr;
}

void Agent::On(SessionId session, const Peer&, const LoadedRequest& loaded, const std::vector<UniqueFd>&) {
  if (Binding* bound = Bound(session, MessageType::kLoaded)) bound->job->OnLoaded(bound->rank, loaded);
}

void Agent::On(SessionId session, const Peer&, const LoadingRequest& loading, const std::vector<UniqueFd>&) {
  if (Binding* bound = Bound(session, MessageType::kLoading)) bound->job->OnLoading(bound->rank, loading);
}

void Agent::On(SessionId session, const Peer&, const LayoutRequest& layout, std::vector<UniqueFd> fds) {
  Binding* bound = Bound(session, MessageType::kLayout);
  if (bound == nullptr) return;
  if (fds.size() != 1) {
    return server_->SendError(session, MessageType::kLayout, Error(ErrorCode::PROTOCOL, "LAYOUT needs one descriptor"));
  }
  bound->job->OnLayout(bound->rank, bound->process, bound->world, layout, std::move(fds[0]));
}

void Agent::On(SessionId session, const Peer&, const CaptureRequest& capture, const std::vector<UniqueFd>&) {
  Binding* bound = Bound(session, capture.type);
  if (bound == nullptr) return;
  if (capture.type == MessageType::kDrop) {
    metrics_.saves.With({bound->job->name(), "dropped"}).Add();
    metrics_.saves_dropped.With({bound->job->name(), InfoOf(capture.code).name}).Add();
    if (RankRunner* rank = bound->job->FindRank(bound->rank)) rank->saves().Dropped(capture.step, capture.code);
  }
  bound->job->OnCapture(bound->rank, bound->process);
}

void Agent::On(SessionId session, const Peer&, const ByeRequest&, const std::vector<UniqueFd>&) {
  rescuer_->DropJoins(session);
  auto found = bindings_.find(session);
  if (found == bindings_.end() || found->second.job == nullptr) return;
  Binding bound = found->second;
  bindings_.erase(found);
  (void)claims_.Release(bound.job->name(), bound.rank, bound.ticket);
  bound.job->OnBye(bound.rank, bound.ticket, bound.process);
  EndUnusedCopiers(UnpackProcess(bound.process));
}

void Agent::On(SessionId, const Peer&, const HelloRequest&, const std::vector<UniqueFd>&) {}  // answered by the server

void Agent::OnDisconnected(SessionId session) {
  claims_.Disconnect(session);
  bindings_.erase(session);
  rescuer_->DropJoins(session);
  for (auto& [name, job] : jobs_) job->OnDisconnected(session);
}

void Agent::OnFlushed(const FlushOutcome& outcome) {
  storage_watch_->Flushed(outcome);
  const std::string& job = outcome.key.job;
  JobRunner* runner = FindJob(job);
  double seconds = static_cast<double>(outcome.duration.count()) / 1e9;
  if (outcome.status.ok()) {
    metrics_.written_bytes.With({"storage"}).Add(static_cast<double>(outcome.bytes));
    if (runner != nullptr) metrics_.persist_duration.With({job, "storage"}).Observe(seconds);  // else it was forgotten
    Log(kInfo, "flush.done").Job(job).Rank(outcome.key.rank).Snapshot(outcome.id).Field("seconds", seconds);
  } else if (absl::IsCancelled(outcome.status)) {
    Log(kInfo, "flush.given_up").Job(job).Rank(outcome.key.rank).Snapshot(outcome.id).Field("seconds", seconds);
  } else {
    metrics_.errors.With({InfoOf(CodeOf(outcome.status)).name}).Add();
    Log(kWarning, "flush.failed").Job(job).Rank(outcome.key.rank).Snapshot(outcome.id).Error(outcome.status);
  }
  if (runner != nullptr) runner->OnFlushed(outcome);
}

bool Agent::flushing() const {
  for (const auto& [name, job] : jobs_) {
    if (job->flushing()) return true;
  }
  return false;
}

void Agent::SetDraining(bool on) {
  draining_ = on;
  for (auto& [name, job] : jobs_) job->SetDraining(on);
}

void Agent::BeginShutdown() {
  scrubber_->Stop();
  SetDraining(true);
  WaitForFlushes(clock_.Monotonic() + config_.agent.drain_timeout);
}

void Agent::WaitForFlushes(Nanos deadline) {
  flushed_all_ = !flushing();
  Nanos left = deadline - clock_.Monotonic();
  if (flushed_all_ || left <= Nanos(0)) return loop_->Stop();
  NotifyStopping(absl::StrCat("flushing ", flusher_->active(), " snapshots"), left + std::chrono::seconds(5));
  loop_->After(kFlushPoll, [this, deadline] { WaitForFlushes(deadline); });
}

void Agent::ApplyConfig(const Config& config) {
  config_ = config;
  SetLogLevel(config_.agent.log_level);
  for (auto& [name, job] : jobs_) job->SetRetention(config_.retention);
}

}  // namespace ckptd
