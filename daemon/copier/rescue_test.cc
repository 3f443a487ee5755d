#include "daemon/copier/rescue.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>

#include "daemon/copier/copier_test_util.h"

namespace ckptd {
namespace {

constexpr uint64_t kSecondNs = 1'000'000'000;
constexpr uint64_t kSerial = 7;
constexpr uint32_t kLent = 1;  // the slot

// Serial `kSerial` is what the GPU has come to, and what the host published last.
void Publish(RescuePage& page, uint64_t serial, uint64_t step) {
  RescueArea& area = page.areas[serial % kRescueAreas];
  area.step.store(step);
  area.attempt.store(kAttempt);
  area.serial.store(serial);
  page.armed.store(1);
}

TEST(LastStep, IsWhatTheGpuHasComeTo) {
  RescuePage page = {};
  EXPECT_FALSE(FindLastStep(page).has_value()) << "nothing was published";
  Publish(page, kSerial, 100);
  EXPECT_FALSE(FindLastStep(page).has_value()) << "the GPU has come to no step";
  page.done.store(kSerial);
  EXPECT_EQ(FindLastStep(page), (LastStep{kSerial, 100, kAttempt, kSerial % kRescueAreas}));
  Publish(page, kSerial + 1, 101);  // the host runs ahead
  EXPECT_EQ(FindLastStep(page), (LastStep{kSerial, 100, kAttempt, kSerial % kRescueAreas}));
  Publish(page, kSerial + 2, 102);
  EXPECT_FALSE(FindLastStep(page).has_value()) << "its area was written over";
}

TEST(LastStep, IsNoneWhileAnUpdateMayBeUnderWay) {
  RescuePage page = {};
  Publish(page, kSerial, 100);
  page.done.store(kSerial);
  for (auto& begun : page.begun) begun.store(kSerial);
  EXPECT_TRUE(FindLastStep(page).has_value());
  for (auto& begun : page.begun) {
    begun.store(kSerial + 1);
    EXPECT_FALSE(FindLastStep(page).has_value());
    begun.store(kSerial);
  }
  page.armed.store(0);
  EXPECT_FALSE(FindLastStep(page).has_value());
  page.armed.store(1);
  page.areas[kSerial % kRescueAreas].serial.store(0);
  EXPECT_FALSE(FindLastStep(page).has_value()) << "its area is being written";
}

class RescueTest : public CopierTest {
 protected:
  void TearDown() override {
    Kill();
    CopierTest::TearDown();
  }

  // A process that stands for the trainer: this one cannot die.
  void StartTrainer() {
    trainer_ = fork();
    ASSERT_GE(trainer_, 0);
    for (; trainer_ == 0;) pause();
  }

  void Kill() {
    if (trainer_ > 0) kill(trainer_, SIGKILL);
    if (trainer_ > 0) waitpid(trainer_, nullptr, 0);
    trainer_ = 0;
  }

  // The page says that the state is that of kStep, and a slot is lent.
  void PrepareRescue(const std::vector<std::string>& environment = {}, uint64_t hold_ns = 3 * kSecondNs) {
    StartTrainer();
    Launch(environment);
    Prepare();
    MakeEstate();
    ASSERT_EQ(Watch(hold_ns), CopierOutcome::kDone) << sentence_;
    Publish(page(), kSerial, kStep);
    page().done.store(kSerial);
    Lend(kLent);
  }

  void MakeEstate() {
    page_ = MakeFile(4096, true);
    for (SharedFile& area : areas_) {
      area = MakeFile(kSlotBytes, true);
      memset(area.mapping.data(), kUntouched, kSlotBytes);
    }
    memset(areas_[kSerial % kRescueAreas].mapping.data(), kHostByte, kSlotBytes);
  }

