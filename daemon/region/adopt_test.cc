// What a starting agent makes of a predecessor's directory after damage, and how fast. After kills: adopt_kill_test.cc.
#include "daemon/region/adopt.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <random>

#include "daemon/base/errors.h"
#include "daemon/region/ctl_file.h"
#include "daemon/region/region_test_util.h"
#include "daemon/region/salvage.h"
#include "daemon/region/verify.h"

namespace ckptd::region {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// ----------------------------------------------------------------------------------------------------------- damage

class DamageTest : public ::testing::Test {
 protected:
  DamageTest() { MakeOne(); }

  // Slot 0 sealed at step 100, slot 1 free; the agent gone.
  void MakeOne() {
    auto region = OpenRegion(dir_.region());
    LayoutSet& set = SealOne(*region);
    head_ = set.head();
    for (uint32_t slot = 0; slot < 2; ++slot) slot_[slot] = set.FileOf(slot)->path();
  }

  static void Poke(const std::string& path, uint64_t offset, uint64_t value) {
    auto file = *PosixFiles().Open(path, {.write = true});
    ASSERT_TRUE(file->PWrite(offset, std::as_bytes(std::span(&value, 1))).ok());
  }
  [[nodiscard]] std::string RankDir() const { return dir_.region() + "/gpt/rank-00000"; }
  [[nodiscard]] std::string Ctl() const { return RankDir() + "/ctl.1"; }
  [[nodiscard]] uint64_t StateOffset(uint32_t slot) const {
    return head_.block.states_offset + sizeof(Grant) + slot * sizeof(SlotState);
  }

