#include "daemon/erasure/encoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/erasure/naive_test_util.h"

namespace ckptd::erasure {
namespace {

using naive::Filled;
using naive::Image;
using naive::Places;
using ::testing::HasSubstr;

struct Chunk {
  uint32_t member;
  uint64_t number;
};

// A group's images, the parity they should have, and the encoder that is to make it over memory that is not clear.
struct Group {
  Group(const Shape& shape, std::vector<Image> group_images, uint64_t group_chunk_bytes)
      : code(Code::Make(shape).value()),
        images(std::move(group_images)),
        chunk_bytes(group_chunk_bytes),
        expected(naive::Parity(shape, images)),
        parity(Filled(shape.parity, expected[0].size())),
        encoder(Encoder::Make(code, Layout(), Places(parity)).value()) {}

  [[nodiscard]] Encoder::Layout Layout() const {
    Encoder::Layout layout{.image_bytes = {}, .chunk_bytes = chunk_bytes};
    for (const Image& image : images) layout.image_bytes.push_back(image.size());
    return layout;
  }
  [[nodiscard]] ConstBytes BytesOf(const Chunk& chunk) const {
    const Image& image = images[chunk.member];
    const uint64_t offset = chunk.number * chunk_bytes;
    return ConstBytes(image).subspan(std::min<size_t>(offset, image.size()),
                                     PieceBytes(image.size(), offset, chunk_bytes));
  }
  [[nodiscard]] std::vector<Chunk> Chunks() const {
    std::vector<Chunk> chunks;
    for (uint32_t member = 0; member < images.size(); ++member) {
      for (uint64_t i = 0; i * chunk_bytes < images[member].size(); ++i) chunks.push_back({member, i});
    }
    return chunks;
  }
  absl::Status Fold(const Chunk& chunk) { return encoder.Fold(chunk.member, chunk.number, BytesOf(chunk)); }
  void FoldAll(const std::vector<Chunk>& chunks) {
    for (const Chunk& chunk : chunks) EXPECT_TRUE(Fold(chunk).ok());
  }

