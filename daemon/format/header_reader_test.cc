#include "daemon/format/header_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "client/core/image/layout.h"

namespace ckptd {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class HeaderReader : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::vector<TensorSpec> tensors = {{"w", Dtype::kF32, {2}, {0}}, {"w", Dtype::kF32, {2}, {2}}};
    ASSERT_TRUE(BuildLayout(tensors, {}, {}, &layout_).ok());
    for (const LayoutImage& image : layout_.images) headers_ += image.header;
    slot_.resize(layout_.slot_bytes);
    for (const LayoutImage& image : layout_.images) {
      slot_.replace(image.slot_offset, image.header.size(), image.header);
    }
  }
  int Read(uint64_t offset, char* into, size_t size) const { return slot_.copy(into, size, offset) == size ? 0 : EIO; }
  ReadAt Reader() const {
    return [this](uint64_t offset, char* into, size_t size) { return Read(offset, into, size); };
  }
  Layout layout_;
  std::string headers_, slot_;
};

TEST_F(HeaderReader, ThreeWaysAgree) {
  auto from_layout = ReadLayoutHeaders(headers_, layout_.slot_bytes, "x");
  auto from_slot = ReadSlotHeaders(layout_.slot_bytes, Reader(), "x");
  ASSERT_TRUE(from_layout.ok()) << from_layout.status();
  ASSERT_TRUE(from_slot.ok()) << from_slot.status();
  ASSERT_EQ(from_layout->size(), 2U);
  ASSERT_EQ(from_slot->size(), 2U);
  const LayoutImage& first = layout_.images[0];
  ASSERT_EQ(FileHeaderBytes(absl::string_view(first.header).substr(0, 8), first.bytes, "x").value(),
            first.header.size());
  auto from_file = ReadFileHeader(first.header, first.bytes, "x");
  ASSERT_TRUE(from_file.ok()) << from_file.status();
  EXPECT_EQ(from_file->total_bytes, (*from_slot)[0].total_bytes);
  EXPECT_EQ(from_file->tensors.size(), (*from_layout)[0].tensors.size());
}

TEST_F(HeaderReader, MessageNamesJobRankAndTensor) {
  size_t at = headers_.find("F32");
  headers_[at] = 'G';
  absl::Status status = ReadLayoutHeaders(headers_, layout_.slot_bytes, HeaderOrigin("gpt", 3)).status();
  EXPECT_EQ(CodeOf(status), ErrorCode::INVALID_ARGUMENT);
  EXPECT_THAT(std::string(status.message()), StartsWith("job gpt rank 3: safetensors header, byte "));
  EXPECT_THAT(std::string(status.message()), HasSubstr("image 0: tensor \"w\": unknown dtype \"G32\""));
}

TEST_F(HeaderReader, Codes) {
  EXPECT_EQ(CodeOf(ReadLayoutHeaders(headers_.substr(0, 5000), 1 << 20, "x").status()), ErrorCode::INVALID_ARGUMENT);
  EXPECT_EQ(CodeOf(ReadLayoutHeaders(headers_, layout_.slot_bytes, "x", {.max_images = 1}).status()),
            ErrorCode::REFUSED);
  EXPECT_EQ(CodeOf(ReadSlotHeaders(layout_.slot_bytes + 4096, Reader(), "x").status()), ErrorCode::STORAGE_IO);
  EXPECT_EQ(CodeOf(ReadSlotHeaders(layout_.slot_bytes - 1, Reader(), "x").status()), ErrorCode::CORRUPT);
  EXPECT_EQ(CodeOf(ReadFileHeader(headers_, layout_.images[0].bytes + 1, "x").status()), ErrorCode::CORRUPT);
  EXPECT_EQ(CodeOf(FileHeaderBytes(std::string(8, '\xff'), 1 << 20, "x").status()), ErrorCode::REFUSED);
  EXPECT_EQ(CodeOf(FileHeaderBytes("short", 5, "x").status()), ErrorCode::CORRUPT);
}

}  // namespace
}  // namespace ckptd
