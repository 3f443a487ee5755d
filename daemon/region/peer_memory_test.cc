// How much memory copies may take, and what goes when there is not enough.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "daemon/region/peer_test_util.h"

namespace ckptd::region {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class PeerMemoryTest : public PeerStoreTest {};

TEST_F(PeerMemoryTest, WhatDoesNotFitIsRefusedWithNeedAndBudget) {
  Restart({.dir = {}, .peers_memory = 6 * kSlotFile});
  ASSERT_TRUE(Store(store(), CopySpec(6), {1, 10}, Marks(1)).ok());
  EXPECT_EQ(region_->quota().used(), store().Usage().held) << "counted for the node too";
  EXPECT_EQ(region_->quota().UsedBy("gpt"), 0u) << "but not for the job's own ranks";
  PeerSpec other = CopySpec(7, 2 * kSlotFile);
  other.layout.job = "bert";
  absl::Status refused = Prepare(store(), other);
  EXPECT_EQ(CodeOf(refused), ErrorCode::QUOTA_EXCEEDED);
  EXPECT_THAT(refused.message(),
              HasSubstr("job bert rank 7: two slots need 8.0 MiB; peers.memory is 12.0 MiB, 4.0 MiB"));
  EXPECT_THAT(refused.message(), HasSubstr("kept: gpt (in use)"));
  EXPECT_FALSE(fs::exists(dir_.region() + "/bert")) << "a refused one leaves nothing";
  EXPECT_TRUE(IsWhole(store(), CopySpec(6), {1, 10}));
}

TEST_F(PeerMemoryTest, TheNodesLimitHoldsForCopiesToo) {
  Restart({.dir = {}, .size_limit = 5 * kSlotFile, .peers_memory = 100 * kSlotFile});
  ASSERT_TRUE(Prepare(store(), CopySpec(6)).ok());
  EXPECT_EQ(CodeOf(Prepare(store(), CopySpec(7, 2 * kSlotFile))), ErrorCode::QUOTA_EXCEEDED);
  auto take = region_->quota().Take("gpt", 3 * kSlotFile);
  EXPECT_EQ(CodeOf(take.status()), ErrorCode::QUOTA_EXCEEDED) << "and what they have taken is taken";
}

TEST_F(PeerMemoryTest, HalfOfTheRegionIsForCopiesUnlessSaidOtherwise) {
  Restart({.dir = {}, .size_limit = 10 * kSlotFile});
  EXPECT_EQ(store().Usage().memory, 5 * kSlotFile);
}

TEST_F(PeerMemoryTest, AnOldLayoutMakesRoomForTheNewOne) {
  Restart({.dir = {}, .peers_memory = 9 * kSlotFile});
  ASSERT_TRUE(Store(store(), CopySpec(7, 2 * kSlotFile), {1, 10}, Marks(1)).ok());
  ASSERT_TRUE(Store(store(), CopySpec(7, 2 * kSlotFile), {1, 20}, Marks(1, 10)).ok());
  ASSERT_TRUE(store().Tell("gpt", Marks(1, 20)).ok());
  const PeerSpec larger = CopySpec(7, 3 * kSlotFile, 8);
  absl::Status made = Prepare(store(), larger);
  ASSERT_TRUE(made.ok()) << made;
  EXPECT_THAT(CompleteIn(store()), ElementsAre(SnapshotId{1, 20})) << "the newest stays";
  EXPECT_TRUE(IsWhole(store(), CopySpec(7, 2 * kSlotFile), {1, 20}));
}

// Groups have changed: this node held rank 6 and is to hold rank 7 now.
TEST_F(PeerMemoryTest, WhatIsHeldElsewhereNowMakesRoom) {
  Restart({.dir = {}, .peers_memory = 3 * kSlotFile});
  ASSERT_TRUE(Store(store(), CopySpec(6), {1, 10}, Marks(1)).ok());
  const std::set<PeerKey> wanted = {CopySpec(7).key()};
  EXPECT_EQ(CodeOf(Prepare(store(), CopySpec(7))), ErrorCode::QUOTA_EXCEEDED);
  EXPECT_FALSE(store().GiveUpAllBut("gpt", wanted)) << "nothing newer is protected or on storage";
  ASSERT_TRUE(store().Tell("gpt", Marks(1, 30, 10)).ok());
  EXPECT_FALSE(store().GiveUpAllBut("gpt", wanted)) << "it is what protects the job";
  ASSERT_TRUE(store().Tell("gpt", Marks(1, 40, 30)).ok());
  {
    const auto read = store().OpenCopy("gpt", CopySpec(6).key(), {1, 10});
    EXPECT_FALSE(store().GiveUpAllBut("gpt", wanted)) << "somebody reads it";
  }
  EXPECT_FALSE(store().GiveUpAllBut("gpt", {CopySpec(6).key()})) << "it is to be held here";
  EXPECT_TRUE(store().GiveUpAllBut("gpt", wanted));
  EXPECT_TRUE(Prepare(store(), CopySpec(7)).ok());
}

TEST_F(PeerMemoryTest, WhatIsOnStorageInANewerStepMakesRoomToo) {
  Restart({.dir = {}, .peers_memory = 3 * kSlotFile});
  ASSERT_TRUE(Store(store(), CopySpec(6), {1, 10}, Marks(1, 10)).ok());
  EXPECT_FALSE(store().GiveUpAllBut("gpt", {CopySpec(7).key()}));
  store().MarkDurable("gpt", {1, 20});
  EXPECT_FALSE(store().GiveUpAllBut("gpt", {CopySpec(7).key()})) << "all ranks copy it now";
  ASSERT_TRUE(store().Tell("gpt", Marks(1, 20)).ok());
  EXPECT_TRUE(store().GiveUpAllBut("gpt", {CopySpec(7).key()}));
}

// Both layouts have two slots, and three fit.
TEST_F(PeerMemoryTest, WhatNobodyWaitsForMakesRoomForTheRanksNewLayout) {
  Restart({.dir = {}, .peers_memory = 5 * kSlotFile});
  const PeerSpec old = CopySpec(7, 2 * kSlotFile);
  const PeerSpec now = CopySpec(7, 2 * kSlotFile, 8);
  ASSERT_TRUE(Store(store(), old, {1, 10}, Marks(1)).ok());
  ASSERT_TRUE(Store(store(), old, {1, 20}, Marks(1, 20, 10)).ok());
  EXPECT_EQ(CodeOf(Prepare(store(), now)), ErrorCode::QUOTA_EXCEEDED);
  EXPECT_FALSE(store().GiveUpOlder(now)) << "10 is protected, and nothing newer is";
  store().MarkDurable("gpt", {1, 30});
  EXPECT_FALSE(store().GiveUpOlder(old)) << "it is the layout itself";
  EXPECT_TRUE(store().GiveUpOlder(now));
  EXPECT_THAT(CompleteIn(store()), ElementsAre(SnapshotId{1, 20})) << "all ranks copy it now";
  EXPECT_EQ(CodeOf(Prepare(store(), now)), ErrorCode::QUOTA_EXCEEDED);
  ASSERT_TRUE(store().Tell("gpt", Marks(1, 40)).ok());
  {
    const auto read = store().OpenCopy("gpt", old.key(), {1, 20});
    EXPECT_FALSE(store().GiveUpOlder(now)) << "somebody reads it";
  }
  EXPECT_TRUE(store().GiveUpOlder(now));
  EXPECT_TRUE(Prepare(store(), now).ok());
}

TEST_F(PeerMemoryTest, SoDoesParityOfAnotherGrouping) {
  Restart({.dir = {}, .peers_memory = 3 * kSlotFile});
  const PeerSpec old = ParitySpec();
  PeerSpec now = old;
  now.layout.header_crc = 8;
  ASSERT_TRUE(Store(store(), old, {1, 10}, Marks(1)).ok());
  store().MarkDurable("gpt", {2, 500});
  ASSERT_TRUE(store().Tell("gpt", Marks(2, 600)).ok());
  EXPECT_EQ(CodeOf(Prepare(store(), now)), ErrorCode::QUOTA_EXCEEDED);
  EXPECT_TRUE(store().GiveUpOlder(now));
  EXPECT_TRUE(Prepare(store(), now).ok());
}

TEST_F(PeerMemoryTest, BothSlotsAreReservedBeforeTheFirstByte) {
  ASSERT_TRUE(Prepare(store(), spec_).ok());
  uint64_t blocks = 0;
  for (const auto& entry : fs::directory_iterator(PeerDir())) {
    struct stat info {};
    ASSERT_EQ(stat(entry.path().c_str(), &info), 0);
    if (entry.path().filename().string().starts_with("slot-")) blocks += info.st_blocks;
  }
  EXPECT_EQ(blocks * 512, 2 * kSlotFile);
}

class FakeClock : public Clock {
 public:
  [[nodiscard]] Nanos Monotonic() const override { return now; }
  [[nodiscard]] Nanos Wall() const override { return now; }
  Nanos now = std::chrono::hours(100);
};

class EndedJobs : public ::testing::Test {
 protected:
  EndedJobs() : region_{PosixFiles(), clock_, Quota::Create(0, 0), 5}, store_(region_, dir_.path(), {kBudget}) {}
  static PeerSpec Of(const std::string& job) {
    PeerSpec spec = CopySpec();
    spec.layout.job = job;
    return spec;
  }
  static constexpr uint64_t kBudget = 5 * kSlotFile;  // two jobs

