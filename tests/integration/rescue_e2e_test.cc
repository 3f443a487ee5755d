// Post-mortem capture as the agent sees it: trainers die, and a stand-in for ckptd-copier takes their last step, or
// hangs, or does not. What it would find in GPU memory is the copier's own test.
#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>

#include "tests/integration/fill.h"
#include "tests/integration/harness.h"
#include "tests/integration/http.h"
#include "tests/integration/raw_trainer.h"

namespace ckptd::harness {
namespace {

using std::chrono::steady_clock;

constexpr uint64_t kSaved = 5;
constexpr uint64_t kRescued = 7;

UniqueFd OpenPid(pid_t pid) { return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))); }

struct Plan {
  uint32_t rank = 0;
  uint32_t world = 1;
  uint64_t step = kRescued;
  RescueOrder::How how = RescueOrder::kAfterDeath;
  Millis delay{0};
  Millis hold{2000};
  bool silent = false;   // it never speaks of a rescue
  bool disarms = false;  // it says so last
  bool bye = false;
};

// A trainer of its own process: saves step 5, has a copier that shall rescue it, and stays until it is killed.
class Trainer {
 public:
  Trainer(const Node& node, const Plan& plan) {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    pid_ = fork();
    if (pid_ == 0) Run(node, plan, ends[1]);
    close(ends[1]);
    from_ = UniqueFd(ends[0]);
  }
  ~Trainer() { Kill(); }
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Saved, and armed. The pidfd of its copier.
  UniqueFd AwaitReady() {
    pid_t copier = 0;
    EXPECT_TRUE(Readable(from_.get()));
    EXPECT_EQ(read(from_.get(), &copier, sizeof copier), static_cast<ssize_t>(sizeof copier)) << "it is not ready";
    return copier == 0 ? UniqueFd() : OpenPid(copier);
  }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  struct Lent {
    LayoutReadyMessage layout;
    GrantMessage grant;
    std::vector<UniqueFd> fds;  // ctl, bell, hint, slots

    [[nodiscard]] int bell() const { return fds.at(1).get(); }
    [[nodiscard]] int hint() const { return fds.at(2).get(); }
    [[nodiscard]] int slot() const { return fds.at(3 + grant.slot).get(); }
    [[nodiscard]] FillOrder Order(uint64_t step) const {
      return {grant.epoch, grant.attempt, step, layout.slot_bytes, layout.chunk_bytes, grant.slot, layout.chunk_count};
    }
  };

  [[noreturn]] static void Run(const Node& node, const Plan& plan, int to) {
    RawTrainer trainer(node.socket());
    Lent lent = Begin(trainer, plan);
    Save(trainer, lent);
    const pid_t copier = Arm(trainer, plan, lent);
    if (testing::Test::HasFailure() || write(to, &copier, sizeof copier) < 0) _exit(1);
    for (;;) pause();
  }

  static Lent Begin(RawTrainer& trainer, const Plan& plan) {
    const uint64_t ticket = 100 + plan.rank;
    trainer.Join("job", plan.rank, plan.world, ticket);
    LoadedMessage loaded{};
    loaded.ticket = ticket;
    loaded.attempt = trainer.Await<LoadMessage>(MessageType::kLoad).attempt;
    trainer.Say(MessageType::kLoaded, loaded);
    (void)trainer.Await<GoMessage>(MessageType::kGo);
    trainer.Layout(ticket, loaded.attempt);
    Lent lent{};
    lent.layout = trainer.Await<LayoutReadyMessage>(MessageType::kLayoutReady, &lent.fds);
    lent.grant = trainer.Await<GrantMessage>(MessageType::kGrant);
    return lent;
  }