  TempDir dir_;
  CtlHead head_;
  std::string slot_[2];
};

TEST_F(DamageTest, DamagedRecordIsNotShown) {
  Poke(Ctl(), head_.block.records_offset + 24, 77);
  auto region = OpenRegion(dir_.region());
  EXPECT_EQ(SlotIn(*region, 0).state, SlotStateCode::kFree);
  EXPECT_THAT(region->adopted().notes, ::testing::Contains(HasSubstr("checksum mismatch")));
}

TEST_F(DamageTest, CutSlotFileIsReplaced) {
  fs::resize_file(slot_[0], 4096);
  auto region = OpenRegion(dir_.region());
  EXPECT_EQ(SlotIn(*region, 0).state, SlotStateCode::kRetired);
  EXPECT_EQ(NamesIn(RankDir()).size(), 2u);
  LayoutSet& set = *OpenTestRank(*region).FindLayout(1);
  InlineExecutor executor;
  auto build = set.StartReplace(0, executor, [](const absl::Status& done) { EXPECT_TRUE(done.ok()); });
  ASSERT_TRUE(set.FinishReplace(0, **build).ok());
  EXPECT_TRUE(set.FreeSlot(0).ok());
  EXPECT_TRUE(set.DescriptorsForSaving().ok());
}

TEST_F(DamageTest, MissingSlotFileIsReplaced) {
  fs::remove(slot_[0]);
  auto region = OpenRegion(dir_.region());
  EXPECT_EQ(SlotIn(*region, 0).state, SlotStateCode::kRetired);
  EXPECT_EQ(SlotIn(*region, 0).file_id, 0u);
}

TEST_F(DamageTest, OneFileIsNeverTwoSlots) {
  auto file = *ReadSmall(PosixFiles(), Ctl(), kMaxCtlBytes);
  uint64_t id = 0;
  std::memcpy(&id, file.data() + StateOffset(0) + 16, sizeof(id));
  Poke(Ctl(), StateOffset(1) + 16, id);
  auto region = OpenRegion(dir_.region());
  EXPECT_EQ(SlotIn(*region, 0).state, SlotStateCode::kSealed);
  EXPECT_EQ(SlotIn(*region, 1).state, SlotStateCode::kRetired);
  EXPECT_TRUE(fs::exists(slot_[0]));
}

TEST_F(DamageTest, LoadingAndUnknownStates) {
  Poke(Ctl(), StateOffset(0), 9 << 8 | static_cast<uint64_t>(SlotStateCode::kLoading));
  Poke(Ctl(), StateOffset(1), 9 << 8 | 200);
  auto region = OpenRegion(dir_.region());
  EXPECT_EQ(SlotIn(*region, 0).state, SlotStateCode::kFree);
  EXPECT_EQ(SlotIn(*region, 1).state, SlotStateCode::kRetired);
}

// As one flipped bit makes of FREE: nobody would ever end such a fill.
TEST_F(DamageTest, AFillWithoutAnOwnerIsRetired) {
  for (const uint64_t pid : {uint64_t{0}, uint64_t{1} << 22, ~uint64_t{0}}) {
    fs::remove_all(dir_.region());
    MakeOne();
    Poke(Ctl(), StateOffset(1), 9 << 8 | static_cast<uint64_t>(SlotStateCode::kFilling));
    Poke(Ctl(), StateOffset(1) + offsetof(SlotState, owner_pid), pid);
    auto region = OpenRegion(dir_.region());
    EXPECT_EQ(SlotIn(*region, 1).state, SlotStateCode::kRetired) << pid;
    EXPECT_EQ(SlotIn(*region, 1).owner, SlotOwner());
    EXPECT_THAT(region->adopted().notes, ::testing::Contains(HasSubstr("is being filled by process")));
    EXPECT_EQ(SlotIn(*region, 0).state, SlotStateCode::kSealed);
  }
}

// Its fills may be sealed before anybody knows again what the attempt restored from.
TEST(Adopt, TheGrantTellsTheParentOfItsAttempt) {
  TempDir dir;
  {
    auto region = OpenRegion(dir.region());
    LayoutSet& set = AddLayout(OpenTestRank(*region));
    GrantOrder order = OrderFor(0, 5);
    order.parent = {3, 70};
    ASSERT_TRUE(set.OpenGrant(**Bell::Create(set.head()), order).ok());
  }
  auto region = OpenRegion(dir.region());
  const GrantSnapshot& grant = OpenTestRank(*region).FindLayout(1)->grant();
  EXPECT_EQ(grant.parent, (SnapshotId{3, 70}));
  EXPECT_EQ(grant.attempt, 1u);
  EXPECT_EQ(grant.word, 0u) << "nothing is lent before the state of `seen` is known";
}

TEST_F(DamageTest, DamagedHeadIsReclaimed) {
  Poke(Ctl(), 100, 0x5555);
  auto region = OpenRegion(dir_.region());
  EXPECT_TRUE(region->adopted().jobs[0].ranks.empty());
  EXPECT_FALSE(fs::exists(RankDir()));
  EXPECT_EQ(region->adopted().jobs[0].seen, 1u) << "the journal stays";
}

// Whose checksum is right: what is wrong in it is told by other checks, with codes of their own.
TEST_F(DamageTest, AHeadWithAnImpossibleNameIsReclaimed) {
  auto file = *PosixFiles().Open(Ctl(), {.write = true});
  std::vector<std::byte> head(head_.block.head_bytes);
  ASSERT_TRUE(file->PRead(0, head).ok());
  Superblock block;
  std::memcpy(&block, head.data(), sizeof block);
  block.job[0] = '/';
  block.head_crc = 0;
  block.head_crc = Crc32c(Crc32c(0, &block, sizeof block), head.data() + sizeof block, head.size() - sizeof block);
  ASSERT_TRUE(file->PWrite(0, std::as_bytes(std::span(&block, 1))).ok());
  auto region = OpenRegion(dir_.region());
  EXPECT_TRUE(region->adopted().jobs.at(0).ranks.empty());
  EXPECT_FALSE(fs::exists(RankDir()));
}

TEST_F(DamageTest, NewerMajorIsLeftAlone) {
  Poke(Ctl(), 8, kRegionMajor + 1);
  const std::set<std::string> before = NamesIn(RankDir());
  auto region = OpenRegion(dir_.region());
  EXPECT_EQ(NamesIn(RankDir()), before);
  EXPECT_EQ(region->adopted().untouched, std::vector<std::string>{RankDir()});
  JobRegion& job = **region->OpenJob("gpt", 1000);
  EXPECT_EQ(CodeOf(job.OpenRank(0).status()), ErrorCode::NEWER_VERSION);
  EXPECT_EQ(CodeOf(region->RemoveJob("gpt")), ErrorCode::NEWER_VERSION);
}

TEST_F(DamageTest, NewerJournalIsLeftAlone) {
  Poke(dir_.region() + "/gpt/job", 8, kRegionMajor + 1);
  auto region = OpenRegion(dir_.region());
  EXPECT_EQ(CodeOf(region->OpenJob("gpt", 1000).status()), ErrorCode::NEWER_VERSION);
  EXPECT_TRUE(fs::exists(slot_[0]));
}

TEST_F(DamageTest, LostJournalIsMadeAgainFromTheSlots) {
  fs::remove(dir_.region() + "/gpt/job");
  auto region = OpenRegion(dir_.region());
  EXPECT_EQ(region->adopted().jobs[0].seen, 1u);
  EXPECT_EQ(region->adopted().jobs[0].uid, 1000u);
}

// Up to which attempt an absence proves nothing: kept for every later agent, whatever happens to the slot.
TEST_F(DamageTest, WhatMayHaveBeenASnapshotIsLost) {
  const std::vector<std::pair<const char*, std::function<void()>>> damages = {
      {"slot file cut", [&] { fs::resize_file(slot_[0], 4096); }},
      {"slot file gone", [&] { fs::remove(slot_[0]); }},
      {"record", [&] { Poke(Ctl(), head_.block.records_offset + 24, 77); }},
      {"state word", [&] { Poke(Ctl(), StateOffset(1), 9 << 8 | 200); }},
      {"ctl file", [&] { Poke(Ctl(), 100, 0x5555); }},
      {"journal", [&] { fs::remove(dir_.region() + "/gpt/job"); }},
  };
  for (const auto& [what, damage] : damages) {
    fs::remove_all(dir_.region());
    MakeOne();
    EXPECT_EQ(LostIn(*OpenRegion(dir_.region())), 0u) << what;
    damage();
    EXPECT_EQ(LostIn(*OpenRegion(dir_.region())), 1u) << what;
    EXPECT_EQ(LostIn(*OpenRegion(dir_.region())), 1u) << what << ", the agent after that";
  }
}

TEST_F(DamageTest, WhatHeldNoSnapshotIsNotLost) {
  fs::remove(slot_[1]);
  Poke(Ctl(), StateOffset(0), 9 << 8 | static_cast<uint64_t>(SlotStateCode::kLoading));
  EXPECT_EQ(LostIn(*OpenRegion(dir_.region())), 0u);
}

TEST_F(DamageTest, DebrisGoesForeignNamesStay) {
  std::ofstream(RankDir() + "/slot-0000000000000001") << "x";
  std::ofstream(RankDir() + "/.tmp-ctl.2") << "x";
  std::ofstream(RankDir() + "/notes.txt") << "x";
  auto region = OpenRegion(dir_.region());
  EXPECT_EQ(NamesIn(RankDir()).size(), 4u);
  EXPECT_TRUE(fs::exists(RankDir() + "/notes.txt"));
}

TEST_F(DamageTest, GarbageNeverCrashes) {
  const std::string good = *ReadSmall(PosixFiles(), Ctl(), kMaxCtlBytes);
  std::mt19937_64 random(3);
  for (int i = 0; i < 10000; ++i) {
    std::string bad = good;
    // Half of them hit the states, which no CRC covers.
    const size_t from = i % 2 == 0 ? 0 : head_.block.states_offset;
    for (int n = 0; n < 3; ++n) bad[from + random() % (bad.size() - from)] = static_cast<char>(random());
    auto file = *PosixFiles().Open(Ctl(), {.write = true});
    ASSERT_TRUE(file->PWrite(0, std::as_bytes(std::span(bad))).ok());
    auto scan = ScanRegion(PosixFiles(), dir_.region());
    ASSERT_TRUE(scan.ok()) << scan.status();
    for (const ScannedLayout& layout : scan->jobs[0].ranks[0].layouts)
      for (const ScannedSlot& slot : layout.slots) {
        const SlotSnapshot adopted = AdoptedState(slot);
        const bool sealed = adopted.state == SlotStateCode::kSealed;
        EXPECT_TRUE(!sealed || adopted.record->id() == (SnapshotId{1, 100}));
      }
  }
}

TEST_F(DamageTest, AdoptsWhateverTheStatesSay) {
  const std::string good = *ReadSmall(PosixFiles(), Ctl(), kMaxCtlBytes);
  std::mt19937_64 random(4);
  for (int i = 0; i < 200; ++i) {
    std::string bad = good;
    for (int n = 0; n < 8; ++n) {
      const size_t at = head_.block.states_offset + random() % (sizeof(Grant) + 2 * sizeof(SlotState));
      bad[at] = static_cast<char>(random());
    }
    fs::remove(Ctl());
    std::ofstream(Ctl()) << bad;
    for (const std::string& slot : slot_) {
      std::ofstream(slot).close();
      fs::resize_file(slot, head_.slot_file_bytes());
    }
    auto region = OpenRegion(dir_.region());
    ASSERT_NE(region, nullptr);
    LayoutSet* set = OpenTestRank(*region).FindLayout(1);
    ASSERT_NE(set, nullptr);
    for (uint32_t slot = 0; slot < 2; ++slot) EXPECT_EQ(set->FileOf(slot) == nullptr, set->Slot(slot).file_id == 0);
  }
}

// ------------------------------------------------------------------------------------------------------------ speed

// 8 GiB that were never touched: nothing may be read to adopt them, and nothing is.
TEST(AdoptSpeed, EightGibibytesInATenthOfASecond) {
  TempDir dir;
  std::string rank_dir;
  CtlHead head;
  {
    auto region = OpenRegion(dir.region());
    rank_dir = OpenTestRank(*region).dir();
    LayoutSpec spec = TestSpec(4 * kGiB);
    spec.chunk_bytes = kMiB;
    head = *MakeCtlHead(spec, region->id(), 1, 0);
  }
  const uint64_t ids[2] = {1, 2};
  for (uint64_t id : ids) {
    std::ofstream(rank_dir + "/" + SlotFileName(id)).close();
    fs::resize_file(rank_dir + "/" + SlotFileName(id), 4 * kGiB);
  }
  auto ctl = *CtlFile::Create(PosixFiles(), rank_dir, head, ids);
  for (uint32_t slot = 0; slot < 2; ++slot) {
    SlotRecord record = *MakeRecord(head, HeadOf(slot + 1, slot + 1), std::vector<uint32_t>(4096, 5));
    std::memcpy(ctl->record(slot).data(), &record.head, sizeof(record.head));
    std::memcpy(ctl->record(slot).data() + sizeof(record.head), record.chunk_crcs.data(), 4096 * sizeof(uint32_t));
    ctl->slot(slot).word = uint64_t{slot + 1} << 8 | static_cast<uint64_t>(SlotStateCode::kSealed);
  }
  const auto begin = std::chrono::steady_clock::now();
  auto region = OpenRegion(dir.region());
  const auto took = std::chrono::steady_clock::now() - begin;
  EXPECT_EQ(SlotIn(*region, 1).record->id(), (SnapshotId{1, 2}));
  EXPECT_LT(took, std::chrono::milliseconds(100));
  EXPECT_EQ(fs::file_size(rank_dir + "/" + SlotFileName(1)), 4 * kGiB);
  for (uint64_t id : ids) {
    struct stat file {};
    ASSERT_EQ(stat((rank_dir + "/" + SlotFileName(id)).c_str(), &file), 0);
    EXPECT_EQ(file.st_blocks, 0) << "something was written, or read into memory";
  }
}

}  // namespace
}  // namespace ckptd::region