  Code code;
  std::vector<Image> images;
  uint64_t chunk_bytes;
  std::vector<Image> expected;
  std::vector<Image> parity;
  Encoder encoder;
};

Group FourAndTwo() {
  std::mt19937 random(9);
  std::vector<Image> images;
  for (size_t bytes : {300u, 100u, 0u, 259u}) images.push_back(naive::RandomImage(random, bytes));
  return {{4, 2}, std::move(images), 100};
}

TEST(Encoder, AnyOrderGivesTheParityOfTheWhole) {
  std::mt19937 random(1);
  for (uint32_t data = 1; data <= 6; ++data) {
    for (uint32_t parity = 1; parity <= 3; ++parity) {
      for (uint64_t chunk_bytes : {1u, 17u, 63u, 64u, 65u, 4096u}) {
        Group group({data, parity}, naive::RandomImages(random, data), chunk_bytes);
        std::vector<Chunk> chunks = group.Chunks();
        std::shuffle(chunks.begin(), chunks.end(), random);
        group.FoldAll(chunks);
        ASSERT_TRUE(group.encoder.complete());
        ASSERT_EQ(group.parity, group.expected) << ToString(group.code.shape()) << ", chunks of " << chunk_bytes;
      }
    }
  }
}

TEST(Encoder, LongChunks) {
  std::mt19937 random(2);
  std::vector<Image> images;
  for (size_t bytes : {300'000u, 299'999u, 131'073u}) images.push_back(naive::RandomImage(random, bytes));
  Group group({3, 7}, std::move(images), 150'001);
  group.FoldAll(group.Chunks());
  EXPECT_EQ(group.parity, group.expected);
}

TEST(Encoder, AChunkThatIsInIsRefusedAndHarmsNothing) {
  Group group = FourAndTwo();
  for (const Chunk& chunk : group.Chunks()) {
    ASSERT_TRUE(group.Fold(chunk).ok());
    const std::vector<Image> before = group.parity;
    const absl::Status status = group.Fold(chunk);
    EXPECT_EQ(CodeOf(status), ErrorCode::REFUSED);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("chunk ", chunk.number, " of member ", chunk.member, " is in already")));
    EXPECT_EQ(group.parity, before);
  }
  EXPECT_EQ(group.parity, group.expected);
}

// What would happen without the refusal: the second time takes out the first.
TEST(Encoder, TwiceIsNotAtAll) {
  Group group = FourAndTwo();
  group.FoldAll(group.Chunks());
  std::vector<Bytes> places;
  for (Image& parity : group.parity) places.push_back(Bytes(parity).first(100));
  group.code.parity().AddColumn(1, group.BytesOf({1, 0}), places);
  group.images[1].clear();
  EXPECT_EQ(group.parity, naive::Parity(group.code.shape(), group.images));
}

TEST(Encoder, SaysWhereParityIsGood) {
  Group group = FourAndTwo();
  Encoder& encoder = group.encoder;
  ASSERT_EQ(encoder.chunks(), 3u);
  EXPECT_EQ(encoder.Missing(0), 3u);
  EXPECT_EQ(encoder.Missing(1), 2u);
  EXPECT_EQ(encoder.Missing(2), 2u);
  group.FoldAll({{0, 2}, {3, 2}});
  EXPECT_EQ(encoder.Missing(2), 0u);
  for (size_t i = 200; i < 300; ++i) ASSERT_EQ(group.parity[1][i], group.expected[1][i]);
  EXPECT_FALSE(encoder.complete());
  group.FoldAll({{0, 0}, {0, 1}, {1, 0}, {3, 0}, {3, 1}});
  EXPECT_TRUE(encoder.complete());
}

TEST(Encoder, WhatIsNoChunkIsRefusedAndHarmsNothing) {
  Group group = FourAndTwo();
  const Image bytes(101);
  const struct {
    Chunk chunk;
    size_t size;
  } mistakes[] = {{{0, 0}, 99}, {{0, 0}, 101}, {{3, 2}, 100}, {{1, 1}, 100},       {{1, 1}, 0},
                  {{2, 0}, 0},  {{0, 3}, 0},   {{4, 0}, 100}, {{0, UINT64_MAX}, 0}};
  for (const auto& [chunk, size] : mistakes)
    EXPECT_EQ(CodeOf(group.encoder.Fold(chunk.member, chunk.number, ConstBytes(bytes).first(size))),
              ErrorCode::INVALID_ARGUMENT)
        << chunk.member << " " << chunk.number << " " << size;
  group.FoldAll(group.Chunks());
  EXPECT_EQ(group.parity, group.expected);
}

// A chunk that was read while its owner wrote it: the place is restarted, all others stay as they are.
TEST(Encoder, ASpoiledChunkIsRestartedAlone) {
  Group group = FourAndTwo();
  const Image wrong(100, std::byte{1});
  group.FoldAll({{0, 0}, {0, 1}, {0, 2}, {3, 1}});
  ASSERT_TRUE(group.encoder.Fold(1, 0, wrong).ok());
  group.encoder.Restart(0);
  EXPECT_EQ(group.encoder.Missing(0), 3u);
  group.FoldAll({{3, 0}, {0, 0}, {3, 2}});
  EXPECT_FALSE(group.encoder.complete());
  group.FoldAll({{1, 0}});
  EXPECT_TRUE(group.encoder.complete());
  EXPECT_EQ(group.parity, group.expected);
  group.encoder.Restart(1);
  EXPECT_FALSE(group.encoder.complete());
  EXPECT_EQ(CodeOf(group.Fold({0, 2})), ErrorCode::REFUSED);
  group.FoldAll({{3, 1}, {0, 1}});
  EXPECT_TRUE(group.encoder.complete());
  EXPECT_EQ(group.parity, group.expected);
}

TEST(Encoder, AGroupWithoutBytesIsComplete) {
  Group group({2, 2}, {{}, {}}, 100);
  EXPECT_EQ(group.encoder.chunks(), 0u);
  EXPECT_TRUE(group.encoder.complete());
  EXPECT_EQ(CodeOf(group.Fold({0, 0})), ErrorCode::INVALID_ARGUMENT);
}

TEST(Encoder, LayoutsThatDoNotFit) {
  const Code code = Code::Make({2, 2}).value();
  std::vector<Image> two = Filled(2, 100), one = Filled(1, 100), unequal = {Image(100), Image(99)};
  std::vector<Image> many = Filled(2, kMaxEncoderChunks + 1);
  const auto make = [&](std::vector<uint64_t> image_bytes, uint64_t chunk_bytes, std::vector<Image>& parity) {
    return CodeOf(Encoder::Make(code, {std::move(image_bytes), chunk_bytes}, Places(parity)).status());
  };
  EXPECT_EQ(make({100, 7}, 64, two), ErrorCode::OK);
  EXPECT_EQ(make({100}, 64, two), ErrorCode::INVALID_ARGUMENT);
  EXPECT_EQ(make({100, 7}, 64, one), ErrorCode::INVALID_ARGUMENT);
  EXPECT_EQ(make({99, 7}, 64, two), ErrorCode::INVALID_ARGUMENT);
  EXPECT_EQ(make({100, 7}, 64, unequal), ErrorCode::INVALID_ARGUMENT);
  EXPECT_EQ(make({100, 7}, 0, two), ErrorCode::INVALID_ARGUMENT);
  EXPECT_EQ(make({kMaxEncoderChunks + 1, 7}, 1, many), ErrorCode::INVALID_ARGUMENT);
  EXPECT_EQ(make({kMaxEncoderChunks + 1, 7}, 2, many), ErrorCode::OK);
}

}  // namespace
}  // namespace ckptd::erasure
