#include "daemon/session/requests.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "proto/local/rescue.h"

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

TEST(Decode, CopierNamesItsGpu) {
  CopierMessage copier{};
  for (uint8_t i = 0; i < kGpuUuidBytes; ++i) copier.gpu[i] = static_cast<uint8_t>(i * 0x11);
  auto request = Decode(Pack(MessageType::kCopier, copier));
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(ToString(std::get<CopierRequest>(*request).gpu), "GPU-00112233-4455-6677-8899-aabbccddeeff");
  auto cut = Pack(MessageType::kCopier, copier);
  cut.resize(cut.size() - 1);
  EXPECT_FALSE(Decode(cut).ok());
}

DevicesMessage GoodDevices() {
  DevicesMessage devices{};
  devices.pinned_bytes = 4096;
  devices.pin_ns = 2'000'000'000;
  devices.longest_step_ns = UINT64_MAX;
  devices.device_count = 2;
  devices.devices[1].path = static_cast<uint32_t>(CapturePath::kPull);
  devices.devices[1].samples = 8;
  devices.devices[1].push_loss_ppm = -3;
  std::strcpy(devices.devices[1].why, "less loss\x1b\xff");
  std::memset(devices.pin_error, 'x', sizeof(devices.pin_error));  // without an end
  return devices;
}

TEST(Decode, DevicesWithinBounds) {
  auto request = Decode(Pack(MessageType::kDevices, GoodDevices()));
  ASSERT_TRUE(request.ok()) << request.status();
  const auto& devices = std::get<DevicesRequest>(*request);
  EXPECT_EQ(devices.pinned_bytes, 4096u);
  EXPECT_EQ(devices.pin_time, std::chrono::seconds(2));
  EXPECT_GT(devices.longest_step, Nanos(0));
  EXPECT_EQ(devices.pin_error.size(), sizeof(DevicesMessage::pin_error));
  ASSERT_EQ(devices.gpus.size(), 2u);
  EXPECT_EQ(devices.gpus[0].path, CapturePath::kPush);
  EXPECT_EQ(devices.gpus[1].path, CapturePath::kPull);
  EXPECT_EQ(devices.gpus[1].push_loss_ppm, -3);
  EXPECT_EQ(devices.gpus[1].why, "less loss ?");
}

TEST(Decode, DevicesOutOfBoundsAreRefused) {
  DevicesMessage many = GoodDevices();
  many.device_count = kMaxDevices + 1;
  EXPECT_EQ(CodeOf(Decode(Pack(MessageType::kDevices, many)).status()), ErrorCode::PROTOCOL);
  many.device_count = kMaxDevices;
  EXPECT_TRUE(Decode(Pack(MessageType::kDevices, many)).ok());
  DevicesMessage path = GoodDevices();
  path.devices[0].path = 2;
  EXPECT_EQ(CodeOf(Decode(Pack(MessageType::kDevices, path)).status()), ErrorCode::PROTOCOL);
}

TEST(Decode, Loading) {
  LoadingMessage loading{};
  loading.attempt = 3;
  loading.ticket = 7;
  auto packet = Pack(MessageType::kLoading, loading);
  auto request = Decode(packet);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(std::get<LoadingRequest>(*request).attempt, 3u);
  EXPECT_EQ(std::get<LoadingRequest>(*request).ticket, 7u);
  packet.resize(packet.size() - 1);
  EXPECT_FALSE(Decode(packet).ok());
}

TEST(Decode, RescueWithinBounds) {
  RescueMessage rescue{};
  rescue.hold_ns = 700'000'000;
  auto request = Decode(Pack(MessageType::kRescue, rescue));
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(std::get<RescueRequest>(*request).hold, std::chrono::milliseconds(700));
  EXPECT_EQ(std::get<RescueRequest>(*request).why, "");
  rescue.hold_ns = UINT64_MAX;
  std::memset(rescue.why, '\xff', sizeof(rescue.why));  // neither UTF-8 nor with an end
  request = Decode(Pack(MessageType::kRescue, rescue));
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(std::get<RescueRequest>(*request).hold, Nanos(kMostHoldNs));
  EXPECT_EQ(std::get<RescueRequest>(*request).why, std::string(sizeof(rescue.why), '?'));
  auto cut = Pack(MessageType::kRescue, rescue);
  cut.resize(cut.size() - 1);
  EXPECT_FALSE(Decode(cut).ok());
}

// A tensor's name in it, cut in the middle of a letter by the field's end; and whatever a stray write left there.
TEST(Decode, TheReasonOfAFailedLoadIsUtf8) {
  LoadedMessage loaded{};
  loaded.ticket = 7;
  std::strcpy(loaded.reason,
              "tensor gr\xc3\xb6\xc3\x9f"
              "e\n\xff\xed\xa0\x80 cut \xc3");
  auto request = Decode(Pack(MessageType::kLoaded, loaded));
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(std::get<LoadedRequest>(*request).reason,
            "tensor gr\xc3\xb6\xc3\x9f"
            "e ???? cut ?");
}

TEST(Decode, RandomBytesNeverCrash) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 20000; ++i) {
    std::vector<std::byte> packet = Pack(static_cast<MessageType>(1 + random() % 24), GoodJoin(), random() % 3600);
    for (size_t at = 24; at < packet.size(); ++at) packet[at] = static_cast<std::byte>(random());
    (void)Decode(packet);
  }
}

}  // namespace
}  // namespace ckptd
