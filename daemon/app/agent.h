// The agent: makes everything, takes over what the region holds, and connects sessions with jobs. What happens to a job
// is decided in rooms job and snapshot; this room only carries.
//
// Start() on the main thread, then Open() and Run() there: it is the control thread. Only Stop() may be called from
// elsewhere.
#ifndef CKPTD_DAEMON_APP_AGENT_H_
#define CKPTD_DAEMON_APP_AGENT_H_

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/app/certificate_watch.h"
#include "daemon/app/job_runner.h"
#include "daemon/app/peer_links.h"
#include "daemon/app/peers.h"
#include "daemon/app/scrubber.h"
#include "daemon/app/services.h"
#include "daemon/app/storage_watch.h"
#include "daemon/job/bystander.h"
#include "daemon/metrics/agent_metrics.h"
#include "daemon/os/files.h"
#include "daemon/os/thread.h"
#include "daemon/protect/copy_keeper.h"
#include "proto/ckptd/v1/status.pb.h"

namespace ckptd {

inline constexpr char kVersion[] = "0.1.0";

class Agent final : public SessionHandler {
 public:
  // The config is checked; directories of sockets and region are made where their parent exists.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Agent>> Start(Config config, Files& files, const Clock& clock);
  ~Agent() override;

  // Trainers may connect from now on: last, so that whoever finds an agent at its socket finds all of it.
  [[nodiscard]] absl::Status Open() { return server_->Open(); }
  [[nodiscard]] Loop& loop() { return *loop_; }
  // Until Stop(), or the end of a drain.
  [[nodiscard]] absl::Status Run() { return loop_->Run(); }

  // No new saves; Run() returns when all flushes are done or drain_timeout is over. False from then on: not all was
  // flushed (memory still holds it).
  void BeginShutdown();
  [[nodiscard]] bool flushed_all() const { return flushed_all_; }
  // After Run(). What is prepared or checked in memory is given up. False: a worker hangs in the storage, still frees
  // memory, or is long at its piece, and so would the destructor be.
  [[nodiscard]] bool StopWorkers();
  // Then only _exit() may follow: trainers connect to the successor, which may take the region at once.
  void LetGo();

  // What ckptctl may ask; see admin.h.
  void SetDraining(bool on);
  [[nodiscard]] bool draining() const { return draining_; }
  [[nodiscard]] bool flushing() const;
  [[nodiscard]] JobRunner* FindJob(const std::string& job);
  [[nodiscard]] const std::map<std::string, std::unique_ptr<JobRunner>>& jobs() const { return jobs_; }
  [[nodiscard]] Services& services() { return *services_; }
  [[nodiscard]] AgentMetrics& metrics() { return metrics_; }
  [[nodiscard]] const Scrubber& scrubber() const { return *scrubber_; }
  [[nodiscard]] const Peers& peers() const { return *peers_; }
  [[nodiscard]] const PeerLinks& links() const { return *links_; }
  [[nodiscard]] const CertificateWatch& certificates() const { return *certificates_; }
  // Why the pages at metrics.listen are not served; OK: they are, or shall not be.
  [[nodiscard]] const absl::Status& no_pages() const { return no_pages_; }
  void SetNoPages(absl::Status why) { no_pages_ = std::move(why); }
  [[nodiscard]] Files& files() { return files_; }
  [[nodiscard]] Nanos started() const { return started_; }
  [[nodiscard]] const Config& config() const { return config_; }
  // Applies what may change live.
  void ApplyConfig(const Config& config);
  // A trainer, a flush or a reader.
  [[nodiscard]] bool InUse(const std::string& job);
  // Ends the job's runner and removes its region; the storage stays. Not from the middle of what the job does.
  [[nodiscard]] absl::Status ForgetJob(const std::string& job);

  void OnRequest(SessionId session, const Peer& peer, Request request, std::vector<UniqueFd> fds) override;
  void OnDisconnected(SessionId session) override;
  void OnProcessDead(const ProcessId& process) override;

 private:
  struct Binding {
    JobRunner* job = nullptr;
    Rank rank = 0;
    uint32_t world = 0;
    Ticket ticket = 0;
    uint64_t process = 0;
  };

  Agent(Config config, Files& files, const Clock& clock);
  [[nodiscard]] std::array<ThreadPool*, 8> Pools() const;  // null before they are made
  absl::Status OpenRegion();
  absl::Status StartPeers();
  absl::Status OpenStorage();
  void WatchCalls();
  absl::Status MakeServer();
  void MakeLinks();
  void MakeKeeper();
  void MakeServices();
  // agent_jobs.cc
  void AdoptAll();
  absl::StatusOr<JobRunner*> ObtainJob(const std::string& job, uint32_t uid,
                                       const region::AdoptedJob* adopted = nullptr);
  JobRunner* ObtainForCopies(const std::string& job, const std::string& user);
  void OnPeerMessage(const transport::LinkMessage& message);
  void OnMembersChanged();
  region::JobFacts FactsOf(const std::string& job, size_t ranks, const std::string& asked_for);
  absl::Status MakeRoomFor(const std::string& job, Rank rank, uint32_t uid);
  absl::Status Claim(SessionId session, const Peer& peer, const std::string& job, Rank rank, uint32_t world,
                     Ticket ticket);

