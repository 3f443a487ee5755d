#include "daemon/app/rescuer.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace ckptd {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr ProcessId kTrainer{100, 5000};
constexpr ProcessId kOther{101, 6000};

class RescuerTest : public ::testing::Test {
 protected:
  RescuerTest() : path_(std::filesystem::path(testing::TempDir()) / ("rescuer" + std::to_string(getpid()))) {
    EXPECT_EQ(mkfifo(path_.c_str(), 0600), 0);
    kernel_ = UniqueFd(open(path_.c_str(), O_RDWR | O_CLOEXEC));
    Rescuer::Hooks hooks;
    hooks.has_copiers = [this](const ProcessId&) { return copiers_; };
    hooks.read_bells = [this](const ProcessId& process) {
      did_.push_back("read " + std::to_string(process.pid));
      if (complete_) rescuer_->Sealed(process, {1, 7});
    };
    hooks.kill_copiers = [this](const ProcessId& process) { did_.push_back("kill " + std::to_string(process.pid)); };
    hooks.join = [this](SessionId session, const Peer&, const JoinRequest& join) {
      did_.push_back("join " + std::to_string(session));
      timeout_ = join.timeout;
    };
    rescuer_ = std::make_unique<Rescuer>(*loop_, clock_, metrics_, std::move(hooks), path_);
  }
  ~RescuerTest() override { std::filesystem::remove(path_); }

  bool Die(const ProcessId& process, Nanos hold = seconds(1)) {
    rescuer_->Tell(process, {hold, ""});
    return rescuer_->ProcessDied(process, {"job"});
  }
  bool Join(SessionId session, const ProcessId& process = {200, 9000}, const std::string& job = "job") {
    JoinRequest join;
    join.job = job;
    join.timeout = seconds(5);
    return rescuer_->Delay(session, Peer{process, 0, 0, {}}, join);
  }
  // What was done since the last call.
  std::vector<std::string> Did(Nanos after = Nanos(0)) {
    clock_.Advance(after);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(loop_->RunOnce(Nanos(0)).ok());
    return std::exchange(did_, {});
  }
  double Count(const char* outcome) { return metrics_.rescues.With({outcome}).value(); }

  FakeClock clock_;
  std::unique_ptr<Loop> loop_ = *Loop::Create(clock_, 16);
  AgentMetrics metrics_{"", ""};
  std::string path_;
  UniqueFd kernel_;
  bool copiers_ = true;
  bool complete_ = false;
  Nanos timeout_{0};
  std::vector<std::string> did_;
  std::unique_ptr<Rescuer> rescuer_;
};

TEST_F(RescuerTest, AJoinWaitsForItsJobsDead) {
  EXPECT_FALSE(Join(1));
  EXPECT_TRUE(Die(kTrainer));
  EXPECT_TRUE(Join(2));
  EXPECT_TRUE(Join(3));
  EXPECT_FALSE(Join(4, kOther, "another"));
  EXPECT_THAT(Did(milliseconds(900)), IsEmpty());
  rescuer_->Sealed(kTrainer, {1, 7});
  rescuer_->Reaped(kTrainer);
  EXPECT_THAT(Did(), ElementsAre("join 2", "join 3"));
  EXPECT_EQ(timeout_, milliseconds(4100)) << "its patience is no longer for having waited here";
  EXPECT_THAT(Did(seconds(5)), IsEmpty()) << "no timer is left";
  EXPECT_FALSE(Join(5));
  EXPECT_EQ(Count("captured"), 1);
}

TEST_F(RescuerTest, WhenTheHoldIsOverItsCopiersAreKilledAndJoinsGoOn) {
  EXPECT_TRUE(Die(kTrainer));
  EXPECT_TRUE(Join(2));
  EXPECT_THAT(Did(milliseconds(999)), IsEmpty());
  EXPECT_THAT(Did(milliseconds(1)), ElementsAre("read 100", "kill 100", "join 2"));
  EXPECT_EQ(Count("late"), 1);
  EXPECT_FALSE(Join(3));
  EXPECT_EQ(rescuer_->Of(kTrainer), Rescues::Standing::kHeld) << "not reaped yet";
  rescuer_->Reaped(kTrainer);
  EXPECT_EQ(Count("late") + Count("none") + Count("captured"), 1) << "told once";
}

TEST_F(RescuerTest, OneThatIsDoneButDoesNotEndIsNotLate) {
  EXPECT_TRUE(Die(kTrainer));
  complete_ = true;
  EXPECT_THAT(Did(seconds(1)), ElementsAre("read 100", "kill 100"));
  EXPECT_EQ(Count("captured"), 1);
  EXPECT_EQ(Count("late"), 0);
}

TEST_F(RescuerTest, EndedWithoutAFillIsNone) {
  EXPECT_TRUE(Die(kTrainer));
  rescuer_->Reaped(kTrainer);
  EXPECT_EQ(Count("none"), 1);
}

TEST_F(RescuerTest, EachHasItsOwnDeadline) {
  EXPECT_TRUE(Die(kTrainer, seconds(2)));
  EXPECT_TRUE(Die(kOther, seconds(1)));
  EXPECT_TRUE(Join(2));
  EXPECT_THAT(Did(seconds(1)), ElementsAre("read 101", "kill 101"));
  EXPECT_THAT(Did(seconds(1)), ElementsAre("read 100", "kill 100", "join 2"));
}

TEST_F(RescuerTest, WhoLeavesIsForgotten) {
  EXPECT_TRUE(Die(kTrainer));
  EXPECT_TRUE(Join(2));
  EXPECT_TRUE(Join(3, kOther));
  EXPECT_TRUE(Join(4));
  EXPECT_TRUE(Join(4)) << "again: the last one counts";
  rescuer_->DropJoins(2);
  EXPECT_FALSE(rescuer_->ProcessDied(kOther, {}));
  rescuer_->Reaped(kTrainer);
  EXPECT_THAT(Did(), ElementsAre("join 4"));
}

TEST_F(RescuerTest, ByeAndNoCopierAndNoHoldAreNoRescue) {
  rescuer_->Tell(kTrainer, {seconds(1), ""});
  rescuer_->Forget(kTrainer);
  EXPECT_FALSE(rescuer_->ProcessDied(kTrainer, {"job"}));
  EXPECT_FALSE(Die(kTrainer, Nanos(0)));
  copiers_ = false;
  EXPECT_FALSE(Die(kOther));
  EXPECT_EQ(Count("none"), 1);
  EXPECT_FALSE(Join(2));
}

TEST_F(RescuerTest, AnErrorOfAGpuForbidsIt) {
  const std::string xid = "3,1,60000000,-;NVRM: Xid (PCI:0000:3b:00): 79\n";
  ASSERT_EQ(write(kernel_.get(), xid.data(), xid.size()), static_cast<ssize_t>(xid.size()));
  EXPECT_FALSE(Die(kTrainer)) << "read when it dies, at the latest";
  EXPECT_EQ(Count("xid"), 1);
  EXPECT_EQ(rescuer_->Of(kTrainer), Rescues::Standing::kRefused);
  const ProcessId younger{102, uint64_t{1} << 36};
  EXPECT_TRUE(Die(younger)) << "the error was before its start";
}

}  // namespace
}  // namespace ckptd
