// A trainer whose stray pointers write over the memory that it shares with the agent: nothing torn and nothing under a
// wrong number is restored, the agent lives, and nobody else notices.
#include <poll.h>
#include <signal.h>

#include <chrono>
#include <fstream>

#include "proto/local/region.h"
#include "tests/integration/harness.h"
#include "tests/integration/sanitized.h"
#include "tests/integration/scribble.h"

namespace ckptd::harness {
namespace {

class Scribbled : public ::testing::TestWithParam<const char*> {};

TEST_P(Scribbled, NothingTornIsRestoredAndNobodyElseNotices) {
  Node node;
  ASSERT_TRUE(node.StartAgent());
  auto other = node.Train(Args("--job other --steps 100000 --every 5 --step-ms 5"));
  ASSERT_TRUE(other->WaitFor("CAPTURED"));
  const uint64_t seeds = kSanitized ? 2 : 4;
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    // Its start compares what it restored, element by element, with what the step must be: torn ends it with 1.
    auto trainer = node.Train(Args("--steps 100000 --every 3 --step-ms 3"));
    ASSERT_TRUE(trainer->WaitFor("RESTORED")) << trainer->Errors() << node.AgentLog();
    // Once on storage, before anything is scribbled over: there is always something good to restore.
    ASSERT_TRUE(trainer->WaitFor(seed == 1 ? "DURABLE" : "CAPTURED")) << trainer->Errors() << node.AgentLog();
    {
      const SharedMemory memory(trainer->pid(), GetParam());
      ASSERT_FALSE(memory.maps().empty());
      const Scribbler scribbler(memory, seed);
      trainer->WaitFor("never", Millis(700));
      ASSERT_TRUE(node.agent()->running());
      if (seed % 2 == 0) {  // what was scribbled is adopted, too
        node.KillAgent();
        ASSERT_TRUE(node.StartAgent()) << node.AgentLog();
      }
      trainer->WaitFor("never", Millis(300));
    }
    trainer->Kill();
    ASSERT_TRUE(node.agent()->running());
  }
  auto last = node.Train(Args("--steps 100000 --every 3 --step-ms 3"));
  ASSERT_TRUE(last->WaitFor("RESTORED")) << last->Errors() << node.AgentLog();
  EXPECT_TRUE(last->WaitFor("DURABLE")) << node.AgentLog();
  EXPECT_TRUE(other->WaitFor("CAPTURED")) << "another job was disturbed: " << node.AgentLog();
}

INSTANTIATE_TEST_SUITE_P(What, Scribbled, testing::Values("ckptd-bell", "/slot-"),
                         [](const auto& info) { return info.param[0] == '/' ? "Slots" : "Bell"; });

// Until the next save of the trainer has its grant, or the trainer was told that there is none to wait for, and ended.
testing::AssertionResult AwaitLent(const BellWords& bell, const Child& trainer) {
  for (const TimePoint end = std::chrono::steady_clock::now() + kLong; std::chrono::steady_clock::now() < end;) {
    pollfd ended{trainer.pidfd(), POLLIN, 0};
    if (bell.Lent() != nullptr || poll(&ended, 1, 10) > 0) return testing::AssertionSuccess();
  }
  return testing::AssertionFailure() << "no grant any more";
}

// A capture is complete, and its agent dies before it has sealed it. What its successor finds in the bell was written
// over meanwhile.
struct Stray {
  const char* name;
  void (*write)(BellSlot* slot, std::atomic<uint64_t>* chunks);
};

class ScribbledBeforeTheSeal : public ::testing::TestWithParam<Stray> {
 protected:
  static constexpr uint64_t kGood = 5;
  static constexpr uint64_t kLost = 10;

  void SetUp() override {
#ifndef CKPTD_FAILPOINTS
    GTEST_SKIP() << "skipped: this build has no failpoints (CKPTD_FAILPOINTS=OFF)";
#endif
  }