  void On(SessionId session, const Peer& peer, const JoinRequest& join, const std::vector<UniqueFd>& fds);
  void On(SessionId session, const Peer& peer, const ResumeRequest& resume, std::vector<UniqueFd> fds);
  void On(SessionId session, const Peer& peer, const LoadedRequest& loaded, const std::vector<UniqueFd>& fds);
  void On(SessionId session, const Peer& peer, const LoadingRequest& loading, const std::vector<UniqueFd>& fds);
  void On(SessionId session, const Peer& peer, const LayoutRequest& layout, std::vector<UniqueFd> fds);
  void On(SessionId session, const Peer& peer, const CaptureRequest& capture, const std::vector<UniqueFd>& fds);
  void On(SessionId session, const Peer& peer, const ByeRequest& bye, const std::vector<UniqueFd>& fds);
  void On(SessionId session, const Peer& peer, const HelloRequest& hello, const std::vector<UniqueFd>& fds);
  // agent_gpu.cc
  void On(SessionId session, const Peer& peer, const CopierRequest& copier, const std::vector<UniqueFd>& fds);
  void On(SessionId session, const Peer& peer, const DevicesRequest& devices, const std::vector<UniqueFd>& fds);
  void On(SessionId session, const Peer& peer, const RescueRequest& rescue, const std::vector<UniqueFd>& fds);
  void MakeGpuParts();
  void OnReaped(const ProcessId& process);
  void EndUnusedCopiers(const ProcessId& process);
  void EndCopiersOf(const std::string& job);

  Binding* Bound(SessionId session, MessageType answers);
  void OnFlushed(const FlushOutcome& outcome);
  void WaitForFlushes(Nanos deadline);

  Config config_;
  Files& files_;
  const Clock& clock_;
  const Nanos started_;
  std::unique_ptr<ThreadPool> free_work_;  // before all that may hold a SlotFile
  AgentMetrics metrics_;
  std::unique_ptr<Loop> loop_;
  std::unique_ptr<Peers> peers_;
  std::unique_ptr<region::Region> region_;
  std::unique_ptr<Files> storage_files_;
  std::unique_ptr<Store> disk_;
  std::unique_ptr<StoreCalls> calls_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Store> restore_store_;
  std::unique_ptr<Server> server_;
  Claims claims_;
  std::unique_ptr<Flusher> flusher_;
  std::unique_ptr<StorageWatch> storage_watch_;
  std::unique_ptr<CopierRunner> copiers_;
  std::unique_ptr<Registrar> registrar_;
  std::unique_ptr<Rescuer> rescuer_;
  const uint64_t incarnation_ = RandomId();
  const std::shared_ptr<job::ReportNumbers> report_numbers_ = std::make_shared<job::ReportNumbers>();
  std::string agent_id_;  // in the job protocol
  std::unique_ptr<Services> services_;
  std::unique_ptr<job::Bystander> bystander_;
  std::unique_ptr<protect::CopyKeeper> keeper_;
  std::map<std::string, std::unique_ptr<JobRunner>> jobs_;
  std::unique_ptr<PeerLinks> links_;  // what comes over it is for jobs_
  std::unique_ptr<CertificateWatch> certificates_;
  std::vector<std::shared_ptr<const uint64_t>> abandoned_;  // what forgotten jobs asked of the storage
  std::map<SessionId, Binding> bindings_;
  bool draining_ = false;
  bool flushed_all_ = true;
  bool storage_hangs_ = false;  // as it was told last
  absl::Status no_pages_;
  // Last, so that they are joined first: their work refers to everything above.
  std::unique_ptr<ThreadPool> close_work_;
  std::unique_ptr<ThreadPool> record_work_;
  std::unique_ptr<ThreadPool> fetch_work_;
  std::unique_ptr<ThreadPool> beside_work_;
  std::unique_ptr<ThreadPool> chore_work_;
  std::unique_ptr<ThreadPool> flush_work_;
  std::unique_ptr<ThreadPool> memory_work_;
  std::unique_ptr<Scrubber> scrubber_;
};

// agent.node_name, else the host's.
[[nodiscard]] std::string NodeName(const Config& config);
// Of both sockets; none = the agent's own.
[[nodiscard]] absl::StatusOr<std::optional<gid_t>> SocketGroup(const Config& config);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_APP_AGENT_H_
