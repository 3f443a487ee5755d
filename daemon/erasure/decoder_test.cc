#include "daemon/erasure/decoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>

#include "absl/strings/str_join.h"
#include "client/core/copy/crc32c.h"
#include "daemon/base/errors.h"
#include "daemon/erasure/naive_test_util.h"

namespace ckptd::erasure {
namespace {

using naive::Image;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Members = std::vector<uint32_t>;

// All members of a code, parity made by the textbook.
std::vector<Image> Whole(const Shape& shape, std::mt19937& random) {
  std::vector<Image> members = naive::RandomImages(random, shape.data);
  for (Image& parity : naive::Parity(shape, members)) members.push_back(std::move(parity));
  return members;
}

Members MembersOf(uint32_t bits) {
  Members members;
  for (uint32_t i = 0; i < 32; ++i) {
    if ((bits >> i & 1) != 0) members.push_back(i);
  }
  return members;
}

// Every range of `range` bytes in turn, as a rebuild streams them: only what the decoder asks for is read.
std::vector<Image> Rebuilt(const Decoder& decoder, const std::vector<Image>& members, size_t range) {
  std::vector<Image> images;
  for (uint32_t member : decoder.wanted()) images.emplace_back(members[member].size(), std::byte{0xa5});
  for (size_t offset = 0; offset < members.back().size(); offset += range) {
    const auto piece = [&](const auto& image) {
      return std::span(image).subspan(std::min(offset, image.size()), PieceBytes(image.size(), offset, range));
    };
    std::vector<ConstBytes> pieces;
    for (uint32_t member : decoder.sources()) pieces.push_back(piece(members[member]));
    std::vector<Bytes> places = naive::Places(images);
    for (Bytes& place : places)
      place = place.subspan(std::min(offset, place.size()), PieceBytes(place.size(), offset, range));
    const absl::Status status = decoder.Rebuild(pieces, places);
    EXPECT_TRUE(status.ok()) << status;
  }
  return images;
}

void ExpectRebuilt(const Code& code, const std::vector<Image>& members, const Members& lost, const Members& wanted,
                   size_t range) {
  const auto decoder = Decoder::Make(code, lost, wanted);
  ASSERT_TRUE(decoder.ok()) << decoder.status();
  const std::vector<Image> images = Rebuilt(*decoder, members, range);
  for (size_t i = 0; i < wanted.size(); ++i)
    ASSERT_EQ(images[i], members[wanted[i]])
        << ToString(code.shape()) << ", lost " << absl::StrJoin(lost, " ") << ", member " << wanted[i];
}

// Every shape up to 6+3, every loss up to m: all at once, each alone, in one range and in ranges of 64 and of 7 bytes.
TEST(Decoder, EveryLossUpToParityIsRebuiltBitForBit) {
  std::mt19937 random(1);
  uint32_t losses = 0;
  for (uint32_t data = 1; data <= 6; ++data) {
    for (uint32_t parity = 1; parity <= 3; ++parity) {
      const Code code = Code::Make({data, parity}).value();
      for (uint32_t bits = 1; bits < 1U << (data + parity); ++bits) {
        if (std::popcount(bits) > static_cast<int>(parity)) continue;
        const Members lost = MembersOf(bits);
        const std::vector<Image> members = Whole(code.shape(), random);
        for (size_t range : {size_t{1} << 20, size_t{64}, size_t{7}}) ExpectRebuilt(code, members, lost, lost, range);
        for (uint32_t wanted : lost) ExpectRebuilt(code, members, lost, {wanted}, 1 << 20);
        ++losses;
      }
    }
  }
  EXPECT_EQ(losses, 507u);
}

TEST(Decoder, EveryLossBeyondParityIsAnErrorThatNamesIt) {
  uint32_t losses = 0;
  for (uint32_t data = 1; data <= 6; ++data) {
    for (uint32_t parity = 1; parity <= 3; ++parity) {
      const Code code = Code::Make({data, parity}).value();
      for (uint32_t bits = 1; bits < 1U << (data + parity); ++bits) {
        if (std::popcount(bits) <= static_cast<int>(parity)) continue;
        const Members lost = MembersOf(bits);
        const absl::Status status = Decoder::Make(code, lost, lost).status();
        ASSERT_EQ(CodeOf(status), ErrorCode::CORRUPT);
        ASSERT_THAT(std::string(status.message()), HasSubstr("members " + absl::StrJoin(lost, ", ") + " are lost"));
        ++losses;
      }
    }
  }
  EXPECT_EQ(losses, 1239u);
}

TEST(Decoder, WideCodes) {
  std::mt19937 random(2);
  for (const Shape& shape : {Shape{10, 4}, Shape{5, 7}, Shape{128, 127}, Shape{254, 1}, Shape{1, 254}}) {
    const Code code = Code::Make(shape).value();
    const std::vector<Image> members = Whole(shape, random);
    Members all(shape.members());
    for (uint32_t i = 0; i < all.size(); ++i) all[i] = i;
    for (int round = 0; round < 3; ++round) {
      std::shuffle(all.begin(), all.end(), random);
      Members lost(all.begin(), all.begin() + shape.parity);
      std::sort(lost.begin(), lost.end());
      ExpectRebuilt(code, members, lost, lost, 100);
    }
  }
}

TEST(Decoder, ReadsDataFirstAndOnlyWhatItNeeds) {
  const Code code = Code::Make({4, 2}).value();
  EXPECT_THAT(Decoder::Make(code, Members{1}, Members{1})->sources(), ElementsAre(0, 2, 3, 4));
  EXPECT_THAT(Decoder::Make(code, Members{4, 1}, Members{1})->sources(), ElementsAre(0, 2, 3, 5));
  EXPECT_THAT(Decoder::Make(code, Members{5, 4}, Members{5})->sources(), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Decoder::Make(code, Members{5, 0}, Members{5, 0})->wanted(), ElementsAre(0, 5));
}

TEST(Decoder, WhatCannotBeMeant) {
  const Code code = Code::Make({4, 2}).value();
  const std::pair<Members, Members> mistakes[] = {{{}, {}},      {{1}, {}},  {{1}, {2}},
                                                  {{1, 1}, {1}}, {{6}, {6}}, {{1}, {1, 1}}};
  for (const auto& [lost, wanted] : mistakes)
    EXPECT_EQ(CodeOf(Decoder::Make(code, lost, wanted).status()), ErrorCode::INVALID_ARGUMENT)
        << absl::StrJoin(lost, " ");
}

TEST(Decoder, PiecesThatDoNotFit) {
  const Code code = Code::Make({2, 2}).value();
  const Decoder decoder = Decoder::Make(code, Members{0}, Members{0}).value();  // of 1 and 2
  const Image data(100), parity(100), shorter(99);
  Image rebuilt(100), longer(101);
  const auto rebuild = [&](ConstBytes one, ConstBytes two, Bytes into) {
    const ConstBytes pieces[] = {one, two};
    return CodeOf(decoder.Rebuild(pieces, std::span(&into, 1)));
  };
  EXPECT_EQ(rebuild(data, parity, rebuilt), ErrorCode::OK);
  EXPECT_EQ(rebuild({}, parity, Bytes()), ErrorCode::OK);
  EXPECT_EQ(rebuild(data, shorter, rebuilt), ErrorCode::INVALID_ARGUMENT) << "parity is shorter than an image";
  EXPECT_EQ(rebuild(data, parity, longer), ErrorCode::INVALID_ARGUMENT) << "the last byte would be made of nothing";
  const ConstBytes one[] = {data};
  const Bytes into[] = {rebuilt};
  EXPECT_EQ(CodeOf(decoder.Rebuild(one, into)), ErrorCode::INVALID_ARGUMENT);
}

// reliability.md 3 and case 28: a flipped bit is not decoded away, it is found by the CRC of what came out; with the
// member that has it counted as lost, too, everything is right again.
TEST(Decoder, ACorruptSurvivorIsNoticedAndCountedAsLost) {
  std::mt19937 random(3);
  const Code code = Code::Make({4, 2}).value();
  std::vector<Image> members(4);
  for (Image& image : members) image = naive::RandomImage(random, 1000);
  for (Image& parity : naive::Parity(code.shape(), members)) members.push_back(std::move(parity));
  const uint32_t crc = Crc32c(0, members[1].data(), members[1].size());
  for (uint32_t corrupt : {0u, 2u, 3u, 4u}) {
    std::vector<Image> damaged = members;
    damaged[1].assign(1000, std::byte{0});
    damaged[corrupt][random() % 1000] ^= std::byte{0x10};
    const Image wrong = Rebuilt(Decoder::Make(code, Members{1}, Members{1}).value(), damaged, 64)[0];
    EXPECT_EQ(CodeOf(CheckCrc(wrong, crc, "member 1")), ErrorCode::CORRUPT) << corrupt;
    const Image right = Rebuilt(Decoder::Make(code, Members{1, corrupt}, Members{1}).value(), damaged, 64)[0];
    EXPECT_TRUE(CheckCrc(right, crc, "member 1").ok()) << corrupt;
  }
}

// reliability.md F7: lose m, rebuild, lose another m: still whole.
TEST(Decoder, WhatWasRebuiltIsAsGoodAsNew) {
  std::mt19937 random(4);
  const Code code = Code::Make({6, 2}).value();
  const std::vector<Image> original = Whole(code.shape(), random);
  std::vector<Image> members = original;
  for (const Members& lost : {Members{0, 7}, Members{1, 2}, Members{3, 6}, Members{4, 5}}) {
    for (uint32_t member : lost) std::fill(members[member].begin(), members[member].end(), std::byte{0xff});
    std::vector<Image> images = Rebuilt(Decoder::Make(code, lost, lost).value(), members, 33);
    for (size_t i = 0; i < lost.size(); ++i) members[lost[i]] = std::move(images[i]);
  }
  EXPECT_EQ(members, original);
}

}  // namespace
}  // namespace ckptd::erasure
