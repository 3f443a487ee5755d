// v1/region: one job with one rank: ctl file, journal, two sealed slots. The slot files are cut to their content (a
// slot is 2 MiB long at least) and lengthened again before they are read.
#include <gtest/gtest.h>

#include "daemon/region/region_test_util.h"
#include "daemon/region/salvage.h"
#include "tests/golden/golden.h"

namespace ckptd::region {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kBytes = 68 << 10;  // two chunks, the second one short
constexpr AttemptId kSeen = 3;

bool IsSlot(const fs::path& path) { return path.filename().string().starts_with("slot-"); }

void Make(const fs::path& into) {
  TempDir dir;
  {
    auto region = OpenRegion(dir.region());
    RankRegion& rank = OpenTestRank(*region);
    LayoutSet& set = AddLayout(rank, TestSpec(kBytes));
    auto bell = *Bell::Create(set.head());
    Fill(rank, set, *bell, 0, 10);
    Fill(rank, set, *bell, 1, 20);
    set.SetFlags(0, kSlotPersisted);
    (*region->OpenJob("gpt", 1000))->journal().SetSeen(kSeen);
  }
  fs::copy(dir.region(), into, fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  fs::remove(into / kRegionLockName);  // holds a pid
  for (const auto& entry : fs::recursive_directory_iterator(into)) {
    if (IsSlot(entry.path())) fs::resize_file(entry.path(), kBytes);
  }
}

// Git keeps neither the mode of a directory nor the length of a slot.
void Restore(const fs::path& from, const fs::path& to) {
  fs::copy(from, to, fs::copy_options::recursive);
  fs::permissions(to, fs::perms::owner_all);
  for (const auto& entry : fs::recursive_directory_iterator(to)) {
    if (entry.is_directory()) fs::permissions(entry.path(), fs::perms::owner_all);
    if (IsSlot(entry.path())) fs::resize_file(entry.path(), kSlotAlignment);
  }
}

TEST(Golden, RegionIsAdoptedAndSalvaged) {
  if (golden::Updating()) Make(golden::NewFolder("region"));
  TempDir dir;
  Restore(golden::Folder("region"), dir.region());

  auto snapshots = ListSalvage(PosixFiles(), dir.region());
  ASSERT_TRUE(snapshots.ok()) << snapshots.status();
  ASSERT_EQ(snapshots->size(), 2u);
  for (const SalvageSnapshot& snapshot : *snapshots) {
    std::vector<std::byte> bytes;
    auto sink = [&](std::span<const std::byte> piece) {
      bytes.insert(bytes.end(), piece.begin(), piece.end());
      return absl::OkStatus();
    };
    absl::Status read = ReadSalvage(PosixFiles(), snapshot, 0, sink);
    ASSERT_TRUE(read.ok()) << read;
    EXPECT_EQ(bytes, Content(snapshot.record->id().step, kBytes));
  }

  auto region = OpenRegion(dir.region());
  ASSERT_NE(region, nullptr);
  const AdoptReport& report = region->adopted();
  EXPECT_TRUE(report.untouched.empty());
  ASSERT_EQ(report.jobs.size(), 1u);
  EXPECT_EQ(report.jobs[0].job, "gpt");
  EXPECT_EQ(report.jobs[0].uid, 1000u);
  EXPECT_EQ(report.jobs[0].seen, kSeen);
  ASSERT_EQ(report.jobs[0].ranks.size(), 1u);
  ASSERT_EQ(report.jobs[0].ranks[0].layouts.size(), 1u);
  const AdoptedLayout& layout = report.jobs[0].ranks[0].layouts[0];
  EXPECT_EQ(layout.slot_bytes, kBytes);
  ASSERT_EQ(layout.slots.size(), 2u);
  for (uint32_t slot = 0; slot < 2; ++slot) {
    EXPECT_EQ(layout.slots[slot].state, SlotStateCode::kSealed);
    EXPECT_EQ(layout.slots[slot].record->id(), (SnapshotId{1, 10 * (slot + 1)}));
    EXPECT_EQ((layout.slots[slot].flags & kSlotPersisted) != 0, slot == 0);
  }
}

}  // namespace
}  // namespace ckptd::region
