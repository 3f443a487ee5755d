#include "daemon/transport/transfer_messages.h"

#include <gtest/gtest.h>

#include <random>

#include "daemon/base/errors.h"

namespace ckptd::transport {
namespace {

Hello Greeting() { return {RandomToken(), {"n2", "gpt", 3, {1, 1000}, 1}, 10 * kMiB + 3, kMiB}; }

std::vector<TransferMessage> OneOfEach() {
  return {Welcome{{true, false, false, true, true, false, false, false, true}},
          Welcome{},
          Window{7, kGiB},
          Verified{5, 2},
          Damaged{6, 4},
          Stop{4, "chunk 6"}};
}

TEST(TransferMessages, ComeBackAsTheyWere) {
  for (const TransferMessage& message : OneOfEach()) {
    const std::string bytes = Encode(message);
    const auto back = DecodeMessage(bytes);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(back->index(), message.index());
    EXPECT_EQ(Encode(*back), bytes);
  }
}

TEST(TransferMessages, NothingElseIsTaken) {
  for (const TransferMessage& message : OneOfEach()) {
    const std::string bytes = Encode(message);
    for (size_t size = 0; size < bytes.size(); ++size)
      EXPECT_EQ(CodeOf(DecodeMessage(bytes.substr(0, size)).status()), ErrorCode::PROTOCOL) << size;
    EXPECT_EQ(CodeOf(DecodeMessage(bytes + '\0').status()), ErrorCode::PROTOCOL);
  }
  EXPECT_FALSE(DecodeMessage(std::string(1, '\6')).ok());
  EXPECT_FALSE(DecodeMessage(std::string(1, '\0')).ok());
  EXPECT_FALSE(DecodeMessage(std::string("\1\xff\xff\xff\xff", 5)).ok()) << "chunks without end, no allocation";
  EXPECT_FALSE(DecodeMessage(std::string("\1\1\0\0\0\2", 6)).ok()) << "a bit behind the last chunk";
}

TEST(TransferMessages, RandomBytesAreNeverMoreThanAnError) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 100000; ++i) {
    std::string bytes(random() % 40, 0);
    for (char& c : bytes) c = static_cast<char>(random());
    if (!bytes.empty()) bytes[0] = static_cast<char>(random() % 7);
    const auto message = DecodeMessage(bytes);
    EXPECT_TRUE(!message.ok() || Encode(*message) == bytes);
    (void)DecodeHello(bytes);
  }
}

TEST(TransferMessages, AGreetingComesBackAndIsChecked) {
  const Hello hello = Greeting();
  const std::string bytes = EncodeHello(hello);
  ASSERT_LE(bytes.size(), kMaxHello);
  const auto back = DecodeHello(bytes);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_TRUE(SameToken(back->token, hello.token));
  EXPECT_EQ(back->name, hello.name);
  EXPECT_EQ(EncodeHello(*back), bytes);
  for (size_t size = 0; size < bytes.size(); ++size) EXPECT_FALSE(DecodeHello(bytes.substr(0, size)).ok());
  Hello bad = hello;
  bad.name.job = "../../etc";
  EXPECT_EQ(CodeOf(DecodeHello(EncodeHello(bad)).status()), ErrorCode::PROTOCOL);
  bad = hello;
  bad.chunk_bytes = 1;
  EXPECT_EQ(CodeOf(DecodeHello(EncodeHello(bad)).status()), ErrorCode::PROTOCOL);
  bad = hello;
  bad.image_bytes = ~uint64_t{0};
  EXPECT_EQ(CodeOf(DecodeHello(EncodeHello(bad)).status()), ErrorCode::PROTOCOL);
}

TEST(TransferMessages, WhatThePeerSaysOfAnErrorIsMadePrintable) {
  const TransferName name = Greeting().name;
  const absl::Status status = ErrorOf({static_cast<uint32_t>(ErrorCode::FENCED), "a\nb\x1b"}, name);
  EXPECT_EQ(CodeOf(status), ErrorCode::FENCED);
  EXPECT_EQ(status.message(), "peer n2, job gpt, rank 3, step 1000.a1, slot 1: the other end stopped: a?b?");
  EXPECT_EQ(CodeOf(ErrorOf({0, ""}, name)), ErrorCode::INTERNAL);
  EXPECT_EQ(CodeOf(ErrorOf({4000000000, ""}, name)), ErrorCode::INTERNAL);
  EXPECT_EQ(StopOf(Error(ErrorCode::CORRUPT, std::string(2000, 'x'))).text.size(), kMaxStopText);
}

TEST(TransferShape, CountsChunksAndKnowsItsBounds) {
  const auto shape = TransferShape::Make(2 * kMiB + 1, kMiB);
  ASSERT_TRUE(shape.ok());
  EXPECT_EQ(shape->chunks(), 3U);
  EXPECT_EQ(shape->Offset(2), 2 * kMiB);
  EXPECT_EQ(shape->Length(1), kMiB);
  EXPECT_EQ(shape->Length(2), 1U);
  EXPECT_EQ(TransferShape::Make(0, kMiB)->chunks(), 0U);
  EXPECT_EQ(TransferShape::Make(kMaxChunks * kMinChunkBytes, kMinChunkBytes)->chunks(), kMaxChunks);
  EXPECT_FALSE(TransferShape::Make(kMaxChunks * kMinChunkBytes + 1, kMinChunkBytes).ok());
  EXPECT_FALSE(TransferShape::Make(~uint64_t{0}, kMaxChunkBytes).ok());
  EXPECT_FALSE(TransferShape::Make(1, kMinChunkBytes - 1).ok());
  EXPECT_FALSE(TransferShape::Make(1, kMaxChunkBytes + 1).ok());
}

}  // namespace
}  // namespace ckptd::transport