  // Step kGood is captured, step kLost complete and scribbled over, and the next agent has taken over.
  void ScribbleAndTakeOver(const std::string& line) {
    ASSERT_TRUE(node_.StartAgent({"CKPTD_FAILPOINTS=region.record.before=kill@2"}));
    trainer_ = node_.Train(Args(line));
    ASSERT_EQ(node_.agent()->Wait(), -SIGKILL) << node_.AgentLog();
    const BellWords bell(trainer_->pid());
    ASSERT_TRUE(bell.found());
    BellSlot* slot = bell.NewestComplete();
    ASSERT_NE(slot, nullptr);
    ASSERT_EQ(slot->step, kLost);
    GetParam().write(slot, bell.Chunks(slot));
    ASSERT_TRUE(node_.StartAgent()) << node_.AgentLog();
    // The next grant: by then it has made up its mind about this fill.
    EXPECT_TRUE(AwaitLent(bell, *trainer_)) << node_.AgentLog();
  }

  Node node_;
  std::unique_ptr<Child> trainer_;
};

TEST_P(ScribbledBeforeTheSeal, TheStepIsDroppedAndTheLastGoodOneIsRestored) {
  // It waits for its last save, and saves nothing more.
  ASSERT_NO_FATAL_FAILURE(ScribbleAndTakeOver("--steps 10 --every 5 --step-ms 50 --close-ms 60000"));
  trainer_->Kill();
  auto again = node_.Train(Args("--steps 20 --every 5 --step-ms 5"));
  ASSERT_EQ(NumberField(Restored(*again), "step"), kGood) << node_.AgentLog();
  EXPECT_EQ(again->Wait(), 0) << again->Errors() << node_.AgentLog();
  EXPECT_EQ(again->lines().back(), node_.ExpectedDigest(Args("--steps 20")));
  EXPECT_GT(again->Last("DURABLE"), kGood);
}

TEST_P(ScribbledBeforeTheSeal, TheNextSaveWorks) {
  ASSERT_NO_FATAL_FAILURE(ScribbleAndTakeOver("--steps 100000 --every 5 --step-ms 50"));
  while (trainer_->Last("DURABLE") <= kLost)
    ASSERT_TRUE(trainer_->WaitFor("DURABLE")) << trainer_->Errors() << node_.AgentLog();
  trainer_->Kill();
  auto again = node_.Train(Args("--steps 100000 --every 5 --step-ms 5"));
  EXPECT_GE(NumberField(Restored(*again), "step"), trainer_->Last("DURABLE")) << node_.AgentLog();
}

// A damaged word that no checksum covers: FREE became FILLING, by nobody, and newest of all.
class DamagedWord : public ::testing::TestWithParam<uint64_t> {};

TEST_P(DamagedWord, KeepsNoRankFromItsSlots) {
  Node node;
  ASSERT_TRUE(node.StartAgent());
  auto first = node.Train(Args("--steps 20 --every 5 --step-ms 20"));
  ASSERT_EQ(first->Wait(), 0) << first->Errors();
  node.KillAgent();
  const std::vector<std::string> names = FilesWith(node.region(), "/ctl.");
  ASSERT_EQ(names.size(), 1u);
  std::fstream ctl(node.region() + "/" + names[0], std::ios::in | std::ios::out | std::ios::binary);
  Superblock block{};
  ctl.read(reinterpret_cast<char*>(&block), sizeof block);
  const auto at = [&](uint32_t slot) {
    return static_cast<std::streamoff>(block.states_offset + sizeof(Grant) + slot * sizeof(SlotState));
  };
  uint64_t words[2] = {};
  for (uint32_t slot = 0; slot < 2; ++slot) ctl.seekg(at(slot)).read(reinterpret_cast<char*>(&words[slot]), 8);
  const uint32_t older = words[0] >> 8 < words[1] >> 8 ? 0 : 1;
  const uint64_t filling = ((words[1 - older] >> 8) + 1) << 8 | static_cast<uint64_t>(SlotStateCode::kFilling);
  const uint64_t nobody = GetParam();
  ctl.seekp(at(older)).write(reinterpret_cast<const char*>(&filling), 8);
  ctl.seekp(at(older) + static_cast<std::streamoff>(offsetof(SlotState, owner_pid)));
  ctl.write(reinterpret_cast<const char*>(&nobody), 8);
  const uint64_t attempt = ~uint64_t{0};  // never an older one's fill
  ctl.seekp(at(older) + static_cast<std::streamoff>(offsetof(SlotState, owner_attempt)));
  ctl.write(reinterpret_cast<const char*>(&attempt), 8).flush();
  ASSERT_TRUE(node.StartAgent()) << node.AgentLog();
  auto again = node.Train(Args("--steps 60 --every 5 --step-ms 20"));
  EXPECT_EQ(NumberField(Restored(*again), "step"), 20u) << node.AgentLog();
  EXPECT_EQ(again->Wait(), 0) << again->Errors() << node.AgentLog();
  EXPECT_EQ(again->Last("CAPTURED"), 60u) << "no slot is lent: " << node.AgentLog();
  EXPECT_EQ(again->lines().back(), node.ExpectedDigest(Args("--steps 60")));
}

INSTANTIATE_TEST_SUITE_P(Pids, DamagedWord, testing::Values(uint64_t{0}, uint64_t{1} << 22, ~uint64_t{0}));

// The agent lives, and waits for a word that nobody will ever write again.
TEST(ScribbledGrant, IsGivenUpAndTheNextSaveWorks) {
  Node node;
  ASSERT_TRUE(node.StartAgent());
  auto trainer = node.Train(Args("--steps 100000 --every 5 --step-ms 5"));
  ASSERT_TRUE(trainer->WaitFor("CAPTURED"));
  const BellWords bell(trainer->pid());
  ASSERT_TRUE(bell.found());
  for (const uint64_t garbage : {~uint64_t{0}, uint64_t{0}, uint64_t{1} << 40}) {
    BellSlot* lent = nullptr;
    while (lent == nullptr) {  // it is there, and stays until the next save
      trainer->Signal(SIGCONT);
      ASSERT_TRUE(trainer->WaitFor("STEP"));
      trainer->Signal(SIGSTOP);
      lent = bell.Lent();
    }
    lent->word = garbage;
    trainer->WaitFor("never", Millis(20));  // all that it said before
    const uint64_t before = trainer->Last("STEP");
    trainer->Signal(SIGCONT);
    while (trainer->Last("DURABLE") <= before)  // first those of older steps
      ASSERT_TRUE(trainer->WaitFor("DURABLE")) << "no save works any more: " << node.AgentLog();
  }
  trainer->Kill();
  auto again = node.Train(Args("--steps 100000 --every 5 --step-ms 5"));
  EXPECT_GE(NumberField(Restored(*again), "step"), trainer->Last("CAPTURED")) << node.AgentLog();
}

// No stray write, but the bell of the agent before an upgrade: the region has no room for a slot in place of one that
// is lent through a bell that was refused.
TEST(BellOfAnotherMinor, IsTakenOverWhereTheRegionIsTight) {
  Node node({.region = "", .storage = "", .settings = {{"region.job_quota", "\"5 MiB\""}}});
  ASSERT_TRUE(node.StartAgent());
  auto trainer = node.Train(Args("--steps 100000 --every 5 --step-ms 5"));
  ASSERT_TRUE(trainer->WaitFor("CAPTURED")) << trainer->Errors() << node.AgentLog();
  const SharedMemory memory(trainer->pid(), "ckptd-bell");
  ASSERT_EQ(memory.maps().size(), 1u);
  reinterpret_cast<BellHead*>(memory.maps().front().memory)->minor = 1;
  node.KillAgent();
  ASSERT_TRUE(node.StartAgent()) << node.AgentLog();
  const uint64_t before = trainer->Last("STEP");
  while (trainer->Last("DURABLE") <= before)
    ASSERT_TRUE(trainer->WaitFor("DURABLE")) << "no save works any more: " << node.AgentLog();
  trainer->Kill();
}

INSTANTIATE_TEST_SUITE_P(
    Words, ScribbledBeforeTheSeal,
    testing::Values(Stray{"Step", [](BellSlot* slot, std::atomic<uint64_t>*) { slot->step = 1010; }},
                    Stray{"Attempt", [](BellSlot* slot, std::atomic<uint64_t>*) { slot->attempt = 7; }},
                    Stray{"Epoch", [](BellSlot* slot, std::atomic<uint64_t>*) { slot->word += 4; }},
                    Stray{"Garbage", [](BellSlot* slot, std::atomic<uint64_t>*) { slot->word = ~uint64_t{0}; }},
                    Stray{"Ack", [](BellSlot* slot, std::atomic<uint64_t>*) { slot->ack = ~uint64_t{0}; }},
                    Stray{"Checksum", [](BellSlot*, std::atomic<uint64_t>* chunks) { chunks[0] ^= 1; }}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace ckptd::harness
