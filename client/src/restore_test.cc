#include <algorithm>
#include <random>

#include "client/core/threads/sync.h"
#include "client/src/test_trainer.h"

namespace ckptd {
namespace {

class RestoreTest : public ::testing::Test {
 protected:
  // Saves `sizes` at step 7 and seals it.
  void Seal(const std::vector<uint64_t>& sizes) {
    agent.Start();
    SealByAnother(sizes);
    trainer = std::make_unique<TestTrainer>(agent.socket());
  }

  // The agent serves one trainer at a time, so this one is gone before the next connects.
  void SealByAnother(const std::vector<uint64_t>& sizes) {
    TestTrainer first(agent.socket());
    first.MakeTensors(sizes);
    ASSERT_EQ(first.Register(), 0);
    first.WaitReady();
    agent.Grant(0);
    ASSERT_EQ(first.Save(7), 0) << ckpt_error();
    ASSERT_EQ(ckpt_gate(first.handle, 0), 0);
    agent.Seal(0);
    tensors = first.tensors;
    slot = agent.SlotBytes(0);
  }

  ckpt_status Begin(uint64_t timeout_ns = kLong, uint64_t connect_timeout_ns = 0) {
    ckpt_want want = {sizeof(ckpt_want), CKPT_WANT_NEWEST, 0, timeout_ns, connect_timeout_ns};
    restored.struct_bytes = sizeof restored;
    return ckpt_restore_begin(trainer->handle, &want, &restored);
  }
  ckpt_status End(ckpt_status result) { return ckpt_restore_end(trainer->handle, result, "because", &restored); }

