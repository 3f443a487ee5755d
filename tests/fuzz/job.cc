// What other agents say of a job, STATE and REPORT (job.proto), as it comes through the links: checked
// (daemon/transport/link_message.h), then given to the job's machine of a node that is a member, or coordinates three
// nodes with copies or with parity. Between them the storage answers, timers fire and members come and go.
//
// Whoever proves to be agent B or C may say anything of itself; it never makes this agent's number of the highest
// attempt smaller, nor W or the floor of an attempt, and nothing is sent to whom is no member.
//
//   byte 0   bit 0: rank 0 joins here; bits 1, 2: nothing, copies, parity
//   steps    u8 which, see Step; of a message: u16 length, and the message on the wire
#include <deque>
#include <set>

#include "daemon/job/machine.h"
#include "daemon/transport/link_message.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/wire.h"

namespace ckptd::fuzz {

// A machine keeps the newest REPORT of each agent, and says a STATE for it to each.
const Allowed kAllowed = {4 << 20, 2048};

namespace {

using namespace job;  // NOLINT(google-build-using-namespace): the machine's events and effects

constexpr size_t kMostSteps = 64;
constexpr uint64_t kRegionId = 7;

Config ConfigOf(uint8_t bits) {
  Config config;
  config.job = "gpt";
  config.agent = "A";
  config.user = "1000";
  config.members = {"A", "B", "C"};
  config.incarnation = 5;
  config.resend = std::chrono::seconds(1);
  config.decide_timeout = std::chrono::seconds(10);
  if ((bits & 2) != 0) config.copies = 2;
  if ((bits & 4) != 0) config.parity = 1;
  config.place = [](const std::vector<std::string>& agents, const Groups&) { return Groups{agents}; };
  return config;
}

class Node {
 public:
  explicit Node(uint8_t bits) : machine_(ConfigOf(bits)) {
    Feed(Started{0, kRegionId});
    Feed(CopiesChanged{});
    if ((bits & 1) == 0) return;
    Join join;
    join.ticket = 7;
    join.process = 70;
    join.world_size = 2;
    Feed(join);
  }

  void Step(Reader& in) {
    switch (in.Take<uint8_t>() % 8) {
      case 0:
        return Answer(in.Take<uint8_t>());
      case 1:
        return Fire(in.Take<uint8_t>());
      case 2:
        return Feed(MembersChanged{in.Take<uint8_t>() % 2 == 0 ? std::vector<std::string>{"A", "B"}
                                                               : std::vector<std::string>{"A", "B", "C", "D"}});
      case 3:
      case 4:
        return Hear<v1::Report>(in);
      default:
        return Hear<v1::State>(in);
    }
  }

 private:
  // The links know who speaks; which job it is about the agent has looked up.
  template <typename Message>
  void Hear(Reader& in) {
    const std::string agent(1, in.Take<uint8_t>() % 2 == 0 ? 'B' : 'C');
    auto message = std::make_shared<Message>();
    if (!Parse(TextOf(in.Bytes(in.Take<uint16_t>())), *message)) return;
    message->set_job("gpt");
    Name(*message, agent);
    const transport::LinkMessage heard{std::shared_ptr<const Message>(message)};
    if (!transport::CheckReceived(heard, agent).ok()) return;
    if (heard.state()) return Feed(StateReceived{heard.state()});
    Feed(ReportReceived{heard.report()});
  }
  static void Name(v1::State& state, const std::string& agent) { state.set_coordinator(agent); }
  static void Name(v1::Report& report, const std::string& agent) { report.set_agent(agent); }

  void Feed(const Event& event) {
    events_.push_back(event);
    for (int turns = 0; !events_.empty(); ++turns) {
      FUZZ_CHECK(turns < 10000);  // it comes to rest
      Effects effects;
      machine_.Step(events_.front(), effects);
      events_.pop_front();
      for (const Effect& effect : effects) Take(effect);
      CheckNumbers();
    }
  }
  void Take(const Effect& effect) {
    if (const auto* state = std::get_if<SendState>(&effect)) return To(state->agent, StateReceived{state->state});
    if (const auto* report = std::get_if<SendReport>(&effect)) return To(report->agent, ReportReceived{report->report});
    if (const auto* timer = std::get_if<StartTimer>(&effect)) timers_.push_back({timer->kind, timer->key});
    if (timers_.size() > kMostSteps) timers_.pop_front();
    asked_.push_back(effect);
    if (asked_.size() > kMostSteps) asked_.pop_front();
  }
  void To(const std::string& agent, const Event& event) {
    FUZZ_CHECK(agent.size() <= transport::kMaxAgentBytes);
    if (agent == "A") events_.push_back(event);
  }
  void CheckNumbers() {
    const View view = machine_.view();
    FUZZ_CHECK(view.seen >= seen_);
    const bool same = view.attempt == attempt_ && (view.attempt != 0 || view.seen == seen_);
    if (same) FUZZ_CHECK(view.floor >= floor_);
    seen_ = view.seen;
    attempt_ = view.attempt;
    floor_ = view.floor;
  }
  void Fire(uint8_t which) {
    if (timers_.empty()) return;
    const auto [kind, key] = timers_[which % timers_.size()];
    Feed(TimerFired{kind, key});
  }
  // What was asked of the storage last: done, or not.
  void Answer(uint8_t how) {
    if (asked_.empty()) return;
    const Effect effect = asked_.back();
    asked_.pop_back();
    const absl::Status status = how % 8 == 0 ? absl::UnavailableError("no storage") : absl::OkStatus();
    if (const auto* e = std::get_if<ReadNewest>(&effect)) return Feed(NewestRead{e->op, status, false, {}, false, {}});
    if (const auto* e = std::get_if<CreateAttempt>(&effect)) return Feed(AttemptCreated{e->op, status});
    if (const auto* e = std::get_if<List>(&effect)) return Feed(Listed{e->op, status, {}, {}});
    if (const auto* e = std::get_if<CreateDecision>(&effect)) return Feed(DecisionCreated{e->op, status, e->decision});
    if (const auto* e = std::get_if<CreateManifest>(&effect)) return Feed(ManifestCreated{e->op, status});
    if (const auto* e = std::get_if<CheckNewest>(&effect)) return Feed(NewestChecked{e->op, status, attempt_});
    if (const auto* e = std::get_if<VerifyRank>(&effect)) return Feed(RankVerified{e->op, status});
    if (const auto* e = std::get_if<PutMarker>(&effect)) return Feed(MarkerPut{e->op, status});
    if (const auto* e = std::get_if<DeleteStep>(&effect)) return Feed(StepDeleted{e->op, status});
    if (const auto* e = std::get_if<LookAtPin>(&effect)) return Feed(PinLooked{e->op, status, how % 2 == 0});
    if (const auto* e = std::get_if<PruneRecords>(&effect)) return Feed(RecordsPruned{e->op, status, attempt_});
    Answer(how);  // no question
  }

  Machine machine_;
  std::deque<Event> events_;
  std::deque<std::pair<TimerKind, uint64_t>> timers_;
  std::deque<Effect> asked_;
  AttemptId seen_ = 0;
  AttemptId attempt_ = 0;
  StepId floor_ = 0;
};

}  // namespace

void Run(Input input) {
  Reader in(input);
  Node node(in.Take<uint8_t>());
  for (size_t step = 0; step < kMostSteps && !in.done(); ++step) node.Step(in);
}

}  // namespace ckptd::fuzz
