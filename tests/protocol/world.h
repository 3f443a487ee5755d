// A simulated job that drives the real machines of rooms snapshot and job: 1 to 3 nodes with agents, regions and
// trainers, a network and a storage. Every call of Act() is one step of one of them, chosen by a seeded generator:
// a message is delivered, doubled or lost; a storage operation happens or its answer arrives; a trainer copies a chunk,
// completes, gives up, passes a step, joins; an agent looks at a bell; a timer fires; a fault strikes. After each step
// the checker (checker.cc) looks at what I1 to I9 of protocol.md say. Chunks carry (attempt, step, rank, layout), so a
// torn or mixed image shows itself.
//
// What is not simulated: CRC collisions, a trainer that lies in its bell, damage but to what is being replaced.
#ifndef CKPTD_TESTS_PROTOCOL_WORLD_H_
#define CKPTD_TESTS_PROTOCOL_WORLD_H_

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "tests/protocol/options.h"
#include "tests/protocol/parts.h"
#include "tests/protocol/random.h"
#include "tests/protocol/store.h"

namespace ckptd::sim {

class World {
 public:
  explicit World(const Options& options);

  // One step. False when an invariant broke: see violation().
  bool Act();
  // Faults stop, everything comes back; then it must progress within `limit` steps. Returns the steps taken.
  uint64_t Heal(uint64_t limit);
  [[nodiscard]] const std::string& violation() const { return violation_; }

  // What happened, for the printout of a run.
  struct Counts {
    uint64_t attempts = 0, captures = 0, commits = 0, deletions = 0, restores = 0, faults = 0, refusals = 0,
             removals = 0, dropped_files = 0, superseded = 0, told_dropped = 0, gone = 0, copies = 0, protections = 0,
             kept = 0, survived = 0, replicas = 0, briefs = 0, asked = 0, made_good = 0, parities = 0, rebuilt = 0,
             regroups = 0, partitions = 0, coordinators = 0, pruned = 0, remains = 0, proven = 0, rotten = 0,
             for_others = 0, retired = 0, damaged = 0;
    std::set<std::string> refused_with;
  };
  [[nodiscard]] const Counts& counts() const { return counts_; }

 private:
  // agents.cc
  void StartAgent(int node);
  void StopAgent(int node);
  void Feed(int node, const job::Event& event);
  void Feed(int node, Rank rank, const snapshot::Event& event);
  void Drain(int node);
  void StepJob(int node, const job::Event& event);
  void StepRank(int node, Rank rank, const snapshot::Event& event);
  snapshot::Machine& RankMachine(int node, Rank rank);
  void Execute(int node, const job::Effect& effect);
  void Execute(int node, Rank rank, const snapshot::Effect& effect);
  void Grant(int node, Rank rank, const snapshot::OpenGrant& effect);
  void Seal(int node, Rank rank, const snapshot::SealSlot& effect);
  void DropFile(int node, Rank rank, const snapshot::SlotId& id);
  void Deliver(int node, Rank rank, snapshot::ProcessId to, Delivery delivery);
  [[nodiscard]] bool Older(int node) const { return options_.older_agents && node % 2 == 1; }
  void SendTo(const std::string& agent, int from, std::variant<job::StatePtr, job::ReportPtr> body);
  void RefuseTicket(int node, const job::Refuse& refuse);
  bool DeliverMessage();
  bool FireTimer();
  bool ReadBell();
  void FeedBell(int node, const Process& process);
  bool NoticeDeath();
  bool PinSomething();
  void AddLayout(int node, Rank rank, uint32_t layout);

