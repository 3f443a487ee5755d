#include "daemon/region/parity_record.h"

#include <gtest/gtest.h>

#include <random>

#include "daemon/base/errors.h"
#include "daemon/region/peer_test_util.h"

namespace ckptd::region {
namespace {

RecordHead Sealed(StepId step = 10) {
  RecordHead head = HeadOf(step, 3);
  head.crc = 0x1234;
  return head;
}

bool Same(const ParityRecord& a, const ParityRecord& b) {
  return a.group == b.group && a.data == b.data && a.parity == b.parity && a.index == b.index &&
         a.members.size() == b.members.size() &&
         std::memcmp(a.members.data(), b.members.data(), a.members.size() * sizeof(ParityMember)) == 0;
}

TEST(ParityRecord, ComesBack) {
  auto bytes = EncodeParity(*TestParity(10), Sealed(), 2);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  bytes->resize(kParityTailBytes);
  auto parity = ParseParity(*bytes, Sealed(), 2);
  ASSERT_TRUE(parity.ok()) << parity.status();
  EXPECT_TRUE(Same(*parity, *TestParity(10)));
}

TEST(ParityRecord, TheLargestGroupFits) {
  ParityRecord parity = *TestParity(10);
  parity.data = kMaxParityMembers - 1;
  parity.members.assign(kMaxParityMembers, {.rank = 0, .crc = 1, .step = 10, .bytes = 1});
  for (uint32_t i = 0; i < kMaxParityMembers; ++i) parity.members[i].rank = i;
  auto bytes = EncodeParity(parity, Sealed(), 2);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ(bytes->size(), kParityTailBytes);
  EXPECT_TRUE(Same(*ParseParity(*bytes, Sealed(), 2), parity));
}

TEST(ParityRecord, NumbersOutOfBoundsAreNotWritten) {
  auto refused = [](auto change) {
    ParityRecord parity = *TestParity(10);
    change(parity);
    return CodeOf(EncodeParity(parity, Sealed(), 2).status()) == ErrorCode::INVALID_ARGUMENT;
  };
  EXPECT_FALSE(refused([](ParityRecord&) {}));
  EXPECT_TRUE(refused([](ParityRecord& p) { p.group = 3; }));
  EXPECT_TRUE(refused([](ParityRecord& p) { p.data = 0; }));
  EXPECT_TRUE(refused([](ParityRecord& p) { p.parity = 0; }));
  EXPECT_TRUE(refused([](ParityRecord& p) { p.data = 255; }));
  EXPECT_TRUE(refused([](ParityRecord& p) { p.parity = 0xffffffff; }));
  EXPECT_TRUE(refused([](ParityRecord& p) { p.index = 3; }));
  EXPECT_TRUE(refused([](ParityRecord& p) { p.members.clear(); }));
  EXPECT_TRUE(refused([](ParityRecord& p) { p.members.resize(4, p.members[0]); }));
  EXPECT_TRUE(refused([](ParityRecord& p) { p.members[1].rank = 4; })) << "twice";
  EXPECT_TRUE(refused([](ParityRecord& p) { p.members[1].rank = 1u << 16; }));
  EXPECT_TRUE(refused([](ParityRecord& p) { p.members[1].step = 11; })) << "a mixture of steps";
  EXPECT_FALSE(refused([](ParityRecord& p) { p.members[1].bytes = 0; })) << "it gave no block";
  EXPECT_TRUE(refused([](ParityRecord& p) { p.members[1].bytes = uint64_t{1} << 60; }));
}

TEST(ParityRecord, EveryFlippedBitShows) {
  auto bytes = EncodeParity(*TestParity(10), Sealed(), 2);
  for (size_t bit = 0; bit < bytes->size() * 8; ++bit) {
    auto damaged = *bytes;
    damaged[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_EQ(CodeOf(ParseParity(damaged, Sealed(), 2).status()), ErrorCode::CORRUPT) << bit;
  }
}

TEST(ParityRecord, OfAnotherRecordOrCutOffIsNone) {
  auto bytes = EncodeParity(*TestParity(10), Sealed(), 2);
  RecordHead other = Sealed();
  other.crc ^= 1;
  EXPECT_FALSE(ParseParity(*bytes, other, 2).ok()) << "one half of a kill between two seals";
  EXPECT_FALSE(ParseParity(*bytes, Sealed(11), 2).ok());
  EXPECT_FALSE(ParseParity(*bytes, Sealed(), 3).ok());
  for (size_t size = 0; size < bytes->size(); ++size)
    EXPECT_FALSE(ParseParity(std::span(*bytes).first(size), Sealed(), 2).ok()) << size;
}

TEST(ParityRecord, RandomBytesAreNone) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 20000; ++i) {
    std::vector<std::byte> bytes(random() % 200);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    if (bytes.size() >= 8) std::memcpy(bytes.data(), &kParityMagic, 8);
    EXPECT_FALSE(ParseParity(bytes, Sealed(), 2).ok());
  }
}

TEST(PeerKey, NamesComeBackAndNothingElseIsOne) {
  for (const PeerKey& key : {PeerKey{PeerKind::kCopy, 0}, PeerKey{PeerKind::kParity, 65535}})
    EXPECT_EQ(ParsePeerDirName(PeerDirName(key)), key);
  EXPECT_EQ(PeerDirName({PeerKind::kCopy, 7}), "peer-00007");
  EXPECT_EQ(PeerDirName({PeerKind::kParity, 2}), "parity-00002");
  for (const char* name : {"", "peer-", "peer-7", "peer-000007", "peer-65536", "peer--0001", "peer-+0001", "peer-0000a",
                           "peer-00007 ", "rank-00007", "parity-99999", "parity00002", "Peer-00007"})
    EXPECT_EQ(ParsePeerDirName(name), std::nullopt) << name;
}

}  // namespace
}  // namespace ckptd::region
