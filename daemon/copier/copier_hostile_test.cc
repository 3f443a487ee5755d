// What no trainer of ours sends. Each is refused with a sentence, and the copier goes on as if it had not come.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

#include "client/core/wire/packet.h"
#include "daemon/copier/copier_test_util.h"
#include "daemon/copier/outcome.h"

namespace ckptd {
namespace {

using ::testing::HasSubstr;

class HostileTest : public CopierTest {
 protected:
  void SetUp() override {
    CopierTest::SetUp();
    Launch();
  }

  void ExpectRefused(CopierOutcome outcome, const char* sentence) {
    EXPECT_EQ(outcome, CopierOutcome::kRefused) << sentence;
    EXPECT_THAT(sentence_, HasSubstr(sentence));
  }

  void ExpectWorks() {
    uint64_t serial = Copy();
    HostDone(serial);
    Ready(serial);
    ExpectCopying(serial);
    EXPECT_EQ(Answer(serial), CopierOutcome::kDone) << sentence_;
    ExpectCaptured(0, epoch_);
  }

  // A COPY like a good one, but for one thing.
  template <typename Change>
  CopierOutcome CopyWith(Change change) {
    auto copy = MakeMessage<CopierCopy>(CopierMessageType::kCopy, ++serial_);
    copy.epoch = epoch_;
    copy.complete = 1;
    change(copy);
    Send(copy);
    return Answer(copy.serial);
  }
};

TEST_F(HostileTest, PacketsThatAreNone) {
  Prepare();
  MessageHead head = {};
  SendBytes("x", 1, {});
  ExpectRefused(Answer(0), "a packet of 1 bytes");
  SendBytes(&head, sizeof head, {});
  ExpectRefused(Answer(0), "magic");
  auto release = MakeMessage<CopierSerial>(CopierMessageType::kRelease, 77);
  release.head.size += 1;
  Send(release);
  ExpectRefused(Answer(77), "says it has");
  release = MakeMessage<CopierSerial>(CopierMessageType{55}, 78);
  Send(release);
  ExpectRefused(Answer(78), "type 55");
  release = MakeMessage<CopierSerial>(CopierMessageType::kCopy, 79);  // 32 bytes of a COPY
  Send(release);
  ExpectRefused(Answer(79), "its type has");
  release = MakeMessage<CopierSerial>(CopierMessageType::kRelease, 80);
  Send(release, {gate_.fd.get(), gate_.fd.get()});
  ExpectRefused(Answer(80), "2 descriptors");
  std::vector<char> large(kMaxPacketBytes + 1);
  EXPECT_GT(send(process_->socket(), large.data(), large.size(), 0), 0);
  ExpectRefused(Answer(0), "more bytes or descriptors");
  ExpectWorks();
}

TEST_F(HostileTest, CopiesThatCannotBe) {
  Prepare();
  ExpectWorks();
  const uint64_t last = serial_;
  ExpectRefused(CopyWith([&](CopierCopy& copy) { copy.serial = last; }), "behind serial");
  ExpectRefused(CopyWith([&](CopierCopy& copy) { copy.serial = last - 1; }), "behind serial");
  ExpectRefused(CopyWith([&](CopierCopy& copy) { copy.serial = 0; }), "serial 0");
  ExpectRefused(CopyWith([](CopierCopy& copy) { copy.slot = kSlots; }), "slot 2 of 2");
  ExpectRefused(CopyWith([](CopierCopy& copy) { copy.slot = ~0u; }), "slot");
  ExpectRefused(CopyWith([](CopierCopy& copy) { copy.line = kGateLines; }), "gate line 256");
  ExpectRefused(CopyWith([](CopierCopy& copy) { copy.epoch = 0; }), "epoch 0");
  ExpectWorks();
}

TEST_F(HostileTest, PlansThatLie) {
  Prepare();
  auto with = [&](size_t piece, auto change) {
    std::vector<CopierPiece> pieces = pieces_;
    change(pieces[piece]);
    return Plan(pieces);
  };
  ExpectRefused(with(1, [](CopierPiece& piece) { piece.slot_offset -= 101; }), "piece 1 begins before the end");
  ExpectRefused(with(4, [](CopierPiece& piece) { piece.bytes += 1; }), "piece 4 lies outside the slot");
  ExpectRefused(with(4, [](CopierPiece& piece) { piece.bytes = ~uint64_t{0}; }), "piece 4 lies outside the slot");
  ExpectRefused(with(3, [](CopierPiece& piece) { piece.offset += 1; }), "piece 3 lies outside allocation 1");
  ExpectRefused(with(3, [](CopierPiece& piece) { piece.offset = ~uint64_t{0}; }), "piece 3 lies outside allocation 1");
  ExpectRefused(with(0, [](CopierPiece& piece) { piece.allocation = 2; }), "allocation 2 of 2");
  ExpectRefused(Plan(pieces_, false), "not sealed");
  ExpectRefused(Plan({}), "0 pieces");
  auto plan = MakeMessage<CopierPlan>(CopierMessageType::kPlan, ++serial_);
  plan.count = kMaxPlanPieces + 1;
  Send(plan, {gate_.fd.get()});
  ExpectRefused(Answer(serial_), "pieces, at most");
  plan.serial = ++serial_;
  plan.count = 36864 / sizeof(CopierPiece) + 1;  // more than the file has
  Send(plan, {gate_.fd.get()});
  ExpectRefused(Answer(serial_), "are needed");
  ExpectRefused(Answer(Copy()), "behind PLAN");
  EXPECT_EQ(Plan(pieces_), CopierOutcome::kDone) << sentence_;
  ExpectWorks();
}

TEST_F(HostileTest, GatePagesThatWouldNotLast) {
  SharedFile good = std::move(gate_);
  gate_ = MakeFile(36864, false);
  ExpectRefused(Start(), "not sealed");
  gate_ = MakeFile(4096, true);
  ExpectRefused(Start(), "are needed");
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  gate_.fd.Reset(ends[0]);
  close(ends[1]);
  ExpectRefused(Start(), "Invalid argument");
  gate_ = std::move(good);
  Prepare();
  ExpectRefused(Start(), "START came before");
  ExpectWorks();
}

TEST_F(HostileTest, SlotsThatAreNone) {
  ExpectRefused(Slots(), "START comes first");
  ASSERT_EQ(Start(), CopierOutcome::kDone) << sentence_;
  ExpectRefused(Plan(pieces_), "behind SLOTS");
  SharedFile good = std::move(slots_[1]);
  slots_[1] = MakeFile(kSlotBytes - 4096, true);
  ExpectRefused(Slots(), "slot: ");
  slots_[1] = std::move(good);
  auto& head = *reinterpret_cast<BellHead*>(bell_.mapping.data());
  head.chunks_offset = 4096;
  ExpectRefused(Slots(), "its head contradicts SLOTS");
  head.chunks_offset = 128 + kSlots * sizeof(BellSlot);
  SharedFile bell = std::move(bell_);
  bell_ = MakeFile(64, true);
  ExpectRefused(Slots(), "bell: 64 bytes");
  bell_ = std::move(bell);
  auto message = MakeMessage<CopierSlots>(CopierMessageType::kSlots, ++serial_);
  message.slot_count = kMaxSlots + 1;
  Send(message, {bell_.fd.get()});
  ExpectRefused(Answer(serial_), "9 slots");
  ASSERT_EQ(Slots(), CopierOutcome::kDone) << sentence_;
  ASSERT_EQ(Import(), CopierOutcome::kDone) << sentence_;
  ASSERT_EQ(Plan(pieces_), CopierOutcome::kDone) << sentence_;
  ExpectWorks();
}

TEST_F(HostileTest, SlotsOfAnotherSizeForgetThePlan) {
  Prepare();
  auto message = MakeMessage<CopierSlots>(CopierMessageType::kSlots, ++serial_);
  SharedFile bell = MakeFile(4096, true);
  memcpy(bell.mapping.data(), bell_.mapping.data(), sizeof(BellHead));
  reinterpret_cast<BellHead*>(bell.mapping.data())->slot_count = 1;
  reinterpret_cast<BellHead*>(bell.mapping.data())->chunk_count = 1;
  SharedFile slot = MakeFile(4096, false);
  message.slot_bytes = 4096;
  message.chunk_bytes = kChunkBytes;
  message.slot_count = 1;
  message.chunk_count = 1;
  Send(message, {bell.fd.get(), slot.fd.get()});
  EXPECT_EQ(Answer(serial_), CopierOutcome::kDone) << sentence_;
  ExpectRefused(Answer(Copy()), "behind PLAN");
  ExpectRefused(Plan(pieces_), "outside the slot");
  ASSERT_EQ(Slots(), CopierOutcome::kDone) << sentence_;
  ASSERT_EQ(Plan(pieces_), CopierOutcome::kDone) << sentence_;
  ExpectWorks();
}

TEST_F(HostileTest, ImportsThatLie) {
  ASSERT_EQ(Start(), CopierOutcome::kDone) << sentence_;
  ASSERT_EQ(Slots(), CopierOutcome::kDone) << sentence_;
  auto message = MakeMessage<CopierImport>(CopierMessageType::kImport, ++serial_);
  message.count = 1;
  message.allocations[0] = {4096, static_cast<uint32_t>(HandleKind::kLegacy), 0, {}};
  Send(message);
  ExpectRefused(Answer(serial_), "cuIpcOpenMemHandle");
  message.serial = ++serial_;
  message.first = 1;
  Send(message);
  ExpectRefused(Answer(serial_), "from number 1, 0 are open");
  message.serial = ++serial_;
  message.first = 0;
  message.count = kImportBatch + 1;
  Send(message);
  ExpectRefused(Answer(serial_), "17 allocations");
  // More than the allocation has: the driver knows better.
  DeviceAllocation found;
  ASSERT_TRUE(FindAllocation(legacy_, &found).ok());
  DeviceHandle handle;
  ASSERT_TRUE(Export(found, &handle).ok());
  message.serial = ++serial_;
  message.count = 1;
  message.allocations[0].bytes = kAllocationBytes + 4096;
  memcpy(message.allocations[0].handle, handle.bytes.data(), handle.bytes.size());
  Send(message);
  ExpectRefused(Answer(serial_), "that says it has");
  EXPECT_EQ(process_->Imported(), 0);
  ASSERT_EQ(Import(), CopierOutcome::kDone) << sentence_;
  ASSERT_EQ(Plan(pieces_), CopierOutcome::kDone) << sentence_;
  ExpectWorks();
}

// More than it keeps for later: it reads no further, and still sees the end of the capture and of the trainer.
TEST_F(HostileTest, AFloodDuringACopy) {
  Prepare();
  uint64_t serial = Copy();
  auto release = MakeMessage<CopierSerial>(CopierMessageType::kRelease, 0);
  auto* bytes = reinterpret_cast<const uint8_t*>(&release);
  for (int i = 0; i < 100; ++i) {
    if (SendPacket(process_->socket(), {bytes, sizeof release}) != 0) break;
  }
  EXPECT_TRUE(IsQuiet());
  word(0).word.store(CaptureWord(epoch_, CaptureState::kAbandoned));
  EXPECT_EQ(Answer(serial), CopierOutcome::kStopped);
  EXPECT_EQ(Answer(0), CopierOutcome::kDone);
  process_->Close();
  EXPECT_EQ(process_->Exit(), kExitClosed);
}

}  // namespace
}  // namespace ckptd
