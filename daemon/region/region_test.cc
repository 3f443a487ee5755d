#include "daemon/region/region.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "daemon/base/errors.h"
#include "daemon/region/region_test_util.h"
#include "daemon/region/salvage.h"

namespace ckptd::region {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Region, SecondAgentIsRefusedNamingTheHolder) {
  TempDir dir;
  auto first = OpenRegion(dir.region());
  auto second = Region::Open(PosixFiles(), SystemClock(), TestOptions(dir.region()));
  EXPECT_EQ(CodeOf(second.status()), ErrorCode::REFUSED);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(std::to_string(getpid())));
  first.reset();
  EXPECT_TRUE(Region::Open(PosixFiles(), SystemClock(), TestOptions(dir.region())).ok());
}

TEST(Region, IdStays) {
  TempDir dir;
  const uint64_t id = OpenRegion(dir.region())->id();
  EXPECT_NE(id, 0u);
  EXPECT_EQ(OpenRegion(dir.region())->id(), id);
}

TEST(Region, DamagedIdIsAnErrorNotANewId) {
  TempDir dir;
  (void)OpenRegion(dir.region());
  std::ofstream(dir.region() + "/.id") << "xyz";
  EXPECT_EQ(CodeOf(Region::Open(PosixFiles(), SystemClock(), TestOptions(dir.region())).status()), ErrorCode::CORRUPT);
}

TEST(Region, DirectoryMustBeOursAlone) {
  TempDir dir;
  (void)OpenRegion(dir.region());
  ASSERT_EQ(chmod(dir.region().c_str(), 0755), 0);
  auto open = Region::Open(PosixFiles(), SystemClock(), TestOptions(dir.region()));
  EXPECT_EQ(CodeOf(open.status()), ErrorCode::REFUSED);
  EXPECT_THAT(std::string(open.status().message()), AllOf(HasSubstr("mode 755"), HasSubstr("chmod 700")));
  ASSERT_EQ(chmod(dir.region().c_str(), 0700), 0);
  RegionOptions other = TestOptions(dir.region());
  other.uid += 1;
  EXPECT_EQ(CodeOf(Region::Open(PosixFiles(), SystemClock(), other).status()), ErrorCode::REFUSED);
}

TEST(Region, DirectoryIsMadePrivate) {
  TempDir dir;
  (void)OpenRegion(dir.region());
  EXPECT_EQ(PosixFiles().Stat(dir.region())->mode, 0700u);
}

TEST(Region, AJobBelongsToOneUser) {
  TempDir dir;
  auto region = OpenRegion(dir.region());
  ASSERT_TRUE(region->OpenJob("gpt", 1000).ok());
  EXPECT_EQ(CodeOf(region->OpenJob("gpt", 1001).status()), ErrorCode::JOB_OWNED);
  region.reset();
  region = OpenRegion(dir.region());
  EXPECT_EQ(CodeOf(region->OpenJob("gpt", 1001).status()), ErrorCode::JOB_OWNED);
  for (const char* bad : {"..", "", "a/b", ".lock"})
    EXPECT_EQ(CodeOf(region->OpenJob(bad, 1000).status()), ErrorCode::INVALID_ARGUMENT) << bad;
  EXPECT_TRUE(region->OpenJob("lock", 1000).ok());
}

// When the storage says that the job is another's, its name goes here, but never a snapshot, nor what is its owner's by
// now.
TEST(Region, AJobIsEmptyForItsUserUntilASlotIsSealed) {
  TempDir dir;
  auto region = OpenRegion(dir.region());
  RankRegion& rank = OpenTestRank(*region);
  const JobRegion& job = *region->FindJob("gpt");
  LayoutSet& set = AddLayout(rank);
  EXPECT_TRUE(job.IsEmptyOf(1000)) << "a layout is no snapshot";
  EXPECT_FALSE(job.IsEmptyOf(1001)) << "another user's";
  Fill(rank, set, **Bell::Create(set.head()), 0, 100);
  EXPECT_FALSE(job.IsEmptyOf(1000));
  ASSERT_TRUE(set.FreeSlot(0).ok());
  EXPECT_TRUE(job.IsEmptyOf(1000));
}

TEST(Region, SeenSurvivesTheAgent) {
  TempDir dir;
  auto region = OpenRegion(dir.region());
  (*region->OpenJob("gpt", 1000))->journal().SetSeen(7);
  region.reset();
  EXPECT_EQ((*OpenRegion(dir.region())->OpenJob("gpt", 1000))->journal().seen(), 7u);
}

