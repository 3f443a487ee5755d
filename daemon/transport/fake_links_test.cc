// The network of the other rooms' tests does what it says.
#include "daemon/transport/testing/fake_links.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"

namespace ckptd::transport {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class Node final : public LinkSink {
 public:
  Node(FakeNetwork& network, const std::string& name, const std::vector<PeerNode>& peers)
      : name_(name), links_(network.Join(name, name + "-agent", *this)) {
    links_->SetPeers(peers);
  }
  void Say(const std::string& to, const std::string& job, uint64_t floor) {
    auto state = std::make_shared<v1::State>();
    state->set_job(job);
    state->set_coordinator(name_ + "-agent");
    state->set_floor(floor);
    EXPECT_TRUE(links_->Send(to, LinkMessage(std::move(state))).ok());
  }
  void Received(const std::string& peer, const LinkMessage& message) override {
    heard.push_back(absl::StrCat(peer, " ", message.job(), " ", message.state()->floor()));
  }
  Links& links() { return *links_; }
  void Leave() { links_.reset(); }

  std::vector<std::string> heard;

 private:
  const std::string name_;
  std::unique_ptr<Links> links_;
};

class FakeLinksTest : public ::testing::Test {
 protected:
  FakeNetwork network_{1};
  Node a_{network_, "a", {{"a", ""}, {"b", ""}}};
  Node b_{network_, "b", {{"a", ""}}};
};

TEST_F(FakeLinksTest, CarriesTheNewest) {
  for (uint64_t floor = 1; floor <= 5; ++floor) a_.Say("b", "gpt", floor);
  b_.Say("a", "gpt", 7);
  EXPECT_THAT(b_.heard, IsEmpty());
  EXPECT_EQ(network_.Run(Nanos(0)), 2U);
  EXPECT_THAT(b_.heard, ElementsAre("a gpt 5"));
  EXPECT_THAT(a_.heard, ElementsAre("b gpt 7"));
  const PeerCondition condition = a_.links().Conditions().at(0);
  EXPECT_EQ(condition.name, "b");
  EXPECT_EQ(condition.agent, "b-agent");
  EXPECT_EQ(condition.replaced_messages, 4U);
  EXPECT_TRUE(condition.connected);
}

TEST_F(FakeLinksTest, LosesAndDoublesAsManyAsItIsTold) {
  network_.SetFaults({0.25, 0.5, {}, {}});
  constexpr size_t kSent = 4000;
  for (uint64_t floor = 0; floor < kSent; ++floor) {
    a_.Say("b", "gpt", floor);
    network_.Run(Nanos(0));
  }
  const std::set<std::string> once(b_.heard.begin(), b_.heard.end());
  EXPECT_NEAR(static_cast<double>(once.size()), 0.75 * kSent, 150);
  EXPECT_NEAR(static_cast<double>(b_.heard.size()), 1.5 * 0.75 * kSent, 200);
}

TEST_F(FakeLinksTest, DelaysUntilTheyOvertakeEachOther) {
  network_.SetFaults({0, 0, milliseconds(10), milliseconds(50)});
  for (uint64_t floor = 0; floor < 20; ++floor) {
    a_.Say("b", "gpt", floor);
    network_.Run(Nanos(0));
  }
  EXPECT_THAT(b_.heard, IsEmpty());
  ASSERT_TRUE(network_.NextDue().has_value());
  EXPECT_GE(*network_.NextDue(), milliseconds(10));
  EXPECT_EQ(network_.Run(milliseconds(9)), 0U);
  EXPECT_EQ(network_.Run(milliseconds(50)), 20U);
  EXPECT_FALSE(network_.NextDue().has_value());
  EXPECT_FALSE(std::is_sorted(b_.heard.begin(), b_.heard.end()));
}

TEST_F(FakeLinksTest, ACutKeepsTheNewestAndLosesWhatWasOnItsWay) {
  network_.SetFaults({0, 0, milliseconds(10), milliseconds(10)});
  a_.Say("b", "gpt", 1);
  network_.Run(Nanos(0));
  network_.Cut("b", "a", true);
  a_.Say("b", "gpt", 2);
  a_.Say("b", "gpt", 3);
  EXPECT_EQ(network_.Run(milliseconds(20)), 0U);
  EXPECT_FALSE(a_.links().Conditions().at(0).connected);
  network_.Cut("a", "b", false);
  network_.Run(milliseconds(20));
  EXPECT_EQ(network_.Run(milliseconds(30)), 1U);
  EXPECT_THAT(b_.heard, ElementsAre("a gpt 3"));
}

TEST_F(FakeLinksTest, WhoLeavesAndJoinsAgainHearsWhatIsSaidAfterwards) {
  b_.Leave();
  a_.Say("b", "gpt", 1);
  EXPECT_EQ(network_.Run(Nanos(0)), 0U);
  Node again(network_, "b", {{"a", ""}});
  a_.Say("b", "gpt", 2);
  EXPECT_EQ(network_.Run(Nanos(0)), 1U);
  EXPECT_THAT(again.heard, ElementsAre("a gpt 2"));
}

TEST_F(FakeLinksTest, WhoIsNoPeerIsNeitherSpokenToNorHeard) {
  b_.links().SetPeers({});
  a_.Say("b", "gpt", 1);
  EXPECT_EQ(network_.Run(Nanos(0)), 0U);
  EXPECT_EQ(CodeOf(b_.links().Send("a", LinkMessage(std::make_shared<v1::State>()))), ErrorCode::NOT_FOUND);
}

TEST_F(FakeLinksTest, ASeedMakesTheSameRunAgain) {
  const auto run = [](uint64_t seed) {
    FakeNetwork network(seed);
    Node a(network, "a", {{"b", ""}});
    Node b(network, "b", {{"a", ""}});
    network.SetFaults({0.3, 0.3, Nanos(0), milliseconds(5)});
    for (uint64_t floor = 0; floor < 50; ++floor) {
      a.Say("b", "gpt", floor);
      network.Run(milliseconds(floor));
    }
    return b.heard;
  };
  EXPECT_EQ(run(3), run(3));
  EXPECT_NE(run(3), run(4));
}

}  // namespace
}  // namespace ckptd::transport