  FakeAgent agent;
  std::vector<std::vector<char>> tensors;
  std::string slot;
  std::unique_ptr<TestTrainer> trainer;
  ckpt_restored restored = {};
};

TEST_F(RestoreTest, NothingExists) {
  agent.Start();
  trainer = std::make_unique<TestTrainer>(agent.socket());
  ASSERT_EQ(Begin(), 0) << ckpt_error();
  EXPECT_EQ(restored.snapshot_attempt, 0u);
  EXPECT_EQ(restored.attempt, 1u);
  EXPECT_EQ(End(0), 0) << ckpt_error();
  EXPECT_EQ(trainer->Info().attempt, 1u);
}

TEST_F(RestoreTest, DescribesAndReadsTheSnapshot) {
  Seal({300'000, 5, 77});
  ASSERT_EQ(Begin(), 0) << ckpt_error();
  EXPECT_EQ(restored.snapshot_step, 7u);
  EXPECT_EQ(restored.source, 1u);
  EXPECT_EQ(restored.slot_bytes, slot.size());
  ASSERT_EQ(restored.image_count, 1u);
  EXPECT_EQ(restored.skipped_count, 1u);
  EXPECT_EQ(restored.skipped[0].code, CKPT_E_CORRUPT);
  EXPECT_STREQ(ckpt_skipped_why(trainer->handle, 0), "") << "an agent that is older does not say";
  const char* json = nullptr;
  uint64_t json_bytes = 0;
  uint64_t data_offset = 0;
  ASSERT_EQ(ckpt_restore_header(trainer->handle, 0, &json, &json_bytes, &data_offset), 0);
  EXPECT_EQ(std::string(json, json_bytes), slot.substr(8, json_bytes));
  EXPECT_EQ(data_offset, json_bytes + 8);
  EXPECT_EQ(ckpt_restore_header(trainer->handle, 1, &json, &json_bytes, &data_offset), CKPT_E_INVALID_ARGUMENT);
  const void* address = nullptr;
  uint64_t bytes = 0;
  ASSERT_EQ(ckpt_restore_map(trainer->handle, &address, &bytes), 0) << ckpt_error();
  EXPECT_EQ(std::string(static_cast<const char*>(address), bytes), slot);
  ASSERT_EQ(End(0), 0) << ckpt_error();
  EXPECT_EQ(agent.last_loaded().code, 0u);
  EXPECT_EQ(agent.last_loaded().bytes, slot.size());
  trainer->MakeTensors({300'000, 5, 77});
  ASSERT_EQ(trainer->Register(), 0);
  trainer->WaitReady();
  agent.Grant(1);
  EXPECT_EQ(trainer->Save(7), CKPT_E_INVALID_ARGUMENT) << "training starts from step 7";
  EXPECT_EQ(trainer->Save(8), 0) << ckpt_error();
}

// A layout of its own for a document that has grown would need all slots once more, beside the restored one's.
TEST_F(RestoreTest, ADocumentThatStillFitsKeepsTheLayoutOfWhatWasRestored) {
  Seal({5000});
  ASSERT_EQ(Begin(), 0) << ckpt_error();
  ASSERT_EQ(End(0), 0) << ckpt_error();
  trainer->MakeTensors({5000});
  ASSERT_EQ(trainer->Register(60'000), 0) << ckpt_error();
  EXPECT_EQ(trainer->Info().layout_bytes, slot.size());
  ASSERT_EQ(trainer->Register(80'000), 0) << ckpt_error();
  EXPECT_GT(trainer->Info().layout_bytes, slot.size() + 4 * 80'000 - 70'000);
}

// Cancels until `call` is over.
ckpt_status Cancelled(ckpt* handle, const std::function<ckpt_status()>& call) {
  std::atomic<bool> over{false};
  ckpt_status status = 0;
  std::string sentence;
  std::thread caller([&] {
    status = call();
    sentence = ckpt_error();
    over = true;
  });
  EXPECT_TRUE(Eventually([&] { return over || ckpt_restore_cancel(handle) != 0; }));
  caller.join();
  EXPECT_EQ(sentence, "job job rank 0: the restore was ended from outside");
  return status;
}

TEST_F(RestoreTest, EndsWhenAnotherThreadSaysSo) {
  trainer = std::make_unique<TestTrainer>(agent.socket());
  EXPECT_EQ(ckpt_restore_cancel(trainer->handle), 0) << "nothing is under way";
  EXPECT_EQ(Cancelled(trainer->handle, [&] { return Begin(kLong, kLong); }), CKPT_E_CANCELLED) << "no agent";
  Seal({5000});
  agent.hold_go = true;
  ASSERT_EQ(Begin(), 0) << ckpt_error();
  EXPECT_EQ(Cancelled(trainer->handle, [&] { return End(0); }), CKPT_E_CANCELLED) << "other ranks load";
  agent.hold_go = false;
  ASSERT_EQ(Begin(), 0) << ckpt_error();
  ASSERT_EQ(End(0), 0) << ckpt_error();
  EXPECT_EQ(ckpt_restore_cancel(trainer->handle), 0);
  EXPECT_EQ(trainer->Info().attempt, restored.attempt) << "it runs, and stays";
}

TEST_F(RestoreTest, TellsWhyStepsWerePassedOver) {
  Seal({5000});
  agent.SaySkipped(2, 998, "of a step that LOAD does not name");
  agent.SaySkipped(2, 999, "rank 5: its node n2 and its holder n3 are gone");
  ASSERT_EQ(Begin(), 0) << ckpt_error();
  EXPECT_EQ(restored.attempt, 2u);
  EXPECT_STREQ(ckpt_skipped_why(trainer->handle, 0), "rank 5: its node n2 and its holder n3 are gone");
  EXPECT_STREQ(ckpt_skipped_why(trainer->handle, 1), "");
  ASSERT_EQ(End(0), 0) << ckpt_error();
  EXPECT_STREQ(ckpt_skipped_why(trainer->handle, 0), "rank 5: its node n2 and its holder n3 are gone");
  EXPECT_STREQ(ckpt_skipped_why(nullptr, 0), "");
}

TEST_F(RestoreTest, WhatIsSaidOfAnotherAttemptIsNotTold) {
  Seal({5000});
  agent.SaySkipped(2, 999, "of this attempt");
  agent.SaySkipped(7, 999, "of another one");
  ASSERT_EQ(Begin(), 0) << ckpt_error();
  EXPECT_STREQ(ckpt_skipped_why(trainer->handle, 0), "");
}

TEST_F(RestoreTest, ASentenceHasAnEndWhateverIsSent) {
  Seal({5000});
  agent.SaySkipped(2, 999, std::string(sizeof(SkippedMessage::why), 'x'));
  for (uint64_t step = 0; step < 2 * uint64_t{kMaxSkipped}; ++step) agent.SaySkipped(2, step, "too many");
  ASSERT_EQ(Begin(), 0) << ckpt_error();
  EXPECT_EQ(ckpt_skipped_why(trainer->handle, 0), std::string(sizeof(SkippedMessage::why) - 1, 'x'));
}

TEST_F(RestoreTest, RandomBoxes) {
  Seal({500'000, 123'457});
  ASSERT_EQ(Begin(), 0) << ckpt_error();
  std::mt19937 random(20261121);
  for (int round = 0; round < 50; ++round) {
    std::vector<uint64_t> cuts(2 * (1 + random() % 20));
    for (uint64_t& cut : cuts) cut = random() % (slot.size() + 1);
    std::sort(cuts.begin(), cuts.end());
    std::vector<std::string> into(cuts.size() / 2);
    std::vector<ckpt_box> boxes(cuts.size() / 2);
    for (size_t i = 0; i < boxes.size(); ++i) {
      into[i].resize(cuts[2 * i + 1] - cuts[2 * i]);
      boxes[i] = {into[i].data(), cuts[2 * i], into[i].size(), 0};
    }
    auto shuffled = boxes;
    std::shuffle(shuffled.begin(), shuffled.end(), random);
    ASSERT_EQ(ckpt_restore_read(trainer->handle, shuffled.data(), shuffled.size()), 0) << ckpt_error();
    for (size_t i = 0; i < boxes.size(); ++i) {
      ASSERT_EQ(into[i], slot.substr(boxes[i].offset, boxes[i].bytes)) << "round " << round << " box " << i;
    }
  }
  char byte[8];
  ckpt_box overlapping[] = {{byte, 10, 8, 0}, {byte, 17, 1, 0}};
  EXPECT_EQ(ckpt_restore_read(trainer->handle, overlapping, 2), CKPT_E_INVALID_ARGUMENT);
  ckpt_box outside = {byte, slot.size(), 1, 0};
  EXPECT_EQ(ckpt_restore_read(trainer->handle, &outside, 1), CKPT_E_INVALID_ARGUMENT);
}

TEST_F(RestoreTest, ADamagedChunkIsFoundByWhoeverTouchesIt) {
  Seal({500'000});
  agent.DamageSlot(0, 200'000);
  ASSERT_EQ(Begin(), 0) << ckpt_error();
  char byte = 0;
  ckpt_box damaged = {&byte, 196'608, 1, 0};  // the same chunk of 64 KiB, another byte
  EXPECT_EQ(ckpt_restore_read(trainer->handle, &damaged, 1), CKPT_E_CORRUPT);
  EXPECT_NE(std::string(ckpt_error()).find("chunk 3"), std::string::npos) << ckpt_error();
  ckpt_box whole = {&byte, 300'000, 1, 0};
  EXPECT_EQ(ckpt_restore_read(trainer->handle, &whole, 1), 0);
  const void* address = nullptr;
  uint64_t bytes = 0;
  EXPECT_EQ(ckpt_restore_map(trainer->handle, &address, &bytes), CKPT_E_CORRUPT);
}

// What makes a map cheap, and what it costs: damage since then is found by whoever reads, not here.
TEST_F(RestoreTest, AMapDoesNotReadWhatTheAgentHasChecked) {
  Seal({500'000});
  agent.offer_verified = true;
  agent.DamageSlot(0, 200'000);
  ASSERT_EQ(Begin(), 0) << ckpt_error();
  const void* address = nullptr;
  uint64_t bytes = 0;
  EXPECT_EQ(ckpt_restore_map(trainer->handle, &address, &bytes), 0) << ckpt_error();
  EXPECT_EQ(bytes, slot.size());
  char byte = 0;
  ckpt_box damaged = {&byte, 200'000, 1, 0};
  EXPECT_EQ(ckpt_restore_read(trainer->handle, &damaged, 1), CKPT_E_CORRUPT);
}

TEST_F(RestoreTest, AFailedLoadGetsAnotherOffer) {
  Seal({5000});
  agent.hold_go = true;
  ASSERT_EQ(Begin(), 0);
  std::thread other_rank([&] {
    agent.WaitForCount(MessageType::kLoaded, 2);  // the first is the trainer that saved
    EXPECT_EQ(agent.last_loaded().code, 4u);
    EXPECT_STREQ(agent.last_loaded().reason, "because");
    agent.hold_go = false;
    agent.OfferAgain();
  });
  EXPECT_EQ(End(CKPT_E_CORRUPT), CKPT_RELOAD);
  EXPECT_EQ(restored.attempt, 3u);
  EXPECT_EQ(restored.snapshot_step, 7u);
  EXPECT_EQ(End(0), 0) << ckpt_error();
  EXPECT_EQ(trainer->Info().attempt, 3u);
  other_rank.join();
}

TEST_F(RestoreTest, ADamagedHeaderIsRefusedInside) {
  Seal({5000});
  agent.DamageSlot(0, 200);
  EXPECT_EQ(Begin(300 * kMs), CKPT_E_TIMEOUT);
  EXPECT_EQ(agent.last_loaded().code, 4u) << "the agent was told and could offer another";
}

TEST_F(RestoreTest, TheAgentsPatienceIsTheTrainersToo) {
  Seal({5000});
  agent.hold_go = true;
  ASSERT_EQ(Begin(300 * kMs), 0);
  std::thread other_rank([&] {
    agent.WaitForCount(MessageType::kLoaded, 2);
    agent.AskForPatience(60'000);
    std::this_thread::sleep_for(std::chrono::milliseconds(2000));  // beyond the grace for the agent's answer, too
    agent.hold_go = false;
    agent.OfferAgain();
  });
  EXPECT_EQ(End(0), CKPT_RELOAD) << ckpt_error();
  EXPECT_EQ(End(0), 0) << ckpt_error();
  other_rank.join();
}

TEST_F(RestoreTest, ItsPatienceGoesWithTheAgent) {
  Seal({5000});
  agent.hold_go = true;
  ASSERT_EQ(Begin(300 * kMs), 0);
  agent.AskForPatience(UINT64_MAX);
  std::thread later([&] {
    agent.WaitForCount(MessageType::kLoaded, 2);
    agent.Kill();
  });
  EXPECT_EQ(End(0), CKPT_E_AGENT_UNREACHABLE);
  later.join();
}

// An agent that is older would take LOADING for an error.
TEST_F(RestoreTest, AnAgentThatAsksForPatienceIsToldOfTheReading) {
  Seal({5000});
  ASSERT_EQ(Begin(), 0);
  char byte = 0;
  ckpt_box box = {&byte, 10, 1, 0};
  ASSERT_EQ(ckpt_restore_read(trainer->handle, &box, 1), 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(agent.Count(MessageType::kLoading), 0);
  agent.AskForPatience(60'000);
  agent.WaitForCount(MessageType::kLoading, 1);
  EXPECT_EQ(End(0), 0) << ckpt_error();
  EXPECT_EQ(agent.Count(MessageType::kLoading), 1) << "about once a second";
}

TEST_F(RestoreTest, TheAgentsErrorIsPassedOn) {
  Seal({5000});
  agent.hold_go = true;
  ASSERT_EQ(Begin(), 0);
  std::thread later([&] {
    agent.WaitForCount(MessageType::kLoaded, 2);
    agent.SendError(MessageType::kLoaded, 7, "rank 1: chunk 3 is damaged");
  });
  EXPECT_EQ(End(0), CKPT_E_RESTORE_FAILED);
  EXPECT_STREQ(ckpt_error(), "rank 1: chunk 3 is damaged");
  later.join();
}

TEST_F(RestoreTest, TheAgentDiesInBetween) {
  Seal({5000});
  ASSERT_EQ(Begin(), 0);
  agent.Kill();
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    agent.Start();
  });
  EXPECT_EQ(End(0), 0) << ckpt_error();
  later.join();
  EXPECT_EQ(agent.last_loaded().attempt, 2u) << "same ticket, same attempt";
}

TEST_F(RestoreTest, NobodyAnswers) {
  trainer = std::make_unique<TestTrainer>("/nonexistent/ckptd.sock");
  uint64_t begin = MonotonicNs();
  EXPECT_EQ(Begin(kLong, 100 * kMs), CKPT_E_AGENT_UNREACHABLE) << "the long timeout is for an agent that answers";
  EXPECT_LT(MonotonicNs() - begin, kLong / 2);
  EXPECT_NE(std::string(ckpt_error()).find("/nonexistent/ckptd.sock (No such file or directory)"), std::string::npos)
      << ckpt_error();
  EXPECT_NE(std::string(ckpt_next_step(CKPT_E_AGENT_UNREACHABLE)).find("systemctl status ckptd"), std::string::npos);
}

TEST_F(RestoreTest, AnAgentThatIsJustRestartingIsMet) {
  trainer = std::make_unique<TestTrainer>(agent.socket());
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    agent.Start();
  });
  EXPECT_EQ(Begin(kLong, kLong), 0) << ckpt_error();
  later.join();
}

TEST_F(RestoreTest, AnAgentThatAnsweredIsGivenTheLongTimeout) {
  Seal({5000});
  ASSERT_EQ(Begin(kLong, 100 * kMs), 0);
  agent.Kill();
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    agent.Start();
  });
  EXPECT_EQ(End(0), 0) << ckpt_error();
  later.join();
}

TEST_F(RestoreTest, NoAgent) {
  trainer = std::make_unique<TestTrainer>("/nonexistent/ckptd.sock");
  EXPECT_EQ(Begin(100 * kMs), CKPT_E_AGENT_UNREACHABLE);
  EXPECT_EQ(End(0), CKPT_E_AGENT_UNREACHABLE);
}

TEST_F(RestoreTest, SavingWithoutHavingRestoredIsRefusedWhenSomethingExists) {
  Seal({5000});
  trainer->MakeTensors({5000});
  ASSERT_EQ(trainer->Register(), 0);
  agent.WaitForCount(MessageType::kLoaded, 2);
  EXPECT_EQ(agent.last_loaded().code, 28u);
}

}  // namespace
}  // namespace ckptd
