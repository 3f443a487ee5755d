// For tests of the slot machine: feeds it events and keeps what it answered.
#ifndef CKPTD_DAEMON_SNAPSHOT_SNAPSHOT_TEST_UTIL_H_
#define CKPTD_DAEMON_SNAPSHOT_SNAPSHOT_TEST_UTIL_H_

#include <memory>
#include <string>
#include <vector>

#include "daemon/snapshot/machine.h"
#include "gtest/gtest.h"

namespace ckptd::snapshot {

inline constexpr ProcessId kProcess = 11;
inline constexpr Ticket kTicket = 77;

// Keeps the last effects of each kind.
class SnapshotTest : public testing::Test {
 protected:
  SnapshotTest() : machine_(Config{"job", 0, {}, "here"}) {}

  void Feed(const Event& event) {
    effects_.clear();
    machine_.Step(event, effects_);
  }

  template <typename T>
  std::vector<T> All() const {
    std::vector<T> out;
    for (const Effect& effect : effects_) {
      if (const T* found = std::get_if<T>(&effect)) out.push_back(*found);
    }
    return out;
  }

  static StatePtr State(AttemptId attempt, v1::State::Phase phase, SnapshotId parent = {}, SnapshotId watermark = {},
                        StepId floor = 1, Ticket ticket = kTicket, const std::string& agent = "here") {
    auto state = std::make_shared<v1::State>();
    state->set_attempt(attempt);
    state->set_phase(phase);
    if (phase == v1::State::GATHER) return state;
    v1::RankClaim* claim = state->mutable_decision()->add_ranks();
    claim->set_ticket(ticket);
    claim->set_agent(agent);
    if (!parent.none()) {
      state->mutable_decision()->mutable_parent()->set_attempt(parent.attempt);
      state->mutable_decision()->mutable_parent()->set_step(parent.step);
    }
    state->mutable_watermark()->set_attempt(watermark.attempt);
    state->mutable_watermark()->set_step(watermark.step);
    state->set_floor(floor);
    return state;
  }

  // A running rank of attempt 1 that started afresh; the first grant is out.
  OpenGrant Run() {
    Feed(Attached{kProcess, kTicket, 0});
    Feed(JobState{State(1, v1::State::LOAD)});
    Feed(Loaded{1, kTicket});
    Feed(JobState{State(1, v1::State::RUN)});
    Feed(LayoutAdded{1, 2});
    Feed(LayoutChosen{kProcess, 1});
    const auto grants = All<OpenGrant>();
    EXPECT_EQ(grants.size(), 1u);
    return grants.at(0);
  }

  // The same rank, trained to step 10, under an agent that restarted; the one before had lent it this slot.
  OpenGrant RunAdopted() {
    const OpenGrant grant = {{1, 1}, 6, 0, {1, kTicket, kProcess}};
    Feed(Adopted{1,
                 {{{1, 0}, SlotStateCode::kSealed, 5, {}, {1, 10}, true},
                  {grant.slot, SlotStateCode::kFilling, grant.epoch, grant.owner, {}, false}}});
    Feed(Attached{kProcess, kTicket, 1});
    Feed(LayoutChosen{kProcess, 1});
    Feed(JobState{State(1, v1::State::RUN, {}, {1, 10}, 11)});
    return grant;
  }

  static BellRead Bell(const OpenGrant& grant, CaptureState state, StepId step, AttemptId attempt = 1) {
    return {grant.owner.process, attempt, step, {{grant.slot, grant.epoch, state, step, 0, true}}};
  }

  // The slot of step 10 gets a fresh file: only a reader holds it, and the next save needs it. Step 20 is captured.
  SlotId ReplaceUnderReader() {
    const OpenGrant first = Run();
    Feed(Bell(first, CaptureState::kComplete, 10));
    const OpenGrant second = All<OpenGrant>().at(0);
    Feed(FlushEnded{first.slot, {1, 10}, absl::OkStatus()});
    Feed(ReadPinned{first.slot, {1, 10}});
    Feed(Bell(second, CaptureState::kComplete, 20));
    Feed(JobState{State(1, v1::State::RUN, {}, {1, 20}, 21)});
    EXPECT_EQ(All<ReplaceFile>().size(), 1u) << "the reader keeps the old file";
    return first.slot;
  }

  SlotView Slot(uint32_t index, uint32_t layout = 1) const {
    for (const SlotView& slot : machine_.view().slots) {
      if (slot.id == SlotId{layout, index}) return slot;
    }
    ADD_FAILURE() << "no slot " << index;
    return {};
  }

  // Of the last report of the last event.
  std::vector<StepId> SealedInReport() const {
    std::vector<StepId> steps;
    for (const v1::SnapshotRef& ref : All<ReportChanged>().back().report->sealed()) steps.push_back(ref.step());
    return steps;
  }

  Machine machine_;
  Effects effects_;
};

}  // namespace ckptd::snapshot

#endif  // CKPTD_DAEMON_SNAPSHOT_SNAPSHOT_TEST_UTIL_H_
