#include "daemon/erasure/rotation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/core/copy/crc32c.h"
#include "daemon/base/errors.h"
#include "daemon/erasure/decoder.h"
#include "daemon/erasure/encoder.h"
#include "daemon/erasure/naive_test_util.h"

namespace ckptd::erasure {
namespace {

using naive::Image;
using ::testing::ElementsAre;

// As in the table of algorithms.md 7.3: "b10 ^ b20 ^ b30".
std::string ParityOf(const Shape& shape, uint32_t member) {
  std::vector<std::string> blocks;
  for (uint32_t stripe = 0; stripe < shape.members(); ++stripe) {
    if (!HoldsParity(shape, stripe, member)) continue;
    const std::vector<uint32_t> members = StripeMembers(shape, stripe);
    for (uint32_t j = 0; j < shape.data; ++j)
      blocks.push_back(absl::StrCat("b", members[j], BlockGiven(shape, stripe, members[j])));
  }
  return absl::StrJoin(blocks, " ^ ");
}

TEST(Rotation, TheTablesOfRaim5) {
  EXPECT_EQ(ParityOf({1, 1}, 0), "b10");
  EXPECT_EQ(ParityOf({1, 1}, 1), "b00");
  EXPECT_EQ(ParityOf({2, 1}, 0), "b10 ^ b20");
  EXPECT_EQ(ParityOf({2, 1}, 1), "b00 ^ b21");
  EXPECT_EQ(ParityOf({2, 1}, 2), "b01 ^ b11");
  EXPECT_EQ(ParityOf({3, 1}, 0), "b10 ^ b20 ^ b30");
  EXPECT_EQ(ParityOf({3, 1}, 1), "b00 ^ b21 ^ b31");
  EXPECT_EQ(ParityOf({3, 1}, 2), "b01 ^ b11 ^ b32");
  EXPECT_EQ(ParityOf({3, 1}, 3), "b02 ^ b12 ^ b22");
}

TEST(Rotation, TheFormulaOfRaim5) {
  for (uint32_t n = 2; n <= 16; ++n) {
    const Shape shape{n - 1, 1};
    for (uint32_t d = 0; d < n; ++d) {
      EXPECT_EQ(ParityHolder(shape, d, 0), d);
      for (uint32_t i = 0; i < n; ++i) {
        EXPECT_EQ(HoldsParity(shape, d, i), d == i);
        if (d == i) continue;
        EXPECT_EQ(BlockGiven(shape, d, i), d < i ? d : d - 1);
      }
    }
  }
}

TEST(Rotation, TwoParities) {
  const Shape shape{2, 2};
  EXPECT_THAT(StripeMembers(shape, 0), ElementsAre(2, 3, 0, 1));
  EXPECT_THAT(StripeMembers(shape, 1), ElementsAre(0, 3, 1, 2));
  EXPECT_THAT(StripeMembers(shape, 2), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(StripeMembers(shape, 3), ElementsAre(1, 2, 3, 0));
}

TEST(Rotation, EveryBlockIsInOneStripeAndParityIsSpreadEvenly) {
  for (const Shape& shape : {Shape{1, 1}, Shape{3, 1}, Shape{6, 2}, Shape{4, 4}, Shape{1, 3}, Shape{5, 3}}) {
    for (uint32_t member = 0; member < shape.members(); ++member) {
      uint32_t parities = 0;
      for (uint32_t stripe = 0; stripe < shape.members(); ++stripe) {
        if (HoldsParity(shape, stripe, member)) {
          ++parities;
        } else {
          ASSERT_EQ(StripeOf(shape, member, BlockGiven(shape, stripe, member)), stripe);
        }
      }
      ASSERT_EQ(parities, shape.parity);
    }
  }
}

TEST(Rotation, BlocksCoverTheImageAndEndAtUnits) {
  EXPECT_EQ(BlockOf({3, 1}, 1000, 100, 0), (Extent{0, 400}));
  EXPECT_EQ(BlockOf({3, 1}, 1000, 100, 1), (Extent{400, 400}));
  EXPECT_EQ(BlockOf({3, 1}, 1000, 100, 2), (Extent{800, 200}));
  EXPECT_EQ(BlockOf({3, 1}, 150, 100, 2), (Extent{150, 0}));
  for (uint32_t data : {1u, 2u, 3u, 7u}) {
    for (uint64_t image : {0u, 1u, 63u, 64u, 65u, 1000u, 4096u, 4097u}) {
      for (uint64_t unit : {1u, 64u, 4096u}) {
        uint64_t end = 0;
        for (uint32_t block = 0; block < data; ++block) {
          const Extent extent = BlockOf({data, 1}, image, unit, block);
          ASSERT_EQ(extent.begin, end);
          ASSERT_TRUE(extent.begin % unit == 0 || extent.size == 0);
          end += extent.size;
        }
        ASSERT_EQ(end, image) << data << " blocks of " << image << " by " << unit;
      }
    }
  }
}

// A group in which every member has an image of its own and the parities that fall to it.
class RotatedGroup {
 public:
  RotatedGroup(const Shape& shape, std::vector<Image> images, uint64_t chunk_bytes)
      : code_(Code::Make(shape).value()), images_(std::move(images)), chunk_bytes_(chunk_bytes) {
    for (uint32_t stripe = 0; stripe < shape.members(); ++stripe) Encode(stripe);
  }

  [[nodiscard]] uint64_t ParityBytesOf(uint32_t member) const {
    uint64_t bytes = 0;
    for (uint32_t stripe = 0; stripe < shape().members(); ++stripe) {
      for (uint32_t row = 0; row < shape().parity; ++row)
        bytes += ParityHolder(shape(), stripe, row) == member ? parity_[stripe][row].size() : 0;
    }
    return bytes;
  }

  // The images of `lost`, from nothing that these members held; an error where the code has one.
  [[nodiscard]] absl::StatusOr<std::vector<Image>> Rebuild(const std::vector<uint32_t>& lost) const {
    std::vector<Image> images(lost.size());
    for (size_t i = 0; i < lost.size(); ++i) images[i].assign(images_[lost[i]].size(), std::byte{0xa5});
    for (uint32_t stripe = 0; stripe < shape().members(); ++stripe) {
      absl::Status status = RebuildStripe(stripe, lost, images);
      if (!status.ok()) return status;
    }
    return images;
  }

  void FlipParityBit(uint32_t stripe) { parity_[stripe][0][0] ^= std::byte{4}; }

 private:
  [[nodiscard]] const Shape& shape() const { return code_.shape(); }
  [[nodiscard]] Extent Block(uint32_t stripe, uint32_t member) const {
    return BlockOf(shape(), images_[member].size(), chunk_bytes_, BlockGiven(shape(), stripe, member));
  }
  [[nodiscard]] ConstBytes DataOf(uint32_t stripe, uint32_t member) const {
    const Extent block = Block(stripe, member);
    return ConstBytes(images_[member]).subspan(block.begin, block.size);
  }

  void Encode(uint32_t stripe) {
    const std::vector<uint32_t> members = StripeMembers(shape(), stripe);
    Encoder::Layout layout{.image_bytes = {}, .chunk_bytes = chunk_bytes_};
    for (uint32_t j = 0; j < shape().data; ++j) layout.image_bytes.push_back(DataOf(stripe, members[j]).size());
    parity_.push_back(naive::Filled(shape().parity, std::ranges::max(layout.image_bytes)));
    Encoder encoder = Encoder::Make(code_, layout, naive::Places(parity_.back())).value();
    for (uint32_t j = 0; j < shape().data; ++j) {
      ConstBytes left = DataOf(stripe, members[j]);
      for (uint64_t chunk = 0; !left.empty(); ++chunk) {
        ASSERT_TRUE(encoder.Fold(j, chunk, left.first(std::min<size_t>(left.size(), chunk_bytes_))).ok());
        left = left.subspan(std::min<size_t>(left.size(), chunk_bytes_));
      }
    }
    ASSERT_TRUE(encoder.complete());
  }

  [[nodiscard]] absl::Status RebuildStripe(uint32_t stripe, const std::vector<uint32_t>& lost,
                                           std::vector<Image>& images) const {
    const std::vector<uint32_t> members = StripeMembers(shape(), stripe);
    std::vector<uint32_t> lost_here, wanted;
    std::vector<Bytes> places;
    for (uint32_t place = 0; place < members.size(); ++place) {
      const auto found = std::find(lost.begin(), lost.end(), members[place]);
      if (found == lost.end()) continue;
      lost_here.push_back(place);
      if (place >= shape().data) continue;
      wanted.push_back(place);
      const Extent block = Block(stripe, *found);
      places.push_back(Bytes(images[static_cast<size_t>(found - lost.begin())]).subspan(block.begin, block.size));
    }
    if (wanted.empty()) return absl::OkStatus();
    const absl::StatusOr<Decoder> decoder = Decoder::Make(code_, lost_here, wanted);
    if (!decoder.ok()) return decoder.status();
    std::vector<ConstBytes> pieces;
    for (uint32_t place : decoder->sources())
      pieces.push_back(place < shape().data ? DataOf(stripe, members[place])
                                            : ConstBytes(parity_[stripe][place - shape().data]));
    return decoder->Rebuild(pieces, places);
  }

  Code code_;
  std::vector<Image> images_;
  uint64_t chunk_bytes_;
  std::vector<std::vector<Image>> parity_;  // of each stripe
};

std::vector<Image> Pick(const std::vector<Image>& images, const std::vector<uint32_t>& members) {
  std::vector<Image> picked(members.size());
  for (size_t i = 0; i < members.size(); ++i) picked[i] = images[members[i]];
  return picked;
}

// algorithms.md CHK-7a with images instead of tensors; the groups of reliability.md F7: every loss up to m + 1.
TEST(Rotation, EveryLossOfAGroupIsRebuiltOrToldOf) {
  std::mt19937 random(1);
  for (const Shape& shape : {Shape{1, 1}, Shape{2, 1}, Shape{3, 1}, Shape{7, 1}, Shape{6, 2}, Shape{4, 4}}) {
    const std::vector<Image> images = naive::RandomImages(random, shape.members());
    const RotatedGroup group(shape, images, 16);
    for (uint32_t bits = 1; bits < 1U << shape.members(); ++bits) {
      if (std::popcount(bits) > static_cast<int>(shape.parity) + 1) continue;
      std::vector<uint32_t> lost;
      for (uint32_t i = 0; i < shape.members(); ++i) {
        if ((bits >> i & 1) != 0) lost.push_back(i);
      }
      const auto rebuilt = group.Rebuild(lost);
      if (lost.size() <= shape.parity) {
        ASSERT_TRUE(rebuilt.ok()) << rebuilt.status();
        ASSERT_EQ(*rebuilt, Pick(images, lost)) << ToString(shape) << " lost " << absl::StrJoin(lost, " ");
      } else {
        ASSERT_EQ(CodeOf(rebuilt.status()), ErrorCode::CORRUPT)
            << ToString(shape) << " lost " << absl::StrJoin(lost, " ");
      }
    }
  }
}

// CHK-7a: a flipped bit is caught by the CRC, not decoded.
TEST(Rotation, AFlippedBitOfParityIsInWhatIsRebuilt) {
  std::mt19937 random(2);
  const Image image = naive::RandomImage(random, 999);
  RotatedGroup group({3, 1}, {image, image, image, image}, 16);
  const uint32_t crc = Crc32c(0, image.data(), image.size());
  EXPECT_TRUE(CheckCrc(group.Rebuild({2}).value()[0], crc, "member 2").ok());
  group.FlipParityBit(1);
  EXPECT_EQ(CodeOf(CheckCrc(group.Rebuild({2}).value()[0], crc, "member 2")), ErrorCode::CORRUPT);
}

// CHK-7b: 1, 1/2, 1/3, 1/7 of the image on top; and m / k with more parity.
TEST(Rotation, ParityOnTopOfAnImage) {
  constexpr uint64_t kImage = 12 * 7 * 16;
  const std::pair<Shape, uint64_t> expected[] = {{{1, 1}, kImage},     {{2, 1}, kImage / 2},     {{3, 1}, kImage / 3},
                                                 {{7, 1}, kImage / 7}, {{6, 2}, kImage * 2 / 6}, {{4, 4}, kImage}};
  for (const auto& [shape, bytes] : expected) {
    const RotatedGroup group(shape, std::vector<Image>(shape.members(), Image(kImage)), 16);
    for (uint32_t member = 0; member < shape.members(); ++member) EXPECT_EQ(group.ParityBytesOf(member), bytes);
  }
}

TEST(RowShards, NumbersOfReft) {
  const RowShards shards = ShardRows(37, 4).value();
  EXPECT_EQ(shards.padded, 48u);
  EXPECT_EQ(shards.shard_rows, 12u);
  EXPECT_EQ(shards.block_rows, 4u);
  EXPECT_EQ(shards.Shard(2), (Extent{24, 12}));
  EXPECT_EQ(shards.Shard(3), (Extent{36, 1}));
  EXPECT_EQ(shards.Block(2, 1), (Extent{28, 4}));
  EXPECT_EQ(shards.Block(3, 0), (Extent{36, 1}));
  EXPECT_EQ(shards.Block(3, 1), (Extent{37, 0}));
  EXPECT_EQ(ShardRows(24, 4)->padded, 24u);
  EXPECT_EQ(ShardRows(1, 8)->padded, 56u);
}

TEST(RowShards, LimitsAndNone) {
  EXPECT_EQ(ShardRows(0, 4)->padded, 0u);
  EXPECT_EQ(ShardRows(0, 4)->Shard(3), (Extent{0, 0}));
  EXPECT_EQ(CodeOf(ShardRows(5, 1).status()), ErrorCode::INVALID_ARGUMENT);
  EXPECT_EQ(CodeOf(ShardRows(5, 256).status()), ErrorCode::INVALID_ARGUMENT);
  EXPECT_EQ(CodeOf(ShardRows(UINT64_MAX, 4).status()), ErrorCode::INVALID_ARGUMENT);
}

// A tensor that all ranks of a group hold, and REFT's way to save and recover it.
struct ReftGroup {
  static constexpr uint64_t kRowBytes = 8;

  // What the rank gives to the stripe: short or empty where the tensor has ended.
  [[nodiscard]] ConstBytes Given(uint32_t stripe, uint32_t rank) const {
    const Extent rows = shards.Block(rank, BlockGiven(shape, stripe, rank));
    return ConstBytes(tensor).subspan(rows.begin * kRowBytes, rows.size * kRowBytes);
  }

  // The block that `lost` gave to the stripe, from the others' and the parity of all.
  [[nodiscard]] Image Recovered(uint32_t stripe, uint32_t lost) const {
    const std::vector<uint32_t> members = StripeMembers(shape, stripe);
    std::vector<ConstBytes> pieces;
    for (uint32_t j = 0; j < shape.data; ++j) pieces.push_back(Given(stripe, members[j]));
    Image parity(shards.block_rows * kRowBytes, std::byte{0xa5});
    const Bytes place(parity);
    EXPECT_TRUE(code.Encode(pieces, std::span(&place, 1)).ok());
    const auto at = static_cast<uint32_t>(std::ranges::find(members, lost) - members.begin());
    Image block(pieces[at].size(), std::byte{0xa5});
    pieces.erase(pieces.begin() + at);
    pieces.emplace_back(parity);
    const Bytes into(block);
    const Decoder decoder = Decoder::Make(code, std::span(&at, 1), std::span(&at, 1)).value();
    EXPECT_TRUE(decoder.Rebuild(pieces, std::span(&into, 1)).ok());
    return block;
  }

  [[nodiscard]] Image RecoveredShard(uint32_t lost) const {
    Image shard;
    for (uint32_t stripe = 0; stripe < shape.members(); ++stripe) {
      if (stripe == lost) continue;
      const Image block = Recovered(stripe, lost);
      shard.insert(shard.end(), block.begin(), block.end());
    }
    return shard;
  }

  Image tensor;
  Shape shape;
  Code code;
  RowShards shards;
};

// CHK-7a to the digit: n in {2, 3, 4, 8}, first dimensions {1, 5, 24, 37}, every f.
TEST(RowShards, EveryShardOfReftIsRecovered) {
  std::mt19937 random(3);
  for (uint32_t n : {2u, 3u, 4u, 8u}) {
    const Shape shape{n - 1, 1};
    for (uint64_t rows : {1u, 5u, 24u, 37u}) {
      const ReftGroup group{naive::RandomImage(random, rows * ReftGroup::kRowBytes), shape, Code::Make(shape).value(),
                            ShardRows(rows, n).value()};
      Image tensor;
      for (uint32_t f = 0; f < n; ++f) {
        const Image shard = group.RecoveredShard(f);
        ASSERT_EQ(shard.size(), group.shards.Shard(f).size * ReftGroup::kRowBytes) << "n " << n << ", rank " << f;
        tensor.insert(tensor.end(), shard.begin(), shard.end());
      }
      ASSERT_EQ(tensor, group.tensor) << "n " << n << ", rows " << rows;
    }
  }
}

}  // namespace
}  // namespace ckptd::erasure