  // copies.cc
  [[nodiscard]] bool copying() const { return options_.copies > 1 || options_.parity != 0; }
  // So many nodes of those that depend on each other may be lost.
  [[nodiscard]] uint32_t outlives() const { return options_.parity != 0 ? options_.parity : options_.copies - 1; }
  void ConfigureCopies(job::Config* config) const;
  void ConfigureParity(job::Config* config) const;
  void AdoptCopies(int node);
  void FeedCopies(int node);
  void HearMarks(int node, const job::StatePtr& state);
  void TakeMarks(int node, const job::StatePtr& state);
  void NoteMarks(int node, const v1::State& state);
  bool CopyStep();
  bool OrderCopy(int node);
  [[nodiscard]] SnapshotId FillOf(const RegionSlot& slot);
  [[nodiscard]] bool WaitsForSeal(Transfer& transfer);
  bool MoveOn(Transfer& transfer);
  bool BeginCopy(Transfer& transfer);
  bool TakeSlot(Transfer& transfer);
  std::optional<Image> GiveCopy(int asker, const std::string& agent, Rank rank, const SnapshotId& id);
  [[nodiscard]] std::optional<Image> ImageAt(const Node& node, Rank rank, const SnapshotId& id) const;
  std::optional<Image> FirstCopy(int asker, const std::vector<std::string>& sources, Rank rank, const SnapshotId& id);
  [[nodiscard]] static bool HasCopy(const Node& node, Rank rank, const SnapshotId& id);
  void CheckCopies();
  void LoseNodes(int node);
  void Strike();

  // parity.cc
  void AddParityOf(int node, job::CopiesChanged* event) const;
  void AdoptParity(int node);
  bool ParityStep(int node);
  bool OrderPiece(int node);
  bool MovePiece(Piece& piece);
  [[nodiscard]] bool MayOffer(const Agent& holder, const Piece& piece) const;
  bool OfferPiece(Piece& piece);
  ParityMaking* JoinMaking(const Piece& piece);
  bool BeginParity(int node, Rank key, ParityMaking& making);
  bool SealPiece(const Piece& piece);
  void CompleteParity(int node, Rank key);
  void DropMaking(int node, Rank key);

  // rebuild.cc
  struct Needed {  // of one stripe
    uint32_t there = 0;
    bool unreachable = false;  // somebody who is named
    std::optional<Image> image;
  };
  [[nodiscard]] static const ParitySlot* ParityAt(const Node& node, const protect::ParityPlace& place,
                                                  const SnapshotId& id);
  [[nodiscard]] bool Reachable(int asker, const std::string& agent);
  Needed Gather(const StoreOp& op, const snapshot::Sources& sources, const SnapshotId& id);
  void RunRebuild(const StoreOp& op, const snapshot::Fetch& effect);
  void CannotRebuild(const StoreOp& op, const SnapshotId& id, const Needed& found);
  [[nodiscard]] bool ImageLeft(Rank rank, const SnapshotId& id, uint32_t lost = 0) const;
  [[nodiscard]] bool CanBeRebuilt(Rank rank, const SnapshotId& id, uint32_t lost = 0) const;
  void CheckParity();
  void CheckRebuildable(const v1::DecisionRecord& decision);

  // strikes.cc
  void StrikeAtDecision(int node);
  void StrikeAtOldOrder(int from, int to, AttemptId ordered);
  void Doom();

  // promises.cc
  struct Promise {
    SnapshotId id;
    size_t base = 0;       // losses before this one do not count
    bool carried = false;  // of the attempt before
    job::Groups groups;    // with parity, when it was made
  };
  void NoteLoss(int node);
  void NoteAttempt(AttemptId attempt);
  void NoteUnreached(int node);
  void NoteProtection(const v1::State& state);
  void NoteGroups(const v1::State& state);
  [[nodiscard]] std::optional<size_t> LossesBefore(const v1::State& state) const;
  [[nodiscard]] std::set<int> LostSince(size_t base) const;
  [[nodiscard]] bool Outlived(const Promise& promise) const;
  [[nodiscard]] bool MayBeLost(const Promise& promise, uint32_t lost) const;
  void CheckSurvives(const v1::State& state);
  [[nodiscard]] bool EveryoneAnswered(AttemptId attempt, uint64_t incarnation) const;
  [[nodiscard]] const Promise* PromiseTo(AttemptId attempt, uint64_t incarnation,
                                         const v1::DecisionRecord& before) const;
  void CheckPromise(const v1::DecisionRecord& decision);
  void CheckRefused(const v1::State& state);

