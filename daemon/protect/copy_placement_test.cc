#include "daemon/protect/copy_placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "daemon/base/clock.h"
#include "daemon/membership/fixed_sources.h"
#include "daemon/membership/membership.h"

namespace ckptd::protect {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

TEST(HoldersOf, AreTheNextOnesOfTheRing) {
  const Groups groups = {{"a", "b", "c"}, {"d", "e"}};
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
    membership::Self self;
    self.name = "n1";
    self.port = 9465;
    auto source = membership::MakeStaticSource(self, "n1 rack=r1; n2 rack=r1; n3 rack=r2; n4 rack=r2");
    ASSERT_TRUE(source.ok()) << source.status();
    membership_ = std::make_unique<membership::Membership>(SystemClock(), *std::move(source));
    ASSERT_TRUE(membership_->Start().ok());
  }
  std::unique_ptr<membership::Membership> membership_;
};

TEST_F(PlacerTest, CopiesLieInOtherRacksThanTheirOwners) {
  const auto place = PlacerOf(*membership_, 2);
  const Groups groups = place({"n1", "n2", "n3", "n4"}, {});
  ASSERT_EQ(groups.size(), 2u);
  const auto rack = [](const std::string& node) { return node <= "n2" ? 1 : 2; };
  for (const auto& group : groups) {
    ASSERT_EQ(group.size(), 2u);
    EXPECT_NE(rack(group[0]), rack(group[1])) << group[0] << " and " << group[1];
  }
  EXPECT_EQ(place({"n4", "n2", "n3", "n1"}, {}), groups) << "whatever order they come in";
}

TEST_F(PlacerTest, WhoStaysKeepsWhatCanBeKept) {
  const auto place = PlacerOf(*membership_, 2);
  const Groups before = {{"n1", "n3"}, {"n2", "n4"}};
  const Groups after = place({"n1", "n3", "n2", "n5"}, before);
  ASSERT_EQ(after.size(), 2u);
  EXPECT_THAT(after[0], UnorderedElementsAre("n1", "n3"));
  EXPECT_THAT(after[1], UnorderedElementsAre("n2", "n5")) << "a spare takes the seat, known to the membership or not";
}

TEST_F(PlacerTest, ParityHasGroupsOfItsOwnWidth) {
  const auto place = ParityPlacerOf(*membership_, 3, 1);
  EXPECT_THAT(place({"n1", "n2", "n3", "n4"}, {}), ElementsAre(UnorderedElementsAre("n1", "n2", "n3", "n4")));
  EXPECT_THAT(place({"n1", "n3"}, {}), ElementsAre(UnorderedElementsAre("n1", "n3"))) << "with less data";
  EXPECT_THAT(place({"n1"}, {}), IsEmpty());
  const Groups before = {{"n2", "n1", "n4", "n3"}};
  EXPECT_THAT(place({"n1", "n2", "n5", "n4"}, before), ElementsAre(ElementsAre("n2", "n1", "n4", "n5")))
      << "a spare takes the seat: the others' parity stays what it is";
}

TEST_F(PlacerTest, TooFewHoldNothing) {
  EXPECT_THAT(PlacerOf(*membership_, 3)({"n1", "n2"}, {}), IsEmpty());
  EXPECT_THAT(PlacerOf(*membership_, 2)({}, {}), IsEmpty());
}

}  // namespace
}  // namespace ckptd::protect
