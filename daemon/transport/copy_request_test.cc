#include "daemon/transport/copy_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "daemon/base/errors.h"

namespace ckptd::transport {
namespace {

v1::OfferRequest GoodOffer() {
  v1::OfferRequest offer;
  offer.mutable_copy()->set_job("gpt");
  offer.mutable_copy()->set_rank(3);
  offer.mutable_copy()->mutable_snapshot()->set_attempt(2);
  offer.mutable_copy()->mutable_snapshot()->set_step(1000);
  offer.set_user("1000");
  offer.set_world_size(8);
  offer.set_attempt(2);
  offer.mutable_marks()->set_attempt(2);
  offer.mutable_layout()->set_chunk_bytes(1 << 20);
  offer.mutable_layout()->set_slot_bytes(5 << 20);
  for (const uint64_t bytes : {2 << 20, 3 << 20}) {
    v1::ImageSize* image = offer.mutable_layout()->add_images();
    image->set_bytes(bytes);
    image->set_header_bytes(4096);
  }
  return offer;
}

TEST(CopyRequestTest, AGoodOfferPasses) { EXPECT_TRUE(CheckRequest(GoodOffer()).ok()) << CheckRequest(GoodOffer()); }

TEST(CopyRequestTest, EveryNumberOfAnOfferHasBounds) {
  using Change = std::function<void(v1::OfferRequest&)>;
  const std::vector<Change> changes = {
      [](auto& o) { o.mutable_copy()->set_job("../etc"); },
      [](auto& o) { o.mutable_copy()->set_job(""); },
      [](auto& o) { o.mutable_copy()->set_rank(1 << 16); },
      [](auto& o) { o.mutable_copy()->mutable_snapshot()->set_attempt(0); },
      [](auto& o) { o.set_user(""); },
      [](auto& o) { o.set_user("root"); },
      [](auto& o) { o.set_user("-1"); },
      [](auto& o) { o.set_user("4294967296"); },
      [](auto& o) { o.set_world_size(3); },
      [](auto& o) { o.set_world_size((1 << 16) + 1); },
      [](auto& o) { o.set_attempt(1); },
      [](auto& o) { o.set_attempt(3); },  // its marks are of 2
      [](auto& o) { o.mutable_marks()->set_attempt(uint64_t{1} << 60); },
      [](auto& o) { o.mutable_marks()->mutable_captured()->set_attempt(3); },
      [](auto& o) { o.mutable_marks()->mutable_protected_()->set_attempt(3); },
      [](auto& o) { o.mutable_layout()->set_chunk_bytes(0); },
      [](auto& o) { o.mutable_layout()->set_chunk_bytes(3 << 20); },
      [](auto& o) { o.mutable_layout()->set_chunk_bytes(1 << 10); },
      [](auto& o) { o.mutable_layout()->set_chunk_bytes(128 << 20); },
      [](auto& o) { o.mutable_layout()->set_slot_bytes(0); },
      [](auto& o) { o.mutable_layout()->set_slot_bytes(UINT64_MAX); },
      [](auto& o) { o.mutable_layout()->set_slot_bytes(6 << 20); },
      [](auto& o) { o.mutable_layout()->mutable_images(0)->set_bytes(0); },
      [](auto& o) { o.mutable_layout()->mutable_images(0)->set_bytes(4095); },
      [](auto& o) { o.mutable_layout()->mutable_images(1)->set_bytes(UINT64_MAX - 4095); },
      [](auto& o) { o.mutable_layout()->mutable_images(0)->set_header_bytes(7); },
      [](auto& o) { o.mutable_layout()->mutable_images(0)->set_header_bytes((2 << 20) + 1); },
      [](auto& o) { o.mutable_layout()->clear_images(); },
      [](auto& o) {
        for (int i = 0; i < 1024; ++i) *o.mutable_layout()->add_images() = o.layout().images(0);
      },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    v1::OfferRequest offer = GoodOffer();
    changes[i](offer);
    EXPECT_EQ(CodeOf(CheckRequest(offer)), ErrorCode::PROTOCOL) << i << " " << CheckRequest(offer);
  }
}

// Rank 3 is the last of four; stripe 1 is kept by rank 1.
v1::ParityPiece GoodPiece() {
  v1::ParityPiece piece;
  for (const uint32_t rank : {0, 1, 2, 3}) piece.add_ranks(rank);
  piece.set_parity(1);
  piece.set_stripe(1);
  return piece;
}

TEST(CopyRequestTest, EveryNumberOfAPieceHasBounds) {
  v1::OfferRequest offer = GoodOffer();
  *offer.mutable_parity() = GoodPiece();
  EXPECT_TRUE(CheckRequest(offer).ok()) << CheckRequest(offer);
  using Change = std::function<void(v1::ParityPiece&)>;
  const std::vector<Change> changes = {
      [](auto& p) { p.clear_ranks(); },
      [](auto& p) { p.set_ranks(3, 4); },
      [](auto& p) { p.set_ranks(2, 3); },
      [](auto& p) { p.add_ranks(1 << 16); },
      [](auto& p) {
        for (uint32_t rank = 4; rank < 256; ++rank) p.add_ranks(rank);
      },
      [](auto& p) { p.set_parity(0); },
      [](auto& p) { p.set_parity(4); },
      [](auto& p) { p.set_stripe(4); },
      [](auto& p) { p.set_stripe(3); },
      [](auto& p) { p.set_row(1); },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    *offer.mutable_parity() = GoodPiece();
    changes[i](*offer.mutable_parity());
    EXPECT_EQ(CodeOf(CheckRequest(offer)), ErrorCode::PROTOCOL) << "change " << i;
  }
}

TEST(CopyRequestTest, APieceIsSealedWithAllChecksums) {
  v1::SealRequest seal;
  *seal.mutable_copy() = GoodOffer().copy();
  seal.set_attempt(2);
  *seal.mutable_record()->mutable_snapshot() = seal.copy().snapshot();
  seal.mutable_record()->set_chunk_count(2);
  *seal.mutable_parity() = GoodPiece();
  EXPECT_EQ(CodeOf(CheckRequest(seal)), ErrorCode::PROTOCOL);
  seal.mutable_record()->add_chunk_crc(1);
  seal.mutable_record()->add_chunk_crc(2);
  EXPECT_TRUE(CheckRequest(seal).ok()) << CheckRequest(seal);
  seal.clear_parity();
  EXPECT_EQ(CodeOf(CheckRequest(seal)), ErrorCode::PROTOCOL) << "a copy's were sent with its chunks";
}

TEST(CopyRequestTest, AHeaderHas64MiBAtMost) {
  v1::OfferRequest offer = GoodOffer();
  offer.mutable_layout()->set_slot_bytes(uint64_t{128} << 20);
  offer.mutable_layout()->mutable_images()->RemoveLast();
  offer.mutable_layout()->mutable_images(0)->set_bytes(uint64_t{128} << 20);
  offer.mutable_layout()->mutable_images(0)->set_header_bytes(kMaxImageHeader);
  EXPECT_TRUE(CheckRequest(offer).ok());
  offer.mutable_layout()->mutable_images(0)->set_header_bytes(kMaxImageHeader + 1);
  EXPECT_THAT(std::string(CheckRequest(offer).message()), ::testing::HasSubstr("header of 67108865 bytes"));
}

TEST(CopyRequestTest, ADescriptionIsWholeOrRefused) {
  v1::DescribeRequest request;
  *request.mutable_copy() = GoodOffer().copy();
  request.set_user("1000");
  request.set_attempt(3);
  EXPECT_TRUE(CheckRequest(request).ok());
  v1::DescribeResponse good;
  good.set_world_size(8);
  *good.mutable_layout() = GoodOffer().layout();
  *good.mutable_record()->mutable_snapshot() = request.copy().snapshot();
  good.mutable_record()->set_chunk_count(5);
  for (uint32_t i = 0; i < 5; ++i) good.mutable_record()->add_chunk_crc(i);
  good.set_token(std::string(16, 't'));
  EXPECT_TRUE(CheckResponse(request, good).ok()) << CheckResponse(request, good);
  const auto code = [&](const std::function<void(v1::DescribeResponse&)>& change) {
    v1::DescribeResponse bad = good;
    change(bad);
    return CodeOf(CheckResponse(request, bad));
  };
  EXPECT_EQ(code([](auto& b) { b.mutable_record()->add_chunk_crc(1); }), ErrorCode::PROTOCOL);
  EXPECT_EQ(code([](auto& b) { b.mutable_record()->set_chunk_count(4); }), ErrorCode::PROTOCOL);
  EXPECT_EQ(code([](auto& b) { b.mutable_record()->mutable_snapshot()->set_step(1); }), ErrorCode::PROTOCOL);
  EXPECT_EQ(code([](auto& b) { b.set_token("short"); }), ErrorCode::PROTOCOL);
  EXPECT_EQ(code([](auto& b) { b.set_world_size(2); }), ErrorCode::PROTOCOL);
  EXPECT_EQ(code([](auto& b) { b.clear_layout(); }), ErrorCode::PROTOCOL);
}

}  // namespace
}  // namespace ckptd::transport
