// When a sender is to be woken. What it says and takes is the simulation's (transfer_sim_test.cc).
#include "daemon/transport/transfer_sender.h"

#include <gtest/gtest.h>

namespace ckptd::transport {
namespace {

using std::chrono::seconds;

constexpr uint64_t kChunk = kMinChunkBytes;
constexpr Nanos kNow = seconds(1000);

TransferSender Welcomed(uint64_t bytes_per_second) {
  SenderLimits limits{.deadline = seconds(5000), .silence = seconds(10)};
  limits.bytes_per_second = bytes_per_second;
  limits.burst = kChunk;
  TransferSender sender({"n2", "gpt", 3, {1, 1000}, 1}, *TransferShape::Make(4 * kChunk, kChunk), limits);
  for (uint32_t chunk = 0; chunk < 4; ++chunk) EXPECT_TRUE(sender.ChunkReady(chunk, chunk).ok());
  sender.Connected(7, kNow);
  sender.Heard(7, Welcome{std::vector<bool>(4)}, kNow);
  sender.Heard(7, Window{1, 4 * kChunk}, kNow);
  return sender;
}

// The connection may not be able to take it, for as long as the network is slower than memory.
TEST(TransferSender, AChunkThatMayGoAtOnceIsNoReasonToLookAgainAtOnce) {
  TransferSender sender = Welcomed(0);
  EXPECT_GE(sender.NextDeadline(kNow), kNow + seconds(10));
  EXPECT_TRUE(sender.Next(kNow).has_value());
}

TEST(TransferSender, AChunkThatWaitsForItsRateIs) {
  TransferSender sender = Welcomed(kChunk);
  ASSERT_TRUE(sender.Next(kNow).has_value());
  EXPECT_FALSE(sender.Next(kNow).has_value());
  const Nanos due = sender.NextDeadline(kNow);
  EXPECT_GT(due, kNow);
  EXPECT_LE(due, kNow + seconds(1));
  EXPECT_TRUE(sender.Next(due).has_value());
}

}  // namespace
}  // namespace ckptd::transport
