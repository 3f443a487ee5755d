#include "daemon/copier/requests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "client/core/device/allocation.h"
#include "daemon/copier/memory.h"
#include "daemon/copier/plan.h"
#include "daemon/copier/pull.h"
#include "proto/local/bell.h"

namespace ckptd {
namespace {

using std::chrono::microseconds;
using std::chrono::nanoseconds;
using ::testing::HasSubstr;

template <typename Message>
Message Make(CopierMessageType type) {
  Message message = {};
  message.head.magic = kMessageMagic;
  message.head.type = static_cast<uint16_t>(type);
  message.head.size = sizeof message;
  message.serial = 7;
  return message;
}

template <typename Message>
Outcome Checked(const Message& message, size_t fds, size_t bytes = sizeof(Message)) {
  return CheckRequest({reinterpret_cast<const uint8_t*>(&message), bytes}, fds);
}

CopierSlots GoodSlots() {
  auto slots = Make<CopierSlots>(CopierMessageType::kSlots);
  slots.slot_bytes = 5 * kMinChunkBytes + 4096;
  slots.chunk_bytes = kMinChunkBytes;
  slots.chunk_count = 6;
  slots.slot_count = 2;
  return slots;
}

CopierCopy GoodCopy() {
  auto copy = Make<CopierCopy>(CopierMessageType::kCopy);
  copy.epoch = 3;
  copy.complete = 1;
  return copy;
}

TEST(Requests, GoodOnesPass) {
  auto start = Make<CopierStart>(CopierMessageType::kStart);
  start.version = kCopierVersion;
  EXPECT_TRUE(Checked(start, 1).ok());
  EXPECT_TRUE(Checked(GoodSlots(), 3).ok());
  auto import = Make<CopierImport>(CopierMessageType::kImport);
  import.count = 2;
  import.allocations[0] = {4096, static_cast<uint32_t>(HandleKind::kLegacy), 0, {}};
  import.allocations[1] = {4096, static_cast<uint32_t>(HandleKind::kPosixFd), 0, {}};
  EXPECT_TRUE(Checked(import, 1).ok());
  auto plan = Make<CopierPlan>(CopierMessageType::kPlan);
  plan.count = kMaxPlanPieces;
  EXPECT_TRUE(Checked(plan, 1).ok());
  EXPECT_TRUE(Checked(GoodCopy(), 0).ok());
  EXPECT_TRUE(Checked(Make<CopierSerial>(CopierMessageType::kRelease), 0).ok());
  auto done = Make<CopierSerial>(CopierMessageType::kHostDone);
  EXPECT_TRUE(IsHostDone({reinterpret_cast<const uint8_t*>(&done), sizeof done}, 0));
  EXPECT_FALSE(IsHostDone({reinterpret_cast<const uint8_t*>(&done), sizeof done}, 1));
}

TEST(Requests, HeadsThatLieAreRefused) {
  CopierCopy copy = GoodCopy();
  EXPECT_FALSE(Checked(copy, 0, 0).ok());
  EXPECT_FALSE(Checked(copy, 0, 10).ok());
  EXPECT_FALSE(Checked(copy, 0, sizeof copy - 8).ok());
  copy.head.size = sizeof copy - 8;
  EXPECT_THAT(Checked(copy, 0, sizeof copy - 8).sentence, HasSubstr("its type has"));
  copy = GoodCopy();
  copy.head.magic += 1;
  EXPECT_FALSE(Checked(copy, 0).ok());
  for (uint16_t type : {0, 1, 99, 107, 108, 109, 65535}) {
    copy = GoodCopy();
    copy.head.type = type;
    EXPECT_FALSE(Checked(copy, 0).ok()) << type;
  }
}

TEST(Requests, DescriptorsAreCounted) {
  EXPECT_FALSE(Checked(GoodCopy(), 1).ok());
  EXPECT_FALSE(Checked(GoodSlots(), 2).ok());
  EXPECT_FALSE(Checked(GoodSlots(), 4).ok());
  auto import = Make<CopierImport>(CopierMessageType::kImport);
  import.count = 1;
  import.allocations[0] = {4096, static_cast<uint32_t>(HandleKind::kPosixFd), 0, {}};
  EXPECT_FALSE(Checked(import, 0).ok());
  EXPECT_FALSE(Checked(import, 2).ok());
  // Behind the last one nothing counts.
  import.allocations[1].kind = static_cast<uint32_t>(HandleKind::kPosixFd);
  EXPECT_TRUE(Checked(import, 1).ok());
}

TEST(Requests, NumbersOutOfRangeAreRefused) {
  auto start = Make<CopierStart>(CopierMessageType::kStart);
  start.version = kCopierVersion + 1;
  EXPECT_THAT(Checked(start, 1).sentence, HasSubstr("version 2"));
  auto with_slots = [](auto change) {
    CopierSlots slots = GoodSlots();
    change(slots);
    return Checked(slots, size_t{1} + slots.slot_count).ok();
  };
  EXPECT_FALSE(with_slots([](CopierSlots& slots) { slots.slot_count = 0; }));
  EXPECT_FALSE(with_slots([](CopierSlots& slots) { slots.slot_count = kMaxSlots + 1; }));
  EXPECT_FALSE(with_slots([](CopierSlots& slots) { slots.slot_bytes += 1; }));
  EXPECT_FALSE(with_slots([](CopierSlots& slots) { slots.slot_bytes = 0; }));
  EXPECT_FALSE(with_slots([](CopierSlots& slots) { slots.slot_bytes = ~uint64_t{4095}; }));
  EXPECT_FALSE(with_slots([](CopierSlots& slots) { slots.chunk_bytes = 0; }));
  EXPECT_FALSE(with_slots([](CopierSlots& slots) { slots.chunk_bytes += 1; }));
  EXPECT_FALSE(with_slots([](CopierSlots& slots) { slots.chunk_count += 1; }));
  auto with_copy = [](auto change) {
    CopierCopy copy = GoodCopy();
    change(copy);
    return Checked(copy, 0).ok();
  };
  EXPECT_FALSE(with_copy([](CopierCopy& copy) { copy.serial = 0; }));
  EXPECT_FALSE(with_copy([](CopierCopy& copy) { copy.epoch = uint64_t{1} << 32; }));
  EXPECT_FALSE(with_copy([](CopierCopy& copy) { copy.epoch = kMaxEpoch + 2; }));
  EXPECT_FALSE(with_copy([](CopierCopy& copy) { copy.line = kGateLines; }));
  EXPECT_FALSE(with_copy([](CopierCopy& copy) { copy.complete = 2; }));
  auto plan = Make<CopierPlan>(CopierMessageType::kPlan);
  EXPECT_FALSE(Checked(plan, 1).ok());
  plan.count = kMaxPlanPieces + 1;
  EXPECT_FALSE(Checked(plan, 1).ok());
}

TEST(Requests, ABatchOfImportsIsBounded) {
  auto import = Make<CopierImport>(CopierMessageType::kImport);
  EXPECT_FALSE(Checked(import, 0).ok());
  import.count = kImportBatch + 1;
  EXPECT_FALSE(Checked(import, 0).ok());
  import.count = 1;
  import.allocations[0] = {4096, 17, 0, {}};
  EXPECT_THAT(Checked(import, 0).sentence, HasSubstr("kind 17"));
  import.allocations[0] = {4096, static_cast<uint32_t>(HandleKind::kNone), 0, {}};
  EXPECT_FALSE(Checked(import, 0).ok());
  import.allocations[0] = {0, static_cast<uint32_t>(HandleKind::kLegacy), 0, {}};
  EXPECT_FALSE(Checked(import, 0).ok());
}

TEST(Plan, PiecesLieInOrderInSlotAndAllocation) {
  std::vector<ImportedAllocation> imports(2);
  imports[0].bytes = 1000;
  imports[1].bytes = 500;
  auto check = [&](std::vector<CopierPiece> pieces) { return CheckPieces(pieces, imports, 2000).ok(); };
  EXPECT_TRUE(check({{0, 1000, 0, 0, 0}, {1000, 500, 0, 1, 0}, {1999, 1, 999, 0, 0}}));
  EXPECT_FALSE(check({{0, 1001, 0, 0, 0}})) << "longer than its allocation";
  EXPECT_FALSE(check({{0, 1, 1000, 0, 0}})) << "behind its allocation";
  EXPECT_FALSE(check({{0, 2, ~uint64_t{0}, 0, 0}})) << "overflow in the allocation";
  EXPECT_FALSE(check({{1999, 2, 0, 0, 0}})) << "over the slot's end";
  EXPECT_FALSE(check({{~uint64_t{0}, 2, 0, 0, 0}})) << "overflow in the slot";
  EXPECT_FALSE(check({{0, ~uint64_t{0}, 1, 0, 0}}));
  EXPECT_FALSE(check({{0, 10, 0, 0, 0}, {9, 10, 0, 1, 0}})) << "overlap";
  EXPECT_FALSE(check({{10, 10, 0, 0, 0}, {0, 10, 0, 1, 0}})) << "out of order";
  EXPECT_FALSE(check({{0, 10, 0, 2, 0}})) << "no such allocation";
}

TEST(Plan, NoPartCrossesAStretch) {
  const CopierPiece piece = {100, 250, 7, 0, 0};
  uint64_t from = 0;
  std::vector<std::vector<uint64_t>> parts;
  while (from < piece.bytes) {
    Part part = PartOf(piece, from, 128);
    parts.push_back({part.stretch, part.slot_offset, part.bytes, part.offset});
    from += part.bytes;
  }
  EXPECT_EQ(parts, (std::vector<std::vector<uint64_t>>{{0, 100, 28, 7}, {1, 128, 128, 35}, {2, 256, 94, 163}}));
}

TEST(Bell, ItsHeadIsHeldAgainstTheRequest) {
  const CopierSlots request = GoodSlots();
  const uint64_t bytes = 8192;
  auto check = [&](auto change) {
    BellHead head = {};
    head.magic = kBellMagic;
    head.major = kRegionMajor;
    head.slot_count = request.slot_count;
    head.chunk_count = request.chunk_count;
    head.slots_offset = 128;
    head.chunks_offset = 256;
    change(head);
    BellPlaces places;
    return CheckBell(head, bytes, request, &places).ok();
  };
  EXPECT_TRUE(check([](BellHead&) {}));
  EXPECT_FALSE(check([](BellHead& head) { head.magic = 0; }));
  EXPECT_FALSE(check([](BellHead& head) { head.major += 1; }));
  EXPECT_FALSE(check([](BellHead& head) { head.slot_count += 1; }));
  EXPECT_FALSE(check([](BellHead& head) { head.chunk_count += 1; }));
  EXPECT_FALSE(check([](BellHead& head) { head.slots_offset = 0; }));
  EXPECT_FALSE(check([](BellHead& head) { head.slots_offset += 4; }));
  EXPECT_FALSE(check([](BellHead& head) { head.slots_offset = bytes - 64; }));
  EXPECT_FALSE(check([](BellHead& head) { head.chunks_offset = bytes - 8; }));
  EXPECT_FALSE(check([](BellHead& head) { head.chunks_offset = ~uint64_t{7}; }));
}

TEST(Look, SpinsFirstThenWaitsLonger) {
  const nanoseconds most = microseconds(1000);
  EXPECT_EQ(LookAgainAfter(0, most), nanoseconds(0));
  nanoseconds before(0);
  for (uint32_t looks = 0; looks < 200; ++looks) {
    nanoseconds wait = LookAgainAfter(looks, most);
    EXPECT_GE(wait, before);
    EXPECT_LE(wait, most);
    before = wait;
  }
  EXPECT_EQ(LookAgainAfter(~0u, most), most);
}

}  // namespace
}  // namespace ckptd