  // Captured on all ranks; the next slot is lent.
  static void Save(RawTrainer& trainer, Lent& lent) {
    EXPECT_TRUE(BeginFill(lent.bell(), lent.Order(kSaved)));
    EXPECT_TRUE(PassSave(lent.bell(), lent.grant.attempt, kSaved));
    EXPECT_TRUE(CompleteFill(lent.bell(), lent.slot(), lent.Order(kSaved)));
    const uint64_t one = 1;
    EXPECT_EQ(write(lent.hint(), &one, sizeof one), static_cast<ssize_t>(sizeof one));
    const uint64_t epoch = lent.grant.epoch;
    while (lent.grant.epoch == epoch && !testing::Test::HasFailure()) {
      lent.grant = trainer.Await<GrantMessage>(MessageType::kGrant);
    }
    while (lent.grant.floor <= kSaved && !testing::Test::HasFailure()) {
      lent.grant = trainer.Await<GrantMessage>(MessageType::kGrant);
    }
  }

  static pid_t Arm(RawTrainer& trainer, const Plan& plan, const Lent& lent) {
    const auto copier = trainer.AskCopier(1);
    const pid_t pid = PidIn(Told(copier.socket.get()));
    const UniqueFd self = OpenPid(getpid());
    const RescueOrder order{lent.Order(plan.step), plan.how, static_cast<uint32_t>(plan.delay.count())};
    const int fds[] = {lent.bell(), lent.hint(), lent.slot(), self.get()};
    EXPECT_EQ(SendPacket(copier.socket.get(), {reinterpret_cast<const uint8_t*>(&order), sizeof order}, fds), 0);
    if (!plan.silent) Tell(trainer, plan.hold);
    if (plan.how == RescueOrder::kAtOnce) usleep(200'000);  // its hint is read by now
    if (plan.disarms) Tell(trainer, Millis(0));
    if (plan.bye) {
      trainer.Say(MessageType::kBye, ByeMessage{});
      EXPECT_TRUE(Readable(copier.pidfd.get())) << "its copier outlives BYE";
    }
    EXPECT_NE(trainer.AskCopier(1).reply.code, 0u);  // too soon, or none: what was said before has been read
    return pid;
  }

  static void Tell(RawTrainer& trainer, Millis hold) {
    RescueMessage rescue{};
    rescue.hold_ns = static_cast<uint64_t>(std::chrono::nanoseconds(hold).count());
    if (hold == Millis(0)) strcpy(rescue.why, "a step without a gate");
    trainer.Say(MessageType::kRescue, rescue);
  }

  pid_t pid_ = 0;
  UniqueFd from_;
};

class RescueTest : public ::testing::Test {
 protected:
  RescueTest() : port_(FreePort()) {}
  void SetUp() override {
    NodeOptions options;
    options.settings["gpu.copier"] = "\"" + BinaryDirectory() + "/ckpt-stand-in-copier\"";
    options.settings["metrics.listen"] = "\"127.0.0.1:" + std::to_string(port_) + "\"";
    options.settings["region.slots"] = "3";
    node_.emplace(options);
    ASSERT_TRUE(node_->StartAgent()) << node_->AgentLog();
  }

