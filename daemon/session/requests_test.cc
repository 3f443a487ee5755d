#include "daemon/session/requests.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace ckptd {
namespace {

template <typename Message>
std::vector<std::byte> Pack(MessageType type, Message message, size_t tail = 0) {
  message.head.magic = kMessageMagic;
  message.head.type = static_cast<uint16_t>(type);
  message.head.size = sizeof(message) + tail;
  std::vector<std::byte> bytes(sizeof(message) + tail);
  std::memcpy(bytes.data(), &message, sizeof(message));
  return bytes;
}

JoinMessage GoodJoin() {
  JoinMessage join{};
  std::strcpy(join.job, "gpt-small");
  join.rank = 1;
  join.world = 2;
  join.ticket = 77;
  join.timeout_ms = 1000;
  return join;
}

TEST(Decode, Join) {
  auto request = Decode(Pack(MessageType::kJoin, GoodJoin()));
  ASSERT_TRUE(request.ok()) << request.status();
  const auto& join = std::get<JoinRequest>(*request);
  EXPECT_EQ(join.job, "gpt-small");
  EXPECT_EQ(join.rank, 1u);
  EXPECT_EQ(join.timeout, std::chrono::seconds(1));
}

TEST(Decode, LongerPacketOfANewerPeerIsAccepted) { EXPECT_TRUE(Decode(Pack(MessageType::kJoin, GoodJoin(), 64)).ok()); }

TEST(Decode, EveryCutIsRefused) {
  std::vector<std::byte> packet = Pack(MessageType::kJoin, GoodJoin());
  for (size_t size = 0; size < packet.size(); ++size) {
    std::vector<std::byte> cut(packet.begin(), packet.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_FALSE(Decode(cut).ok()) << size;
  }
}

TEST(Decode, BadFieldsAreNamed) {
  JoinMessage rank = GoodJoin();
  rank.rank = 2;
  EXPECT_EQ(CodeOf(Decode(Pack(MessageType::kJoin, rank)).status()), ErrorCode::INVALID_ARGUMENT);
  JoinMessage endless = GoodJoin();
  std::memset(endless.job, 'a', sizeof(endless.job));
  EXPECT_EQ(CodeOf(Decode(Pack(MessageType::kJoin, endless)).status()), ErrorCode::PROTOCOL);
  JoinMessage path = GoodJoin();
  std::strcpy(path.job, "../x");
  EXPECT_EQ(CodeOf(Decode(Pack(MessageType::kJoin, path)).status()), ErrorCode::INVALID_ARGUMENT);
  JoinMessage want = GoodJoin();
  want.want = 9;
  EXPECT_EQ(CodeOf(Decode(Pack(MessageType::kJoin, want)).status()), ErrorCode::PROTOCOL);
  CaptureMessage capture{};
  capture.slot = kMaxSlots;
  EXPECT_EQ(CodeOf(Decode(Pack(MessageType::kDone, capture)).status()), ErrorCode::PROTOCOL);
}

TEST(Decode, RandomBytesNeverCrash) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 20000; ++i) {
    std::vector<std::byte> packet = Pack(static_cast<MessageType>(1 + random() % 22), GoodJoin(), random() % 900);
    for (size_t at = 24; at < packet.size(); ++at) packet[at] = static_cast<std::byte>(random());
    (void)Decode(packet);
  }
}

}  // namespace
}  // namespace ckptd
