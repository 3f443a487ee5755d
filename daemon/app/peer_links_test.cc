// What an agent's links are told of its membership. Nobody answers at the other end.
#include "daemon/app/peer_links.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/clock.h"
#include "daemon/membership/membership.h"
#include "daemon/os/posix_files.h"
#include "daemon/os/tcp.h"

namespace ckptd {
namespace {

using membership::Member;

// Says what the test says, and counts how often somebody asks how this node stands: each link does when it is judged.
class CountedSource final : public membership::Source {
 public:
  absl::Status Start(membership::SourceSink& sink) override {
    sink_ = &sink;
    return absl::OkStatus();
  }
  [[nodiscard]] membership::Standing StandingAt(Nanos) const override {
    ++asked_;
    return {"a", 1, absl::OkStatus()};
  }
  void Say(const std::vector<Member>& members) { sink_->Said(members); }
  [[nodiscard]] int TakeAsked() const { return std::exchange(asked_, 0); }

 private:
  membership::SourceSink* sink_ = nullptr;
  mutable int asked_ = 0;
};

class PeerLinksTest : public ::testing::Test {
 protected:
  static constexpr int kPeers = 6;

  PeerLinksTest() {
    for (int i = 0; i < kPeers; ++i) {
      ends_.push_back(*TcpListener::Listen("127.0.0.1:0"));
      members_.push_back({absl::StrCat("n", i), absl::StrCat("127.0.0.1:", ends_.back().port()), {}, 1});
    }
    EXPECT_TRUE(membership_.Start().ok());
    source_->Say(members_);
    PeersConfig config;
    config.tls = PeersTlsChoice::kPlaintextOnLoopback;
    config.address = "127.0.0.1";
    config.port = 0;
    config.bulk_port = 0;
    links_ = std::make_unique<PeerLinks>(*loop_, SystemClock(), PosixFiles(), config, membership_,
                                         PeerLinks::Self{"a", 5}, PeerLinks::Handler{{}, [] {}});
    links_->Start();
    for (const Member& member : members_) links_->Send(member.name, std::make_shared<v1::State>());
    EXPECT_TRUE(loop_->RunOnce(Nanos(0)).ok());
    EXPECT_TRUE(links_->Problems().empty());
    (void)source_->TakeAsked();
  }

  std::unique_ptr<Loop> loop_ = *Loop::Create(SystemClock(), 64);
  std::vector<TcpListener> ends_;
  std::vector<Member> members_;
  CountedSource* source_ = new CountedSource;
  membership::Membership membership_{SystemClock(), std::unique_ptr<membership::Source>(source_)};
  std::unique_ptr<PeerLinks> links_;
};

// In a cluster that starts each member does: what each costs must not grow with their number.
TEST_F(PeerLinksTest, AMemberThatSaysItsDomainsIsNoReasonToJudgeAllLinksAnew) {
  for (const Member& member : members_) membership_.Learn({{member.name, {{"rack", "r1"}}}});
  EXPECT_LE(source_->TakeAsked(), kPeers);
}

TEST_F(PeerLinksTest, AnotherGenerationAndAnotherAddressAre) {
  members_[0].generation = 2;
  source_->Say(members_);
  EXPECT_GT(source_->TakeAsked(), kPeers);
  members_[0].address = "127.0.0.1:1";
  source_->Say(members_);
  EXPECT_GE(source_->TakeAsked(), kPeers);
}

}  // namespace
}  // namespace ckptd
