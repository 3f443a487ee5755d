#include "daemon/job/who_has.h"

#include <memory>

#include "daemon/format/snapshot_ref.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ckptd::job {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

constexpr SnapshotId kTen{1, 10};
constexpr SnapshotId kTwenty{1, 20};

class WhoHasTest : public testing::Test {
 protected:
  // n0 has rank 0 itself, a copy of rank 1, and parity of step 20.
  WhoHasTest() {
    v1::RankReport* own = n0_->add_ranks();
    own->set_rank(0);
    SetRef(kTen, own->add_sealed());
    SetRef(kTwenty, own->add_sealed());
    v1::HeldCopies* copies = n0_->add_copies();
    copies->set_rank(1);
    SetRef(kTen, copies->add_complete());
    SetRef(kTwenty, n0_->add_parity()->add_complete());
    v1::RankReport* other = n1_->add_ranks();
    other->set_rank(1);
    SetRef(kTen, other->add_sealed());
    SetRef(kTen, other->add_sealed());
    reports_ = {{"n0", n0_}, {"n1", n1_}};
  }
  template <typename Part>
  Said<Part> In(const Part& part, const char* agent) {
    return {&part, &reports_.find(agent)->first};
  }

  std::shared_ptr<v1::Report> n0_ = std::make_shared<v1::Report>();
  std::shared_ptr<v1::Report> n1_ = std::make_shared<v1::Report>();
  std::map<std::string, ReportPtr> reports_;
};

TEST_F(WhoHasTest, EachSnapshotHasItsOwn) {
  const HadBySnapshot had = WhoHasWhat(reports_, [](const std::string&) { return true; });
  ASSERT_THAT(had, SizeIs(2));
  EXPECT_THAT(had.at(kTen).sealed, ElementsAre(In(n0_->ranks(0), "n0"), In(n1_->ranks(0), "n1")))
      << "what is named twice is there once";
  EXPECT_THAT(had.at(kTen).copies, ElementsAre(In(n0_->copies(0), "n0")));
  EXPECT_THAT(had.at(kTen).parity, IsEmpty());
  EXPECT_THAT(had.at(kTwenty).sealed, ElementsAre(In(n0_->ranks(0), "n0")));
  EXPECT_THAT(had.at(kTwenty).copies, IsEmpty());
  EXPECT_THAT(had.at(kTwenty).parity, ElementsAre(In(n0_->parity(0), "n0")));
}

TEST_F(WhoHasTest, OnlyWhoCountsIsAsked) {
  const HadBySnapshot had = WhoHasWhat(reports_, [](const std::string& agent) { return agent == "n1"; });
  ASSERT_THAT(had, SizeIs(1));
  EXPECT_THAT(had.at(kTen).sealed, ElementsAre(In(n1_->ranks(0), "n1")));
  EXPECT_THAT(had.at(kTen).copies, IsEmpty());
}

}  // namespace
}  // namespace ckptd::job
