#include "tools/bench/fleet.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_format.h"
#include "daemon/job/lineage.h"
#include "tools/bench/measure.h"

namespace ckptd::bench {
namespace {

constexpr char kJob[] = "fleet";
constexpr Nanos kSoon = std::chrono::milliseconds(100);  // timers that are part of an answer, and not a repetition

Ticket TicketOf(Rank rank) { return 1000 + rank; }

}  // namespace

// What one agent holds and has heard. The coordinator's own agent tells its ranks' facts to the machine itself.
struct Fleet::Agent {
  std::string name;
  bool coordinates = false;
  job::StatePtr state;
  uint64_t seq = 0;
  std::vector<v1::RankReport> ranks;
};

Fleet::Fleet(uint32_t ranks, uint32_t per_agent) : per_agent_(per_agent) {
  job::Config config;
  config.job = kJob;
  config.incarnation = 1;
  config.decide_timeout = std::chrono::seconds(10);
  config.resend = config.retry = std::chrono::seconds(1);
  for (Rank rank = 0; rank < ranks; ++rank) {
    if (rank % per_agent == 0) {
      Agent& agent = *agents_.emplace_back(std::make_unique<Agent>());
      agent.name = absl::StrFormat("node-%05d", rank / per_agent);
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

void Fleet::Feed(const job::Event& event) {
  events_.push_back(event);
  while (!events_.empty()) {
    const job::Event next = std::move(events_.front());
    events_.pop_front();
    Step(next);
  }
}

void Fleet::Step(const job::Event& event) {
  job::Effects effects;
  const TimePoint begin = Now();
  machine_->Step(event, effects);
  spent_ += std::chrono::duration_cast<Nanos>(Now() - begin);
  for (const job::Effect& effect : effects) Take(effect);
}

void Fleet::Take(const job::Effect& effect) {
  using namespace job;
  if (const auto* e = std::get_if<SendState>(&effect)) {
    Agent& agent = *by_name_.at(e->agent);
    agent.state = e->state;
    if (agent.coordinates) return events_.push_back(StateReceived{e->state});
    ++sent_messages_;
    sent_bytes_ += e->state->ByteSizeLong();
  } else if (const auto* e = std::get_if<SendReport>(&effect)) {
    events_.push_back(ReportReceived{e->report});
  } else if (const auto* e = std::get_if<StartTimer>(&effect)) {
    if (e->after <= kSoon) timers_.push_back(*e);
  } else if (const auto* e = std::get_if<ReadNewest>(&effect)) {
    events_.push_back(NewestRead{e->op, absl::OkStatus(), false, {}, false, {}});
  } else if (const auto* e = std::get_if<CreateAttempt>(&effect)) {
    events_.push_back(AttemptCreated{e->op, absl::OkStatus()});
  } else if (const auto* e = std::get_if<List>(&effect)) {
    events_.push_back(Listed{e->op, absl::OkStatus(), {}, {}});
  } else if (const auto* e = std::get_if<CreateDecision>(&effect)) {
    events_.push_back(DecisionCreated{e->op, absl::OkStatus(), e->decision});
  } else if (const auto* e = std::get_if<CreateManifest>(&effect)) {
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

void Fleet::Report(Agent& agent) {
  if (agent.state == nullptr) return;
  ++received_messages_;
  auto report = std::make_shared<v1::Report>();
  report->set_job(kJob);
  report->set_agent(agent.name);
  report->set_seen(agent.state->attempt());
  report->set_region_id(1);
  report->set_incarnation(1);
  report->set_seq(++agent.seq);
  report->set_answers(agent.state->incarnation());
  *report->mutable_watermark() = agent.state->watermark();
  report->set_floor(agent.state->floor());
  for (const v1::RankReport& rank : agent.ranks) {
    if (rank.ticket() != 0) *report->add_ranks() = rank;
  }
  Feed(job::ReportReceived{std::move(report)});
}

// One rank of each agent after the other: between two changes on one agent all others tell theirs.
template <typename Change>
void Fleet::ChangeEach(const Change& change) {
  for (uint32_t i = 0; i < per_agent_; ++i) {
    for (const auto& agent : agents_) {
      if (i >= agent->ranks.size()) continue;
      change(agent->ranks[i]);
      agent->ranks[i].set_seen(agent->state == nullptr ? 0 : agent->state->attempt());
      if (agent->coordinates)
        Feed(job::RankChanged{std::make_shared<v1::RankReport>(agent->ranks[i])});
      else
        Report(*agent);
    }
  }
  FireTimers();
}

void Fleet::Restore() {
  const auto world = static_cast<uint32_t>(by_name_.size()) * per_agent_;
  for (v1::RankReport& rank : agents_[0]->ranks) {
    job::Join join;
    join.rank = rank.rank();
    join.ticket = TicketOf(rank.rank());
    join.process = rank.rank() + 1;
    join.world_size = world;
    Feed(join);
  }
  for (const auto& agent : agents_) {
    if (!agent->coordinates) Report(*agent);
  }
  ChangeEach([world](v1::RankReport& rank) {
    rank.set_ticket(TicketOf(rank.rank()));
    rank.set_load(v1::RankReport::WAIT);
    rank.set_world_size(world);
    rank.mutable_want();
  });
  ChangeEach([](v1::RankReport& rank) { rank.set_load(v1::RankReport::LOADED); });
  ChangeEach([](v1::RankReport& rank) { rank.set_load(v1::RankReport::RUN); });
}

void Fleet::Save(uint64_t step) {
  const uint64_t attempt = machine_->view().attempt;
  const auto add = [&](auto* refs) {
    refs->Clear();
    job::SetRef({attempt, step}, refs->Add());
  };
  ChangeEach([&](v1::RankReport& rank) {
    rank.set_fill(step);
    rank.set_pos(step);
  });
  ChangeEach([&](v1::RankReport& rank) {
    rank.set_fill(0);
    add(rank.mutable_sealed());
  });
  ChangeEach([&](v1::RankReport& rank) { add(rank.mutable_persisted()); });
}

}  // namespace ckptd::bench