  // A trainer with this plan has died. Its copier.
  UniqueFd DieWith(const Plan& plan) {
    Trainer trainer(*node_, plan);
    UniqueFd copier = trainer.AwaitReady();
    trainer.Kill();
    died_ = steady_clock::now();
    return copier;
  }
  // What the next attempt of one rank is told to load.
  LoadMessage NextLoad(std::vector<UniqueFd>* fds = nullptr) {
    RawTrainer next(node_->socket());
    next.Join("job");
    return next.Await<LoadMessage>(MessageType::kLoad, fds);
  }
  [[nodiscard]] Millis SinceDeath() const { return std::chrono::duration_cast<Millis>(steady_clock::now() - died_); }
  void ExpectLoads(const LoadMessage& load, uint64_t step, Source source) {
    EXPECT_EQ(load.snapshot_step, step) << node_->AgentLog();
    EXPECT_EQ(load.source, static_cast<uint32_t>(source)) << node_->AgentLog();
  }
  void ExpectMetric(const std::string& line) {
    const std::string metrics = Get(port_, "/metrics").body;
    EXPECT_NE(metrics.find(line + "\n"), metrics.npos) << line << " is not in:\n" << metrics;
  }
  void ExpectOutcome(const std::string& outcome) {
    for (const char* each : {"captured", "none", "xid", "late"}) {
      ExpectMetric("ckptd_rescues_total{outcome=\"" + std::string(each) + "\"} " + (outcome == each ? "1" : "0"));
    }
    ExpectMetric("ckptd_copier_deaths_total 0");
  }
  bool AwaitLog(const std::string& text) {
    for (int i = 0; i < 500 && node_->AgentLog().find(text) == std::string::npos; ++i) usleep(10'000);
    return node_->AgentLog().find(text) != std::string::npos;
  }

  const uint16_t port_;
  std::optional<Node> node_;
  steady_clock::time_point died_;
};

TEST_F(RescueTest, TheNextAttemptLoadsTheRescuedStep) {
  DieWith({});
  std::vector<UniqueFd> fds;
  const LoadMessage load = NextLoad(&fds);
  ExpectLoads(load, kRescued, Source::kRescued);
  ASSERT_EQ(fds.size(), 2u);
  std::string image(load.slot_bytes, '\0');
  EXPECT_EQ(pread(fds[0].get(), image.data(), image.size(), 0), static_cast<ssize_t>(image.size()));
  EXPECT_TRUE(image == ImageOf(kRescued, load.slot_bytes));
  ExpectOutcome("captured");
  const std::string log = node_->AgentLog();
  for (const char* op : {"op=rescue.begin ", "op=rescue.captured ", "op=rescue.done "})
    EXPECT_NE(log.find(op), log.npos) << op << log;
}

// As the caller of `ckptctl` sees it, and as it is after a restart of the agent: the mark lies in the region.
TEST_F(RescueTest, ItIsCalledRescuedEverywhereAndBecomesDurable) {
  DieWith({});
  ASSERT_TRUE(AwaitLog("op=rescue.done ")) << node_->AgentLog();
  EXPECT_NE(Get(port_, "/status.json").body.find("\"rescued\": true"), std::string::npos);
  for (int i = 0; i < 500 && WholeSteps(*node_, "job").size() < 2; ++i) usleep(10'000);
  ASSERT_EQ(WholeSteps(*node_, "job").size(), 2u) << node_->AgentLog();
  EXPECT_EQ(WholeSteps(*node_, "job").back().first, kRescued);
  node_->KillAgent();
  ASSERT_TRUE(node_->StartAgent()) << node_->AgentLog();
  ExpectLoads(NextLoad(), kRescued, Source::kRescued);
}

TEST_F(RescueTest, AJoinWaitsForTheRescue) {
  DieWith({.delay = Millis(600)});
  ExpectLoads(NextLoad(), kRescued, Source::kRescued);
  EXPECT_GE(SinceDeath(), Millis(550));
  EXPECT_LT(SinceDeath(), Millis(1900)) << "it did not wait for the end of the hold";
}

TEST_F(RescueTest, OneThatHangsIsKilledWhenItsHoldIsOver) {
  const UniqueFd copier = DieWith({.how = RescueOrder::kHangs, .hold = Millis(400)});
  ExpectLoads(NextLoad(), kSaved, Source::kRegion);
  EXPECT_GE(SinceDeath(), Millis(350));
  EXPECT_TRUE(Readable(copier.get()));
  ExpectOutcome("late");
}

TEST_F(RescueTest, OneThatGivesUpHoldsNobodyUp) {
  DieWith({.how = RescueOrder::kGivesUp, .hold = Millis(3000)});
  ExpectLoads(NextLoad(), kSaved, Source::kRegion);
  EXPECT_LT(SinceDeath(), Millis(2500));
  ExpectOutcome("none");
}

TEST_F(RescueTest, WithoutAHoldItIsKilledAtOnce) {
  const UniqueFd copier = DieWith({.delay = Millis(1500), .disarms = true});
  EXPECT_TRUE(Readable(copier.get(), Millis(1200)));
  ExpectLoads(NextLoad(), kSaved, Source::kRegion);
  EXPECT_TRUE(AwaitLog("a step without a gate"));
}

TEST_F(RescueTest, ByeKillsItWhileItsTrainerLives) {
  Trainer trainer(*node_, {.how = RescueOrder::kHangs, .bye = true});
  (void)trainer.AwaitReady();
  trainer.Kill();
  died_ = steady_clock::now();
  ExpectLoads(NextLoad(), kSaved, Source::kRegion);
  EXPECT_LT(SinceDeath(), Millis(1500));
  EXPECT_EQ(node_->AgentLog().find("op=rescue.begin"), std::string::npos) << node_->AgentLog();
  EXPECT_EQ(node_->AgentLog().find("op=rescue.refused"), std::string::npos) << "nobody asked for one any more";
}

// A copier that is quick, or breaks the rules: what it completes before the agent knows of the death waits for that.
TEST_F(RescueTest, WhatIsCompleteTooEarlyCountsAfterTheDeath) {
  DieWith({.how = RescueOrder::kAtOnce});
  ExpectLoads(NextLoad(), kRescued, Source::kRescued);
}

// Its trainer died before it could say that it wants that.
TEST_F(RescueTest, WhatNobodySpokeOfIsNothing) {
  DieWith({.how = RescueOrder::kAtOnce, .silent = true});
  ExpectLoads(NextLoad(), kSaved, Source::kRegion);
}

TEST_F(RescueTest, WhatIsCompleteTooEarlyIsNothingWhenItMayNotBeRescued) {
  DieWith({.how = RescueOrder::kAtOnce, .disarms = true});
  ExpectLoads(NextLoad(), kSaved, Source::kRegion);
}

class TwoRanks : public RescueTest {
 protected:
  void DieBoth(uint64_t step0, uint64_t step1) {
    Trainer zero(*node_, {.rank = 0, .world = 2, .step = step0, .delay = Millis(300)});
    Trainer one(*node_, {.rank = 1, .world = 2, .step = step1});
    (void)zero.AwaitReady();
    (void)one.AwaitReady();
    zero.Kill();
    one.Kill();
  }
  void ExpectBothLoad(uint64_t step, Source source) {
    RawTrainer one(node_->socket());  // claims rank 1 first, while rank 0 is being rescued
    one.Join("job", 1, 2, 201);
    RawTrainer zero(node_->socket());
    zero.Join("job", 0, 2, 200);
    ExpectLoads(zero.Await<LoadMessage>(MessageType::kLoad), step, source);
    ExpectLoads(one.Await<LoadMessage>(MessageType::kLoad), step, source);
  }
};

TEST_F(TwoRanks, TheSameStepOfBothIsLoaded) {
  DieBoth(kRescued, kRescued);
  ExpectBothLoad(kRescued, Source::kRescued);
}

TEST_F(TwoRanks, StepsApartAreNoSnapshot) {
  DieBoth(kRescued, kRescued + 1);
  ExpectBothLoad(kSaved, Source::kRegion);
}

TEST_F(RescueTest, AnAgentThatDiesTakesTheRescueWithIt) {
  const UniqueFd copier = DieWith({.delay = Millis(1500)});
  node_->KillAgent();
  EXPECT_TRUE(Readable(copier.get(), Millis(1000)));
  ASSERT_TRUE(node_->StartAgent()) << node_->AgentLog();
  ExpectLoads(NextLoad(), kSaved, Source::kRegion);
}

TEST_F(TwoRanks, StatusTellsWhichIsArmedAndWhyTheOtherIsNot) {
  Trainer armed(*node_, {.rank = 0, .world = 2});
  Trainer disarmed(*node_, {.rank = 1, .world = 2, .disarms = true});
  (void)armed.AwaitReady();
  (void)disarmed.AwaitReady();
  const std::string status = Get(port_, "/status.json").body;
  for (const char* part : {"\"armed\": true", "\"hold_seconds\": 2", "\"why\": \"a step without a gate\""})
    EXPECT_NE(status.find(part), status.npos) << part << " is not in " << status;
}

}  // namespace
}  // namespace ckptd::harness
