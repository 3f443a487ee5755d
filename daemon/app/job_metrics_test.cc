#include "daemon/app/job_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>

#include "daemon/format/snapshot_ref.h"
#include "daemon/metrics/text.h"

namespace ckptd {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

class JobMetricsTest : public ::testing::Test {
 protected:
  JobMetricsTest() { clock_.Advance(seconds(1000) - clock_.Wall()); }

  // What the coordinator of attempt 2, which began with step 20 of attempt 1, says after a while.
  void Say(const SnapshotId& captured, const SnapshotId& durable, AttemptId attempt = 2,
           v1::State::Phase phase = v1::State::RUN) {
    clock_.Advance(seconds(10));
    v1::State state;
    state.set_attempt(attempt);
    state.set_phase(phase);
    if (attempt == 2) SetRef({1, 20}, state.mutable_decision()->mutable_parent());
    SetRef(captured, state.mutable_watermark());
    SetRef(durable, state.mutable_durable());
    SetRef(durable, state.mutable_protected_());
    const auto known = [](const std::map<SnapshotId, seconds>& times) {
      return [&times](const SnapshotId& id) { return times.contains(id) ? Nanos(times.at(id)).count() : int64_t{0}; };
    };
    job_->StateIs(state, known(captured_), known(durable_));
  }

  // "" = none.
  std::string Value(const std::string& family, const std::string& tier) {
    const std::string text = MetricsText(metrics_);
    const std::string line = "\nckptd_last_success_" + family + "{training_job=\"gpt\",tier=\"" + tier + "\"} ";
    const size_t at = text.find(line);
    if (at == std::string::npos) return "";
    return text.substr(at + line.size(), text.find('\n', at + 1) - at - line.size());
  }
  std::string Times() {
    return Value("timestamp_seconds", "region") + "/" + Value("timestamp_seconds", "peers") + "/" +
           Value("timestamp_seconds", "storage");
  }
  std::string Steps() {
    return Value("step", "region") + "/" + Value("step", "peers") + "/" + Value("step", "storage");
  }
  // The agent starts anew.
  void Restart() {
    job_.reset();
    metrics_.ForgetJob("gpt");
    metrics_.AddJob("gpt");
    job_.emplace(metrics_, clock_, "gpt");
  }

  FakeClock clock_;
  AgentMetrics metrics_{"", ""};
  std::map<SnapshotId, seconds> captured_;
  std::map<SnapshotId, seconds> durable_;
  std::optional<JobMetrics> job_{std::in_place, metrics_, clock_, "gpt"};
};

TEST_F(JobMetricsTest, EachStepOfANewJobIsASuccess) {
  Say({}, {}, 1, v1::State::GATHER);
  Say({}, {}, 1, v1::State::LOAD);
  EXPECT_EQ(Times(), "//");
  Say({1, 5}, {}, 1);
  EXPECT_EQ(Times(), "1030//");
  Say({1, 5}, {1, 5}, 1);
  EXPECT_EQ(Times(), "1030/1040/1040");
  Say({1, 10}, {1, 5}, 1);
  EXPECT_EQ(Times(), "1050/1040/1040");
  EXPECT_EQ(Steps(), "10/5/5");
}

TEST_F(JobMetricsTest, WhatWasThereWhenTheAgentStartedIsNoSuccess) {
  Say({2, 45}, {2, 40});
  EXPECT_EQ(Times(), "//") << "nobody here knows when";
  EXPECT_EQ(Steps(), "45/40/40");
  Say({2, 50}, {2, 40});
  EXPECT_EQ(Times(), "1020//");
  Say({2, 50}, {2, 45});
  EXPECT_EQ(Times(), "1020/1030/1030");
}

TEST_F(JobMetricsTest, WhatWasThereHasItsTimeWhereThatIsKnown) {
  captured_ = {{{2, 45}, seconds(900)}, {{2, 50}, seconds(1005)}};
  durable_ = {{{2, 40}, seconds(800)}, {{2, 45}, seconds(850)}};
  Say({2, 45}, {2, 40});
  EXPECT_EQ(Times(), "900//800");
  Say({2, 50}, {2, 45});
  EXPECT_EQ(Times(), "1005/1020/1020") << "what is listed is as old as the start";
  captured_[{2, 55}] = seconds(5000);
  Say({2, 55}, {2, 45});
  EXPECT_EQ(Times(), "1030/1020/1020") << "a trainer's clock";
}

TEST_F(JobMetricsTest, ARollBackIsNoSuccess) {
  captured_[{1, 20}] = durable_[{1, 20}] = seconds(700);
  Say({}, {}, 1);
  Say({1, 30}, {1, 30}, 1);
  EXPECT_EQ(Times(), "1020/1020/1020");
  Say({}, {}, 2, v1::State::GATHER);
  Say({1, 20}, {1, 20}, 2, v1::State::LOAD);
  Say({1, 20}, {1, 20});
  EXPECT_EQ(Times(), "1020/1020/1020");
  EXPECT_EQ(Steps(), "20/20/20");
  Say({2, 25}, {1, 20});
  EXPECT_EQ(Times(), "1060/1020/1020");
  Restart();
  Say({1, 20}, {1, 10}, 2, v1::State::LOAD);
  EXPECT_EQ(Times(), "//") << "the attempt made neither";
  Say({1, 20}, {1, 20});
  EXPECT_EQ(Times(), "//");
}

// It publishes the parent until its members have reported.
TEST_F(JobMetricsTest, ACoordinatorThatStartsAnewTakesNothingBack) {
  Say({1, 20}, {1, 20});
  Say({2, 45}, {2, 40});
  EXPECT_EQ(Times(), "1020/1020/1020");
  Say({1, 20}, {2, 40}, 2, v1::State::LOAD);
  EXPECT_EQ(Steps(), "45/40/40");
  Say({2, 45}, {2, 40});
  EXPECT_EQ(Times(), "1020/1020/1020");
  EXPECT_THAT(MetricsText(metrics_), HasSubstr("ckptd_tier_lag_steps{training_job=\"gpt\",tier=\"storage\"} 5\n"));
}

}  // namespace
}  // namespace ckptd
