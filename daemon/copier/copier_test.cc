#include <cuda.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <sstream>
#include <thread>

#include "client/core/copy/capture_word.h"
#include "client/core/wire/packet.h"
#include "daemon/copier/copier_test_util.h"
#include "daemon/copier/outcome.h"

namespace ckptd {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

// A GPU that takes 65 ms for a chunk.
const char kSlow[] = "FAKECUDA_RATE=1";

void Sleep(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

TEST_F(CopierTest, CopiesSumsAndCompletes) {
  Launch();
  Prepare();
  EXPECT_EQ(process_->Imported(), 2);
  uint64_t serial = Copy();
  HostDone(serial);
  Ready(serial);
  ExpectCopying(serial);
  EXPECT_EQ(Answer(serial), CopierOutcome::kDone) << sentence_;
  EXPECT_EQ(chunks_told_, kChunks);
  EXPECT_EQ(answer_.head.trace, serial + 1000);
  EXPECT_EQ(State(), CaptureState::kComplete);
  EXPECT_EQ(Released(), serial);
  EXPECT_EQ(gate().progress.load(), kChunks);
  ExpectCaptured(0, epoch_);
  EXPECT_TRUE(IsUntouched(1));
  EXPECT_TRUE(IsQuiet());
}

TEST_F(CopierTest, SavesFollowEachOther) {
  Launch();
  Prepare();
  for (uint32_t i = 0; i < 2 * kGateLines + 3; ++i) {
    uint64_t serial = Copy(i % kSlots, i % kGateLines);
    Ready(serial, i % kGateLines);
    HostDone(serial);
    ExpectCopying(serial);
    ASSERT_EQ(Answer(serial), CopierOutcome::kDone) << sentence_;
    ASSERT_EQ(Released(i % kGateLines), serial);
    ASSERT_EQ(State(i % kSlots), CaptureState::kComplete);
    if (i % 100 == 0) ExpectCaptured(i % kSlots, epoch_);
  }
}

TEST_F(CopierTest, NothingIsCopiedBeforeReady) {
  Launch();
  Prepare();
  uint64_t serial = Copy();
  Ready(serial - 1);       // of an older save
  Ready(serial + 1, 1);    // another line
  EXPECT_TRUE(IsQuiet());  // 100 ms
  EXPECT_TRUE(IsUntouched(0));
  EXPECT_EQ(Released(), 0u);
  Ready(serial);
  ExpectCopying(serial);
  HostDone(serial);
  EXPECT_EQ(Answer(serial), CopierOutcome::kDone) << sentence_;
  ExpectCaptured(0, epoch_);
}

TEST_F(CopierTest, TheGateOpensBeforeTheHostsBytesAreThere) {
  Launch();
  Prepare();
  uint64_t serial = Copy();
  Ready(serial);
  ExpectCopying(serial);
  EXPECT_TRUE(Eventually([&] { return Released() == serial; }));
  HostDone(serial - 1);  // of another save
  EXPECT_TRUE(IsQuiet());
  EXPECT_EQ(Published(), 0u);
  EXPECT_EQ(State(), CaptureState::kOpen);
  HostDone(serial);
  EXPECT_EQ(Answer(serial), CopierOutcome::kDone) << sentence_;
  EXPECT_EQ(State(), CaptureState::kComplete);
  ExpectCaptured(0, epoch_);
}

TEST_F(CopierTest, ChunksArePublishedWhileOthersAreCopied) {
  Launch({kSlow});
  Prepare();
  uint64_t serial = Copy();
  HostDone(serial);
  Ready(serial);
  ExpectCopying(serial);
  EXPECT_TRUE(Eventually([&] { return Published() > 0; }));
  EXPECT_LT(Published(), kChunks);
  EXPECT_EQ(Released(), 0u);
  EXPECT_EQ(Answer(serial), CopierOutcome::kDone) << sentence_;
  ExpectCaptured(0, epoch_);
}

TEST_F(CopierTest, TheWordIsLeftToTheTrainerThatAsksForIt) {
  Launch();
  Prepare();
  uint64_t serial = Copy(1, 3, 0);
  HostDone(serial);
  Ready(serial, 3);
  ExpectCopying(serial);
  EXPECT_EQ(Answer(serial), CopierOutcome::kDone) << sentence_;
  EXPECT_EQ(State(1), CaptureState::kOpen);
  EXPECT_EQ(Released(3), serial);
  ExpectCaptured(1, epoch_);
}

TEST_F(CopierTest, ASaveGivenUpBeforeItIsReadyIsNotCopied) {
  Launch();
  Prepare();
  uint64_t serial = Copy();
  EXPECT_TRUE(IsQuiet());
  TryAbandon(word(0), epoch_);
  EXPECT_EQ(Answer(serial), CopierOutcome::kStopped);
  Ready(serial);
  EXPECT_TRUE(IsQuiet());
  EXPECT_TRUE(IsUntouched(0));
  EXPECT_EQ(State(), CaptureState::kAbandoned);
  // And one whose word has never been its own.
  word(0).word.store(CaptureWord(kEpoch, CaptureState::kOpen));
  serial = Copy(1, 1);
  word(1).word.store(CaptureWord(kEpoch, CaptureState::kOpen));
  EXPECT_EQ(Answer(serial), CopierOutcome::kStopped);
  EXPECT_TRUE(IsUntouched(1));
}

TEST_F(CopierTest, NothingIsWrittenBehindTheAnswerToASaveGivenUp) {
  Launch({kSlow});
  Prepare();
  uint64_t serial = Copy();
  HostDone(serial);
  Ready(serial);
  ExpectCopying(serial);
  EXPECT_TRUE(Eventually([&] { return Published() > 0; }));
  TryAbandon(word(0), epoch_);
  EXPECT_EQ(Answer(serial), CopierOutcome::kStopped);
  EXPECT_EQ(Released(), serial);
  uint64_t published = Published();
  EXPECT_LT(published, kChunks);
  memset(slot(0), kUntouched, kSlotBytes);
  Sleep(1500);  // all of it takes a second
  EXPECT_TRUE(IsUntouched(0));
  EXPECT_EQ(Published(), published);
  EXPECT_EQ(State(), CaptureState::kAbandoned);
  serial = Copy();
  HostDone(serial);
  Ready(serial);
  ExpectCopying(serial);
  EXPECT_EQ(Answer(serial), CopierOutcome::kDone) << sentence_;
  ExpectCaptured(0, epoch_);
}

TEST_F(CopierTest, WhatComesDuringACopyWaitsItsTurn) {
  Launch();
  Prepare();
  uint64_t serial = Copy();
  Send(MakeMessage<CopierSerial>(CopierMessageType::kRelease, ++serial_));
  Ready(serial);
  ExpectCopying(serial);
  EXPECT_TRUE(IsQuiet());
  EXPECT_EQ(process_->Imported(), 2);
  HostDone(serial);
  EXPECT_EQ(Answer(serial), CopierOutcome::kDone) << sentence_;
  EXPECT_EQ(Answer(serial_), CopierOutcome::kDone) << sentence_;
  EXPECT_EQ(process_->Imported(), 0);
  ExpectCaptured(0, epoch_);
}

TEST_F(CopierTest, ReleasedAllocationsCanBeImportedAgain) {
  Launch();
  Prepare();
  EXPECT_EQ(process_->Imported(), 2);
  EXPECT_EQ(Release(), CopierOutcome::kDone);
  EXPECT_EQ(process_->Imported(), 0);
  EXPECT_EQ(Answer(Copy()), CopierOutcome::kRefused) << "the plan is forgotten";
  EXPECT_EQ(Plan(pieces_), CopierOutcome::kRefused) << "nothing is imported";
  EXPECT_EQ(Import(), CopierOutcome::kDone) << sentence_;
  EXPECT_EQ(Plan(pieces_), CopierOutcome::kDone) << sentence_;
  uint64_t serial = Copy();
  HostDone(serial);
  Ready(serial);
  ExpectCopying(serial);
  EXPECT_EQ(Answer(serial), CopierOutcome::kDone) << sentence_;
  ExpectCaptured(0, epoch_);
}

TEST_F(CopierTest, NewSlotsTakeThePlaceOfTheOld) {
  Launch();
  Prepare();
  EXPECT_EQ(answer_.pinned_bytes, 0u);
  std::vector<SharedFile> old = std::move(slots_);
  SharedFile old_bell = std::move(bell_);
  MakeSlots();
  EXPECT_EQ(Slots(), CopierOutcome::kDone) << sentence_;
  EXPECT_EQ(answer_.pinned_bytes, kSlots * kSlotBytes);
  EXPECT_EQ(sentence_, "");
  uint64_t serial = Copy();
  HostDone(serial);
  Ready(serial);
  ExpectCopying(serial);
  EXPECT_EQ(Answer(serial), CopierOutcome::kDone) << sentence_;
  ExpectCaptured(0, epoch_);
  slots_ = std::move(old);
  EXPECT_TRUE(IsUntouched(0));
}

TEST_F(CopierTest, WithoutPinnedMemoryItCopiesToo) {
  Launch({"FAKECUDA_FAIL=cuMemHostRegister:801:2:1"});  // the second slot; what was looked up counts as a call
  ASSERT_EQ(Start(), CopierOutcome::kDone) << sentence_;
  EXPECT_EQ(Slots(), CopierOutcome::kDone);
  EXPECT_EQ(answer_.pinned_bytes, 0u);
  EXPECT_THAT(sentence_, HasSubstr("cuMemHostRegister"));
  ASSERT_EQ(Import(), CopierOutcome::kDone) << sentence_;
  ASSERT_EQ(Plan(pieces_), CopierOutcome::kDone) << sentence_;
  uint64_t serial = Copy();
  HostDone(serial);
  Ready(serial);
  ExpectCopying(serial);
  EXPECT_EQ(Answer(serial), CopierOutcome::kDone) << sentence_;
  ExpectCaptured(0, epoch_);
}

TEST_F(CopierTest, TheGpuIsFoundByItsUuid) {
  Launch({"FAKECUDA_DEVICES=1"});
  EXPECT_EQ(Start(1), CopierOutcome::kRefused);
  EXPECT_THAT(sentence_, HasSubstr("no GPU"));
  EXPECT_EQ(Start(0), CopierOutcome::kDone) << sentence_;
  Launch({"FAKECUDA_DEVICES=2"});
  EXPECT_EQ(Start(1), CopierOutcome::kDone) << sentence_;
}

TEST_F(CopierTest, AnExclusiveGpuIsNotTouched) {
  // Whoever tries to make a context hears of another error.
  Launch({"FAKECUDA_EXCLUSIVE=1", "FAKECUDA_FAIL=cuDevicePrimaryCtxRetain:46"});
  EXPECT_EQ(Start(), CopierOutcome::kRefused);
  EXPECT_THAT(sentence_, HasSubstr("exclusive-process"));
  EXPECT_EQ(Slots(), CopierOutcome::kRefused);
  process_->Close();
  EXPECT_EQ(process_->Exit(), kExitClosed);
}

TEST_F(CopierTest, AnErrorThatLeavesTheContextWholeEndsOnlyTheSave) {
  for (const char* call : {"cuMemcpyDtoHAsync:1:3:1", "cuEventRecord:1:2:1", "cuEventQuery:1:1:1"}) {
    SCOPED_TRACE(call);
    serial_ = 0;
    memset(gate_.mapping.data(), 0, sizeof(GatePage));
    Launch({std::string("FAKECUDA_FAIL=") + call});
    Prepare();
    uint64_t serial = Copy();
    HostDone(serial);
    Ready(serial);
    ExpectCopying(serial);
    EXPECT_EQ(Answer(serial), CopierOutcome::kDevice);
    EXPECT_THAT(sentence_, HasSubstr(std::string(call).substr(0, strlen(call) - strlen(":1:3:1"))));
    EXPECT_EQ(State(), CaptureState::kAbandoned);
    EXPECT_EQ(Released(), serial);
    serial = Copy(0, 1);
    HostDone(serial);
    Ready(serial, 1);
    ExpectCopying(serial);
    EXPECT_EQ(Answer(serial), CopierOutcome::kDone) << sentence_;
    ExpectCaptured(0, epoch_);
  }
}

TEST_F(CopierTest, ABrokenContextEndsTheProcessBehindTheAnswer) {
  for (const char* call : {"cuMemcpyDtoHAsync:700:3", "cuEventRecord:700:0", "cuEventQuery:719:0"}) {
    SCOPED_TRACE(call);
    serial_ = 0;
    memset(gate_.mapping.data(), 0, sizeof(GatePage));
    Launch({std::string("FAKECUDA_FAIL=") + call + ",cuStreamSynchronize:700"});
    Prepare();
    uint64_t serial = Copy();
    HostDone(serial);
    Ready(serial);
    ExpectCopying(serial);
    EXPECT_EQ(Answer(serial), CopierOutcome::kDevice);
    EXPECT_EQ(State(), CaptureState::kAbandoned);
    EXPECT_EQ(Released(), serial);
    EXPECT_EQ(process_->Exit(), kExitDevice);
  }
}

// The trainer took the end of the process for the end of the copies: an answer before it would be a lie.
TEST_F(CopierTest, WhereCopiesMayGoOnOnlyTheEndOfTheProcessTells) {
  Launch({"FAKECUDA_FAIL=cuEventQuery:1,cuStreamSynchronize:1"});
  Prepare();
  uint64_t serial = Copy();
  HostDone(serial);
  Ready(serial);
  ExpectCopying(serial);
  Packet packet;
  EXPECT_THAT(ReceivePacket(process_->socket(), Wait::kYes, &packet), AnyOf(ENOTCONN, ECONNRESET));
  EXPECT_EQ(process_->Exit(), kExitDevice);
  EXPECT_EQ(State(), CaptureState::kAbandoned);
  EXPECT_EQ(Released(), serial);
}

TEST_F(CopierTest, AnImportThatFailsLeavesNothing) {
  Launch({"FAKECUDA_FAIL=cuMemMap:2:1:1"});  // the second of the batch
  ASSERT_EQ(Start(), CopierOutcome::kDone) << sentence_;
  ASSERT_EQ(Slots(), CopierOutcome::kDone) << sentence_;
  EXPECT_EQ(Import(), CopierOutcome::kRefused);
  EXPECT_THAT(sentence_, HasSubstr("cuMemMap"));
  EXPECT_EQ(process_->Imported(), 0);
  EXPECT_EQ(Import(), CopierOutcome::kDone) << sentence_;
  EXPECT_EQ(process_->Imported(), 2);
}

TEST_F(CopierTest, ItEndsWithTheTrainer) {
  Launch();
  process_->Close();
  EXPECT_EQ(process_->Exit(), kExitClosed) << "before START";
  Launch();
  serial_ = 0;
  Prepare();
  process_->Close();
  EXPECT_EQ(process_->Exit(), kExitClosed) << "between copies";
  Launch();
  serial_ = 0;
  Prepare();
  Copy();
  EXPECT_TRUE(IsQuiet());
  EXPECT_TRUE(process_->IsRunning());
  process_->Close();
  EXPECT_EQ(process_->Exit(), kExitClosed) << "before `ready`";
}

TEST_F(CopierTest, ItEndsWithTheTrainerAlsoUnderACopy) {
  Launch({kSlow});
  Prepare();
  uint64_t serial = Copy();
  Ready(serial);
  ExpectCopying(serial);
  shutdown(process_->socket(), SHUT_WR);
  EXPECT_EQ(process_->Exit(), kExitClosed);
  EXPECT_EQ(slot(0)[kSlotBytes - 1], kUntouched) << "it waited for the copies";
  EXPECT_EQ(Released(), 0u);
}

TEST(CopierProgram, WrongArgumentsAreSaid) {
  for (const char* arguments : {"", "--socket", "--socket x", "--socket 0 --region t", "--nonsense 1"}) {
    std::string command = std::string(CKPTD_COPIER) + " " + arguments + " 2>&1 </dev/null";
    FILE* pipe = popen(command.c_str(), "r");
    ASSERT_NE(pipe, nullptr);
    char text[512] = {};
    EXPECT_GT(fread(text, 1, sizeof text - 1, pipe), 0u);
    EXPECT_THAT(text, HasSubstr("ckptd-copier: "));
    EXPECT_EQ(pclose(pipe), kExitUsage << 8) << arguments;
  }
}

// A sanitizer's runtime brings no library but these.
TEST(CopierProgram, ItLinksOnlyTheCppLibrary) {
  FILE* pipe = popen((std::string("ldd ") + CKPTD_COPIER).c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string text(4096, '\0');
  text.resize(fread(text.data(), 1, text.size(), pipe));
  EXPECT_EQ(pclose(pipe), 0);
  std::istringstream lines(text);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    std::string name = line.substr(line.find_first_not_of(" \t"));
    name = name.substr(name.rfind('/', name.find(".so")) + 1);
    name = name.substr(0, name.find(".so"));
    EXPECT_THAT(name, AnyOf("linux-vdso", "libstdc++", "libgcc_s", "libm", "libc", "libdl", "libpthread", "librt",
                            "libresolv", HasSubstr("ld-linux")))
        << line;
  }
  EXPECT_GT(count, 2);
}

}  // namespace
}  // namespace ckptd
