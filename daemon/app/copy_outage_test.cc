// A holder that is away for a while, as the job sees it: what its owner's sender refuses, and what is protected in the
// end. Saves come faster than copies are made. The holder is the test; time stands still until it moves it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "daemon/base/marks.h"
#include "daemon/format/snapshot_ref.h"
#include "daemon/job/protection.h"
#include "daemon/protect/copy_sender_fixture.h"

namespace ckptd {
namespace {

using std::chrono::seconds;

constexpr Nanos kSaveEvery = seconds(20);
constexpr Nanos kCopyTakes = seconds(45);
constexpr Nanos kNoticed = seconds(3);  // dialled in vain
constexpr uint32_t kSlots = 2;

// Rank 7 on "a" has its copies on "b".
class CopyOutageTest : public protect::CopySenderTest {
 protected:
  CopyOutageTest() {
    sealed_.clear();
    claims_[7].set_agent("a");
    protection_.Reset({}, {});
  }

  void Run(Nanos time, bool reachable) {
    for (Nanos end = clock_.Monotonic() + time; clock_.Monotonic() < end;) {
      reachable_ = reachable;
      if (reachable) away_since_ = clock_.Monotonic();
      Save();
      Coordinate();
      Hold();
      Pass(std::chrono::milliseconds(200));
    }
  }
  [[nodiscard]] const ProtectionMarks& marks() const { return protection_.marks(); }

  job::Protection protection_;

 private:
  // What an owner keeps is W, the protected step, and the target until it is given up.
  [[nodiscard]] bool Keeps(StepId step) const {
    const bool is_protected = step == marks().complete.step && marks().in_force();
    return step == watermark_ || is_protected || (step == marks().target.step && marks().target > marks().given_up);
  }
  void Save() {
    std::erase_if(sealed_, [this](const auto& slot) { return !Keeps(slot.first); });
    if (clock_.Monotonic() < next_save_ || sealed_.size() == kSlots) return;
    next_save_ = clock_.Monotonic() + kSaveEvery;
    watermark_ += 10;
    sealed_[watermark_] = {7};
  }
  void Coordinate() {
    for (const StepId step : std::exchange(refused_, {})) protection_.Raise({{}, {}, {1, step}, 0});
    const auto reports = Reports();
    const job::Holdings holdings{reports, claims_, 2, [](const std::string&) { return true; }};
    for (const auto& [agent, report] : reports) protection_.Heard(holdings, agent);
    job::Protection::Facts facts;
    facts.watermark = {1, watermark_};
    facts.owners_reported = facts.settled = true;
    if (protection_.Update(holdings, facts, {})) Tell();
  }
  [[nodiscard]] std::map<std::string, job::ReportPtr> Reports() const {
    auto owner = std::make_shared<v1::Report>();
    v1::RankReport* rank = owner->add_ranks();
    rank->set_rank(7);
    for (const auto& [step, ranks] : sealed_) SetRef({1, step}, rank->add_sealed());
    auto holder = std::make_shared<v1::Report>();
    v1::HeldCopies* copies = holder->add_copies();
    copies->set_rank(7);
    for (const StepId step : held_) SetRef({1, step}, copies->add_complete());
    return {{"a", owner}, {"b", holder}};
  }
  void Tell() {
    protection_.Told();
    auto state = std::make_shared<v1::State>();
    state->set_job("gpt");
    state->set_attempt(1);
    state->set_user("1000");
    state->set_copies(2);
    v1::HolderGroup* group = state->add_groups();
    for (const char* agent : {"a", "b"}) group->add_agents(agent);
    SetRef(marks().target, state->mutable_protecting());
    SetRef(marks().complete, state->mutable_protected_());
    SetRef(marks().given_up, state->mutable_unprotected());
    state->set_protection_turns(marks().turns);
    sender_->OnState(state);
    Settle();
  }
  // The other node: one move at a time.
  void Hold() {
    while (!calls_.offers.empty()) {
      const auto offer = Take(calls_.offers);
      reachable_ ? offer.answer(protect::TokenFor(3))
                 : offer.answer(Error(ErrorCode::AGENT_UNREACHABLE, "node b is silent"));
      Settle();
    }
    if (!calls_.sent.empty()) {
      moving_ = Take(calls_.sent);
      moved_at_ = clock_.Monotonic() + kCopyTakes;
    }
    if (!moving_) return;
    const Nanos now = clock_.Monotonic();
    if (moving_->move->cancelled) return End(Error(ErrorCode::CANCELLED, "cancelled here"));
    if (!reachable_ && now >= away_since_ + kNoticed) return End(Error(ErrorCode::TIMEOUT, "in vain"));
    if (reachable_ && now >= moved_at_) End(absl::OkStatus());
  }
  void End(const absl::Status& status) {
    const FakeMoved ended = *std::exchange(moving_, std::nullopt);
    ended.done(status);
    while (!calls_.seals.empty()) {
      const auto seal = Take(calls_.seals);
      held_.insert(seal.request.copy().snapshot().step());
      seal.answer(v1::SealResponse());
    }
    Settle();
  }

  using FakeMoved = protect::FakeCopyCalls::Moved;
  std::map<Rank, v1::RankClaim> claims_;
  StepId watermark_ = 0;
  Nanos next_save_{0};
  std::set<StepId> held_;
  bool reachable_ = true;
  Nanos away_since_{0};
  std::optional<FakeMoved> moving_;
  Nanos moved_at_{0};
};

TEST_F(CopyOutageTest, AfterItsHolderWasAwayForAWhileAJobIsProtectedAgain) {
  Run(seconds(100), true);
  ASSERT_TRUE(protection_.now());
  const ProtectionMarks before = marks();
  Run(seconds(45), false);
  EXPECT_GT(marks().given_up, before.complete) << "training does not wait for it";
  const ProtectionMarks away = marks();
  Run(seconds(120), true);
  EXPECT_TRUE(protection_.now());
  EXPECT_GT(marks().complete, away.target);
  EXPECT_EQ(marks().given_up, away.given_up) << "nor is it refused what it takes";
}

}  // namespace
}  // namespace ckptd
