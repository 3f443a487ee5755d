// Layouts that no owner would have, and directories that no agent would make.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <random>

#include "daemon/region/peer_test_util.h"
#include "daemon/region/salvage.h"

namespace ckptd::region {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

class HostilePeers : public ::testing::Test {
 protected:
  HostilePeers() { Restart(); }
  void Restart() {
    region_.reset();
    region_ = OpenRegion(dir_.region());
    ASSERT_NE(region_, nullptr);
  }
  PeerStore& store() { return region_->peers(); }
  [[nodiscard]] std::string Job() const { return dir_.region() + "/gpt"; }
  [[nodiscard]] std::string PeerDir() const { return Job() + "/peer-00007"; }
  // The one file in the copies' directory whose name begins so.
  [[nodiscard]] std::string FileOf(const std::string& prefix) const {
    for (const std::string& name : NamesIn(PeerDir()))
      if (name.starts_with(prefix)) return PeerDir() + "/" + name;
    return "";
  }
  void Touch(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

  TempDir dir_;
  std::unique_ptr<Region> region_;
  const PeerSpec spec_ = CopySpec();
};

TEST_F(HostilePeers, LayoutsOutOfBoundsAreRefusedAndLeaveNothing) {
  auto refused = [&](auto change) {
    PeerSpec spec = CopySpec();
    change(spec.layout);
    return CodeOf(Prepare(store(), spec));
  };
  constexpr ErrorCode kBad = ErrorCode::INVALID_ARGUMENT;
  EXPECT_EQ(refused([](LayoutSpec& l) { l.rank = 65536; }), kBad);
  EXPECT_EQ(refused([](LayoutSpec& l) { l.rank = 8; }), kBad) << "of 8";
  EXPECT_EQ(refused([](LayoutSpec& l) { l.world = 0; }), kBad);
  EXPECT_EQ(refused([](LayoutSpec& l) { l.images.clear(); }), kBad);
  EXPECT_EQ(refused([](LayoutSpec& l) { l.images[0].bytes = 0; }), kBad);
  EXPECT_EQ(refused([](LayoutSpec& l) { l.images[0].bytes = 4097; }), kBad);
  EXPECT_EQ(refused([](LayoutSpec& l) { l.images[0].bytes = ~uint64_t{0}; }), kBad);
  EXPECT_EQ(refused([](LayoutSpec& l) { l.images[0].bytes = uint64_t{1} << 63; }), kBad);
  EXPECT_EQ(refused([](LayoutSpec& l) { l.images.resize(2, {uint64_t{1} << 63, uint64_t{1} << 63, 8}); }), kBad);
  EXPECT_EQ(refused([](LayoutSpec& l) { l.images.resize(5000, l.images[0]); }), kBad);
  EXPECT_EQ(refused([](LayoutSpec& l) { l.chunk_bytes = 0; }), kBad);
  EXPECT_EQ(refused([](LayoutSpec& l) { l.chunk_bytes = 3; }), kBad);
  EXPECT_EQ(refused([](LayoutSpec& l) { l.chunk_bytes = uint64_t{1} << 63; }), kBad);
  for (const char* job : {"", ".", "..", "../gpt", "a/b", ".peers", "/etc"})
    EXPECT_EQ(refused([&](LayoutSpec& l) { l.job = job; }), kBad) << job;
  EXPECT_EQ(refused([](LayoutSpec& l) { l.job = std::string(1000, 'x'); }), kBad);
  auto huge = [](LayoutSpec& l) {
    l.chunk_bytes = kMaxChunkBytes;
    l.images[0].bytes = uint64_t{1} << 42;
  };
  EXPECT_EQ(refused(huge), ErrorCode::QUOTA_EXCEEDED) << "in order, but larger than memory";
  EXPECT_EQ(NamesIn(dir_.region()), (std::set<std::string>{".id", ".lock"}));
  EXPECT_THAT(store().List(), IsEmpty());
  EXPECT_EQ(region_->quota().used(), 0u);
}

TEST_F(HostilePeers, RandomLayoutsNeverCrash) {
  std::mt19937_64 random(3);
  auto number = [&] { return random() >> random() % 64; };
  for (int i = 0; i < 20000; ++i) {
    PeerSpec spec{.kind = random() % 2 == 0 ? PeerKind::kCopy : PeerKind::kParity, .layout = TestSpec()};
    spec.layout.rank = static_cast<uint32_t>(number());
    spec.layout.world = static_cast<uint32_t>(number());
    spec.layout.chunk_bytes = random() % 4 == 0 ? number() : std::bit_floor(number() | 1);
    spec.layout.images.assign(random() % 4, {number(), number(), static_cast<uint32_t>(number())});
    const SnapshotId id{number(), number()};
    EXPECT_FALSE(store().Begin(spec, id, Marks(number())).ok());
    if (spec.layout.images.size() == 1) continue;  // could be one that is in order
    EXPECT_FALSE(Prepare(store(), spec).ok());
  }
  EXPECT_THAT(store().List(), IsEmpty());
}

TEST_F(HostilePeers, AnotherUsersJobIsNotTakenOver) {
  ASSERT_TRUE(Store(store(), spec_, {1, 10}, Marks(1)).ok());
  PeerSpec other = CopySpec(6);
  other.layout.uid = 2000;
  EXPECT_EQ(CodeOf(Prepare(store(), other)), ErrorCode::JOB_OWNED);
  EXPECT_EQ(CodeOf(store().Begin(other, {1, 20}, Marks(1)).status()), ErrorCode::JOB_OWNED);
}

// A cut slot is no copy any more; the other one is.
TEST_F(HostilePeers, CutFilesAreNoCopies) {
  ASSERT_TRUE(Store(store(), spec_, {1, 10}, Marks(1)).ok());
  const std::string first = store().OpenCopy("gpt", spec_.key(), {1, 10})->file->path();
  ASSERT_TRUE(Store(store(), spec_, {1, 20}, Marks(1, 10)).ok());
  fs::resize_file(first, 4096);
  Restart();
  EXPECT_THAT(CompleteIn(store()), ElementsAre(SnapshotId{1, 20}));
  ASSERT_TRUE(Store(store(), spec_, {1, 30}, Marks(1, 20, 20)).ok()) << "a whole pair is made beside it";
  EXPECT_TRUE(IsWhole(store(), spec_, {1, 30}));
  EXPECT_EQ(store().Usage().held, region_->quota().used());
}

TEST_F(HostilePeers, ADamagedCtlFileIsRemovedWithWhatItDescribed) {
  for (uint64_t size : {0, 100, 2048}) {
    ASSERT_TRUE(Store(store(), spec_, {1, 10}, Marks(1)).ok());
    fs::resize_file(FileOf("ctl."), size);
    Restart();
    EXPECT_THAT(store().List(), IsEmpty());
    EXPECT_THAT(region_->adopted().notes, Not(IsEmpty()));
    EXPECT_FALSE(fs::exists(PeerDir()));
    EXPECT_EQ(region_->quota().used(), 0u);
  }
}

TEST_F(HostilePeers, AFlippedBitOfARecordMakesItNoCopy) {
  ASSERT_TRUE(Store(store(), spec_, {1, 10}, Marks(1)).ok());
  const std::string ctl = FileOf("ctl.");
  region_.reset();
  std::fstream file(ctl, std::ios::in | std::ios::out | std::ios::binary);
  std::string bytes(std::istreambuf_iterator<char>(file), {});
  const size_t record = bytes.find("PKTREC1");
  ASSERT_NE(record, std::string::npos);
  file.seekp(static_cast<std::streamoff>(record + 60));
  file.put(static_cast<char>(bytes[record + 60] ^ 4));
  file.close();
  Restart();
  EXPECT_THAT(store().List(), IsEmpty());
  EXPECT_TRUE(Store(store(), spec_, {1, 20}, Marks(1, 10)).ok());
}

// As a rank's directory that was copied by hand.
TEST_F(HostilePeers, FilesOfAnotherRankAreNotShown) {
  ASSERT_TRUE(Store(store(), spec_, {1, 10}, Marks(1)).ok());
  fs::copy(PeerDir(), Job() + "/peer-00006");
  Restart();
  ASSERT_EQ(store().List().size(), 1u);
  EXPECT_EQ(store().List()[0].key.number, 7u);
}

TEST_F(HostilePeers, ForeignNamesAreLeftAloneAndHarmNothing) {
  SealOne(*region_);
  ASSERT_TRUE(Store(store(), spec_, {1, 10}, Marks(1)).ok());
  const std::string outside = dir_.path() + "/outside";
  fs::create_directory(outside);
  Touch(outside + "/slot-0123", "not ours");
  Touch(Job() + "/peer-00001", "a file");
  fs::create_directory_symlink(outside, Job() + "/peer-00002");
  fs::create_directory(Job() + "/peer-3");
  fs::create_directory(Job() + "/parity-");
  fs::create_directory(PeerDir() + "/directory");
  Touch(PeerDir() + "/README", "somebody's");
  fs::create_symlink(outside + "/slot-0123", PeerDir() + "/slot-ffffffffffffffff");
  Restart();
  EXPECT_THAT(CompleteIn(store()), ElementsAre(SnapshotId{1, 10}));
  EXPECT_TRUE(IsWhole(store(), spec_, {1, 10}));
  ASSERT_EQ(region_->adopted().jobs.size(), 1u);
  EXPECT_EQ(SlotIn(*region_, 0).state, SlotStateCode::kSealed);
  for (uint32_t rank : {1, 2}) EXPECT_EQ(CodeOf(Prepare(store(), CopySpec(rank))), ErrorCode::REFUSED) << rank;
  EXPECT_EQ(NamesIn(outside), std::set<std::string>{"slot-0123"});
  EXPECT_EQ(fs::file_size(outside + "/slot-0123"), 8u);
  auto salvaged = ListSalvage(PosixFiles(), dir_.region());
  ASSERT_TRUE(salvaged.ok()) << salvaged.status();
  EXPECT_EQ(salvaged->size(), 2u);
}

TEST_F(HostilePeers, ALinkInThePlaceOfAJobIsNotFollowed) {
  const std::string outside = dir_.path() + "/outside";
  fs::create_directory(outside);
  fs::create_directory_symlink(outside, Job());
  EXPECT_EQ(CodeOf(Prepare(store(), spec_)), ErrorCode::REFUSED);
  EXPECT_THAT(NamesIn(outside), IsEmpty());
  EXPECT_FALSE(store().Holds("gpt"));
}

}  // namespace
}  // namespace ckptd::region
