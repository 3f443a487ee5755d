// For tests of the job's machine on one agent: feeds it events, answers for the storage, and keeps what it wanted.
#ifndef CKPTD_DAEMON_JOB_MACHINE_TEST_UTIL_H_
#define CKPTD_DAEMON_JOB_MACHINE_TEST_UTIL_H_

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "daemon/format/snapshot_ref.h"
#include "daemon/job/job_test_util.h"
#include "daemon/job/machine.h"
#include "gtest/gtest.h"

namespace ckptd::job {

// One agent, rank 0 of 1, storage answers by hand.
class JobTest : public testing::Test {
 protected:
  JobTest() : machine_(MakeConfig()) { Feed(Started{}); }

  static Config MakeConfig() {
    Config config;
    config.job = "gpt";
    config.agent = "A";
    config.members = {"A"};
    config.user = "1000";
    config.incarnation = 5;
    config.retention.keep_last = 1;
    return config;
  }

  // The newest record, of rank 0 with ticket 7; not decided.
  static NewestRead ReadOfAttempt3(OpId op, const std::string& coordinator, uint32_t world_size) {
    NewestRead read{op, absl::OkStatus(), true, {}, false, {}};
    read.record.set_attempt(3);
    read.record.set_coordinator(coordinator);
    read.record.set_rank0_ticket(7);
    read.record.set_world_size(world_size);
    return read;
  }

  // The same, decided.
  static NewestRead ReadDecided(OpId op, const std::string& coordinator) {
    NewestRead read = ReadOfAttempt3(op, coordinator, 1);
    read.decided = true;
    read.decision = Decision(3, {{1, 10}});
    return read;
  }

  // The agent starts; attempt 3, of two ranks that are gone, was never decided.
  void StartOverAnUndecidedAttemptOfTwo() {
    Feed(Started{3, 1});
    Feed(ReadOfAttempt3(Last<ReadNewest>().op, "A", 2));
    Feed(Listed{Last<List>().op, absl::OkStatus(), {}, {}});
  }

  // Messages to itself come back at once.
  void Feed(const Event& event) {
    effects_.clear();
    std::vector<Event> queue{event};
    for (size_t i = 0; i < queue.size(); ++i) {
      Effects effects;
      machine_.Step(queue[i], effects);
      for (const Effect& effect : effects) {
        const auto* state = std::get_if<SendState>(&effect);
        if (state != nullptr && state->agent == "A") queue.push_back(StateReceived{state->state});
        const auto* report = std::get_if<SendReport>(&effect);
        if (report != nullptr && report->agent == "A") queue.push_back(ReportReceived{report->report});
        if (const auto* forward = std::get_if<ForwardState>(&effect)) state_ = forward->state;
        if (const auto* marks = std::get_if<PersistMarks>(&effect)) kept_.Raise(marks->marks);
        effects_.push_back(effect);
      }
    }
  }

  template <typename T>
  T Last() const {
    for (auto it = effects_.rbegin(); it != effects_.rend(); ++it) {
      if (const T* found = std::get_if<T>(&*it)) return *found;
    }
    ADD_FAILURE() << "no such effect";
    return T();
  }
  template <typename T>
  bool Has() const {
    return std::any_of(effects_.begin(), effects_.end(), [](const Effect& e) { return std::holds_alternative<T>(e); });
  }

  void Rank(v1::RankReport::Load load, const std::vector<SnapshotId>& sealed = {},
            const std::vector<SnapshotId>& persisted = {}, Ticket ticket = 7) {
    auto report = std::make_shared<v1::RankReport>();
    report->set_seen(machine_.view().seen);
    report->set_ticket(ticket);
    report->set_load(load);
    for (const SnapshotId& id : sealed) SetRef(id, report->add_sealed());
    for (const SnapshotId& id : persisted) SetRef(id, report->add_persisted());
    Feed(RankChanged{report});
  }

  void JoinRankZero(Ticket ticket = 7, ProcessId process = 70) {
    Join join;
    join.ticket = ticket;
    join.process = process;
    join.world_size = 1;
    Feed(join);
  }

  // Attempt 2 opens, as far as the commit of step 10 of attempt 1, whose decision names so many ranks.
  void ListOneThatIsNotCommitted(uint32_t ranks = 1) {
    v1::DecisionRecord before;
    before.set_attempt(1);
    for (ckptd::Rank rank = 0; rank < ranks; ++rank) before.add_ranks()->set_rank(rank);
    JoinRankZero();
    NewestRead read{Last<ReadNewest>().op, absl::OkStatus(), true, {}, true, before};
    read.record.set_attempt(1);
    read.record.set_coordinator("B");
    Feed(read);
    Feed(AttemptCreated{Last<CreateAttempt>().op, absl::OkStatus()});
    StoredStep step;
    step.id = {1, 10};
    step.world_size = step.sidecars = 1;
    Feed(Listed{Last<List>().op, absl::OkStatus(), {before}, {step}});
    EXPECT_EQ(Last<CreateManifest>().id, step.id);
  }

  // Attempt 1, started afresh, in RUN.
  void Run(std::vector<StoredStep> steps = {}, std::vector<v1::DecisionRecord> decisions = {}) {
    JoinRankZero();
    Feed(NewestRead{Last<ReadNewest>().op, absl::OkStatus(), false, {}, false, {}});
    Feed(AttemptCreated{Last<CreateAttempt>().op, absl::OkStatus()});
    Feed(Listed{Last<List>().op, absl::OkStatus(), std::move(decisions), std::move(steps)});
    Rank(v1::RankReport::WAIT);
    const CreateDecision create = Last<CreateDecision>();
    Feed(DecisionCreated{create.op, absl::OkStatus(), create.decision});
    Feed(NewestChecked{Last<CheckNewest>().op, absl::OkStatus(), 1});
    Rank(v1::RankReport::WAIT);
    Rank(v1::RankReport::LOADED);
    Rank(v1::RankReport::RUN);
    ASSERT_EQ(machine_.view().phase, Phase::kRun);
  }

  Machine machine_;
  Effects effects_;
  StatePtr state_;
  KeptMarks kept_;  // in the journal
};

}  // namespace ckptd::job

#endif  // CKPTD_DAEMON_JOB_MACHINE_TEST_UTIL_H_