  // storage.cc
  bool StoreStep();
  void Ask(StoreOp op);
  void Run(const StoreOp& op);
  void RunJobOp(const StoreOp& op, const job::Effect& effect);
  void ReadBack(const StoreOp& op, const job::VerifyRank& request);
  bool Rot();
  void RunRankOp(const StoreOp& op, const snapshot::Effect& effect);
  void RunFlush(const StoreOp& op, const snapshot::StartFlush& effect);
  void MergeSameStep(const SnapshotId& id);
  void RunFetch(const StoreOp& op, const snapshot::Fetch& effect);
  void FetchFromStorage(const StoreOp& op, const snapshot::Fetch& effect);
  void FindDamage(const StoreOp& op, const snapshot::SlotId& id);
  void FindLayout(const StoreOp& op, const snapshot::FindLayout& effect);
  void FeedRemoval(int node, const job::Event& event);
  void AskForRemoval(int node, const job::Effects& requests);
  [[nodiscard]] bool RunLives(int node) const;
  void Answer(const StoreOp& op, job::Event event);
  void Answer(const StoreOp& op, snapshot::Event event);

  // trainers.cc
  bool TrainerStep();
  void ActRestoring(Process& process);
  void ActRunning(Process& process);
  void CallRestore(Process& process, const v1::Want& want);
  void Connect(Process& process);
  void Take(Process& process);
  void TakeLoad(Process& process, const snapshot::SendLoad& load, const Delivery& delivery);
  void TakeGo(Process& process, const snapshot::SendGo& go);
  void ChooseLayout(Process& process);
  [[nodiscard]] bool WaitsForRoom(Process& process);
  [[nodiscard]] bool GaveRoom(const Process& process, uint32_t layout);
  bool WorkOnCopy(Process& process);
  void FinishLateCopy(Process& process, size_t index);
  void Save(Process& process);
  bool BarrierOpen(const Process& process) const;
  SimBellSlot* Word(Process& process, const snapshot::SlotId& slot);
  Process& Spawn(Rank rank, int node);
  Process* Holder(Rank rank);
  Process* Find(snapshot::ProcessId id);

  // faults.cc
  bool Fault();
  void Kill(Process& process);
  void RestartAll(const v1::Want& want);
  void Place(Rank rank, int node) { placement_[rank] = node; }
  v1::Want SomeStep();
  void LoseNode(int node);
  void CutSlots(Region& region);
  bool Remove(int node);
  void Partition();
  bool LoseCoordinator();
  void ChangeMembers(int node);
  [[nodiscard]] std::vector<std::string> SomeMembers(int node);
  void Rollback();
  void Reincarnate();

  // checker.cc
  void Fail(const std::string& invariant, const std::string& what);
  void CheckRegions();
  void CheckWatermark();
  [[nodiscard]] std::string Judge(const v1::DecisionRecord& decision, const v1::DecisionRecord& before) const;
  void CheckDecision(const v1::DecisionRecord& decision);
  void CheckDurable(const v1::State& state);
  void CheckDelete(const SnapshotId& victim);
  void NoteRemains(const job::PutMarker& marked);
  void CheckRemains(const SnapshotId& written);
  void CheckGo(const Process& process, const snapshot::SendGo& go);
  void NoteState(const v1::State& state);
  void CheckNews(const snapshot::SendNews& news);
  [[nodiscard]] bool Recoverable(const SnapshotId& id) const;
  [[nodiscard]] bool PartLeft(const SnapshotId& id) const;
  [[nodiscard]] SnapshotId NewestSafe(const v1::DecisionRecord& decision) const;
  [[nodiscard]] bool Progressed() const;

  // defences.cc
  struct Heard;
  void CheckSeen(int node, AttemptId attempt);
  void CheckReport(int node, const v1::Report& report);
  void CheckGone(AttemptId attempt, Rank rank);
  void CheckFreed(int node, const RegionSlot& slot);
  void CheckSeal(const snapshot::SealSlot& seal, AttemptId seen);
  void CheckActedUpon(const v1::State& state);
  void NoteReport(const Agent& coordinator, const v1::Report& report);
  void CheckSurveyed(const v1::State& state);
  void CheckTarget(const v1::State& state);
  void CheckKept(const v1::State& state);
  [[nodiscard]] bool InSmallGroup(const v1::State& state);
  [[nodiscard]] std::vector<protect::RankGroup> ToldRankGroups(const v1::State& state);
  void CheckMadeOf(const v1::State& state);
  void CheckTargetEnded(const v1::State& state, const Heard& heard);
  void CheckAnswered(const Agent& coordinator, const v1::DecisionRecord& decision);
  void CheckVoidMarkers(const v1::DecisionRecord& decision, const v1::DecisionRecord& before);

