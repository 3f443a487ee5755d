#include "daemon/format/tensor_entries.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/core/image/layout.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;

NamedImage Build(Rank rank, std::vector<uint64_t> shape, std::vector<uint64_t> offsets) {
  std::vector<TensorSpec> tensors = {{"w", Dtype::kF32, std::move(shape), std::move(offsets)}};
  std::vector<AliasSpec> aliases = {{"tied", "w"}};
  LayoutOptions options;
  options.rank = rank;
  Layout layout;
  EXPECT_TRUE(BuildLayout(tensors, aliases, options, &layout).ok());
  ImageInfo info;
  EXPECT_TRUE(ParseHeader(layout.images[0].header, layout.images[0].bytes, ImageEnd::kExact, {}, &info).ok());
  auto image = NameImage("rank.safetensors", rank, std::move(info));
  EXPECT_TRUE(image.ok()) << image.status();
  return *std::move(image);
}

TEST(TensorEntries, TheWholeShapeComesFromAllPieces) {
  std::vector<NamedImage> images;
  images.push_back(Build(0, {4, 3}, {0, 0}));
  images.push_back(Build(1, {2, 3}, {4, 0}));
  TensorExtents extents = ExtentsOf(images);
  const TensorEntry* tensor = images[1].info.Find("w");
  ASSERT_NE(tensor, nullptr);
  v1::TensorEntry entry = ToTensorEntry(images[1], *tensor, extents);
  EXPECT_EQ(entry.dtype(), "F32");
  EXPECT_THAT(entry.shape(), ElementsAre(2, 3));
  EXPECT_THAT(entry.global_shape(), ElementsAre(6, 3));
  EXPECT_THAT(entry.global_offset(), ElementsAre(4, 0));
  EXPECT_THAT(entry.aliases(), ElementsAre("tied"));
  EXPECT_EQ(entry.bytes(), 24);
  EXPECT_EQ(entry.rank(), 1);
  EXPECT_EQ(entry.file_offset(), images[1].info.header_bytes + tensor->begin);
}

}  // namespace
}  // namespace ckptd
