#include "tools/bench/fleet.h"

#include <time.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_format.h"
#include "daemon/erasure/rotation.h"
#include "daemon/format/snapshot_ref.h"
#include "daemon/protect/groups.h"
#include "proto/ckptd/v1/link.pb.h"
#include "tools/bench/measure.h"

namespace ckptd::bench {
namespace {

constexpr char kJob[] = "fleet";
constexpr Nanos kSoon = std::chrono::milliseconds(100);  // timers that are part of an answer, and not a repetition

Nanos ThreadCpu() {
  timespec now{};
  (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

// Of its `restore`th restore().
Ticket TicketOf(Rank rank, uint32_t restore) { return (Ticket{restore} << 32) + 1000 + rank; }

job::ProcessId ProcessOf(Rank rank) { return rank + 1; }

// Groups of `size`, one after the other; what is left over joins the last one.
job::Groups InTurn(const std::vector<std::string>& agents, size_t size) {
  job::Groups groups;
  for (size_t i = 0; i < agents.size(); ++i) {
    if (i % size == 0 && agents.size() - i >= size) groups.emplace_back();
    groups.back().push_back(agents[i]);
  }
  return groups;
}

// The newest of as many as there are slots for.
void Add(const SnapshotId& id, int slots, google::protobuf::RepeatedPtrField<v1::SnapshotRef>* refs) {
  if (refs->size() == slots) refs->DeleteSubrange(0, 1);
  SetRef(id, refs->Add());
}

}  // namespace

// What one agent holds and has heard. The coordinator's own agent tells its ranks' facts to the machine itself.
struct Fleet::Agent {
  std::string name;
  bool coordinates = false;
  bool owes = false;  // an answer to `state`
  job::StatePtr state;
  uint64_t seq = 0;
  std::vector<v1::RankReport> ranks;
  std::vector<v1::HeldCopies> copies;
  std::vector<v1::HeldParity> parity;
};

Fleet::Fleet(const Options& options) : options_(options) {
  job::Config config;
  config.job = kJob;
  config.incarnation = 1;
  config.decide_timeout = std::chrono::seconds(10);
  config.resend = config.retry = std::chrono::seconds(1);
  config.copies = options.copies;
  config.parity = options.parity;
  const uint32_t group = options.parity > 0 ? options.data + options.parity : options.copies;
  if (protecting()) config.place = [group](const auto& agents, const auto&) { return InTurn(agents, group); };
  for (Rank rank = 0; rank < options.ranks; ++rank) {
    if (rank % options.per_agent == 0) {
      Agent& agent = *agents_.emplace_back(std::make_unique<Agent>());
      agent.name = absl::StrFormat("node-%05d", rank / options.per_agent);
      by_name_[agent.name] = &agent;
      config.members.push_back(agent.name);
    }
    agents_.back()->ranks.emplace_back().set_rank(rank);
  }
  agents_[0]->coordinates = true;
  config.agent = agents_[0]->name;
  machine_ = std::make_unique<job::Machine>(config);
  Feed(job::Started{0, 1, 0});
}

Fleet::~Fleet() = default;

bool Fleet::runs() const { return machine_->view().phase == job::Phase::kRun; }
uint64_t Fleet::durable() const { return machine_->view().durable.step; }
uint64_t Fleet::protected_step() const { return machine_->view().protected_.step; }
uint64_t Fleet::restored_step() const { return machine_->view().parent.step; }

std::string Fleet::why_skipped() const {
  const auto& skipped = decisions_.back().skipped();
  return skipped.empty() ? "" : skipped[skipped.size() - 1].reason();
}

template <typename Work>
auto Fleet::Timed(const Work& work) {
  const Nanos cpu = ThreadCpu();
  const TimePoint begin = Now();
  auto result = work();
  spent_ += std::chrono::duration_cast<Nanos>(Now() - begin);
  cpu_ += ThreadCpu() - cpu;
  return result;
}

void Fleet::Feed(const job::Event& event) {
  events_.push_back(event);
  while (!events_.empty()) {
    const job::Event next = std::move(events_.front());
    events_.pop_front();
    Step(next);
  }
}

void Fleet::Step(const job::Event& event) {
  const job::Effects effects = Timed([&] {
    job::Effects out;
    machine_->Step(event, out);
    return out;
  });
  for (const job::Effect& effect : effects) Take(effect);
}

void Fleet::Take(const job::Effect& effect) {
  using namespace job;
  if (const auto* e = std::get_if<SendState>(&effect)) {
    TakeState(*e);
  } else if (const auto* e = std::get_if<SendReport>(&effect)) {
    events_.push_back(ReportReceived{e->report});
  } else if (const auto* e = std::get_if<ForwardState>(&effect)) {
    TellCopies(e->state->attempt());
  } else if (const auto* e = std::get_if<StartTimer>(&effect)) {
    if (e->after <= kSoon) timers_.push_back(*e);
  } else {
    Store(effect);
  }
}

// What is created is listed.
void Fleet::Store(const job::Effect& effect) {
  using namespace job;
  if (const auto* e = std::get_if<ReadNewest>(&effect)) {
    const bool found = !records_.empty();
    const bool decided = found && decisions_.size() == records_.size();
    events_.push_back(NewestRead{e->op, absl::OkStatus(), found, found ? records_.back() : v1::AttemptRecord(), decided,
                                 decided ? decisions_.back() : v1::DecisionRecord()});
  } else if (const auto* e = std::get_if<CreateAttempt>(&effect)) {
    records_.push_back(e->record);
    events_.push_back(AttemptCreated{e->op, absl::OkStatus()});
  } else if (const auto* e = std::get_if<List>(&effect)) {
    events_.push_back(Listed{e->op, absl::OkStatus(), decisions_, steps_});
  } else if (const auto* e = std::get_if<CreateDecision>(&effect)) {
    decisions_.push_back(e->decision);
    events_.push_back(DecisionCreated{e->op, absl::OkStatus(), e->decision});
  } else if (const auto* e = std::get_if<CreateManifest>(&effect)) {
    steps_.push_back({e->id, options_.ranks, options_.ranks, true});
    events_.push_back(ManifestCreated{e->op, absl::OkStatus()});
  } else if (const auto* e = std::get_if<CheckNewest>(&effect)) {
    events_.push_back(NewestChecked{e->op, absl::OkStatus(), machine_->view().attempt});
  }
}

// What the coordinator waits for by its own choice is part of what is measured.
void Fleet::FireTimers() {
  while (!timers_.empty()) {
    const job::StartTimer timer = timers_.front();
    timers_.erase(timers_.begin());
    spent_ += timer.after;
    Feed(job::TimerFired{timer.kind, timer.key});
  }
}

// As a link writes it.
void Fleet::TakeState(const job::SendState& effect) {
  Agent& agent = *by_name_.at(effect.agent);
  agent.state = effect.state;
  if (agent.coordinates) return events_.push_back(job::StateReceived{effect.state});
  agent.owes = true;
  ++sent_messages_;
  if (!options_.wire) {
    sent_bytes_ += effect.state->ByteSizeLong();
    return;
  }
  sent_bytes_ += Timed([&] { return recent_states_.Of(effect.state).wire()->size(); });
}

// As a link reads it.
void Fleet::HearReport(const v1::Report& report) {
  v1::LinkRequest sent;
  *sent.mutable_report() = report;
  const std::string bytes = sent.SerializeAsString();
  received_bytes_ += bytes.size();
  Feed(job::ReportReceived{Timed([&] {
    v1::LinkRequest request;
    (void)request.ParseFromString(bytes);
    return std::make_shared<const v1::Report>(std::move(*request.mutable_report()));
  })});
}

void Fleet::Report(Agent& agent) {
  agent.owes = false;
  if (agent.state == nullptr || agent.coordinates) return;
  ++received_messages_;
  auto report = std::make_shared<v1::Report>();
  report->set_job(kJob);
  report->set_agent(agent.name);
  report->set_seen(agent.state->attempt());
  report->set_region_id(1);
  report->set_incarnation(1);
  report->set_seq(++agent.seq);
  report->set_answers(agent.state->incarnation());
  report->set_heard(agent.state->version());
  report->set_completes(true);
  *report->mutable_watermark() = agent.state->watermark();
  report->set_floor(agent.state->floor());
  for (const v1::RankReport& rank : agent.ranks) {
    if (rank.ticket() == 0) continue;
    *report->add_ranks() = rank;
    report->mutable_ranks(report->ranks_size() - 1)->set_seen(agent.state->attempt());
  }
  report->mutable_copies()->Assign(agent.copies.begin(), agent.copies.end());
  report->mutable_parity()->Assign(agent.parity.begin(), agent.parity.end());
  *report->mutable_protected_() = agent.state->protected_();
  *report->mutable_protecting() = agent.state->protecting();
  *report->mutable_unprotected() = agent.state->unprotected();
  if (options_.wire) return HearReport(*report);
  Feed(job::ReportReceived{std::move(report)});
}

// Every agent answers each STATE; the answers may make another one.
void Fleet::Answer() {
  for (bool owed = true; owed;) {
    FireTimers();
    owed = false;
    for (const auto& agent : agents_) {
      if (!agent->owes || agent->coordinates) continue;
      owed = true;
      Report(*agent);
    }
  }
}

void Fleet::Tell(Agent& agent, uint32_t rank) {
  if (!agent.coordinates) return Report(agent);
  agent.ranks[rank].set_seen(agent.state == nullptr ? 0 : agent.state->attempt());
  Feed(job::RankChanged{std::make_shared<v1::RankReport>(agent.ranks[rank])});
}

// One rank of each agent after the other: between two changes on one agent all others tell theirs.
template <typename Change>
void Fleet::ChangeEach(const Change& change) {
  const size_t batch = std::max<size_t>(1, agents_.size() * options_.per_agent / options_.batches);
  size_t told = 0;
  Nanos last{};
  for (uint32_t i = 0; i < options_.per_agent; ++i) {
    for (const auto& agent : agents_) {
      last = spent_;
      change(agent->ranks[i]);
      Tell(*agent, i);
      if (++told % batch == 0 && told + batch < agents_.size() * options_.per_agent) Answer();
    }
  }
  FireTimers();
  decided_after_ = spent_ - last;
  Answer();
}

// Each agent holds what the ones before it in its group have: room for it is made with the first copy.
void Fleet::PlaceCopies() {
  for (const v1::HolderGroup& group : agents_[0]->state->groups()) {
    for (int i = 0; i < group.agents_size(); ++i) {
      Agent& holder = *by_name_.at(group.agents(i));
      for (int back = 1; back < static_cast<int>(options_.copies); ++back) {
        const int owner = (i + group.agents_size() - back) % group.agents_size();
        for (const v1::RankReport& rank : by_name_.at(group.agents(owner))->ranks)
          holder.copies.emplace_back().set_rank(rank.rank());
      }
    }
  }
}

// Each agent keeps its stripes' parity of each group of ranks that it has one of.
void Fleet::PlaceParity() {
  for (const protect::RankGroup& group : protect::RankGroupsOf(*agents_[0]->state)) {
    const erasure::Shape shape = *protect::ShapeOf(group.ranks.size(), options_.parity);
    for (uint32_t stripe = 0; stripe < shape.members(); ++stripe) {
      for (uint32_t row = 0; row < shape.parity; ++row) {
        const std::string& holder = group.agents[erasure::ParityHolder(shape, stripe, row)];
        v1::HeldParity& held = by_name_.at(holder)->parity.emplace_back();
        held.mutable_ranks()->Assign(group.ranks.begin(), group.ranks.end());
        held.set_parity(options_.parity);
        held.set_stripe(stripe);
        held.set_row(row);
      }
    }
  }
}

// What the coordinator's agent keeps for others stands still while an attempt is decided.
void Fleet::TellCopies(AttemptId attempt) {
  if (attempt == copies_told_) return;
  copies_told_ = attempt;
  events_.push_back(job::CopiesChanged{attempt, agents_[0]->copies, agents_[0]->parity});
}

void Fleet::KeepProtecting(Agent& agent, size_t i, const SnapshotId& id) {
  if (i < agent.copies.size()) Add(id, options_.slots, agent.copies[i].mutable_complete());
  if (i < agent.parity.size()) Add(id, options_.slots, agent.parity[i].mutable_complete());
  if (!agent.coordinates) return Report(agent);
  Feed(job::CopiesChanged{agent.state->attempt(), agent.copies, agent.parity});
}

// One copy, or one piece of parity, of each agent after the other.
void Fleet::ProtectEach(const SnapshotId& id) {
  if (agents_[0]->copies.empty() && agents_[0]->parity.empty()) options_.parity > 0 ? PlaceParity() : PlaceCopies();
  const size_t batch = std::max<size_t>(1, agents_.size() * options_.per_agent / options_.batches);
  const size_t each = std::max(agents_[0]->copies.size(), agents_[0]->parity.size());
  size_t told = 0;
  for (size_t i = 0; i < each; ++i) {
    for (const auto& agent : agents_) {
      KeepProtecting(*agent, i, id);
      if (++told % batch == 0) Answer();
    }
  }
  Answer();
}

void Fleet::Restore() {
  ++restores_;
  for (v1::RankReport& rank : agents_[0]->ranks) {
    job::Join join;
    join.rank = rank.rank();
    join.ticket = TicketOf(rank.rank(), restores_);
    join.process = ProcessOf(rank.rank());
    join.world_size = options_.ranks;
    Feed(join);
  }
  Answer();
  ChangeEach([this](v1::RankReport& rank) {
    rank.set_ticket(TicketOf(rank.rank(), restores_));
    rank.set_load(v1::RankReport::WAIT);
    rank.set_world_size(options_.ranks);
    rank.mutable_want();
  });
  const Nanos decided = decided_after_;
  ChangeEach([](v1::RankReport& rank) { rank.set_load(v1::RankReport::LOADED); });
  ChangeEach([](v1::RankReport& rank) { rank.set_load(v1::RankReport::RUN); });
  decided_after_ = decided;
}

void Fleet::Lose(uint32_t nodes) {
  for (const v1::RankReport& rank : agents_[0]->ranks) Feed(job::Reaped{rank.rank(), ProcessOf(rank.rank())});
  for (const auto& agent : agents_) {
    for (v1::RankReport& rank : agent->ranks) {
      rank.set_load(v1::RankReport::NONE);
      rank.set_fill(0);
      rank.set_pos(0);
    }
  }
  for (size_t i = agents_.size() - nodes; i < agents_.size(); ++i) {
    for (v1::RankReport& rank : agents_[i]->ranks) rank.clear_sealed();
    agents_[i]->copies.clear();
    agents_[i]->parity.clear();
  }
}

void Fleet::Save(uint64_t step) {
  const SnapshotId id{machine_->view().attempt, step};
  ChangeEach([&](v1::RankReport& rank) {
    rank.set_fill(step);
    rank.set_pos(step);
  });
  ChangeEach([&](v1::RankReport& rank) {
    rank.set_fill(0);
    Add(id, options_.slots, rank.mutable_sealed());
  });
  if (protecting()) ProtectEach(id);
  ChangeEach([&](v1::RankReport& rank) { Add(id, options_.slots, rank.mutable_persisted()); });
}

void Fleet::Hold(uint64_t step) {
  const SnapshotId id{machine_->view().attempt, step};
  for (const auto& agent : agents_) {
    for (v1::RankReport& rank : agent->ranks) Add(id, options_.slots, rank.mutable_sealed());
    for (v1::HeldCopies& held : agent->copies) Add(id, options_.slots, held.mutable_complete());
    for (v1::HeldParity& held : agent->parity) Add(id, options_.slots, held.mutable_complete());
  }
}

}  // namespace ckptd::bench