  TempDir dir_;
  FakeClock clock_;
  RegionContext region_;
  PeerStore store_;
};

TEST_F(EndedJobs, GoOldestFirstWhenMemoryIsNeeded) {
  ASSERT_TRUE(Store(store_, Of("new"), {1, 20}, Marks(1)).ok());
  ASSERT_TRUE(Store(store_, Of("old"), {1, 10}, Marks(1)).ok());
  for (const char* job : {"old", "new"}) store_.MarkDurable(job, {1, 30});
  EXPECT_EQ(CodeOf(Prepare(store_, Of("next"))), ErrorCode::QUOTA_EXCEEDED) << "somebody spoke of them just now";
  clock_.now += std::chrono::hours(2);
  ASSERT_TRUE(Prepare(store_, Of("next")).ok());
  EXPECT_FALSE(store_.Holds("old"));
  EXPECT_TRUE(store_.Holds("new")) << "only as many as are needed";
}

TEST_F(EndedJobs, AreWaitedForUntilTheirMemoryIsFree) {
  QueueExecutor freeing(100);
  RegionContext later = region_;
  later.freeing = &freeing;
  PeerStore store(later, dir_.path(), {kBudget});
  ASSERT_TRUE(Store(store, Of("new"), {1, 20}, Marks(1)).ok());
  ASSERT_TRUE(Store(store, Of("old"), {1, 10}, Marks(1)).ok());
  for (const char* job : {"old", "new"}) store.MarkDurable(job, {1, 30});
  clock_.now += std::chrono::hours(2);
  for (int again = 0; again < 3; ++again)
    EXPECT_EQ(CodeOf(Prepare(store, Of("next"))), ErrorCode::LAYOUT_PREPARING) << "the sender asks again";
  EXPECT_FALSE(store.Holds("old"));
  EXPECT_TRUE(store.Holds("new")) << "no more go while it is waited for";
  freeing.RunAll();
  EXPECT_TRUE(Prepare(store, Of("next")).ok());
  EXPECT_TRUE(store.Holds("new"));
}

TEST_F(EndedJobs, WhatIsNotOnStorageOrIsReadStays) {
  for (const char* job : {"a", "b"}) ASSERT_TRUE(Store(store_, Of(job), {1, 10}, Marks(1)).ok());
  store_.MarkDurable("a", {1, 10});
  store_.MarkDurable("b", {1, 9});
  auto pin = store_.OpenCopy("a", Of("a").key(), {1, 10});
  clock_.now += std::chrono::hours(2);
  absl::Status refused = Prepare(store_, Of("next"));
  EXPECT_EQ(CodeOf(refused), ErrorCode::QUOTA_EXCEEDED);
  EXPECT_THAT(refused.message(), HasSubstr("kept: a (in use), b (1 snapshots not on storage)"));
  *pin = PeerCopy{};
  EXPECT_TRUE(Prepare(store_, Of("next")).ok());
  EXPECT_TRUE(store_.Holds("b"));
}

TEST_F(EndedJobs, WhatStorageHasIsKnownAfterARestart) {
  ASSERT_TRUE(Store(store_, Of("a"), {1, 10}, Marks(1)).ok());
  ASSERT_TRUE(Store(store_, Of("a"), {1, 20}, Marks(1, 10)).ok());
  store_.MarkDurable("a", {1, 20});
  ASSERT_TRUE(Store(store_, Of("b"), {1, 10}, Marks(1)).ok());
  std::ofstream(dir_.path() + "/.id") << "0000000000000005\n";
  auto scan = ScanRegion(PosixFiles(), dir_.path());
  ASSERT_TRUE(scan.ok()) << scan.status();
  ASSERT_EQ(scan->jobs.size(), 2u);
  PeerStore successor({PosixFiles(), clock_, Quota::Create(0, 0), 5}, dir_.path(), {kBudget});
  AdoptReport report;
  for (const ScannedJob& job : scan->jobs) ASSERT_TRUE(successor.Adopt(job, report).ok());
  EXPECT_TRUE(successor.List().at(1).durable && !successor.List().at(0).durable) << "10 is not on storage";
  EXPECT_EQ(CodeOf(Prepare(successor, Of("next"))), ErrorCode::QUOTA_EXCEEDED) << "it begins to be quiet now";
  clock_.now += std::chrono::hours(2);
  ASSERT_TRUE(Prepare(successor, Of("next")).ok());
  EXPECT_FALSE(successor.Holds("a")) << "10 is older than what storage has";
  EXPECT_TRUE(successor.Holds("b"));
}

TEST_F(EndedJobs, TalkingOfAJobKeepsIt) {
  for (const char* job : {"a", "b"}) ASSERT_TRUE(Store(store_, Of(job), {1, 10}, Marks(1)).ok());
  for (const char* job : {"a", "b"}) store_.MarkDurable(job, {1, 10});
  clock_.now += std::chrono::minutes(50);
  ASSERT_TRUE(store_.Tell("a", Marks(1)).ok());
  clock_.now += std::chrono::minutes(50);
  ASSERT_TRUE(Prepare(store_, Of("next")).ok());
  EXPECT_TRUE(store_.Holds("a"));
  EXPECT_FALSE(store_.Holds("b"));
}

// For ranks that run here.
TEST_F(EndedJobs, AreToldApartFromThoseThatRun) {
  for (const char* job : {"a", "b"}) ASSERT_TRUE(Store(store_, Of(job), {1, 10}, Marks(1)).ok());
  store_.MarkDurable("a", {1, 10});
  clock_.now += std::chrono::hours(2);
  ASSERT_TRUE(store_.Tell("b", Marks(1)).ok());
  const std::vector<JobFacts> facts = store_.Facts();
  ASSERT_EQ(facts.size(), 2u);
  EXPECT_FALSE(facts[0].in_use);
  EXPECT_EQ(facts[0].unpersisted, 0u);
  EXPECT_TRUE(facts[1].in_use);
  EXPECT_EQ(facts[1].unpersisted, 1u);
  const auto chosen = ChooseOrphans(facts, {.bytes = 2 * kSlotFile});
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  ASSERT_EQ(chosen->size(), 1u);
  EXPECT_EQ(chosen->front().job, "a");
  EXPECT_TRUE(chosen->front().copies);
}

TEST_F(EndedJobs, AreSummedUpForWhoMayGiveThemUp) {
  ASSERT_TRUE(Store(store_, Of("a"), {1, 10}, Marks(1)).ok());
  ASSERT_TRUE(Store(store_, Of("a"), {1, 20}, Marks(1, 10)).ok());
  ASSERT_TRUE(Store(store_, Of("b"), {1, 10}, Marks(1)).ok());
  store_.MarkDurable("a", {1, 10});
  clock_.now += std::chrono::minutes(3);
  auto pin = store_.OpenCopy("b", Of("b").key(), {1, 10});
  const std::vector<PeerJob> jobs = store_.Jobs();
  ASSERT_EQ(jobs.size(), 2u);
  EXPECT_EQ(jobs[0].job, "a");
  EXPECT_THAT(jobs[0].ranks, ElementsAre(Of("a").key().number));
  EXPECT_GE(jobs[0].bytes, 2 * kSlotFile);
  EXPECT_EQ(jobs[0].newest, (SnapshotId{1, 20}));
  EXPECT_EQ(jobs[0].durable, (SnapshotId{1, 10}));
  EXPECT_EQ(jobs[0].silent, std::chrono::minutes(3));
  EXPECT_FALSE(jobs[0].busy);
  EXPECT_TRUE(jobs[1].busy) << "somebody reads it";
}

}  // namespace
}  // namespace ckptd::region
