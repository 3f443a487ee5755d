// v1/checkpoint: a storage root with one job: one committed step of two ranks with two images each, the attempt that
// made it and its decision.
#include <gtest/gtest.h>

#include <cstring>

#include "client/core/image/layout.h"
#include "daemon/format/header_reader.h"
#include "daemon/format/paths.h"
#include "daemon/os/posix_files.h"
#include "daemon/os/testing/temp_dir.h"
#include "daemon/persist/testing/saved_step.h"
#include "daemon/recover/step_check.h"
#include "daemon/storage/posix_store.h"
#include "daemon/storage/step_files.h"
#include "tests/golden/golden.h"

namespace ckptd {
namespace {

namespace fs = std::filesystem;

constexpr char kJob[] = "gpt";
constexpr SnapshotId kId{2, 1000};
constexpr uint64_t kChunk = 64 << 10;

std::unique_ptr<Store> OpenStore(const std::string& root) {
  PosixStoreOptions options;
  options.root = root;
  options.make_queue = [] { return MakeInlineIoQueue(4); };
  return *OpenPosixStore(PosixFiles(), options);
}

// Two pieces of one tensor give two images: a safetensors file holds a name once.
Layout LayoutOf(Rank rank) {
  std::vector<TensorSpec> tensors = {{"weight", Dtype::kF32, {16, 8}, {0, 0}},
                                     {"weight", Dtype::kF32, {16, 8}, {16, 0}},
                                     {"step", Dtype::kI64, {}, {}},
                                     {"empty", Dtype::kBF16, {0, 4}, {}}};
  LayoutOptions options;
  options.rank = rank;
  options.extra_capacity = 64;
  Layout layout;
  ImageError error = BuildLayout(tensors, {}, options, &layout);
  EXPECT_TRUE(error.ok()) << error.message;
  return layout;
}

TestSlot SlotOf(Rank rank) {
  Layout layout = LayoutOf(rank);
  std::vector<uint64_t> sizes;
  for (const LayoutImage& image : layout.images) sizes.push_back(image.bytes);
  TestSlot slot(sizes, kChunk, rank);
  for (size_t i = 0; i < layout.images.size(); ++i) {
    std::memcpy(slot.image(i).data(), layout.images[i].header.data(), layout.images[i].header.size());
  }
  return slot;
}

void Make(const fs::path& into) {
  FakeClock clock;
  auto store = OpenStore(into);
  v1::AttemptRecord attempt;
  attempt.set_job(kJob);
  attempt.set_attempt(2);
  attempt.set_coordinator("node-0");
  attempt.set_rank0_ticket(7);
  attempt.set_world_size(2);
  ASSERT_TRUE(CreateAttempt(*store, attempt).ok());
  v1::DecisionRecord decision;
  decision.set_job(kJob);
  decision.set_attempt(2);
  decision.mutable_parent()->set_attempt(1);
  decision.mutable_parent()->set_step(10);
  for (Rank rank = 0; rank < 2; ++rank) {
    v1::RankClaim* claim = decision.add_ranks();
    claim->set_rank(rank);
    claim->set_ticket(7 + rank);
    claim->set_agent("node-0");
  }
  v1::LineageEntry* entry = decision.add_lineage();
  entry->set_attempt(1);
  entry->set_last_step(10);
  ASSERT_TRUE(CreateDecision(*store, decision).ok());
  std::vector<TestSlot> slots;
  for (Rank rank = 0; rank < 2; ++rank) slots.push_back(SlotOf(rank));
  ASSERT_TRUE(SaveStep(*store, clock, kJob, kId, slots).ok());
}

// A copy, because opening a store probes by writing.
std::unique_ptr<Store> OpenCopy(const TempDir& dir) {
  fs::copy(golden::Folder("checkpoint"), dir.path(), fs::copy_options::recursive);
  return OpenStore(dir.path());
}

TEST(Golden, CheckpointIsListedAndEveryByteChecked) {
  if (golden::Updating()) Make(golden::NewFolder("checkpoint"));
  TempDir dir;
  auto store = OpenCopy(dir);
  auto listing = ListJob(*store, kJob);
  ASSERT_TRUE(listing.ok()) << listing.status();
  EXPECT_EQ(listing->newest_attempt, 2u);
  EXPECT_EQ(ReadAttempt(*store, kJob, 2)->coordinator(), "node-0");
  ASSERT_EQ(listing->decisions.size(), 1u);
  EXPECT_EQ(listing->decisions[0].parent().step(), 10u);
  EXPECT_EQ(listing->decisions[0].ranks(1).ticket(), 8u);
  EXPECT_EQ(listing->decisions[0].lineage(0).last_step(), 10u);
  ASSERT_EQ(listing->steps.size(), 1u);
  EXPECT_EQ(listing->steps[0].id, kId);
  EXPECT_TRUE(listing->steps[0].committed) << listing->steps[0].damage;
  absl::Status good = CheckStep(*store, kJob, kId, {});
  EXPECT_TRUE(good.ok()) << good;
}

TEST(Golden, ImagesOfTheCheckpointParse) {
  TempDir dir;
  auto store = OpenCopy(dir);
  for (Rank rank = 0; rank < 2; ++rank) {
    auto sidecar = CommittedSidecar(*store, kJob, kId, rank);
    ASSERT_TRUE(sidecar.ok()) << sidecar.status();
    EXPECT_EQ(sidecar->parent_attempt(), 1u);
    EXPECT_EQ(sidecar->images_size(), 2);
    for (const v1::SidecarImage& image : sidecar->images()) {
      std::string text = golden::ReadFile(golden::Folder("checkpoint") / InStep(kJob, kId, image.name()));
      auto info = ReadFileHeader(text, text.size(), image.name());
      ASSERT_TRUE(info.ok()) << info.status();
      EXPECT_EQ(info->header_bytes, image.header_bytes());
      ASSERT_NE(info->Find("weight"), nullptr);
      EXPECT_EQ(info->Find("weight")->shape, (std::vector<uint64_t>{16, 8}));
    }
  }
}

}  // namespace
}  // namespace ckptd
