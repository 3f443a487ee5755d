#include <dlfcn.h>
#include <sys/mman.h>

#include <atomic>
#include <fstream>
#include <iterator>
#include <thread>

#include "client/core/threads/sync.h"
#include "client/src/test_image.h"
#include "client/src/test_trainer.h"

namespace ckptd {
namespace {

class SaveTest : public TrainerTest {
 protected:
  void SetUp() override {
    agent.Start();
    trainer = std::make_unique<TestTrainer>(agent.socket());
  }
};

TEST_F(SaveTest, FillsTheSlotAndTellsEveryChunk) {
  Register({100'000, 1, 0, 70'001, 4096, 333});
  uint64_t epoch = agent.Grant(1);
  ASSERT_EQ(trainer->Save(5, 0, R"({"a":1})"), 0) << ckpt_error();
  ASSERT_EQ(ckpt_gate(trainer->handle, 0), 0);
  EXPECT_EQ(agent.bell_slot(1).word, CaptureWord(epoch, CaptureState::kComplete));
  EXPECT_EQ(agent.bell_slot(1).step, 5u);
  EXPECT_EQ(agent.bell().pos, 5u);
  EXPECT_GE(agent.bell_slot(1).end_ns, agent.bell_slot(1).begin_ns);
  ExpectChunks(agent, 1, epoch);
  ExpectImage(agent.SlotBytes(1), *trainer, R"({"a":1})");
  EXPECT_EQ(trainer->Poll(5).flags, static_cast<uint32_t>(CKPT_COPIED));
  agent.WaitForCount(MessageType::kSave, 1);
  agent.WaitForCount(MessageType::kDone, 1);
}

bool DriverIsLoaded() {
  std::ifstream maps("/proc/self/maps");
  return std::string(std::istreambuf_iterator<char>(maps), {}).find("libcuda.so.1") != std::string::npos;
}

// ctest lets the loader find the host device under the driver's name.
TEST_F(SaveTest, WithoutGpuTensorsTheDriverIsNeverLoaded) {
  trainer = std::make_unique<TestTrainer>(agent.socket(), 0, CKPT_AUTO, CKPT_POSTMORTEM);
  Register({100'000, 333});
  agent.Grant(1);
  ASSERT_EQ(trainer->Save(5), 0) << ckpt_error();
  ASSERT_EQ(ckpt_gate_stream(trainer->handle, nullptr, 0), 0);
  ASSERT_TRUE(trainer->Copied(5));
  EXPECT_FALSE(DriverIsLoaded());
  if (dlopen("libcuda.so.1", RTLD_NOW) == nullptr) GTEST_SKIP() << "there is none to be loaded: run it by ctest";
  EXPECT_TRUE(DriverIsLoaded());
}

TEST_F(SaveTest, EagerTensorsMayChangeAtOnce) {
  trainer->MakeTensors({50'000, 300, 90'000});
  trainer->flags = {0, CKPT_EAGER, CKPT_EAGER};
  ASSERT_EQ(trainer->Register(), 0);
  trainer->WaitReady();
  agent.Grant(0);
  ASSERT_EQ(trainer->Save(1), 0) << ckpt_error();
  auto before = trainer->tensors;
  trainer->tensors[1].assign(300, 'x');
  memset(const_cast<void*>(trainer->data[2]), 'y', 90'000);
  ASSERT_EQ(ckpt_gate(trainer->handle, 0), 0);
  trainer->tensors = before;
  ExpectImage(agent.SlotBytes(0), *trainer, "{}");
  EXPECT_GE(trainer->Poll(1).eager_bytes, 90'300u);
}

TEST_F(SaveTest, AllEagerNeedsNoGate) {
  trainer->MakeTensors({5000});
  trainer->flags = {CKPT_EAGER};
  ASSERT_EQ(trainer->Register(), 0);
  trainer->WaitReady();
  agent.Grant(0);
  ASSERT_EQ(trainer->Save(1), 0);
  EXPECT_TRUE(trainer->Copied(1));
}

TEST_F(SaveTest, EveryDropHasItsCode) {
  trainer->MakeTensors({5000});
  EXPECT_EQ(trainer->Save(1), CKPT_E_INVALID_ARGUMENT);  // not registered
  Register({5000});
  EXPECT_EQ(trainer->Save(2), CKPT_E_NO_FREE_SLOT);
  agent.WaitForCount(MessageType::kDrop, 2);
  EXPECT_EQ(agent.last_drop().step, 2u);
  EXPECT_EQ(agent.last_drop().code, 23u);
  EXPECT_EQ(agent.bell().pos, 2u);
  EXPECT_EQ(agent.bell().drop_code, 23u);
  agent.Grant(0, 10);
  EXPECT_EQ(trainer->Save(3), CKPT_E_BELOW_FLOOR);
  EXPECT_EQ(trainer->Save(3), CKPT_E_INVALID_ARGUMENT);  // not above the last step
  trainer->data[0] = trainer->tensors[0].data() + 1;
  EXPECT_EQ(trainer->Save(10), CKPT_E_MOVED);
  EXPECT_EQ(agent.bell().pos, 10u);
  ASSERT_EQ(trainer->Register(), 0);
  trainer->data[0] = trainer->tensors[0].data();
  ASSERT_EQ(trainer->Register(), 0);
  EXPECT_EQ(trainer->Save(11), 0) << ckpt_error();
  EXPECT_EQ(trainer->Poll(10).code, CKPT_E_MOVED);
  EXPECT_EQ(trainer->Poll(10).flags, static_cast<uint32_t>(CKPT_DROPPED));
  EXPECT_EQ(ckpt_wait(trainer->handle, 10, CKPT_CAPTURED, kLong), CKPT_E_MOVED);
  EXPECT_EQ(ckpt_wait(trainer->handle, 77, CKPT_CAPTURED, kLong), CKPT_E_NOT_FOUND);
  EXPECT_EQ(trainer->Info().dropped, 4u);
  EXPECT_EQ(agent.Count(MessageType::kLayout), 1) << "other addresses need no new layout";
}

TEST_F(SaveTest, BeforeTheFirstGrantThereIsNoSlotThatCouldBeBusy) {
  agent.none_granted = true;
  trainer->MakeTensors({5000});
  ASSERT_EQ(trainer->Register(), 0) << ckpt_error();
  uint64_t step = 0;
  const auto told = [&] {
    return trainer->Save(++step) == CKPT_E_LAYOUT_PREPARING &&
           std::string(ckpt_error()).find("has not granted a slot of it yet") != std::string::npos;
  };
  ASSERT_TRUE(Eventually(told)) << ckpt_error();
  EXPECT_EQ(trainer->Info().ready, 0u);
  std::thread later([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    agent.Grant(0);
  });
  EXPECT_EQ(trainer->Save(++step, CKPT_WAIT_FOR_SLOT), 0) << ckpt_error();
  later.join();
  EXPECT_EQ(trainer->Info().ready, 1u);
}

TEST_F(SaveTest, ASlotThatWasReplacedIsNotWritten) {
  Register({5000});
  agent.Grant(0);
  agent.ReplaceSlot(0);
  agent.SendNews({});
  ASSERT_TRUE(Eventually([&, step = uint64_t{1}]() mutable { return trainer->Save(step++) == 0; }));
  ASSERT_EQ(ckpt_gate(trainer->handle, 0), 0);
  ExpectImage(agent.SlotBytes(0), *trainer, "{}");
}

TEST_F(SaveTest, TheAgentGivesUpAndTheTrainerAcknowledges) {
  Register({5000});
  uint64_t epoch = agent.Grant(0);
  agent.bell_slot(0).word = CaptureWord(epoch, CaptureState::kAbandoned);
  agent.SendNews({});
  EXPECT_TRUE(Eventually([&] { return agent.bell_slot(0).ack == epoch; })) << "an unused grant";
  EXPECT_EQ(trainer->Save(1), CKPT_E_NO_FREE_SLOT);
  epoch = agent.Grant(0);
  ASSERT_EQ(trainer->Save(2), 0);  // no gate yet: held
  ASSERT_TRUE(Eventually([&] { return agent.bell_slot(0).word != 0; }));
  agent.bell_slot(0).word = CaptureWord(epoch, CaptureState::kAbandoned);
  EXPECT_EQ(ckpt_gate(trainer->handle, 0), 0);
  EXPECT_EQ(agent.bell_slot(0).ack, epoch);
  EXPECT_EQ(trainer->Poll(2).code, CKPT_E_INTERRUPTED);
}

TEST_F(SaveTest, MoreExtraStateThanRoomMakesALargerLayout) {
  Register({5000});
  agent.Grant(0);
  std::string extra(100'000, '1');
  EXPECT_EQ(trainer->Save(1, 0, extra), CKPT_E_LAYOUT_PREPARING);
  agent.WaitForCount(MessageType::kLayout, 2);
  trainer->WaitReady();
  agent.Grant(0);
  ASSERT_EQ(trainer->Save(2, 0, extra), 0) << ckpt_error();
  ASSERT_EQ(ckpt_gate(trainer->handle, 0), 0);
  ExpectImage(agent.SlotBytes(0), *trainer, extra);
}

TEST_F(SaveTest, MemoryThatIsGoneDropsTheSave) {
  Register({5000, 8192});
  void* page = mmap(nullptr, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  trainer->data[1] = page;
  ASSERT_EQ(trainer->Register(), 0);
  uint64_t epoch = agent.Grant(0);
  ASSERT_EQ(trainer->Save(1), 0);
  EXPECT_EQ(ckpt_gate(trainer->handle, 0), 0);
  EXPECT_EQ(trainer->Poll(1).code, CKPT_E_MOVED);
  EXPECT_NE(std::string(trainer->Info().last_sentence).find("\"t1\""), std::string::npos);
  EXPECT_EQ(agent.bell_slot(0).word, CaptureWord(epoch, CaptureState::kAbandoned));
  EXPECT_EQ(agent.bell_slot(0).ack, epoch);
  munmap(page, 8192);
}

TEST_F(SaveTest, StepSavesWhenDue) {
  Register({5000});
  agent.Grant(0);
  int32_t saved = 9;
  EXPECT_EQ(ckpt_step(trainer->handle, 9, nullptr, 0, nullptr, 0, &saved), 0);
  EXPECT_EQ(saved, 0);
  EXPECT_EQ(ckpt_step(trainer->handle, 10, nullptr, 0, nullptr, 0, &saved), 0) << ckpt_error();
  EXPECT_EQ(saved, 1);
}

TEST_F(SaveTest, NewsTellTheLevels) {
  Register({5000});
  agent.Grant(0);
  ASSERT_EQ(trainer->Save(4), 0);
  ASSERT_EQ(ckpt_gate(trainer->handle, 0), 0);
  EXPECT_EQ(ckpt_wait(trainer->handle, 4, CKPT_CAPTURED, kMs), CKPT_E_TIMEOUT);
  NewsMessage news = {};
  news.attempt = 1;
  news.captured_step = 4;
  news.durable_step = 4;
  news.outcome_count = 1;
  news.outcomes[0] = {4, kStepCaptured | kStepDurable, 0};
  agent.SendNews(news);
  EXPECT_EQ(ckpt_wait(trainer->handle, 4, CKPT_DURABLE, kLong), 0);
  EXPECT_EQ(trainer->Info().durable_step, 4u);
  news.fenced_by = 2;
  agent.SendNews(news);
  ASSERT_TRUE(Eventually([&] { return trainer->Info().fenced_by == 2; }));
  EXPECT_EQ(trainer->Save(5), CKPT_E_FENCED);
  EXPECT_EQ(trainer->Close(0), CKPT_E_FENCED);
}

// What one call in another thread came to.
struct Outcome {
  std::atomic<ckpt_status> status{1};
  std::string sentence;
};

template <typename Call>
std::thread InAnotherThread(Outcome* outcome, Call call) {
  std::thread thread([outcome, call] {
    outcome->status = call();
    outcome->sentence = ckpt_error();
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // inside by then
  EXPECT_EQ(outcome->status, 1) << outcome->sentence;
  return thread;
}

TEST_F(SaveTest, CloseEndsTheWaitsOfOtherThreads) {
  Register({100'000});
  agent.Grant(0);
  ASSERT_EQ(ckpt_gate(trainer->handle, 0), 0);
  ASSERT_EQ(trainer->Save(1), 0) << ckpt_error();
  ASSERT_TRUE(trainer->Copied(1));
  ckpt* handle = trainer->handle;
  Outcome outcome;
  std::thread waiter = InAnotherThread(&outcome, [handle] { return ckpt_wait(handle, 1, CKPT_PROTECTED, kLong); });
  uint64_t begin = MonotonicNs();
  EXPECT_EQ(trainer->Close(0), CKPT_E_TIMEOUT) << "not durable";
  EXPECT_LT(MonotonicNs() - begin, kLong / 4);
  waiter.join();
  EXPECT_EQ(outcome.status, CKPT_E_CANCELLED);
  EXPECT_EQ(outcome.sentence, "the handle was closed");
}

}  // namespace
}  // namespace ckptd
