// Stored bytes go bad at random: in the journal of a rank (ctl), in an image, a sidecar, a manifest.
// Whatever then reads them either gives the right bytes or says that they are bad, and what another good copy can mend
// is mended.
#include <gtest/gtest.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/format/paths.h"
#include "daemon/os/posix_files.h"
#include "daemon/persist/mend.h"
#include "daemon/persist/testing/saved_step.h"
#include "daemon/recover/step_check.h"
#include "daemon/region/region_test_util.h"
#include "daemon/region/verify.h"
#include "daemon/storage/posix_store.h"
#include "daemon/storage/step_files.h"
#include "tests/crash/corrupt.h"

namespace ckptd::harness {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kChunk = 64 << 10;
constexpr char kJob[] = "gpt";
constexpr SnapshotId kOlder{1, 10};
constexpr SnapshotId kId{1, 20};
constexpr size_t kMaxHeaders = 64 << 10;

// Two steps of one rank on storage, and the memory of the newer one.
class CorruptStorage : public ::testing::Test {
 protected:
  CorruptStorage() {
    PosixStoreOptions options;
    options.root = dir_.path();
    options.direct = false;
    options.make_queue = [] { return MakeInlineIoQueue(4); };
    store_ = *OpenPosixStore(PosixFiles(), options);
    Save(kOlder, older_);
    Save(kId, slot_);
  }
  void Save(const SnapshotId& id, TestSlot& slot) {
    RankFlush flush(*store_, SystemClock(), source_ = SourceOf(kJob, 0, 1, id, slot));
    for (uint32_t chunk = 0; chunk < slot.ChunkCrcs().size(); ++chunk) EXPECT_TRUE(flush.WriteChunk(chunk).ok());
    EXPECT_TRUE(flush.Finish(SealOf(slot)).ok());
    EXPECT_TRUE(CreateManifest(*store_, kJob, id, 1).ok());
  }
  [[nodiscard]] std::string Path(const std::string& name, const SnapshotId& id = kId) const {
    return dir_.path() + "/" + InStep(kJob, id, name);
  }

  // As a restore reads a rank of a committed step.
  [[nodiscard]] absl::StatusOr<std::string> Restore(bool blind = false) {
    CKPTD_ASSIGN_OR_RETURN(StepListing step, ListStep(*store_, kJob, kId));
    if (!step.committed) return Error(ErrorCode::CORRUPT, step.damage);
    CKPTD_ASSIGN_OR_RETURN(auto sidecar, CommittedSidecar(*store_, kJob, kId, 0));
    if (!blind) CKPTD_RETURN_IF_ERROR(ReadHeaders(*store_, kJob, sidecar, kMaxHeaders).status());
    StoredRank rank = ToStoredRank(kJob, sidecar);
    if (blind) rank.chunk_crcs = CrcsOfWhatIsThere();
    std::string bytes;
    CheckedReadOptions options;
    options.sink = [&bytes](uint64_t, std::span<const std::byte> piece) {
      bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
      return absl::OkStatus();
    };
    CKPTD_RETURN_IF_ERROR(ReadChecked(*store_, rank, options));
    return bytes;
  }
  [[nodiscard]] Seen Look(bool blind = false) {
    auto bytes = Restore(blind);
    return Judge(bytes.ok(), bytes.ok() && *bytes == whole_);
  }
  [[nodiscard]] std::vector<uint32_t> CrcsOfWhatIsThere() const {
    std::string all = Content(Image(0)) + Content(Image(1));
    std::vector<uint32_t> crcs;
    for (size_t at = 0; at < slot_bytes_; at += kChunk) {
      const size_t length = std::min<size_t>(kChunk, slot_bytes_ - at);
      crcs.push_back(Crc32c(0, all.data() + at, std::min(length, all.size() - std::min(at, all.size()))));
    }
    return crcs;
  }
  [[nodiscard]] std::string Image(uint32_t image, const SnapshotId& id = kId) const {
    return Path(ImageFileName(0, 1, image), id);
  }

