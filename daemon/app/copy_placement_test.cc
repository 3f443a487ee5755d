#include "daemon/app/copy_placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "daemon/app/peers.h"
#include "daemon/base/clock.h"
#include "daemon/os/posix_files.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

TEST(HoldersOf, AreTheNextOnesOfTheRing) {
  const HolderGroups groups = {{"a", "b", "c"}, {"d", "e"}};
  EXPECT_THAT(HoldersOf(groups, "a", 2), ElementsAre("b"));
  EXPECT_THAT(HoldersOf(groups, "c", 2), ElementsAre("a"));
  EXPECT_THAT(HoldersOf(groups, "c", 3), ElementsAre("a", "b"));
  EXPECT_THAT(HoldersOf(groups, "d", 3), ElementsAre("e")) << "nobody holds its own copy for itself";
  EXPECT_THAT(HoldersOf(groups, "x", 2), IsEmpty());
  EXPECT_THAT(HoldersOf(groups, "a", 1), IsEmpty());
  EXPECT_THAT(HoldersOf({}, "a", 2), IsEmpty());
}

class PlacerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    PeersConfig config;
    config.members = "n1 rack=r1; n2 rack=r1; n3 rack=r2; n4 rack=r2";
    auto peers = Peers::Start(*loop_, SystemClock(), PosixFiles(), config, "n1");
    ASSERT_TRUE(peers.ok()) << peers.status();
    peers_ = *std::move(peers);
  }
  std::unique_ptr<Loop> loop_ = *Loop::Create(SystemClock(), 64);
  std::unique_ptr<Peers> peers_;
};

TEST_F(PlacerTest, CopiesLieInOtherRacksThanTheirOwners) {
  const auto place = PlacerOf(peers_->membership(), 2);
  const HolderGroups groups = place({"n1", "n2", "n3", "n4"}, {});
  ASSERT_EQ(groups.size(), 2u);
  const auto rack = [](const std::string& node) { return node <= "n2" ? 1 : 2; };
  for (const auto& group : groups) {
    ASSERT_EQ(group.size(), 2u);
    EXPECT_NE(rack(group[0]), rack(group[1])) << group[0] << " and " << group[1];
  }
  EXPECT_EQ(place({"n4", "n2", "n3", "n1"}, {}), groups) << "whatever order they come in";
}

TEST_F(PlacerTest, WhoStaysKeepsWhatCanBeKept) {
  const auto place = PlacerOf(peers_->membership(), 2);
  const HolderGroups before = {{"n1", "n3"}, {"n2", "n4"}};
  const HolderGroups after = place({"n1", "n3", "n2", "n5"}, before);
  ASSERT_EQ(after.size(), 2u);
  EXPECT_THAT(after[0], UnorderedElementsAre("n1", "n3"));
  EXPECT_THAT(after[1], UnorderedElementsAre("n2", "n5")) << "a spare takes the seat, known to the membership or not";
}

TEST_F(PlacerTest, ParityHasGroupsOfItsOwnWidth) {
  const auto place = ParityPlacerOf(peers_->membership(), 3, 1);
  EXPECT_THAT(place({"n1", "n2", "n3", "n4"}, {}), ElementsAre(UnorderedElementsAre("n1", "n2", "n3", "n4")));
  EXPECT_THAT(place({"n1", "n3"}, {}), ElementsAre(UnorderedElementsAre("n1", "n3"))) << "with less data";
  EXPECT_THAT(place({"n1"}, {}), IsEmpty());
  const HolderGroups before = {{"n2", "n1", "n4", "n3"}};
  EXPECT_THAT(place({"n1", "n2", "n5", "n4"}, before), ElementsAre(ElementsAre("n2", "n1", "n4", "n5")))
      << "a spare takes the seat: the others' parity stays what it is";
}

TEST_F(PlacerTest, TooFewHoldNothing) {
  EXPECT_THAT(PlacerOf(peers_->membership(), 3)({"n1", "n2"}, {}), IsEmpty());
  EXPECT_THAT(PlacerOf(peers_->membership(), 2)({}, {}), IsEmpty());
}

}  // namespace
}  // namespace ckptd
