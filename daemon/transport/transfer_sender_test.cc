// When a sender is to be woken, and when it gives its connection back. What it says and takes is the simulation's
// (transfer_sim_test.cc).
#include "daemon/transport/transfer_sender.h"

#include <gtest/gtest.h>

#include "daemon/base/errors.h"

namespace ckptd::transport {
namespace {

using std::chrono::seconds;

constexpr uint64_t kPart = kMinChunkBytes;
constexpr Nanos kWelcomedAt = seconds(1000);

TransferSender Welcomed(uint64_t bytes_per_second) {
  SenderLimits limits{.deadline = seconds(5000), .silence = seconds(10)};
  limits.bytes_per_second = bytes_per_second;
  limits.burst = kPart;
  TransferSender sender({"n2", "gpt", 3, {1, 1000}, 1}, *TransferShape::Make(4 * kPart, kPart), limits);
  for (uint32_t chunk = 0; chunk < 4; ++chunk) EXPECT_TRUE(sender.ChunkReady(chunk, chunk).ok());
  sender.Connected(7, kWelcomedAt);
  sender.Heard(7, Welcome{std::vector<bool>(4)}, kWelcomedAt);
  sender.Heard(7, Window{1, 4 * kPart}, kWelcomedAt);
  return sender;
}

// The connection may not be able to take it, for as long as the network is slower than memory.
TEST(TransferSender, AChunkThatMayGoAtOnceIsNoReasonToLookAgainAtOnce) {
  TransferSender sender = Welcomed(0);
  EXPECT_GE(sender.NextDeadline(kWelcomedAt), kWelcomedAt + seconds(10));
  EXPECT_TRUE(sender.Next(kWelcomedAt).has_value());
}

TEST(TransferSender, AChunkThatWaitsForItsRateIs) {
  TransferSender sender = Welcomed(kPart);
  ASSERT_TRUE(sender.Next(kWelcomedAt).has_value());
  EXPECT_FALSE(sender.Next(kWelcomedAt).has_value());
  const Nanos due = sender.NextDeadline(kWelcomedAt);
  EXPECT_GT(due, kWelcomedAt);
  EXPECT_LE(due, kWelcomedAt + seconds(1));
  EXPECT_TRUE(sender.Next(due).has_value());
}

TEST(TransferSender, WhatTheReceiverHasLostIsSentAgainToWhomMayLoseItOnly) {
  for (const bool forgetful : {false, true}) {
    const SenderLimits limits{.deadline = seconds(5000), .vain_connections = 3, .forgetful = forgetful};
    TransferSender sender({"n2", "gpt", 3, {1, 1000}, 1}, *TransferShape::Make(2 * kPart, kPart), limits);
    for (uint32_t chunk = 0; chunk < 2; ++chunk) EXPECT_TRUE(sender.ChunkReady(chunk, chunk).ok());
    sender.Connected(7, kWelcomedAt);
    sender.Heard(7, Welcome{{true, false}}, kWelcomedAt);
    EXPECT_EQ(sender.verified(), 1u);
    sender.Lost(7, kWelcomedAt);
    sender.Connected(8, kWelcomedAt);
    sender.Heard(8, Welcome{{false, false}}, kWelcomedAt);
    sender.Heard(8, Window{1, 2 * kPart}, kWelcomedAt);
    EXPECT_EQ(CodeOf(sender.status()), forgetful ? ErrorCode::OK : ErrorCode::PROTOCOL) << sender.status();
    EXPECT_EQ(sender.Next(kWelcomedAt).has_value(), forgetful);
    if (!forgetful) continue;
    EXPECT_TRUE(sender.Next(kWelcomedAt).has_value());
    for (uint32_t chunk = 0; chunk < 2; ++chunk) sender.Heard(8, Verified{chunk, 1}, kWelcomedAt);
    EXPECT_EQ(sender.state(), TransferState::kComplete);
  }
}

// Whatever it says that it has lost: it has the time that there is, and no more.
TEST(TransferSender, WhoLosesAllAgainAndAgainIsSentItUntilTheDeadline) {
  const SenderLimits limits{.deadline = kWelcomedAt + seconds(50), .vain_connections = 3, .forgetful = true};
  TransferSender sender({"n2", "gpt", 3, {1, 1000}, 1}, *TransferShape::Make(2 * kPart, kPart), limits);
  EXPECT_TRUE(sender.ChunkReady(0, 0).ok() && sender.ChunkReady(1, 1).ok());
  Nanos now = kWelcomedAt;
  for (ConnectionId connection = 1; connection < 100; ++connection, now += seconds(1)) {
    sender.Connected(connection, now);
    sender.Heard(connection, Welcome{std::vector<bool>(2)}, now);
    sender.Heard(connection, Window{1, 2 * kPart}, now);
    if (sender.Next(now).has_value()) sender.Heard(connection, Verified{0, 1}, now);
    sender.Tick(now);
    sender.Lost(connection, now);
  }
  EXPECT_EQ(CodeOf(sender.status()), ErrorCode::TIMEOUT) << sender.status();
}

// One of two chunks is captured, sent and verified; nothing follows.
TransferSender Idle() {
  SenderLimits limits{.deadline = seconds(5000), .silence = seconds(10), .vain_connections = 1, .idle = seconds(2)};
  TransferSender sender({"n2", "gpt", 3, {1, 1000}, 1}, *TransferShape::Make(2 * kPart, kPart), limits);
  EXPECT_TRUE(sender.ChunkReady(0, 0).ok());
  sender.Connected(7, kWelcomedAt);
  sender.Heard(7, Welcome{std::vector<bool>(2)}, kWelcomedAt);
  sender.Heard(7, Window{1, 2 * kPart}, kWelcomedAt);
  EXPECT_TRUE(sender.Next(kWelcomedAt).has_value());
  return sender;
}

void Verify(TransferSender& sender) {
  sender.Heard(7, Verified{0, 1}, kWelcomedAt);
  sender.Tick(kWelcomedAt);
}

TEST(TransferSender, AnIdleConnectionIsGivenBack) {
  TransferSender sender = Idle();
  sender.Tick(kWelcomedAt + seconds(5));
  EXPECT_FALSE(sender.hang_up()) << "an answer is owed";
  Verify(sender);
  EXPECT_EQ(sender.NextDeadline(kWelcomedAt), kWelcomedAt + seconds(2));
  sender.Tick(kWelcomedAt + seconds(1));
  EXPECT_FALSE(sender.hang_up());
  sender.Tick(kWelcomedAt + seconds(2));
  EXPECT_TRUE(sender.hang_up());
  EXPECT_FALSE(sender.TakeStop().has_value()) << "the transfer goes on";
  sender.Lost(7, kWelcomedAt + seconds(2));
  EXPECT_TRUE(sender.gave_back());
  EXPECT_TRUE(sender.Rests());
  EXPECT_TRUE(sender.ChunkReady(1, 1).ok());
  EXPECT_FALSE(sender.Rests());
}

TEST(TransferSender, AChunkInTimeKeepsIt) {
  TransferSender sender = Idle();
  Verify(sender);
  EXPECT_TRUE(sender.ChunkReady(1, 1).ok());
  sender.Tick(kWelcomedAt + seconds(2));
  EXPECT_FALSE(sender.hang_up());
}

// It is dialled to say that the transfer is wanted still; that says nothing against the connection, however often.
TEST(TransferSender, WhoComesWithNothingGoesAtOnce) {
  TransferSender sender = Idle();
  Verify(sender);
  sender.Tick(kWelcomedAt + seconds(2));
  sender.Lost(7, kWelcomedAt + seconds(2));
  for (ConnectionId connection = 8; connection < 20; ++connection) {
    const Nanos now = kWelcomedAt + seconds(20 * connection);
    sender.Connected(connection, now);
    EXPECT_FALSE(sender.hang_up());
    sender.Heard(connection, Welcome{{true, false}}, now);
    sender.Heard(connection, Window{1, 2 * kPart}, now);
    sender.Tick(now);
    EXPECT_TRUE(sender.hang_up());
    sender.Lost(connection, now);
  }
  EXPECT_EQ(sender.state(), TransferState::kRunning);
  sender.Connected(20, kWelcomedAt + seconds(500));
  sender.Lost(20, kWelcomedAt + seconds(500));
  EXPECT_EQ(CodeOf(sender.status()), ErrorCode::TIMEOUT) << "nobody welcomes it";
}

}  // namespace
}  // namespace ckptd::transport
