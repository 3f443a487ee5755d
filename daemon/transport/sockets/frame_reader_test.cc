#include "daemon/transport/sockets/frame_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "client/core/copy/crc32c.h"
#include "daemon/base/errors.h"
#include "daemon/transport/bulk_stream.h"

namespace ckptd::transport {
namespace {

// Gives at most `step` bytes at a time, and nothing every other time.
class Dribble {
 public:
  Dribble(std::string bytes, size_t step) : bytes_(std::move(bytes)), step_(step) {}
  size_t operator()(std::span<std::byte> into) {
    if (step_ != SIZE_MAX && (pause_ = !pause_)) return 0;
    const size_t got = std::min({into.size(), step_, bytes_.size() - at_});
    std::memcpy(into.data(), bytes_.data() + at_, got);
    at_ += got;
    return got;
  }
  [[nodiscard]] bool dry() const { return at_ == bytes_.size(); }

 private:
  const std::string bytes_;
  const size_t step_;
  size_t at_ = 0;
  bool pause_ = false;
};

std::string FrameOf(FrameKind kind, const std::string& body) { return FrameHead(kind, body.size()) + body; }

std::string SomeBytes(size_t size) {
  std::mt19937_64 random(3);
  std::string bytes(size, 0);
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

TEST(FrameReaderTest, WholeFramesHoweverTheBytesCome) {
  const std::string data = SomeBytes(700'001);  // some buffers full, and a rest
  const std::string all = FrameOf(FrameKind::kHello, std::string(300, 'h')) + FrameOf(FrameKind::kData, data) +
                          FrameOf(FrameKind::kMessage, "m") + FrameOf(FrameKind::kData, "unwanted") +
                          FrameOf(FrameKind::kChunk, "c");
  for (const size_t step : {size_t{1}, size_t{2}, size_t{7}, size_t{4096}, SIZE_MAX}) {
    Dribble bytes(all, step);
    FrameReader reader([&](std::span<std::byte> into) { return bytes(into); });
    std::string seen;
    std::string place(data.size(), '~');
    uint32_t crc = 0;
    for (int idle = 0; idle < 4;) {
      const auto frame = reader.Take();
      ASSERT_TRUE(frame.ok()) << frame.status();
      idle = frame->has_value() || !bytes.dry() ? 0 : idle + 1;
      if (!frame->has_value()) continue;
      if ((*frame)->placed != 0) {
        EXPECT_EQ((*frame)->placed, data.size());
        crc = (*frame)->crc;
        seen += "P";
      } else if ((*frame)->data == data.size()) {
        const std::optional<uint32_t> placed = reader.Place(std::as_writable_bytes(std::span(place)));
        crc = placed.value_or(0);
        seen += placed ? "P" : "";
      } else {
        seen += (*frame)->data != 0 ? "U" : (*frame)->body.substr(0, 1);
      }
    }
    EXPECT_EQ(seen, "hPmUc") << step;
    EXPECT_TRUE(place == data) << step;
    EXPECT_EQ(crc, Crc32c(0, data.data(), data.size())) << step;
  }
}

TEST(FrameReaderTest, WhatIsNoFrameIsSaidBeforeAnythingIsReserved) {
  const std::string too_long = FrameHead(FrameKind::kData, kMaxPiece + 1);
  for (const std::string& wrong :
       {std::string("\0\0", 2), std::string("GET / HTTP/1.1"), std::string("\x0a\x00", 2), std::string("\x2a\x01x"),
        std::string("\x0a\xff\xff\xff\xff\xff\xff", 7), FrameHead(FrameKind::kHello, kMaxHelloFrame + 1), too_long}) {
    Dribble bytes(wrong, SIZE_MAX);
    FrameReader reader([&](std::span<std::byte> into) { return bytes(into); });
    EXPECT_EQ(CodeOf(reader.Take().status()), ErrorCode::PROTOCOL) << wrong;
  }
}

TEST(FrameReaderTest, AnyBytesAtAllAreSurvived) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 2000; ++round) {
    std::string wild(random() % 200, 0);
    for (char& byte : wild) byte = static_cast<char>(random() % 4 == 0 ? random() : 0x0a + 8 * (random() % 4));
    Dribble bytes(wild, SIZE_MAX);
    FrameReader reader([&](std::span<std::byte> into) { return bytes(into); });
    for (auto frame = reader.Take(); frame.ok() && frame->has_value(); frame = reader.Take()) {
    }
  }
}

}  // namespace
}  // namespace ckptd::transport