  CopierOutcome Watch(uint64_t hold_ns) {
    auto watch = MakeMessage<CopierWatch>(CopierMessageType::kWatch, ++serial_);
    watch.hold_ns = hold_ns;
    const UniqueFd process(static_cast<int>(syscall(SYS_pidfd_open, trainer_, 0)));
    Send(watch, {page_.fd.get(), areas_[0].fd.get(), areas_[1].fd.get(), process.get()});
    return Answer(serial_);
  }

  void Lend(uint32_t slot) {
    word(slot).step.store(0);
    word(slot).word.store(CaptureWord(++epoch_, CaptureState::kOpen));
  }

  // The socket stays open: forked workers of the trainer have it.
  void Die() {
    Kill();
    EXPECT_EQ(process_->Exit(), 0);
  }

  void ExpectRescued() {
    EXPECT_EQ(State(kLent), CaptureState::kComplete);
    EXPECT_EQ(word(kLent).step.load(), kStep);
    EXPECT_EQ(word(kLent).attempt.load(), kAttempt);
    ExpectCaptured(kLent, epoch_);
    EXPECT_TRUE(IsUntouched(0));
  }

  // Nothing was begun: the agent finds the grant as it was.
  void ExpectLeft() {
    EXPECT_EQ(word(kLent).word.load(), CaptureWord(epoch_, CaptureState::kOpen));
    EXPECT_EQ(word(kLent).step.load(), 0u);
    EXPECT_TRUE(IsUntouched(kLent));
  }

  [[nodiscard]] RescuePage& page() { return *reinterpret_cast<RescuePage*>(page_.mapping.data()); }
  BellHead& head() { return *reinterpret_cast<BellHead*>(bell_.mapping.data()); }

