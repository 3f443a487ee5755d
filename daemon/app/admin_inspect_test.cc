#include "daemon/app/admin_inspect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/core/image/layout.h"
#include "daemon/app/admin_source.h"
#include "daemon/base/errors.h"
#include "daemon/format/paths.h"
#include "daemon/os/posix_files.h"
#include "daemon/os/testing/temp_dir.h"
#include "daemon/persist/testing/saved_step.h"
#include "daemon/storage/posix_store.h"
#include "daemon/storage/testing/store_around.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Its own tensor, and two rows of one that all ranks share.
NamedImage ImageOf(Rank rank) {
  const std::vector<TensorSpec> tensors = {{"own-" + std::to_string(rank), Dtype::kF32, {3}, {}},
                                           {"shared", Dtype::kF32, {2, 3}, {2 * uint64_t{rank}, 0}}};
  LayoutOptions options;
  options.rank = rank;
  Layout layout;
  EXPECT_TRUE(BuildLayout(tensors, {}, options, &layout).ok());
  ImageInfo info;
  EXPECT_TRUE(ParseHeader(layout.images[0].header, layout.images[0].bytes, ImageEnd::kExact, {}, &info).ok());
  auto image = NameImage("rank.safetensors", rank, std::move(info));
  EXPECT_TRUE(image.ok()) << image.status();
  return *std::move(image);
}

class InspectTest : public ::testing::Test {
 protected:
  InspectTest() {
    order_.ranks = {0, 1, 2};
    order_.read = [this](Rank rank) -> absl::StatusOr<std::vector<NamedImage>> {
      read_.push_back(rank);
      if (rank == bad_) return Error(ErrorCode::CORRUPT, "bad");
      std::vector<NamedImage> images;
      images.push_back(ImageOf(rank));
      return images;
    };
    order_.cancelled = [this] { return read_.size() >= patience_; };
    order_.send = [this](const v1::TensorEntry& entry) {
      if (entry.name() == "shared") rows_.push_back(entry.global_shape(0));
      ranks_.push_back(entry.rank());
      return true;
    };
  }

  InspectOrder order_;
  std::optional<Rank> bad_;
  size_t patience_ = 100;
  std::vector<Rank> read_;
  std::vector<Rank> ranks_;     // whose tensors were sent
  std::vector<uint64_t> rows_;  // of the whole shared tensor, as it was sent
};

TEST_F(InspectTest, AllRanksInTheirOrderWithTheWholeShapes) {
  ASSERT_TRUE(InspectRanks(order_).ok());
  EXPECT_THAT(rows_, ElementsAre(6, 6, 6));
  EXPECT_TRUE(std::is_sorted(ranks_.begin(), ranks_.end()));
  EXPECT_THAT(read_, ElementsAre(0, 1, 2, 0, 1, 2));
}

TEST_F(InspectTest, OneRankWithTheWholeShapes) {
  order_.wanted = 1;
  ASSERT_TRUE(InspectRanks(order_).ok());
  EXPECT_THAT(rows_, ElementsAre(6));
  EXPECT_EQ(std::count(ranks_.begin(), ranks_.end(), 1U), static_cast<ptrdiff_t>(ranks_.size()));
  bad_ = 2;
  rows_.clear();
  ASSERT_TRUE(InspectRanks(order_).ok()) << "rank 1 is well";
  EXPECT_THAT(rows_, ElementsAre(4)) << "as far as the others tell";
  bad_ = 1;
  EXPECT_EQ(CodeOf(InspectRanks(order_)), ErrorCode::CORRUPT);
}

TEST_F(InspectTest, WhoGoesAwayIsNoticedBetweenRanks) {
  for (const auto& wanted : {std::optional<Rank>(), std::optional<Rank>(1)}) {
    read_.clear();
    ranks_.clear();
    patience_ = 2;
    order_.wanted = wanted;
    EXPECT_EQ(CodeOf(InspectRanks(order_)), ErrorCode::CANCELLED);
    EXPECT_EQ(read_.size(), 2u);
    EXPECT_THAT(ranks_, IsEmpty());
  }
}

class CountingStore final : public StoreAround {
 public:
  using StoreAround::StoreAround;
  absl::StatusOr<std::string> ReadSmall(const std::string& name, size_t max_bytes) override {
    manifests += name.find(kManifestName) != std::string::npos ? 1 : 0;
    return StoreAround::ReadSmall(name, max_bytes);
  }
  size_t manifests = 0;
};

TEST(StepSourcesTest, AManifestIsReadOnceForAllRanks) {
  constexpr uint64_t kChunk = 64 << 10;
  const TempDir dir;
  PosixStoreOptions options;
  options.root = dir.path();
  options.make_queue = [] { return MakeInlineIoQueue(4); };
  const auto disk = OpenPosixStore(PosixFiles(), options);
  ASSERT_TRUE(disk.ok()) << disk.status();
  std::vector<TestSlot> slots;
  for (uint32_t rank = 0; rank < 3; ++rank) slots.emplace_back(std::vector<uint64_t>{kChunk + 4096}, kChunk, rank);
  const absl::Status saved = SaveStep(**disk, SystemClock(), "gpt", {2, 20}, slots);
  ASSERT_TRUE(saved.ok()) << saved;
  CatalogStep step;
  step.id = {2, 20};
  step.world = 3;
  step.stored.emplace();
  step.stored->committed = true;
  CountingStore store(**disk);
  const auto all = StorageSources(store, "gpt", step, std::nullopt);
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(all->size(), 3u);
  EXPECT_EQ(store.manifests, 1u);
  const auto sources = BestSources(store, "gpt", step, std::nullopt);
  ASSERT_TRUE(sources.ok()) << sources.status();
  EXPECT_THAT(sources->ranks, ElementsAre(0, 1, 2));
  for (const Rank rank : sources->ranks) {
    const auto source = sources->open(rank);
    ASSERT_TRUE(source.ok()) << source.status();
    const auto headers = ReadImageHeaders(*source);
    ASSERT_TRUE(headers.ok()) << headers.status();
    EXPECT_EQ(headers->size(), 1u);
  }
  EXPECT_EQ(store.manifests, 2u);
}

}  // namespace
}  // namespace ckptd