  region::TempDir dir_;
  std::unique_ptr<class Store> store_;
  TestSlot older_{{kChunk + 4096, 8192}, kChunk, 1};  // chunk 1 spans the images
  TestSlot slot_{{kChunk + 4096, 8192}, kChunk, 2};
  const size_t slot_bytes_ = slot_.bytes().size();
  const std::string whole_{reinterpret_cast<const char*>(slot_.bytes().data()), slot_bytes_};
  FlushSource source_;
};

TEST_F(CorruptStorage, ImagesAreNoticedAndPutBackFromMemory) {
  const auto mend = [this] { return MendImages(*store_, source_, slot_.ChunkCrcs()).ok(); };
  for (uint32_t image : {0u, 1u}) {
    const Tally tally = Sweep(
        "image", Cases() / 5, Image(image), Content(Image(image, kOlder)), [this] { return Look(); }, mend);
    EXPECT_EQ(tally.not_mended, 0u);
    EXPECT_EQ(tally.harmless, 0u);
  }
}

TEST_F(CorruptStorage, RecordsAreNoticed) {
  for (const std::string& name : {std::string(kManifestName), SidecarFileName(0, 1)}) {
    const Tally tally = Sweep(name == kManifestName ? "manifest" : "sidecar", Cases() / 10, Path(name),
                              Content(Path(name, kOlder)), [this] { return Look(); });
    EXPECT_EQ(tally.noticed.size(), kKinds.size()) << "a blank at the end may be harmless, a kind of damage may not";
  }
}

// The check proves itself: without checksums the same damage comes out as bytes.
TEST_F(CorruptStorage, WithoutChecksumsItWouldNotBeNoticed) {
  const std::string good = Content(Image(0));
  Corrupter corrupter(1);
  uint64_t wrong = 0;
  for (int i = 0; i < 100; ++i) {
    Store(Image(0), corrupter.Make(Kind::kBit, good, ""));
    wrong += Look(/*blind=*/true) == Seen::kWrong ? 1 : 0;
  }
  EXPECT_EQ(wrong, 100u);
}

// A region with one sealed snapshot, in a folder that is copied for each case: adopting changes it.
class CorruptRegion : public ::testing::Test {
 protected:
  CorruptRegion() {
    auto region = region::OpenRegion(dir_.region());
    region::RankRegion& rank = region::OpenTestRank(*region);
    (*region->OpenJob("gpt", 1000))->journal().SetSeen(1);
    region::LayoutSet& set = region::AddLayout(rank);
    auto bell = *region::Bell::Create(set.head());
    region::Fill(rank, set, *bell, 1, 90);
    stale_ctl_ = Content(File("ctl."));
    region::Fill(rank, set, *bell, 0, 100);
  }
  [[nodiscard]] std::string File(const std::string& part) const {
    for (const auto& entry : fs::recursive_directory_iterator(dir_.region())) {
      if (entry.path().filename().string().starts_with(part)) return entry.path();
    }
    ADD_FAILURE() << "no " << part;
    return "";
  }

  // What an agent that starts over this region would offer: steps 90 and 100 with their bytes, or less.
  [[nodiscard]] Seen Adopt() const {
    region::TempDir copy;
    fs::copy(dir_.region(), copy.region(), fs::copy_options::recursive);
    fs::permissions(copy.region(), fs::perms::owner_all);
    auto region = region::Region::Open(PosixFiles(), SystemClock(), region::TestOptions(copy.region()));
    if (!region.ok()) return Seen::kNoticed;
    int whole = 0;
    for (const region::AdoptedJob& job : (*region)->adopted().jobs) {
      for (const region::AdoptedRank& rank : job.ranks) {
        for (const region::AdoptedLayout& layout : rank.layouts) {
          for (uint32_t slot = 0; slot < layout.slots.size(); ++slot) {
            if (layout.slots[slot].state != SlotStateCode::kSealed) continue;
            if (!IsRight(**region, job, rank, layout, slot)) return Seen::kWrong;
            ++whole;
          }
        }
      }
    }
    return whole == 2 ? Seen::kHarmless : Seen::kNoticed;
  }
  static bool IsRight(region::Region& region, const region::AdoptedJob& job, const region::AdoptedRank& rank,
                      const region::AdoptedLayout& layout, uint32_t slot) {
    const auto& record = layout.slots[slot].record;
    const SnapshotId expected{1, slot == 0 ? StepId{100} : StepId{90}};
    auto opened = region.OpenJob(job.job, job.uid);
    if (!opened.ok() || !record || record->id() != expected) return false;
    region::LayoutSet* set = (*(*opened)->OpenRank(rank.rank))->FindLayout(layout.layout);
    region::Progress progress(record->slot_bytes);
    const absl::Status status = region::VerifySlot(*set->FileOf(slot), *record, progress);
    return !status.ok() || record->chunk_crcs == region::CrcsOf(region::Content(expected.step));
  }

  region::TempDir dir_;
  std::string stale_ctl_;
};

TEST_F(CorruptRegion, JournalsAreNoticed) {
  const Tally tally = Sweep("ctl", Cases() / 10, File("ctl."), stale_ctl_, [this] { return Adopt(); });
  EXPECT_EQ(tally.noticed.size(), kKinds.size()) << "what nobody reads may be harmless, a kind of damage may not";
}

}  // namespace
}  // namespace ckptd::harness
