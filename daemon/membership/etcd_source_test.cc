// EtcdSource with an etcd in memory: its threads and the loop (TSan runs this). The real etcd: etcd_client_test.cc.
#include "daemon/membership/etcd_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/membership/membership.h"
#include "daemon/membership/testing/fake_etcd.h"

namespace ckptd::membership {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kPrefix[] = "/ckptd/test/";

class EtcdSourceTest : public ::testing::Test {
 protected:
  EtcdSourceTest() : loop_(*Loop::Create(SystemClock(), 4)) {}

  std::unique_ptr<Membership> Join(const std::string& name) {
    EtcdSettings settings{{name, "", 9465, {{"rack", "r1"}}, 0}, kPrefix, seconds(3)};
    auto source = std::make_unique<EtcdSource>(*loop_, store_.Connect(), settings);
    auto membership = std::make_unique<Membership>(SystemClock(), std::move(source));
    EXPECT_TRUE(membership->Start().ok());
    return membership;
  }

  template <typename Condition>
  [[nodiscard]] bool Until(Condition condition) {
    const Nanos deadline = SystemClock().Monotonic() + seconds(30);
    while (!condition() && SystemClock().Monotonic() < deadline) EXPECT_TRUE(loop_->RunOnce(milliseconds(50)).ok());
    return condition();
  }
  static std::vector<std::string> Names(const Membership& membership) {
    std::vector<std::string> names;
    for (const Member& member : membership.view()->members) names.push_back(member.name);
    return names;
  }
  [[nodiscard]] bool UntilNames(const Membership& membership, const std::vector<std::string>& names) {
    return Until([&] { return Names(membership) == names && membership.view()->source.ok(); });
  }

