#include "daemon/protect/copy_messages.h"

#include <gtest/gtest.h>

#include <vector>

#include "daemon/base/errors.h"
#include "daemon/region/peer_fill.h"

namespace ckptd::protect {
namespace {

constexpr uint64_t kPage = 4096;

region::CtlHead HeadOfTwoImages() {
  region::LayoutSpec spec;
  spec.job = "gpt";
  spec.uid = 1000;
  spec.rank = 3;
  spec.world = 8;
  spec.header_crc = 77;
  spec.images = {{0, 300 * kPage, kPage}, {300 * kPage, 2 * kPage, kPage}};
  spec.chunk_bytes = region::ChunkBytesFor(302 * kPage);
  auto head = region::MakeCtlHead(spec, 1, 1, 1);
  EXPECT_TRUE(head.ok()) << head.status();
  return *head;
}

TEST(CopyMessages, ALayoutThatIsOfferedIsTheSameLayoutAtItsHolder) {
  const region::CtlHead head = HeadOfTwoImages();
  v1::OfferRequest request;
  *request.mutable_copy() = NameOfCopy("gpt", 3, {2, 10});
  request.set_user("1000");
  request.set_world_size(8);
  *request.mutable_layout() = LayoutOf(head);
  const auto spec = SpecOf(request);
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto held = region::MakeCtlHead(spec->layout, 1, 1, 1);
  ASSERT_TRUE(held.ok()) << held.status();
  EXPECT_EQ(held->block.header_crc, head.block.header_crc);
  EXPECT_EQ(held->block.chunk_bytes, head.block.chunk_bytes);
  EXPECT_EQ(held->block.slot_bytes, head.block.slot_bytes);
  EXPECT_EQ(held->block.world, 8u);
  EXPECT_EQ(held->block.rank, 3u);
  EXPECT_EQ(held->block.uid, 1000u);
  ASSERT_EQ(held->images.size(), 2u);
  EXPECT_EQ(held->images[1].offset, 300 * kPage);
}

TEST(CopyMessages, AUserIsANumber) {
  v1::OfferRequest request;
  for (const char* user : {"", "root", "-1", "99999999999"}) {
    request.set_user(user);
    EXPECT_EQ(CodeOf(SpecOf(request).status()), ErrorCode::INVALID_ARGUMENT) << user;
  }
}

TEST(CopyMessages, WhatSealsACopyIsTheOwnersRecord) {
  const region::CtlHead head = HeadOfTwoImages();
  RecordHead owner{};
  owner.epoch = 5;
  owner.attempt = 2;
  owner.step = 10;
  owner.parent_attempt = 1;
  owner.parent_step = 7;
  owner.ticket = 11;
  owner.trace = 12;
  owner.begin_unix_ns = 13;
  owner.captured_unix_ns = 14;
  owner.blocked_ns = 15;
  const auto record = region::MakeRecord(head, owner, {8, 9});
  ASSERT_TRUE(record.ok()) << record.status();
  const v1::SealRequest request = SealOf("gpt", 3, 2, head, *record);
  EXPECT_EQ(request.record().chunk_crc_size(), 0) << "the holder has them";
  EXPECT_EQ(request.record().chunk_count(), 2u);
  const region::PeerSeal seal = SealOf(request);
  EXPECT_EQ(seal.root_crc, region::RootCrc(std::vector<uint32_t>{8, 9}));
  EXPECT_EQ(seal.head.step, 10u);
  EXPECT_EQ(seal.head.parent_step, 7u);
  EXPECT_EQ(seal.head.ticket, 11u);
  EXPECT_EQ(seal.head.captured_unix_ns, 14u);
  EXPECT_EQ(seal.head.blocked_ns, 15u);
  EXPECT_EQ(seal.head.epoch, 0u) << "the holder's own";
  EXPECT_EQ(RecordOf(*record).chunk_crc_size(), 2);
}

TEST(CopyMessages, ATokenHasSixteenBytes) {
  EXPECT_TRUE(TokenOf(std::string(16, 'x')).ok());
  for (const size_t bytes : {0, 15, 17})
    EXPECT_EQ(CodeOf(TokenOf(std::string(bytes, 'x')).status()), ErrorCode::PROTOCOL) << bytes;
}

}  // namespace
}  // namespace ckptd::protect