  pid_t trainer_ = 0;
  SharedFile page_;
  SharedFile areas_[kRescueAreas];
};

const char kSlowDevice[] = "FAKECUDA_RATE=1";  // 65 ms for a chunk

TEST_F(RescueTest, ATrainerThatDiesBetweenTwoUpdatesIsCaptured) {
  PrepareRescue();
  Die();
  ExpectRescued();
}

TEST_F(RescueTest, InAnUpdateItIsNot) {
  PrepareRescue();
  page().begun[3].store(kSerial + 1);
  Die();
  ExpectLeft();
}

TEST_F(RescueTest, WithQueuedUpdatesThePublishedStepIsNotTheGpus) {
  PrepareRescue();
  Publish(page(), kSerial + 1, kStep + 1);
  Publish(page(), kSerial + 2, kStep + 2);
  Die();
  ExpectLeft();
}

TEST_F(RescueTest, WhatStillRunsOnTheGpuIsSeenBehindTheCopy) {
  PrepareRescue({kSlowDevice});
  Kill();
  ASSERT_TRUE(Eventually([&] { return Published(kLent) > 0; }));
  page().begun[1].store(kSerial + 1);
  EXPECT_EQ(process_->Exit(), 0);
  EXPECT_EQ(State(kLent), CaptureState::kAbandoned);
}

TEST_F(RescueTest, ACaptureOfTheStepIsDoneAgain) {
  PrepareRescue({kSlowDevice});
  word(kLent).step.store(kStep);
  word(kLent).attempt.store(kAttempt);
  head().pos.store(kStep);
  head().pos_attempt.store(kAttempt);
  uint64_t serial = Copy(kLent, 0, 1);
  Ready(serial);
  ExpectCopying(serial);
  Die();  // before HOST_DONE: the host's bytes are in the area
  ExpectRescued();
}

TEST_F(RescueTest, ACaptureOfAnOlderStepIsLeft) {
  PrepareRescue();
  word(kLent).step.store(kStep - 1);
  word(kLent).attempt.store(kAttempt);
  Die();
  EXPECT_EQ(word(kLent).word.load(), CaptureWord(epoch_, CaptureState::kOpen));
  EXPECT_EQ(word(kLent).step.load(), kStep - 1);
  EXPECT_TRUE(IsUntouched(kLent));
}

TEST_F(RescueTest, AStepThatWasSavedIsNotCapturedAgain) {
  PrepareRescue();
  head().pos.store(kStep);
  head().pos_attempt.store(kAttempt);
  Die();
  ExpectLeft();
}

TEST_F(RescueTest, ThePosOfAnotherAttemptDoesNotCount) {
  PrepareRescue();
  head().pos.store(kStep + 5);
  head().pos_attempt.store(kAttempt - 1);
  Die();
  ExpectRescued();
}

TEST_F(RescueTest, WithoutALentSlotThereIsNone) {
  PrepareRescue();
  word(kLent).word.store(CaptureWord(epoch_, CaptureState::kComplete));
  Die();
  EXPECT_EQ(word(kLent).word.load(), CaptureWord(epoch_, CaptureState::kComplete));
  EXPECT_TRUE(IsUntouched(kLent));
}

TEST_F(RescueTest, ATrainerThatClosesAndLivesIsNot) {
  PrepareRescue({}, kSecondNs / 5);
  process_->Close();
  EXPECT_EQ(process_->Exit(), 0);
  ExpectLeft();
}

TEST_F(RescueTest, WhatIsNotDoneWithinTheHoldIsGivenUp) {
  PrepareRescue({kSlowDevice}, kSecondNs / 5);
  Die();
  EXPECT_NE(State(kLent), CaptureState::kComplete);
}

TEST_F(RescueTest, AnErrorOfTheGpuGivesItUp) {
  PrepareRescue({"FAKECUDA_FAIL=cuMemcpyDtoHAsync:700:3"});
  Die();
  EXPECT_EQ(State(kLent), CaptureState::kAbandoned);
}

TEST_F(RescueTest, WhatChangesSlotsOrPlanEndsTheWatch) {
  PrepareRescue();
  ASSERT_EQ(Slots(), CopierOutcome::kDone) << sentence_;
  Die();
  ExpectLeft();
}

TEST_F(RescueTest, ReleasedMemoryIsNotCaptured) {
  PrepareRescue();
  ASSERT_EQ(Release(), CopierOutcome::kDone) << sentence_;
  Die();
  ExpectLeft();
}

TEST_F(RescueTest, WatchesThatLieAreRefused) {
  StartTrainer();
  Launch();
  ASSERT_EQ(Start(), CopierOutcome::kDone) << sentence_;
  MakeEstate();
  EXPECT_EQ(Watch(kSecondNs), CopierOutcome::kRefused) << "before PLAN";
  ASSERT_EQ(Slots(), CopierOutcome::kDone) << sentence_;
  ASSERT_EQ(Import(), CopierOutcome::kDone) << sentence_;
  ASSERT_EQ(Plan(pieces_), CopierOutcome::kDone) << sentence_;
  EXPECT_EQ(Watch(0), CopierOutcome::kRefused);
  EXPECT_EQ(Watch(kMostHoldNs + 1), CopierOutcome::kRefused);
  page_ = MakeFile(4096, false);
  EXPECT_EQ(Watch(kSecondNs), CopierOutcome::kRefused) << "not sealed";
  page_ = MakeFile(64, true);
  EXPECT_EQ(Watch(kSecondNs), CopierOutcome::kRefused) << "too small";
  MakeEstate();
  areas_[1] = MakeFile(kSlotBytes - 4096, true);
  EXPECT_EQ(Watch(kSecondNs), CopierOutcome::kRefused) << "an area is too small";
  auto watch = MakeMessage<CopierWatch>(CopierMessageType::kWatch, ++serial_);
  watch.hold_ns = kSecondNs;
  Send(watch, {page_.fd.get()});
  EXPECT_EQ(Answer(serial_), CopierOutcome::kRefused) << "descriptors are missing";
  MakeEstate();
  EXPECT_EQ(Watch(kSecondNs), CopierOutcome::kDone) << sentence_;
}

}  // namespace
}  // namespace ckptd
