// The parts that need no agent: capture word, step ring, layout pieces.
#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "client/core/copy/capture_word.h"
#include "client/core/copy/crc32c.h"
#include "client/include/ckpt/ckpt.h"
#include "client/src/layout.h"
#include "client/src/steps.h"

namespace ckptd {
namespace {

TEST(CaptureWordTest, OnlyOneSideWins) {
  for (uint64_t epoch = 1; epoch <= 2000; ++epoch) {
    BellSlot slot = {};
    slot.word = CaptureWord(epoch, CaptureState::kOpen);
    bool complete = false;
    std::thread trainer([&] { complete = TryComplete(slot, epoch); });
    bool abandoned = TryAbandon(slot, epoch);
    trainer.join();
    EXPECT_NE(complete, abandoned);
    Acknowledge(slot, epoch);
    EXPECT_EQ(slot.ack, abandoned ? epoch : 0);
  }
}

TEST(CaptureWordTest, AnOlderEpochTouchesNothing) {
  BellSlot slot = {};
  slot.word = CaptureWord(9, CaptureState::kOpen);
  EXPECT_FALSE(TryComplete(slot, 8));
  EXPECT_FALSE(TryAbandon(slot, 8));
  Acknowledge(slot, 8);
  EXPECT_EQ(slot.ack, 0u);
  EXPECT_TRUE(IsOpen(slot, 9));
}

TEST(StepsTest, RemembersSixtyFour) {
  Steps steps;
  for (uint64_t step = 1; step <= 65; ++step) steps.Add(step);
  EXPECT_EQ(steps.Find(1), nullptr);
  ASSERT_NE(steps.Find(2), nullptr);
  EXPECT_EQ(steps.Newest()->step, 65u);
  EXPECT_EQ(steps.Find(0), nullptr);
}

TEST(StepsTest, ADurableStepIsNeitherDroppedNorSuperseded) {
  Steps steps;
  steps.Add(5);
  steps.Apply(5, CKPT_CAPTURED, CKPT_E_SUPERSEDED);
  EXPECT_EQ(steps.Find(5)->code, CKPT_E_SUPERSEDED);
  steps.Apply(5, CKPT_DURABLE, 0);
  EXPECT_EQ(steps.Find(5)->code, 0);
  steps.Apply(5, CKPT_CAPTURED, CKPT_E_SUPERSEDED);
  steps.Apply(5, CKPT_DROPPED, CKPT_E_BELOW_FLOOR);
  EXPECT_EQ(steps.Find(5)->code, 0);
  EXPECT_EQ(steps.Find(5)->flags, static_cast<uint32_t>(CKPT_CAPTURED | CKPT_DURABLE));
}

TEST(StepsTest, TheFirstReasonStays) {
  Steps steps;
  steps.Add(5);
  steps.Drop(5, CKPT_E_UNGATED);
  steps.Drop(5, CKPT_E_CANCELLED);
  EXPECT_EQ(steps.Find(5)->code, CKPT_E_UNGATED);
  steps.Apply(5, CKPT_CAPTURED, 0);
  EXPECT_EQ(steps.Find(5)->flags, static_cast<uint32_t>(CKPT_DROPPED));
  steps.Add(6);
  steps.Apply(6, CKPT_DURABLE, 0);
  EXPECT_EQ(steps.Find(6)->flags, static_cast<uint32_t>(CKPT_DURABLE | CKPT_CAPTURED));
  steps.Apply(6, CKPT_DROPPED, CKPT_E_CANCELLED);
  EXPECT_EQ(steps.Find(6)->code, 0);
}

Table MakeTable(uint64_t count, uint64_t bytes) {
  Table table;
  for (uint64_t i = 0; i < count; ++i) {
    table.names += "tensor." + std::to_string(i);
    table.name_ends.push_back(table.names.size());
  }
  table.dtypes.assign(count, CKPT_U8);
  table.dims.assign(count, 1);
  table.shapes.assign(count, bytes);
  return table;
}

TEST(LayoutTest, PiecesCoverTheSlotWithoutAHole) {
  std::shared_ptr<const Shape> shape;
  ASSERT_EQ(BuildShape(MakeTable(100, 777), 0, ExtraCapacity(0), &shape), 0);
  std::vector<char> memory(100 * 1000);
  std::vector<const void*> data;
  for (size_t i = 0; i < 100; ++i) data.push_back(memory.data() + i * 1000);
  std::vector<uint8_t> flags(100);
  flags[50] = CKPT_EAGER;
  Lanes lanes;
  std::shared_ptr<const Registration> registration;
  ASSERT_EQ(BuildRegistration(shape, data.data(), flags.data(), 1, lanes, &registration), 0);
  uint64_t at = 0;
  for (const Piece& piece : registration->pieces) {
    EXPECT_EQ(piece.slot_offset, at);
    at += piece.bytes;
  }
  EXPECT_EQ(at, shape->slot_bytes);
  EXPECT_EQ(registration->lazy.size(), 99u);
  EXPECT_EQ(registration->eager_bytes, 777u);
  EXPECT_GE(shape->extra.bytes, 64u << 10);
}

TEST(LayoutTest, NeighboursInMemoryAndSlotAreOnePiece) {
  std::shared_ptr<const Shape> shape;
  ASSERT_EQ(BuildShape(MakeTable(9, 512), 0, ExtraCapacity(0), &shape), 0);
  std::vector<char> memory(9 * 512);
  std::vector<const void*> data;
  for (size_t i = 0; i < 9; ++i) data.push_back(memory.data() + i * 512);
  Lanes lanes;
  std::shared_ptr<const Registration> registration;
  ASSERT_EQ(BuildRegistration(shape, data.data(), nullptr, 1, lanes, &registration), 0);
  ASSERT_EQ(registration->pieces.size(), 3u) << "header, tensors, extra";
  EXPECT_EQ(registration->pieces[1].bytes, 9u * 512);
}

TEST(LayoutTest, HeaderFileHoldsTheHeaders) {
  std::shared_ptr<const Shape> shape;
  ASSERT_EQ(BuildShape(MakeTable(3, 8), 0, ExtraCapacity(0), &shape), 0);
  std::string text(shape->header_bytes, 0);
  ASSERT_EQ(ReadExactly(shape->header_file.get(), 0, text.data(), text.size()), 0);
  EXPECT_EQ(text, shape->headers[0]);
  EXPECT_EQ(Crc32c(0, text.data(), text.size()), shape->header_crc);
}

TEST(LayoutTest, ATensorWithoutAddressIsNamed) {
  std::shared_ptr<const Shape> shape;
  ASSERT_EQ(BuildShape(MakeTable(1, 8), 0, ExtraCapacity(0), &shape), 0);
  const void* nothing = nullptr;
  Lanes lanes;
  std::shared_ptr<const Registration> registration;
  EXPECT_EQ(BuildRegistration(shape, &nothing, nullptr, 1, lanes, &registration), CKPT_E_INVALID_ARGUMENT);
  EXPECT_NE(std::string(ckpt_error()).find("tensor.0"), std::string::npos);
}

}  // namespace
}  // namespace ckptd
