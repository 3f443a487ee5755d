#include "client/src/test_trainer.h"

namespace ckptd {
namespace {

class GateTest : public TrainerTest {
 protected:
  [[nodiscard]] CaptureState Word(uint32_t slot) { return CaptureStateOf(agent.bell_slot(slot).word); }
  [[nodiscard]] bool AllChunks(uint32_t slot, uint64_t epoch) {
    return Eventually([&] { return ChunkDone(agent.chunk_entry(slot, agent.ready().chunk_count - 1), epoch); });
  }
};

TEST_F(GateTest, UngatedCaptureIsHeldBackAndThenDropped) {
  Start({200'000});
  uint64_t epoch = agent.Grant(0);
  ASSERT_EQ(trainer->Save(1), 0);
  ASSERT_TRUE(AllChunks(0, epoch));
  EXPECT_EQ(ckpt_wait(trainer->handle, 1, CKPT_CAPTURED, 20 * kMs), CKPT_E_TIMEOUT);
  EXPECT_EQ(Word(0), CaptureState::kOpen) << "no gate was ever seen";
  uint64_t second = agent.Grant(1);
  ASSERT_EQ(trainer->Save(2), 0) << ckpt_error();
  EXPECT_EQ(trainer->Poll(1).code, CKPT_E_UNGATED);
  EXPECT_EQ(trainer->Info().last_code, CKPT_E_UNGATED);
  EXPECT_NE(std::string(trainer->Info().last_sentence).find("ckpt_gate"), std::string::npos);
  EXPECT_EQ(agent.bell_slot(0).word, CaptureWord(epoch, CaptureState::kAbandoned));
  EXPECT_EQ(agent.bell_slot(0).ack, epoch);
  ASSERT_EQ(ckpt_gate(trainer->handle, 0), 0);
  EXPECT_EQ(agent.bell_slot(1).word, CaptureWord(second, CaptureState::kComplete));
}

// The gate that comes later says nothing of the update before it.
TEST_F(GateTest, AStepWithoutAGateDropsWhatIsHeld) {
  Start({200'000});
  uint64_t epoch = agent.Grant(0);
  ASSERT_EQ(trainer->Save(1), 0);
  ASSERT_TRUE(AllChunks(0, epoch));
  ASSERT_EQ(ckpt_step(trainer->handle, 2, nullptr, 0, nullptr, CKPT_UNCHANGED, nullptr), 0);
  EXPECT_EQ(trainer->Poll(1).code, 0) << "nothing was updated";
  ASSERT_EQ(ckpt_step(trainer->handle, 3, nullptr, 0, nullptr, 0, nullptr), 0);
  EXPECT_EQ(trainer->Poll(1).code, CKPT_E_UNGATED);
  ASSERT_EQ(ckpt_gate(trainer->handle, 0), 0);
  EXPECT_EQ(agent.bell_slot(0).word, CaptureWord(epoch, CaptureState::kAbandoned));
}

// Waiting is no gate: it has no deadline but its own, gives nothing up, and vouches for no capture but this one.
TEST_F(GateTest, WhoWaitsStillSealsWhatIsHeldAndNothingElse) {
  Start({200'000});
  uint64_t epoch = agent.Grant(0);
  ASSERT_EQ(trainer->Save(1), 0);
  EXPECT_EQ(ckpt_wait(trainer->handle, 1, CKPT_CAPTURED, 0), CKPT_E_TIMEOUT);
  ASSERT_TRUE(Eventually([&] {
    EXPECT_EQ(ckpt_wait(trainer->handle, 1, CKPT_CAPTURED | CKPT_STILL, kMs), CKPT_E_TIMEOUT) << "no news yet";
    return agent.bell_slot(0).word == CaptureWord(epoch, CaptureState::kComplete);
  }));
  agent.Grant(1);
  ASSERT_EQ(trainer->Save(2), 0) << ckpt_error();
  EXPECT_EQ(trainer->Info().last_code, 0) << "step 1 was waited for";
  EXPECT_EQ(trainer->Poll(1).flags, static_cast<uint32_t>(CKPT_COPIED));
  ASSERT_TRUE(AllChunks(1, CaptureEpoch(agent.bell_slot(1).word)));
  EXPECT_EQ(ckpt_wait(trainer->handle, 1, CKPT_CAPTURED | CKPT_STILL, 20 * kMs), CKPT_E_TIMEOUT);
  EXPECT_EQ(Word(1), CaptureState::kOpen) << "step 2 was not";
}

TEST_F(GateTest, OnceSeenGatesAreTrustedUntilOneIsMissed) {
  Start({200'000});
  ASSERT_EQ(ckpt_gate(trainer->handle, 0), 0);  // before the first update
  agent.Grant(0);
  ASSERT_EQ(trainer->Save(1), 0);
  EXPECT_TRUE(trainer->Copied(1)) << "complete without waiting for the gate";
  agent.Grant(1);
  ASSERT_EQ(trainer->Save(2), 0);
  EXPECT_EQ(trainer->Info().last_code, CKPT_E_UNGATED) << "told, though step 1 cannot be taken back";
  EXPECT_EQ(trainer->Poll(1).flags, static_cast<uint32_t>(CKPT_COPIED));
  ASSERT_TRUE(AllChunks(1, CaptureEpoch(agent.bell_slot(1).word)));
  EXPECT_EQ(ckpt_wait(trainer->handle, 2, CKPT_CAPTURED, 20 * kMs), CKPT_E_TIMEOUT);
  EXPECT_EQ(Word(1), CaptureState::kOpen) << "held back again";
}

TEST_F(GateTest, AStepWithoutAGateEndsTheTrustBeforeTheNextSave) {
  Start({200'000});
  auto step = [this](uint64_t n) { return ckpt_step(trainer->handle, n, nullptr, 0, nullptr, 0, nullptr); };
  ASSERT_EQ(ckpt_gate(trainer->handle, 0), 0);
  ASSERT_EQ(step(1), 0);
  ASSERT_EQ(ckpt_gate(trainer->handle, 0), 0);
  ASSERT_EQ(step(2), 0);
  agent.Grant(0);
  ASSERT_EQ(trainer->Save(3), 0);
  EXPECT_TRUE(trainer->Copied(3)) << "each step had its gate";
  ASSERT_EQ(ckpt_gate(trainer->handle, 0), 0);
  ASSERT_EQ(step(4), 0);
  ASSERT_EQ(step(5), 0);  // as a CUDA graph that is replayed with the optimizer in it
  uint64_t epoch = agent.Grant(1);
  ASSERT_EQ(trainer->Save(6), 0);
  ASSERT_TRUE(AllChunks(1, epoch));
  EXPECT_EQ(ckpt_wait(trainer->handle, 6, CKPT_CAPTURED, 20 * kMs), CKPT_E_TIMEOUT);
  EXPECT_EQ(Word(1), CaptureState::kOpen) << "held back";
}

TEST_F(GateTest, CloseSealsWhatIsHeld) {
  Start({200'000});
  uint64_t epoch = agent.Grant(0);
  ASSERT_EQ(trainer->Save(1), 0);
  ASSERT_TRUE(AllChunks(0, epoch));
  EXPECT_EQ(trainer->Close(300 * kMs), CKPT_E_TIMEOUT) << "not durable";
  EXPECT_EQ(Word(0), CaptureState::kComplete);
}

TEST_F(GateTest, CloseGivesUnusedGrantsBack) {
  Start({1000});
  uint64_t epoch = agent.Grant(0);
  EXPECT_EQ(trainer->Close(0), 0) << "nothing was saved";
  EXPECT_EQ(agent.bell_slot(0).ack, epoch);
  EXPECT_EQ(Word(0), CaptureState::kAbandoned);
}

// Copying 400 MiB takes longer than the deadline of a millisecond, unless this thread is preempted meanwhile: then
// again.
TEST_F(GateTest, AStoppedAgentCostsOneDeadlineAtMost) {
  Start({400 << 20});
  uint64_t step = 0;
  uint64_t epoch = 0;
  std::chrono::nanoseconds waited(0);
  agent.Freeze();
  ckpt_status status = ckpt_gate(trainer->handle, 0);
  for (int tries = 0; tries < 20 && status == 0; ++tries) {
    epoch = agent.Grant(0);
    ASSERT_EQ(trainer->Save(++step), 0) << ckpt_error();
    auto begin = std::chrono::steady_clock::now();
    status = ckpt_gate(trainer->handle, kMs);
    waited = std::chrono::steady_clock::now() - begin;
  }
  ASSERT_EQ(status, CKPT_E_GATE_DEADLINE);
  EXPECT_LT(waited, std::chrono::seconds(2)) << "preempted, but never the time of an agent";
  EXPECT_EQ(ckpt_gate(trainer->handle, kMs), 0) << "once";
  EXPECT_EQ(agent.bell_slot(0).word, CaptureWord(epoch, CaptureState::kAbandoned));
  EXPECT_EQ(trainer->Poll(step).code, CKPT_E_GATE_DEADLINE);
  EXPECT_GE(trainer->Poll(step).blocked_ns, kMs);
  EXPECT_TRUE(Eventually([&] { return agent.bell_slot(0).ack == epoch; }));
  EXPECT_EQ(trainer->Save(step + 1), CKPT_E_NO_FREE_SLOT);
  agent.Start();
}

TEST_F(GateTest, ADeadAgentDoesNotHinderACapture) {
  Start({200'000});
  ASSERT_EQ(ckpt_gate(trainer->handle, 0), 0);
  agent.Grant(0);
  agent.Kill();
  ASSERT_EQ(trainer->Save(1), 0) << ckpt_error();
  EXPECT_EQ(ckpt_gate(trainer->handle, 0), 0);
  EXPECT_EQ(Word(0), CaptureState::kComplete);
  ASSERT_TRUE(Eventually([&] { return trainer->Info().connected == 0; }));
  EXPECT_EQ(trainer->Save(2), CKPT_E_AGENT_UNREACHABLE);
}

TEST_F(GateTest, SelfcheckProvesACaptureWithoutAGate) {
  Start({200'000, 64});
  agent.Grant(0);
  ASSERT_EQ(trainer->Save(1, CKPT_SELFCHECK), 0);
  EXPECT_TRUE(trainer->Copied(1));
  EXPECT_EQ(ckpt_torn(trainer->handle, nullptr, 0), 0u);
}

// A race on purpose, which the thread sanitizer must not report.
[[gnu::noinline]] __attribute__((no_sanitize("thread"))) void FlipBit(char* byte) {
  *byte = static_cast<char>(*byte ^ 1);
}

// In the slot the small tensors follow the 64 MiB of tensor 0, so they change before the copy gets there; unless this
// thread is preempted meanwhile: then again.
TEST_F(GateTest, SelfcheckNamesTornTensors) {
  Start({64 << 20, 64, 4096, 500});
  ASSERT_EQ(ckpt_gate(trainer->handle, 0), 0);
  uint64_t torn[4] = {};
  uint64_t count = 0;
  uint64_t epoch = 0;
  uint64_t step = 0;
  while (count != 2 && step < 20) {
    epoch = agent.Grant(0);
    ASSERT_EQ(trainer->Save(++step, CKPT_SELFCHECK), 0) << ckpt_error();
    FlipBit(&trainer->tensors[1][5]);
    FlipBit(&trainer->tensors[3][499]);
    EXPECT_EQ(ckpt_gate(trainer->handle, 0), 0);
    count = ckpt_torn(trainer->handle, torn, 4);
  }
  ASSERT_EQ(count, 2u);
  EXPECT_EQ(trainer->Poll(step).code, CKPT_E_TORN);
  EXPECT_EQ(torn[0] + torn[1], 4u);
  EXPECT_EQ(agent.bell_slot(0).word, CaptureWord(epoch, CaptureState::kAbandoned));
  EXPECT_EQ(agent.bell_slot(0).ack, epoch);
}

TEST_F(GateTest, GatesFromSeveralThreads) {
  Start({32 << 20});
  for (uint64_t step = 1; step <= 20; ++step) {
    agent.Grant(step % 2);
    ASSERT_EQ(trainer->Save(step), 0) << ckpt_error();
    std::thread other([&] { EXPECT_EQ(ckpt_gate(trainer->handle, 0), 0); });
    EXPECT_EQ(ckpt_gate(trainer->handle, 0), 0);
    EXPECT_EQ(Word(step % 2), CaptureState::kComplete);
    other.join();
  }
}

}  // namespace
}  // namespace ckptd
