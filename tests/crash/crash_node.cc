#include "tests/crash/crash_node.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/format/snapshot_ref.h"
#include "daemon/metrics/agent_metrics.h"
#include "daemon/persist/records_io.h"
#include "daemon/persist/testing/saved_step.h"
#include "daemon/recover/step_check.h"
#include "daemon/storage/posix_store.h"
#include "daemon/storage/step_files.h"
#include "tests/crash/crash_content.h"

namespace ckptd::crash {
namespace {

constexpr int kTries = 5;  // of who is stubborn

const Clock& StoppedClock() {
  static const FakeClock clock;
  return clock;
}

AgentMetrics& Metrics() {
  static AgentMetrics metrics("test", "test");
  return metrics;
}

std::unique_ptr<Store> OpenStore(Files& files, const NodeOptions& node) {
  PosixStoreOptions options;
  options.root = kRoot;
  options.owner = node.agent;
  options.make_queue = node.make_queue;
  options.io_bytes = 8192;
  std::unique_ptr<Store> store = *MakePosixStore(files, options);
  (void)store->Probe();  // what is wrong comes with the first call
  return store;
}

job::Config ConfigOf(const NodeOptions& options) {
  job::Config config;
  config.job = kJob;
  config.agent = options.agent;
  config.members = {options.agent};
  config.incarnation = options.seed + 1;
  config.retention = options.retention;
  config.rules = options.rules;
  return config;
}

// Another one in every process: else a second one would take the first one's record of an attempt for its own.
uint64_t UnusedId() {
  static uint64_t last = static_cast<uint64_t>(getpid()) << 16;
  return ++last;
}

}  // namespace

// Requests to the storage wait for their turn; the rest is done at once.
struct NodeEffects {
  Node& node;

