#include "daemon/format/image_notes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/core/image/layout.h"
#include "daemon/base/errors.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;

ImageInfo WithMetadata(const std::string& key, const std::string& value) {
  ImageInfo image;
  image.metadata.emplace_back(key, value);
  return image;
}

TEST(ImageNotes, WhatTheTrainerWritesIsRead) {
  std::vector<TensorSpec> tensors = {{"w", Dtype::kF32, {2, 3}, {4, 0}}, {"b", Dtype::kF32, {3}, {}}};
  std::vector<AliasSpec> aliases = {{"tied", "w"}};
  Layout layout;
  ASSERT_TRUE(BuildLayout(tensors, aliases, {}, &layout).ok());
  ImageInfo image;
  const LayoutImage& built = layout.images[0];
  ASSERT_TRUE(ParseHeader(built.header, built.bytes, ImageEnd::kExact, {}, &image).ok());
  auto notes = ReadImageNotes(image, "test");
  ASSERT_TRUE(notes.ok()) << notes.status();
  EXPECT_THAT(notes->offsets["w"], ElementsAre(4, 0));
  EXPECT_THAT(notes->offsets["b"], ElementsAre(0));
  EXPECT_THAT(notes->aliases["w"], ElementsAre("tied"));
  EXPECT_EQ(notes->aliases.count("b"), 0);
}

TEST(ImageNotes, ForeignFilesHaveNone) {
  auto notes = ReadImageNotes(WithMetadata("format", "pt"), "test");
  ASSERT_TRUE(notes.ok());
  EXPECT_TRUE(notes->offsets.empty());
  EXPECT_TRUE(notes->aliases.empty());
}

TEST(ImageNotes, WhatIsNotOursIsRefusedNotGuessed) {
  for (const char* text :
       {"", "[]", "{\"w\"}", "{\"w\":{}}", "{\"w\":{\"offsets\":[1]}}", "{\"w\":{\"saved_offsets\":[1,]}}",
        "{\"w\":{\"saved_offsets\":[-1]}}", "{\"w\":{\"saved_offsets\":[1]"}) {
    auto notes = ReadImageNotes(WithMetadata("DCP_SHARDING_INFO", text), "test");
    EXPECT_EQ(CodeOf(notes.status()), ErrorCode::CORRUPT) << text;
  }
  EXPECT_EQ(CodeOf(ReadImageNotes(WithMetadata("ckptd.aliases", "{\"a\":1}"), "test").status()), ErrorCode::CORRUPT);
}

}  // namespace
}  // namespace ckptd
