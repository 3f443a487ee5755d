// What a peer may not do with the steps that it names in an Offer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/protect/copy_keeper_fixture.h"

namespace ckptd::protect {
namespace {

using region::CompleteIn;
using ::testing::ElementsAre;

class CopyMarksTest : public CopyKeeperTest {
 protected:
  // Steps that no coordinator told, of the right attempt.
  static v1::OfferRequest Nonsense(const SnapshotId& id) {
    v1::OfferRequest request = OfferOf(id);
    request.mutable_marks()->set_floor(UINT64_MAX);
    SetRef({1, UINT64_MAX - 1}, request.mutable_marks()->mutable_captured());
    SetRef({1, UINT64_MAX - 2}, request.mutable_marks()->mutable_protected_());
    return request;
  }
  // Of rank 5, which is on "c".
  static v1::OfferRequest Other(const SnapshotId& id) {
    v1::OfferRequest request = OfferOf(id);
    request.mutable_copy()->set_rank(5);
    return request;
  }
  void Know(StepId floor, const SnapshotId& captured, const SnapshotId& complete) {
    v1::CopyMarks marks;
    marks.set_floor(floor);
    SetRef(captured, marks.mutable_captured());
    SetRef(complete, marks.mutable_protected_());
    Hear(marks);
  }
};

TEST_F(CopyMarksTest, StepsThatNobodyToldShutNoOtherRankOut) {
  ASSERT_NO_FATAL_FAILURE(Bring(kTen));
  (void)OfferOnce(Nonsense(kTwenty));
  const auto other = Offer(Other(kTwenty), "c");
  EXPECT_TRUE(other.ok()) << other.status();
  EXPECT_TRUE(Offer(OfferOf(kThirty)).ok()) << "nor its own later ones";
}

TEST_F(CopyMarksTest, StepsThatNobodyToldGiveUpNothing) {
  ASSERT_NO_FATAL_FAILURE(Bring(kTen));
  ASSERT_NO_FATAL_FAILURE(Bring(kTwenty));
  Know(21, kTwenty, kTen);
  for (const SnapshotId& id : {kThirty, SnapshotId{1, UINT64_MAX}})
    EXPECT_EQ(CodeOf(OfferOnce(Nonsense(id)).status()), ErrorCode::BUSY) << id.step << ": both slots are needed";
  EXPECT_THAT(CompleteIn(store()), ElementsAre(kTen, kTwenty));
  EXPECT_EQ(changes_, 2) << "when they came";
}

// STATE comes to each node in its own time. Who is asked first by its owner says so, and is asked again.
TEST_F(CopyMarksTest, AnOwnerThatHasHeardMoreIsToAskAgain) {
  ASSERT_NO_FATAL_FAILURE(Bring(kTwenty));
  Decide(2, "a");
  v1::OfferRequest request = OfferOf(kTen, 2);  // was rolled back to
  const v1::CopyMarks ahead = request.marks();
  EXPECT_EQ(CodeOf(OfferOnce(request).status()), ErrorCode::BUSY) << OfferOnce(request).status();
  request.mutable_marks()->Clear();
  EXPECT_EQ(CodeOf(OfferOnce(request).status()), ErrorCode::SUPERSEDED) << "it has heard no more than this node";
  Hear(ahead);
  *request.mutable_marks() = ahead;
  EXPECT_TRUE(OfferOnce(request).ok()) << OfferOnce(request).status();
}

}  // namespace
}  // namespace ckptd::protect
