// When a sender is to be woken. What it says and takes is the simulation's (transfer_sim_test.cc).
#include "daemon/transport/transfer_sender.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace ckptd::transport