TEST(Region, RemovedJobLeavesNothing) {
  TempDir dir;
  auto region = OpenRegion(dir.region());
  RankRegion& rank = OpenTestRank(*region);
  LayoutSet& set = AddLayout(rank);
  auto bell = *Bell::Create(set.head());
  Fill(rank, set, *bell, 0, 100);
  JobFacts facts = region->FindJob("gpt")->Facts();
  EXPECT_EQ(facts.unpersisted, 1u);
  EXPECT_EQ(facts.newest_unix_ns, 100u);
  EXPECT_EQ(facts.bytes, region->Usage()->held);
  ASSERT_TRUE(region->RemoveJob("gpt").ok());
  EXPECT_EQ(NamesIn(dir.region()), (std::set<std::string>{".id", ".lock"}));
  EXPECT_EQ(region->Usage()->held, 0u);
  EXPECT_EQ(CodeOf(region->RemoveJob("gpt")), ErrorCode::NOT_FOUND);
}

TEST(Region, ALayoutPaysForSlotsCtlAndBell) {
  TempDir dir;
  auto region = OpenRegion(dir.region());
  const CtlHead head = AddLayout(OpenTestRank(*region)).head();
  const uint64_t slots = head.block.slot_count * head.slot_file_bytes();
  EXPECT_EQ(region->Usage()->held, slots + head.block.file_bytes + BellBytes(head));
  region.reset();
  EXPECT_EQ(OpenRegion(dir.region())->Usage()->held, slots + head.block.file_bytes + BellBytes(head));
}

TEST(Region, LowMemoryUseIsCountedOverARestart) {
  TempDir dir;
  auto region = OpenRegion(dir.region());
  AddLayout(OpenTestRank(*region));
  const uint64_t held = region->Usage()->held;
  region.reset();
  EXPECT_EQ(OpenRegion(dir.region())->Usage()->held, held);
}

// ---------------------------------------------------------------------------------------------------------- salvage

class SalvageTest : public ::testing::Test {
 protected:
  SalvageTest() {
    auto region = OpenRegion(dir_.region());
    RankRegion& rank = OpenTestRank(*region);
    LayoutSpec spec = TestSpec();
    spec.images = {{0, 100 * kKiB, 4096}, {0, 92 * kKiB, 4096}};
    LayoutSet& set = AddLayout(rank, spec);
    auto bell = *Bell::Create(set.head());
    Fill(rank, set, *bell, 1, 100);
    slot_path_ = set.FileOf(1)->path();
  }
  TempDir dir_;
  std::string slot_path_;
};

TEST_F(SalvageTest, ReadsEachImageWithNoAgent) {
  auto found = ListSalvage(PosixFiles(), dir_.region());
  ASSERT_TRUE(found.ok());
  ASSERT_EQ(found->size(), 1u);
  EXPECT_EQ((*found)[0].record->id(), (SnapshotId{1, 100}));
  std::vector<std::byte> read;
  for (size_t image = 0; image < 2; ++image) {
    ASSERT_TRUE(ReadSalvage(PosixFiles(), (*found)[0], image, [&](std::span<const std::byte> piece) {
                  read.insert(read.end(), piece.begin(), piece.end());
                  return absl::OkStatus();
                }).ok());
    EXPECT_EQ(read.size(), (image == 0 ? 100 : 192) * kKiB);
  }
  EXPECT_EQ(read, Content(100));
}

TEST_F(SalvageTest, DamageIsAnErrorBeforeAnyWrongByte) {
  auto file = *PosixFiles().Open(slot_path_, {.write = true});
  const std::byte bad{0x77};
  ASSERT_TRUE(file->PWrite(kTestChunkBytes + 1, std::span(&bad, 1)).ok());
  auto found = ListSalvage(PosixFiles(), dir_.region());
  uint64_t bytes = 0;
  absl::Status read = ReadSalvage(PosixFiles(), found->at(0), 0, [&](std::span<const std::byte> piece) {
    bytes += piece.size();
    return absl::OkStatus();
  });
  EXPECT_EQ(CodeOf(read), ErrorCode::CORRUPT);
  EXPECT_EQ(bytes, kTestChunkBytes);
}

TEST_F(SalvageTest, ChangesNothing) {
  std::ofstream(dir_.region() + "/gpt/rank-00000/.tmp-ctl.2") << "x";
  const auto before = NamesIn(dir_.region() + "/gpt/rank-00000");
  (void)ListSalvage(PosixFiles(), dir_.region());
  EXPECT_EQ(NamesIn(dir_.region() + "/gpt/rank-00000"), before);
  EXPECT_EQ(CodeOf(ListSalvage(PosixFiles(), dir_.path()).status()), ErrorCode::NOT_FOUND);
}

}  // namespace
}  // namespace ckptd::region
