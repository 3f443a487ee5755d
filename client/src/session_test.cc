#include <sys/wait.h>
#include <unistd.h>

#include "client/src/test_trainer.h"

namespace ckptd {
namespace {

class SessionTest : public TrainerTest {};

TEST_F(SessionTest, TheAgentMayStartLate) {
  trainer = std::make_unique<TestTrainer>(agent.socket());
  trainer->MakeTensors({1000});
  ASSERT_EQ(trainer->Register(), 0);
  EXPECT_EQ(trainer->Save(1), CKPT_E_AGENT_UNREACHABLE);
  agent.Start();
  trainer->WaitReady();
  EXPECT_EQ(agent.Count(MessageType::kJoin), 1);
  agent.Grant(0);
  EXPECT_EQ(trainer->Save(2), 0) << ckpt_error();
}

TEST_F(SessionTest, ResumesWithItsBell) {
  Start({100'000});
  ASSERT_EQ(ckpt_gate(trainer->handle, 0), 0);
  uint64_t epoch = agent.Grant(0);
  agent.Kill();
  ASSERT_EQ(trainer->Save(1), 0) << ckpt_error();
  ASSERT_EQ(ckpt_gate(trainer->handle, 0), 0);
  agent.Start();
  agent.WaitForCount(MessageType::kResume, 1);
  EXPECT_EQ(agent.bell_slot(0).word, CaptureWord(epoch, CaptureState::kComplete)) << "found by the new agent";
  ASSERT_TRUE(Eventually([&] { return trainer->Info().connected != 0; }));
  EXPECT_EQ(trainer->Info().reconnects, 1u);
  agent.Grant(1);
  EXPECT_EQ(trainer->Save(2), 0) << ckpt_error();
  EXPECT_EQ(agent.Count(MessageType::kJoin), 1);
  EXPECT_EQ(agent.Count(MessageType::kLayout), 1);
}

// The agent has been asked for another layout meanwhile and may have given memory of this one up.
TEST_F(SessionTest, GoingBackToTheLayoutAtHandAsksForItAgain) {
  Start({100'000});
  agent.hold_layout = true;
  trainer->MakeTensors({100'000, 300'000});
  ASSERT_EQ(trainer->Register(), 0);
  agent.WaitForCount(MessageType::kLayout, 2);
  trainer->MakeTensors({100'000});
  ASSERT_EQ(trainer->Register(), 0);
  agent.WaitForCount(MessageType::kLayout, 3);
}

TEST_F(SessionTest, ARefusedResumeStartsOverWithTheLayout) {
  Start({100'000});
  uint64_t epoch = agent.Grant(0);
  ASSERT_EQ(trainer->Save(1), 0);  // held: no gate was seen
  agent.Kill();
  agent.refuse_resume = true;
  agent.Start();
  agent.WaitForCount(MessageType::kLayout, 2);
  trainer->WaitReady();
  EXPECT_EQ(trainer->Poll(1).code, CKPT_E_INTERRUPTED);
  EXPECT_EQ(agent.bell_slot(0).word, CaptureWord(epoch, CaptureState::kAbandoned));
  EXPECT_EQ(ckpt_gate(trainer->handle, 0), 0);
  agent.Grant(1);
  EXPECT_EQ(trainer->Save(2), 0) << ckpt_error();
}

constexpr uint64_t kRestoreNs = 2000 * kMs;

// Its layout is still being prepared.
void RunWithoutLayout(FakeAgent& agent, TestTrainer& trainer) {
  agent.hold_layout = true;
  ckpt_want want = {};
  want.struct_bytes = sizeof want;
  want.timeout_ns = kRestoreNs;
  ckpt_restored restored = {};
  restored.struct_bytes = sizeof restored;
  ASSERT_EQ(ckpt_restore_begin(trainer.handle, &want, &restored), 0) << ckpt_error();
  ASSERT_EQ(ckpt_restore_end(trainer.handle, 0, nullptr, &restored), 0) << ckpt_error();
  trainer.MakeTensors({1000});
  ASSERT_EQ(trainer.Register(), 0) << ckpt_error();
  agent.WaitForCount(MessageType::kLayout, 1);
}

void RestartRefusing(FakeAgent& agent, int32_t code) {
  agent.Kill();
  agent.refuse_with = static_cast<uint32_t>(-code);
  agent.Start();
}

TEST_F(SessionTest, ARefusedJoinOfARunningTrainerIsRepeatedUnlessItIsFenced) {
  agent.Start();
  trainer = std::make_unique<TestTrainer>(agent.socket());
  RunWithoutLayout(agent, *trainer);
  FakeAgent fencing;
  fencing.Start();
  TestTrainer fenced(fencing.socket());
  RunWithoutLayout(fencing, fenced);
  std::this_thread::sleep_for(std::chrono::nanoseconds(kRestoreNs));  // the deadline of the restores passes
  RestartRefusing(fencing, CKPT_E_FENCED);
  RestartRefusing(agent, CKPT_E_RANKS_MISSING);
  ASSERT_TRUE(Eventually([&] { return fencing.Count(MessageType::kJoin) == 2; }));
  ASSERT_TRUE(Eventually([&] { return agent.Count(MessageType::kJoin) >= 2; }));
  EXPECT_GE(agent.last_join().timeout_ms, 60'000u) << "not what is left of its restore";
  ASSERT_TRUE(Eventually([&] { return trainer->Info().last_code == CKPT_E_RANKS_MISSING; }));
  agent.WaitForCount(MessageType::kLayout, 2);  // sent behind JOIN: held as well, not answered to who has not joined
  const int refused = agent.Count(MessageType::kJoin);
  agent.hold_layout = false;
  agent.refuse_with = 0;
  ASSERT_TRUE(Eventually([&] { return agent.Count(MessageType::kJoin) > refused; }));
  trainer->WaitReady();
  agent.Grant(0);
  EXPECT_EQ(trainer->Save(1), 0) << ckpt_error();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EXPECT_EQ(fencing.Count(MessageType::kJoin), 2) << "a newer attempt runs, for good";
}

TEST_F(SessionTest, AResumeAnsweredByAnErrorIsRepeated) {
  Start({100'000});
  RestartRefusing(agent, CKPT_E_STORAGE_IO);
  agent.WaitForCount(MessageType::kResume, 1);
  ASSERT_TRUE(Eventually([&] { return trainer->Info().last_code == CKPT_E_STORAGE_IO; }));
  EXPECT_STREQ(trainer->Info().last_sentence, "not now");
  agent.refuse_with = 0;
  ASSERT_TRUE(Eventually([&] { return agent.Count(MessageType::kResume) == 2; }));
  agent.Grant(0);
  EXPECT_EQ(trainer->Save(1), 0) << ckpt_error();
  trainer->MakeTensors({100'000, 300'000});
  ASSERT_EQ(trainer->Register(), 0);
  ASSERT_TRUE(Eventually([&] { return agent.Count(MessageType::kLayout) == 2; }));
}

TEST_F(SessionTest, ARefusedLayoutIsTheReasonOfTheDrops) {
  agent.Start();
  trainer = std::make_unique<TestTrainer>(agent.socket());
  ASSERT_TRUE(Eventually([&] { return trainer->Info().connected != 0; }));
  trainer->MakeTensors({1000});
  agent.hold_go = true;  // no LAYOUT is sent before GO
  ASSERT_EQ(trainer->Register(), 0);
  agent.WaitForCount(MessageType::kLoaded, 1);
  agent.SendError(MessageType::kLayout, 11, "/dev/shm is full");
  ASSERT_TRUE(Eventually([&] { return trainer->Info().last_code == CKPT_E_REGION_FULL; }));
  EXPECT_EQ(trainer->Save(1), CKPT_E_REGION_FULL);
  EXPECT_STREQ(ckpt_error(), "/dev/shm is full");
}

TEST_F(SessionTest, ANewLayoutTakesOver) {
  Start({100'000});
  uint64_t unused = agent.Grant(0);
  agent.Freeze();
  trainer->MakeTensors({100'000, 50'000});
  ASSERT_EQ(trainer->Register(), 0);
  EXPECT_EQ(trainer->Save(1), CKPT_E_LAYOUT_PREPARING);
  agent.Start();
  agent.WaitForCount(MessageType::kLayout, 2);
  trainer->WaitReady();
  EXPECT_GT(agent.Grant(0), unused);
  EXPECT_EQ(trainer->Save(2), 0) << ckpt_error();
  EXPECT_EQ(ckpt_gate(trainer->handle, 0), 0);
  EXPECT_EQ(agent.bell().pos, 2u);
}

// Its bell goes: what the agent has not read by then it may never read.
TEST_F(SessionTest, WhoLeavesALayoutHintsAtWhatItAcknowledged) {
  Start({100'000});
  agent.Grant(0);
  const UniqueFd hint = agent.hint();
  uint64_t hints = 0;
  ASSERT_NE(read(hint.get(), &hints, sizeof hints), ssize_t{sizeof hints}) << "nothing was told so far";
  trainer->MakeTensors({100'000, 50'000});
  ASSERT_EQ(trainer->Register(), 0);
  agent.WaitForCount(MessageType::kLayout, 2);
  trainer->WaitReady();
  EXPECT_EQ(read(hint.get(), &hints, sizeof hints), ssize_t{sizeof hints});
}

TEST_F(SessionTest, AForkedChildTouchesNothing) {
  Start({1000});
  agent.Grant(0);
  pid_t child = fork();
  if (child == 0) {
    ckpt_info_view view = {};
    view.struct_bytes = sizeof view;
    bool dead = ckpt_info(trainer->handle, &view) == CKPT_E_CANCELLED && trainer->Save(1) == CKPT_E_CANCELLED &&
                ckpt_gate(trainer->handle, 0) == CKPT_E_CANCELLED && ckpt_close(trainer->handle, 0) == CKPT_E_CANCELLED;
    _exit(dead ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(trainer->Save(1), 0) << ckpt_error();
}

TEST_F(SessionTest, ArgumentsAreChecked) {
  ckpt* handle = nullptr;
  ckpt_options options = {};
  EXPECT_EQ(ckpt_open(nullptr, &handle), CKPT_E_INVALID_ARGUMENT);
  EXPECT_EQ(ckpt_open(&options, &handle), CKPT_E_INVALID_ARGUMENT);
  options.struct_bytes = sizeof options;
  options.world = 1;
  options.job = "a/b";
  EXPECT_EQ(ckpt_open(&options, &handle), CKPT_E_INVALID_ARGUMENT);
  options.job = "job";
  options.rank = 1;
  EXPECT_EQ(ckpt_open(&options, &handle), CKPT_E_INVALID_ARGUMENT);
  EXPECT_EQ(ckpt_gate(nullptr, 0), CKPT_E_INVALID_ARGUMENT);
  Start({1000});
  EXPECT_EQ(ckpt_restore_end(trainer->handle, 0, nullptr, nullptr), CKPT_E_INVALID_ARGUMENT);
  EXPECT_EQ(ckpt_restore_read(trainer->handle, nullptr, 0), CKPT_E_INVALID_ARGUMENT);
  trainer->dtypes[0] = 200;
  EXPECT_EQ(trainer->Register(), CKPT_E_UNSUPPORTED_DTYPE);
  trainer->dtypes[0] = CKPT_U8;
  trainer->ends[0] = 1'000'000'000'000;
  EXPECT_EQ(trainer->Register(), CKPT_E_INVALID_ARGUMENT);
  EXPECT_STREQ(ckpt_code_name(CKPT_E_MOVED), "MOVED");
  EXPECT_STREQ(ckpt_code_name(-999), "UNKNOWN");
}

}  // namespace
}  // namespace ckptd