  void operator()(const job::PersistSeen& e) const { node.memory_.seen = e.attempt; }
  void operator()(const job::ForwardState& e) const { node.TakeState(e.state); }
  void operator()(const job::SendState& e) const { node.events_.push_back(job::StateReceived{e.state}); }
  void operator()(const job::SendReport& e) const { node.events_.push_back(job::ReportReceived{e.report}); }
  void operator()(const job::Refuse& e) const {
    node.refused_ = Error(e.code, e.message);
    node.lives_[e.rank].load = v1::RankReport::NONE;
  }
  void operator()(const job::AcceptJoin& e) const {
    node.lives_[e.rank].load = v1::RankReport::WAIT;
    node.lives_[e.rank].loaded = 0;
  }
  void operator()(const job::StartTimer& e) const {
    const bool retry =
        e.kind == job::TimerKind::kRetry || e.kind == job::TimerKind::kUndeleted || e.kind == job::TimerKind::kProve;
    if (retry) node.retries_.push_back(e);
  }
  void operator()(const job::KeepWaiting&) const {}
  void operator()(const job::DeleteEnded&) const {}
  void operator()(const job::EndVerification&) const {}
  template <typename Request>
  void operator()(const Request& request) const {
    node.requests_.push_back(request);
  }
};

Node::Node(Files& files, Memory& memory, NodeOptions options, Witness* witness)
    : memory_(memory),
      options_(std::move(options)),
      witness_(witness),
      posix_(OpenStore(files, options_)),
      store_(posix_.get()),
      machine_(ConfigOf(options_)),
      lives_(options_.world),
      random_(static_cast<uint32_t>(options_.seed)) {
  // The witness hears what the disk was asked for: a mutant above it cannot lie to it.
  if (witness_ != nullptr) store_ = (watched_ = MakeWitnessStore(*store_, *witness_)).get();
  if (options_.around) store_ = (around_ = options_.around(*store_, files)).get();
  storage_.emplace(*store_, Metrics(), kJob);
  (void)store_->RemoveLeftovers("");  // as the first probe of the storage does
  (void)RemoveJobLeftovers(*store_, kJob);
  Feed(job::Started{memory_.seen, /*region_id=*/7, /*lost=*/0});
  for (auto& [rank, seat] : memory_.seats) {
    if (!seat.running) continue;
    lives_[rank].load = v1::RankReport::RUN;
    Feed(job::Resumed{rank, seat.process});
    Feed(job::RankChanged{FactsOf(rank)});
  }
  JoinAll();
  for (const auto& [id, persisted] : memory_.sealed) {
    for (Rank rank = 0; rank < options_.world; ++rank) {
      if (!persisted.contains(rank)) StartFlush(id, rank);
    }
  }
}

uint64_t Node::NextId() { return options_.ids == 0 ? UnusedId() : options_.ids + given_ids_++; }

void Node::Tell(const Fact& fact) {
  if (witness_ != nullptr) witness_->Hear(fact);
}

absl::Status Node::Restore() { return RestoreAs({}); }
void Node::BeginRestore() { BeginRestore({}); }

absl::Status Node::RollBack(const SnapshotId& id) { return RestoreAs(WantBack(id)); }
void Node::BeginRollBack(const SnapshotId& id) { BeginRestore(WantBack(id)); }

v1::Want Node::WantBack(const SnapshotId& id) {
  Tell({.kind = Fact::kBeginRollBack, .id = id});
  v1::Want want;
  want.set_kind(v1::Want::STEP);
  want.set_step(id.step);
  return want;
}

absl::Status Node::RestoreAs(const v1::Want& want) {
  BeginRestore(want);
  absl::Status status = Await();
  for (int tries = 0; !status.ok() && options_.stubborn && tries < kTries; ++tries) {
    Retry();
    status = Await();
    if (status.ok()) break;
    BeginRestore(want);
    status = Await();
  }
  return status;
}

void Node::BeginRestore(const v1::Want& want) {
  for (auto& [rank, seat] : memory_.seats) Feed(job::Reaped{rank, seat.process});
  memory_.want = want;
  for (Rank rank = 0; rank < options_.world; ++rank) {
    memory_.seats[rank] = {NextId(), NextId(), false, 0};
    lives_[rank] = {};
  }
  JoinAll();
}

absl::Status Node::Await() {
  while (!Running() && refused_.ok() && Work()) continue;
  if (!refused_.ok()) return std::exchange(refused_, absl::OkStatus());
  return Running() ? absl::OkStatus() : absl::UnavailableError("restore() has no answer and nothing is left to do");
}

bool Node::Running() const {
  return std::all_of(memory_.seats.begin(), memory_.seats.end(), [](const auto& seat) { return seat.second.running; });
}

void Node::JoinAll() {
  for (const auto& [rank, seat] : memory_.seats) {
    if (seat.running) continue;
    job::Join join;
    join.rank = rank;
    join.ticket = seat.ticket;
    join.process = seat.process;
    join.world_size = options_.world;
    join.want = memory_.want;
    Feed(join);
  }
}

void Node::Save(StepId step) {
  const SnapshotId id{machine_.view().seen, step};
  memory_.sealed[id] = {};
  for (Rank rank = 0; rank < options_.world; ++rank) {
    memory_.seats[rank].pos = step;
    StartFlush(id, rank);
  }
  for (Rank rank = 0; rank < options_.world; ++rank) Feed(job::RankChanged{FactsOf(rank)});
}

bool Node::Work() {
  const size_t choices = requests_.size() + flushes_.size();
  if (choices == 0) return false;
  const size_t choice = random_() % choices;
  choice < requests_.size() ? DoRequest(choice) : DoFlush(choice - requests_.size());
  return true;
}

void Node::Drain() {
  for (int tries = 0;; ++tries) {
    while (Work()) continue;
    if (!options_.stubborn || (failed_.empty() && retries_.empty()) || tries == kTries) return;
    Retry();
  }
}

void Node::Retry() {
  for (std::unique_ptr<Flush>& flush : std::exchange(failed_, {})) StartFlush(flush->id, flush->rank);
  for (const job::StartTimer& timer : std::exchange(retries_, {})) Feed(job::TimerFired{timer.kind, timer.key});
}

void Node::Delete(const SnapshotId& id) { Feed(job::DeleteRequested{NextId(), id}); }

void Node::SetPinned(const SnapshotId& id, bool pinned) {
  if (ckptd::SetPinned(*store_, kJob, id, pinned).ok()) Feed(job::PinChanged{id, pinned});
}

void Node::Feed(job::Event event) {
  events_.push_back(std::move(event));
  if (std::exchange(feeding_, true)) return;
  while (!events_.empty()) {
    const job::Event next = std::move(events_.front());
    events_.pop_front();
    job::Effects effects;
    machine_.Step(next, effects);
    for (const job::Effect& effect : effects) std::visit(NodeEffects{*this}, effect);
  }
  feeding_ = false;
}

void Node::DoRequest(size_t index) {
  const job::Effect request = std::move(requests_[index]);
  requests_.erase(requests_.begin() + static_cast<ptrdiff_t>(index));
  std::visit(
      [&](const auto& e) {
        if constexpr (std::is_invocable_v<JobStorage, decltype(e)>) Feed((*storage_)(e));
      },
      request);
}

void Node::StartFlush(const SnapshotId& id, Rank rank) {
  auto flush = std::make_unique<Flush>();
  flush->rank = rank;
  flush->id = id;
  TestSlot& slot = SlotOf(id, rank, options_.world);
  flush->source = SourceOf(kJob, rank, options_.world, id, slot);
  for (uint32_t chunk = 0; chunk < slot.ChunkCrcs().size(); ++chunk) flush->chunks.push_back(chunk);
  std::shuffle(flush->chunks.begin(), flush->chunks.end(), random_);
  flush->flush = std::make_unique<RankFlush>(*store_, StoppedClock(), flush->source);
  flushes_.push_back(std::move(flush));
}

void Node::DoFlush(size_t index) {
  Flush& flush = *flushes_[index];
  absl::Status status;
  if (!flush.chunks.empty()) {
    status = flush.flush->WriteChunk(flush.chunks.back());
    flush.chunks.pop_back();
    if (status.ok()) return;
  } else {
    FlushSeal seal = SealOf(SlotOf(flush.id, flush.rank, options_.world));
    seal.parent = memory_.parent;
    status = flush.flush->Finish(seal);
  }
  std::unique_ptr<Flush> ended = std::move(flushes_[index]);
  flushes_.erase(flushes_.begin() + static_cast<ptrdiff_t>(index));
  ended->flush.reset();
  EndFlush(*ended, status);
  if (!status.ok()) failed_.push_back(std::move(ended));
}

void Node::EndFlush(const Flush& flush, const absl::Status& status) {
  if (!status.ok()) return;
  const auto sealed = memory_.sealed.find(flush.id);
  if (sealed == memory_.sealed.end()) return;
  sealed->second.insert(flush.rank);
  Feed(job::RankChanged{FactsOf(flush.rank)});
}

void Node::TakeState(const job::StatePtr& state) {
  for (Rank rank = 0; rank < options_.world; ++rank) TakeStateOfRank(*state, rank);
  Told(*state);
  for (const auto& [rank, seat] : memory_.seats) events_.push_back(job::RankChanged{FactsOf(rank)});
}

void Node::TakeStateOfRank(const v1::State& state, Rank rank) {
  const auto found = memory_.seats.find(rank);
  if (found == memory_.seats.end()) return;
  Memory::Seat& seat = found->second;
  RankLife& life = lives_[rank];
  if (state.phase() == v1::State::GATHER) {
    if (life.load == v1::RankReport::FAILED || life.load == v1::RankReport::LOADED) life.load = v1::RankReport::WAIT;
    life.failure = absl::OkStatus();
    return;
  }
  const auto& claims = state.decision().ranks();
  const bool named =
      std::any_of(claims.begin(), claims.end(), [&](const auto& c) { return c.ticket() == seat.ticket; });
  if (!named || life.load == v1::RankReport::NONE || seat.running) return;
  if (life.loaded != state.attempt()) {
    life.loaded = state.attempt();
    life.failure = Load(ToId(state.decision().parent()), rank);
    life.load = life.failure.ok() ? v1::RankReport::LOADED : v1::RankReport::FAILED;
  }
  if (state.phase() != v1::State::RUN || life.load != v1::RankReport::LOADED) return;
  life.load = v1::RankReport::RUN;
  seat.running = true;
}

// Into the trainer's tensors, as the agent does it; from the region where it is there.
absl::Status Node::Load(const SnapshotId& id, Rank rank) {
  if (id.none() || memory_.sealed.contains(id)) return absl::OkStatus();
  CKPTD_ASSIGN_OR_RETURN(auto sidecar, CommittedSidecar(*store_, kJob, id, rank));
  CKPTD_RETURN_IF_ERROR(ReadHeaders(*store_, kJob, sidecar, 1 << 20).status());
  const std::span<std::byte> saved = SlotOf(id, rank, options_.world).bytes();
  bool same = sidecar.slot_bytes() == saved.size();
  CheckedReadOptions read;
  read.sink = [&](uint64_t offset, std::span<const std::byte> bytes) {
    same = same && offset + bytes.size() <= saved.size() &&
           std::memcmp(bytes.data(), saved.data() + offset, bytes.size()) == 0;
    return absl::OkStatus();
  };
  CKPTD_RETURN_IF_ERROR(ReadChecked(*store_, ToStoredRank(kJob, sidecar), read));
  if (!same) wrong_ = absl::StrCat("R1: rank ", rank, " of step ", ToString(id), " was given bytes it never saved");
  return absl::OkStatus();
}

// What trainers learn: where they stand, and what is durable.
void Node::Told(const v1::State& state) {
  if (state.phase() != v1::State::RUN) return;
  const SnapshotId parent = ToId(state.decision().parent());
  if (lives_[0].loaded == state.attempt() && memory_.seats.at(0).running && told_ != state.attempt()) {
    told_ = state.attempt();
    memory_.parent = parent;
    const bool back = memory_.want.kind() == v1::Want::STEP;
    const auto& skipped = state.decision().skipped();
    const bool unread = std::any_of(skipped.begin(), skipped.end(), [](const v1::SkippedStep& step) {
      return static_cast<ErrorCode>(step.code()) != ErrorCode::REFUSED;
    });
    if (unread) Tell({.kind = Fact::kSkipped, .id = parent});
    Tell({.kind = back ? Fact::kRolledBack : Fact::kStanding, .id = parent, .attempt = told_});
  }
  const SnapshotId durable = ToId(state.durable());
  if (durable <= told_durable_) return;
  told_durable_ = durable;
  Tell({.kind = Fact::kDurable, .id = durable});
  // The region keeps what no newer step has made superfluous.
  std::erase_if(memory_.sealed, [&](const auto& sealed) { return sealed.first < durable; });
}

job::RankReportPtr Node::FactsOf(Rank rank) const {
  const Memory::Seat& seat = memory_.seats.at(rank);
  auto facts = std::make_shared<v1::RankReport>();
  facts->set_rank(rank);
  facts->set_seen(memory_.seen);
  facts->set_ticket(seat.ticket);
  facts->set_load(lives_[rank].load);
  facts->set_pos(seat.pos);
  for (const auto& [id, persisted] : memory_.sealed) {
    SetRef(id, facts->add_sealed());
    if (persisted.contains(rank)) SetRef(id, facts->add_persisted());
  }
  if (!lives_[rank].failure.ok()) {
    facts->set_failure_code(static_cast<uint32_t>(CodeOf(lives_[rank].failure)));
    facts->set_failure(std::string(lives_[rank].failure.message()));
    facts->set_failed_source(v1::RankReport::STORAGE);
  }
  return facts;
}

}  // namespace ckptd::crash
