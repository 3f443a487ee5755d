// Memory runs out on a thread of libckpt: the process is somebody's training, and goes on.
#include <pthread.h>

#include "client/src/test_allocations.h"
#include "client/src/test_trainer.h"

namespace ckptd {
namespace {

class ThreadFailureTest : public TrainerTest {
 protected:
  void SetUp() override {
    if (!kAllocationsAreSeen) GTEST_SKIP() << "the sanitizer has operator new";
  }
  void TearDown() override { FailAllocationOf(nullptr); }

  void ExpectBroken(uint64_t step, const char* thread) {
    EXPECT_EQ(trainer->Save(step), CKPT_E_INTERNAL);
    const std::string told = ckpt_error();
    EXPECT_NE(told.find(std::string(thread) + " of libckpt ended (out of memory)"), std::string::npos) << told;
    const ckpt_info_view info = trainer->Info();
    EXPECT_EQ(info.broken, 1u);
    EXPECT_EQ(info.last_code, CKPT_E_INTERNAL);
    EXPECT_EQ(info.last_sentence, told);
    EXPECT_EQ(ckpt_gate(trainer->handle, 0), 0) << "training goes on";
    EXPECT_EQ(ckpt_wait(trainer->handle, step, CKPT_CAPTURED, kLong), CKPT_E_INTERNAL);
  }

  // Nothing that is waited for comes any more, and nobody waits.
  void ExpectClosesSoon() {
    auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(trainer->Close(kLong), CKPT_E_INTERNAL);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  }
};

// A race on purpose.
[[gnu::noinline]] void ChangeByte(char* byte) { *byte = static_cast<char>(*byte ^ 1); }

// The list of torn tensors is all that the copy thread allocates. Tensor 1 follows 64 MiB, so it changes before it is
// copied, unless this thread is preempted meanwhile: then again.
TEST_F(ThreadFailureTest, TheCopyThread) {
  Start({64 << 20, 64});
  ASSERT_EQ(ckpt_gate(trainer->handle, 0), 0);
  uint64_t step = 0;
  uint64_t epoch = 0;
  FailAllocationOf("ckpt-copy");
  while (trainer->Info().broken == 0 && step < 20) {
    epoch = agent.Grant(0);
    ASSERT_EQ(trainer->Save(++step, CKPT_SELFCHECK), 0) << ckpt_error();
    ChangeByte(&trainer->tensors[1][5]);
    EXPECT_EQ(ckpt_gate(trainer->handle, 0), 0);
  }
  EXPECT_EQ(trainer->Poll(step).code, CKPT_E_INTERNAL);
  EXPECT_EQ(agent.bell_slot(0).word, CaptureWord(epoch, CaptureState::kAbandoned));
  EXPECT_EQ(agent.bell_slot(0).ack, epoch) << "nobody writes to it";
  ExpectBroken(step + 1, "ckpt-copy");
  EXPECT_EQ(trainer->Info().connected, 1u);
  ExpectClosesSoon();
}

TEST_F(ThreadFailureTest, TheThreadThatSavesLosesThatSaveOnly) {
  Start({1000});
  ASSERT_EQ(ckpt_gate(trainer->handle, 0), 0);
  agent.Grant(0);
  char name[16] = {};
  ASSERT_EQ(pthread_getname_np(pthread_self(), name, sizeof name), 0);
  FailAllocationOf(name);
  EXPECT_EQ(trainer->Save(1, CKPT_SELFCHECK), CKPT_E_INTERNAL) << "no memory for the digests";
  EXPECT_STREQ(ckpt_error(), "step 1: out of memory");
  EXPECT_EQ(trainer->Poll(1).code, CKPT_E_INTERNAL);
  EXPECT_EQ(agent.bell().pos, 1u) << "told, so that no other rank waits for it";
  EXPECT_EQ(trainer->Save(2, CKPT_SELFCHECK), 0) << ckpt_error();
  EXPECT_TRUE(trainer->Copied(2));
}

TEST_F(ThreadFailureTest, TheSessionThread) {
  Start({1000});
  ASSERT_EQ(ckpt_gate(trainer->handle, 0), 0);
  agent.Grant(0);
  ASSERT_EQ(trainer->Save(1), 0) << ckpt_error();
  ASSERT_TRUE(trainer->Copied(1));
  std::thread other([&] { EXPECT_EQ(ckpt_wait(trainer->handle, 1, CKPT_CAPTURED, kLong), CKPT_E_INTERNAL); });
  FailAllocationOf("ckpt-session");
  agent.Kill();  // to connect anew takes memory
  ASSERT_TRUE(Eventually([&] { return trainer->Info().broken != 0; }));
  other.join();
  ExpectBroken(2, "ckpt-session");
  EXPECT_EQ(trainer->Info().connected, 0u);
  ckpt_want want = {};
  want.struct_bytes = sizeof want;
  ckpt_restored restored = {};
  restored.struct_bytes = sizeof restored;
  EXPECT_EQ(ckpt_restore_begin(trainer->handle, &want, &restored), CKPT_E_INTERNAL);
  ExpectClosesSoon();
}

TEST_F(ThreadFailureTest, WithoutThePullThreadSavesArePushed) {
  agent.Start();
  trainer = std::make_unique<TestTrainer>(agent.socket(), uint64_t{0}, uint32_t{CKPT_PULL});
  FailAllocationOf("ckpt-pull");  // in the sentence that nothing of this is on a GPU
  Register({1000});
  ASSERT_TRUE(Eventually([&] {
    return std::string(trainer->Info().path_why).find("out of memory") != std::string::npos;
  })) << trainer->Info().path_why;
  EXPECT_EQ(trainer->Info().gpu_path, static_cast<uint32_t>(CKPT_PUSH));
  EXPECT_EQ(trainer->Info().broken, 0u);
  EXPECT_EQ(ckpt_unexport(trainer->handle, kLong), 0);
  ASSERT_EQ(ckpt_gate(trainer->handle, 0), 0);
  agent.Grant(0);
  ASSERT_EQ(trainer->Save(1), 0) << ckpt_error();
  EXPECT_TRUE(trainer->Copied(1));
}

}  // namespace
}  // namespace ckptd