  FakeStore store_;
  std::unique_ptr<Loop> loop_;
};

TEST_F(EtcdSourceTest, EachSeesAllAndIsAdmittedByAll) {
  auto a = Join("a");
  auto b = Join("b");
  ASSERT_TRUE(UntilNames(*a, {"a", "b"}) && UntilNames(*b, {"a", "b"}));
  EXPECT_EQ(a->view()->members[1].address, "b:9465");
  EXPECT_EQ(a->view()->members[1].domains.at("rack"), "r1");
  ASSERT_TRUE(Until([&] { return b->self().status.ok(); }));
  EXPECT_TRUE(a->Admit("b", b->self().generation).ok());
  EXPECT_EQ(a->view()->Find("b")->generation, b->self().generation);
}

TEST_F(EtcdSourceTest, AnEtcdThatIsGoneKeepsTheViewAndIsToldUntilItIsBack) {
  auto a = Join("a");
  auto b = Join("b");
  ASSERT_TRUE(UntilNames(*a, {"a", "b"}) && Until([&] { return a->self().status.ok(); }));
  const uint64_t number = a->view()->number;
  const uint64_t generation = a->self().generation;
  store_.SetDown(true);
  ASSERT_TRUE(Until([&] { return !a->view()->source.ok(); }));
  EXPECT_THAT(Names(*a), ElementsAre("a", "b"));
  const Nanos over = SystemClock().Monotonic() + seconds(7);
  ASSERT_TRUE(Until([&] { return !a->self().status.ok() || SystemClock().Monotonic() > over; }));
  EXPECT_TRUE(a->self().status.ok()) << a->self().status;
  EXPECT_EQ(a->self().generation, generation);
  store_.SetDown(false);
  ASSERT_TRUE(UntilNames(*a, {"a", "b"}));
  EXPECT_EQ(a->view()->number, number);
  EXPECT_EQ(a->self().generation, generation) << "the lease lived on in etcd";
}

TEST_F(EtcdSourceTest, ALostLeaseIsAHigherGeneration) {
  auto a = Join("a");
  auto b = Join("b");
  ASSERT_TRUE(UntilNames(*b, {"a", "b"}) && Until([&] { return a->self().status.ok(); }));
  const uint64_t before = a->self().generation;
  EXPECT_TRUE(b->Admit("a", before).ok());
  store_.ExpireLeases();
  ASSERT_TRUE(Until([&] { return a->self().status.ok() && a->self().generation > before; }));
  ASSERT_TRUE(Until([&] {
    const Member* there = b->view()->Find("a");
    return there != nullptr && there->generation == a->self().generation;
  }));
  EXPECT_EQ(CodeOf(b->Admit("a", before)), ErrorCode::FENCED);
  EXPECT_TRUE(b->Admit("a", a->self().generation).ok());
}

TEST_F(EtcdSourceTest, ASecondProcessOfANameTakesItOverAndTheFirstSaysSo) {
  auto old = Join("a");
  ASSERT_TRUE(Until([&] { return old->self().status.ok(); }));
  const uint64_t before = old->self().generation;
  auto young = Join("a");
  ASSERT_TRUE(Until([&] { return young->self().status.ok() && !old->self().status.ok(); }));
  EXPECT_EQ(CodeOf(old->self().status), ErrorCode::FENCED);
  EXPECT_THAT(old->self().status.message(), HasSubstr("another process registered under this name"));
  EXPECT_GT(young->self().generation, before);
  ASSERT_TRUE(Until([&] {
    const Member* a = young->view()->Find("a");
    return a != nullptr && a->generation == young->self().generation;
  }));
  EXPECT_EQ(CodeOf(young->Admit("a", before)), ErrorCode::FENCED);
}

TEST_F(EtcdSourceTest, CompactionIsANewListAndLosesNothing) {
  auto a = Join("a");
  ASSERT_TRUE(UntilNames(*a, {"a"}));
  const int lists = store_.lists();
  store_.Compact();
  auto b = Join("b");
  ASSERT_TRUE(UntilNames(*a, {"a", "b"}));
  EXPECT_GE(store_.lists(), lists + 2) << "one of a, one of b";
}

TEST_F(EtcdSourceTest, AStoreFromThePastIsRefusedAndTheViewStays) {
  auto a = Join("a");
  auto b = Join("b");
  ASSERT_TRUE(UntilNames(*a, {"a", "b"}));
  store_.RestoreBackup();
  ASSERT_TRUE(Until([&] { return CodeOf(a->view()->source) == ErrorCode::REFUSED; }));
  EXPECT_THAT(a->view()->source.message(), HasSubstr("etcd went back from revision"));
  EXPECT_THAT(Names(*a), ElementsAre("a", "b"));
}

TEST_F(EtcdSourceTest, NonsenseUnderThePrefixIsRefusedByName) {
  store_.Put(std::string(kPrefix) + "wild", "{");
  store_.Put(std::string(kPrefix) + "../x", R"({"address":"h:1"})");
  auto a = Join("a");
  ASSERT_TRUE(UntilNames(*a, {"a"}));
  ASSERT_EQ(a->view()->refusals, 2U);
  std::string why;
  for (const absl::Status& refused : a->view()->refused) absl::StrAppend(&why, refused.message(), "\n");
  EXPECT_THAT(why, HasSubstr("node wild: address \"\""));
  EXPECT_THAT(why, HasSubstr("node name \"../x\""));
}

TEST_F(EtcdSourceTest, WhoeverWaitsForEtcdCanGo) {
  store_.SetDown(true);
  auto a = Join("a");
  ASSERT_TRUE(Until([&] { return !a->view()->source.ok(); }));
  EXPECT_EQ(a->view()->number, 0U);
  EXPECT_EQ(CodeOf(a->self().status), ErrorCode::REFUSED);
  a.reset();
}

TEST_F(EtcdSourceTest, ANameThatIsNoneIsAnErrorOfTheSettings) {
  EtcdSettings settings{{"a/b", "", 9465, {}, 0}, kPrefix, seconds(3)};
  Membership membership(SystemClock(), std::make_unique<EtcdSource>(*loop_, store_.Connect(), settings));
  EXPECT_EQ(CodeOf(membership.Start()), ErrorCode::INVALID_ARGUMENT);
}

}  // namespace
}  // namespace ckptd::membership
