// v1/dialogue: the packets of a run, one a line: who sends it (T trainer, A agent), its name, its bytes in hex. Each is
// read as its receiver reads it.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "daemon/session/requests.h"
#include "proto/local/messages.h"
#include "tests/golden/golden.h"

namespace ckptd {
namespace {

struct Packet {
  std::string from;
  std::string name;
  std::string bytes;
};

class Dialogue {
 public:
  template <typename Message>
  void Add(const char* from, const char* name, MessageType type, Message message) {
    message.head.magic = kMessageMagic;
    message.head.type = static_cast<uint16_t>(type);
    message.head.major = type == MessageType::kHello ? 0 : 1;
    message.head.size = sizeof(message);
    message.head.trace = 0x1122334455667788;
    absl::string_view bytes(reinterpret_cast<const char*>(&message), sizeof(message));
    absl::StrAppend(&text_, from, " ", name, " ", absl::BytesToHexString(bytes), "\n");
  }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string text_;
};

template <size_t kSize>
void Put(char (&field)[kSize], const char* text) {
  std::strncpy(field, text, kSize - 1);
}

void AddWelcome(Dialogue& d) {
  HelloMessage hello{};
  hello.min_major = hello.max_major = 1;
  hello.pid = 42;
  Put(hello.library, "0.1.0");
  d.Add("T", "HELLO", MessageType::kHello, hello);
  HelloReplyMessage reply{};
  reply.major = 1;
  reply.slots = 2;
  reply.region_id = 77;
  Put(reply.agent, "0.1.0");
  Put(reply.node, "node-0");
  d.Add("A", "HELLO_REPLY", MessageType::kHelloReply, reply);
}

void AddRestore(Dialogue& d) {
  JoinMessage join{};
  Put(join.job, "gpt");
  join.rank = 1;
  join.world = 2;
  join.ticket = 99;
  join.want = static_cast<uint32_t>(Want::kStep);
  join.want_step = 1000;
  join.timeout_ms = 120'000;
  d.Add("T", "JOIN", MessageType::kJoin, join);
  LoadMessage load{};
  load.attempt = 3;
  load.snapshot_attempt = 2;
  load.snapshot_step = 1000;
  load.source = static_cast<uint32_t>(Source::kStorage);
  load.slot = 1;
  load.layout = 1;
  load.verified = 1;
  load.slot_bytes = 1 << 20;
  load.skipped_count = 1;
  load.skipped[0] = {2, 1050, 4, 0};
  d.Add("A", "LOAD", MessageType::kLoad, load);
  LoadedMessage loaded{};
  loaded.attempt = 3;
  loaded.ticket = 99;
  loaded.bytes = 1 << 20;
  d.Add("T", "LOADED", MessageType::kLoaded, loaded);
  GoMessage go{};
  go.attempt = 3;
  go.start_step = 1000;
  go.durable_step = 1000;
  d.Add("A", "GO", MessageType::kGo, go);
}

void AddLayout(Dialogue& d) {
  LayoutMessage layout{};
  layout.attempt = 3;
  layout.ticket = 99;
  layout.header_bytes = 4096;
  layout.image_count = 1;
  layout.header_crc = 0xabcdef01;
  d.Add("T", "LAYOUT", MessageType::kLayout, layout);
  LayoutReadyMessage ready{};
  ready.attempt = 3;
  ready.layout = 1;
  ready.header_crc = 0xabcdef01;
  ready.slot_count = 2;
  ready.chunk_count = 16;
  ready.chunk_bytes = 64 << 10;
  ready.slot_bytes = 1 << 20;
  ready.region_id = 77;
  ready.bell_id = 78;
  ready.file_id[0] = 5;
  ready.file_id[1] = 6;
  d.Add("A", "LAYOUT_READY", MessageType::kLayoutReady, ready);
}

void AddSave(Dialogue& d) {
  GrantMessage grant{};
  grant.attempt = 3;
  grant.epoch = 9;
  grant.floor = 1001;
  grant.layout = 1;
  d.Add("A", "GRANT", MessageType::kGrant, grant);
  CaptureMessage capture{};
  capture.attempt = 3;
  capture.step = 1050;
  capture.epoch = 9;
  capture.layout = 1;
  d.Add("T", "SAVE", MessageType::kSave, capture);
  d.Add("T", "DONE", MessageType::kDone, capture);
  NewsMessage news{};
  news.attempt = 3;
  news.captured_step = 1050;
  news.durable_step = 1000;
  news.outcome_count = 1;
  news.outcomes[0] = {1050, kStepCaptured, 0};
  d.Add("A", "NEWS", MessageType::kNews, news);
  d.Add("T", "BYE", MessageType::kBye, ByeMessage{});
}

std::string MakeDialogue() {
  Dialogue d;
  AddWelcome(d);
  AddRestore(d);
  AddLayout(d);
  AddSave(d);
  return d.text();
}

std::vector<Packet> ReadDialogue() {
  std::vector<Packet> packets;
  std::ifstream file(golden::Folder("dialogue") / "run.txt");
  std::string hex;
  for (Packet packet; file >> packet.from >> packet.name >> hex; packets.push_back(packet)) {
    packet.bytes = absl::HexStringToBytes(hex);
  }
  return packets;
}

// As libckpt takes it: fields that a newer struct has beyond the packet are zero.
template <typename Message>
Message Take(const Packet& packet) {
  Message message{};
  EXPECT_LE(packet.bytes.size(), sizeof(message)) << packet.name;
  std::memcpy(&message, packet.bytes.data(), std::min(packet.bytes.size(), sizeof(message)));
  EXPECT_EQ(message.head.size, packet.bytes.size()) << packet.name;
  return message;
}

Request DecodePacket(const Packet& packet) {
  auto request = Decode(std::as_bytes(std::span(packet.bytes)));
  EXPECT_TRUE(request.ok()) << packet.name << ": " << request.status();
  return request.ok() ? *request : Request(ByeRequest{});
}

class GoldenDialogue : public ::testing::Test {
 protected:
  void SetUp() override {
    if (golden::Updating()) std::ofstream(golden::NewFolder("dialogue") / "run.txt") << MakeDialogue();
    packets_ = ReadDialogue();
    ASSERT_EQ(packets_.size(), 13u);
  }
  const Packet& Named(const std::string& name) {
    for (const Packet& packet : packets_) {
      if (packet.name == name) return packet;
    }
    ADD_FAILURE() << "no " << name;
    return packets_.front();
  }
  std::vector<Packet> packets_;
};

TEST_F(GoldenDialogue, WhatTheTrainerSaysIsUnderstood) {
  for (const Packet& packet : packets_) {
    if (packet.from == "T") (void)DecodePacket(packet);
  }
  auto hello = std::get<HelloRequest>(DecodePacket(Named("HELLO")));
  EXPECT_EQ(hello.max_major, 1);
  EXPECT_EQ(hello.library, "0.1.0");
  auto join = std::get<JoinRequest>(DecodePacket(Named("JOIN")));
  EXPECT_EQ(join.job, "gpt");
  EXPECT_EQ(join.rank, 1u);
  EXPECT_EQ(join.world, 2u);
  EXPECT_EQ(join.ticket, 99u);
  EXPECT_EQ(join.want, Want::kStep);
  EXPECT_EQ(join.want_step, 1000u);
  EXPECT_EQ(join.timeout, std::chrono::seconds(120));
  EXPECT_FALSE(join.implicit);
  auto loaded = std::get<LoadedRequest>(DecodePacket(Named("LOADED")));
  EXPECT_EQ(loaded.code, ErrorCode::OK);
  EXPECT_EQ(loaded.attempt, 3u);
  auto layout = std::get<LayoutRequest>(DecodePacket(Named("LAYOUT")));
  EXPECT_EQ(layout.header_bytes, 4096u);
  EXPECT_EQ(layout.header_crc, 0xabcdef01u);
  auto save = std::get<CaptureRequest>(DecodePacket(Named("SAVE")));
  EXPECT_EQ(save.type, MessageType::kSave);
  EXPECT_EQ(save.step, 1050u);
  EXPECT_EQ(save.epoch, 9u);
  EXPECT_EQ(std::get<CaptureRequest>(DecodePacket(Named("DONE"))).type, MessageType::kDone);
  EXPECT_TRUE(std::holds_alternative<ByeRequest>(DecodePacket(Named("BYE"))));
}

TEST_F(GoldenDialogue, WhatTheAgentSaysIsUnderstood) {
  EXPECT_EQ(Take<HelloReplyMessage>(Named("HELLO_REPLY")).region_id, 77u);
  EXPECT_STREQ(Take<HelloReplyMessage>(Named("HELLO_REPLY")).node, "node-0");
  auto load = Take<LoadMessage>(Named("LOAD"));
  EXPECT_EQ(load.snapshot_step, 1000u);
  EXPECT_EQ(load.source, static_cast<uint32_t>(Source::kStorage));
  EXPECT_EQ(load.skipped[0].step, 1050u);
  EXPECT_EQ(Take<GoMessage>(Named("GO")).start_step, 1000u);
  auto ready = Take<LayoutReadyMessage>(Named("LAYOUT_READY"));
  EXPECT_EQ(ready.bell_id, 78u);
  EXPECT_EQ(ready.file_id[1], 6u);
  EXPECT_EQ(Take<GrantMessage>(Named("GRANT")).floor, 1001u);
  auto news = Take<NewsMessage>(Named("NEWS"));
  EXPECT_EQ(news.captured_step, 1050u);
  EXPECT_EQ(news.outcomes[0].flags, kStepCaptured);
}

}  // namespace
}  // namespace ckptd