  RegionSlot* SlotOf(int node, Rank rank, const snapshot::SlotId& id);
  std::string AgentName(int node) const { return std::string(1, static_cast<char>('A' + node)); }
  void Trace(const std::string& line) const;

  Options options_;
  Random random_;
  Store store_;
  std::vector<Node> nodes_;
  std::vector<std::unique_ptr<Process>> processes_;
  std::vector<Image> files_;
  std::vector<Message> network_;
  std::vector<StoreOp> ops_;
  std::vector<StoreAnswer> answers_;
  std::vector<Transfer> transfers_;
  uint64_t fills_ = 0;
  std::vector<Piece> pieces_;
  std::deque<StoreAnswer> queue_;  // events to feed before anything else happens
  std::vector<int> placement_;     // node by rank, for the next launch
  std::vector<uint32_t> layout_;   // newest, by rank
  v1::Want want_;                  // of the present generation of trainers
  uint64_t steps_ = 0;
  uint64_t last_id_ = 0;
  uint64_t strike_at_ = 0;  // a promise was made, and is put to the test then
  int doomed_ = -1;         // its agent dies at the end of this step
  int refusals_in_a_row_ = 0;
  bool healing_ = false;
  std::set<std::pair<int, int>> cut_;  // the second does not hear the first,
  uint64_t cut_until_ = 0;             // until then

  // Oracle.
  std::string violation_;
  Counts counts_;
  bool regions_dirty_ = false;
  bool lossy_ = false;  // a node was lost, a rank moved or a part went bad: memory is not all that was promised
  std::map<AttemptId, SnapshotId> declared_;  // newest W by attempt
  std::map<std::pair<AttemptId, Rank>, SnapshotId> loaded_;
  std::set<AttemptId> late_decisions_;       // made when a higher record existed
  std::map<SnapshotId, AttemptId> durable_;  // reported so, and by whom
  std::set<SnapshotId> ever_durable_;
  std::set<SnapshotId> ever_captured_;
  std::set<SnapshotId> heard_durable_;  // by an agent
  std::set<SnapshotId> told_dropped_;
  std::map<SnapshotId, AttemptId> remains_;             // marked so on the history, and by whom
  std::map<uint64_t, std::set<std::string>> answered_;  // by the coordinator's incarnation: agents that answered it
  std::map<std::pair<AttemptId, uint64_t>, std::set<std::string>> answered_in_;  // and by the attempt
  std::set<AttemptId> unreached_in_;                // an image could not be brought from where it was said to be
  std::set<std::pair<AttemptId, uint64_t>> hasty_;  // decided before everyone had answered
  std::map<AttemptId, uint64_t> decided_by_;        // incarnation that made the decision file
  std::set<uint64_t> out_of_patience_;              // incarnations whose decide_timeout has passed
  // What a coordinator of an attempt has heard, with copies on.
  struct Heard {
    bool told = false;            // LOAD
    std::set<std::string> since;  // agents whose REPORT came since then
    SnapshotId target;            // the newest that a REPORT called so
    SnapshotId told_target;
    uint64_t ticks = 0;  // of the timer by which it finds out who is silent
    struct Last {
      uint64_t incarnation = 0;
      uint64_t seq = 0;
      uint64_t tick = 0;
    };
    std::map<std::string, Last> last;  // REPORT since LOAD, by agent
  };
  std::map<std::pair<uint64_t, AttemptId>, Heard> heard_;
  std::set<AttemptId> refused_in_;
  std::map<uint64_t, job::Groups> told_groups_;                   // by the coordinator's incarnation
  std::vector<int> losses_;                                       // nodes, as they were lost
  std::map<std::pair<AttemptId, StepId>, size_t> losses_before_;  // the snapshot was captured; step 0: the attempt
  std::map<std::tuple<AttemptId, SnapshotId, uint64_t>, size_t> losses_before_good_;  // given up, and so many turns
  std::map<AttemptId, Promise> promises_;                                             // of the attempt, to the next one
};

}  // namespace ckptd::sim

#endif  // CKPTD_TESTS_PROTOCOL_WORLD_H_
