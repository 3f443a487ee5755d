// A sender of copies, rank 7 on node "a", and its holder "b", which the test plays; time stands still until it moves
// it.
#ifndef CKPTD_DAEMON_PROTECT_COPY_SENDER_FIXTURE_H_
#define CKPTD_DAEMON_PROTECT_COPY_SENDER_FIXTURE_H_

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/format/snapshot_ref.h"
#include "daemon/os/posix_files.h"
#include "daemon/protect/copy_sender.h"
#include "daemon/protect/copy_test_util.h"
#include "daemon/region/region_test_util.h"
#include "daemon/region/slot_file.h"

namespace ckptd::protect {

inline v1::OfferResponse TokenFor(uint32_t slot, char byte = 't') {
  v1::OfferResponse response;
  response.set_token(std::string(16, byte));
  response.set_slot(slot);
  return response;
}

class CopySenderTest : public ::testing::Test {
 protected:
  CopySenderTest() {
    sealed_[10] = {7};
    auto file = region::SlotFile::Create(PosixFiles(), dir_.path(), 4096, {});
    EXPECT_TRUE(file.ok()) << file.status();
    file_ = *std::move(file);
  }

  CopySender::Handler MakeHandler() {
    return {[this] { return linked_ ? &calls_ : nullptr; }, [this](const SnapshotId& id) { return sealed_[id.step]; },
            [this](Rank rank, const SnapshotId& id) { return Open(rank, id); },
            [this](const SnapshotId& id) { refused_.push_back(id.step); },
            [this](const absl::Status& status, uint64_t bytes) {
              ended_.push_back(absl::StrCat(InfoOf(CodeOf(status)).name, " ", bytes));
            }};
  }
  absl::StatusOr<HeldSnapshot> Open(Rank rank, const SnapshotId& id) {
    if (!sealed_[id.step].contains(rank)) return Error(ErrorCode::NOT_FOUND, "in no slot");
    region::LayoutSpec spec = region::TestSpec();
    spec.rank = rank;
    spec.world = 16;
    auto head = region::MakeCtlHead(spec, 1, 1, 1);
    EXPECT_TRUE(head.ok()) << head.status();
    RecordHead owner{};
    owner.epoch = 1;
    owner.attempt = id.attempt;
    owner.step = id.step;
    auto record = region::MakeRecord(*head, owner, {1, 2, 3});
    EXPECT_TRUE(record.ok()) << record.status();
    ++pins_;
    std::shared_ptr<void> keep(nullptr, [this](void*) {
      --pins_;
      if (unpinned_) unpinned_();
    });
    return HeldSnapshot{*head, std::make_shared<region::SlotRecord>(*record), file_, std::move(keep)};
  }
  // `owner`: who has rank 7 by the decision; without one none was made.
  void Protect(StepId step, StepId complete = 0, const std::string& owner = "",
               v1::State::Phase phase = v1::State::GATHER) {
    auto state = std::make_shared<v1::State>();
    state->set_job("gpt");
    state->set_attempt(1);
    state->set_user("1000");
    state->set_copies(2);
    state->set_phase(phase);
    state->add_groups()->mutable_agents()->Add("a");
    state->mutable_groups(0)->mutable_agents()->Add("b");
    if (!owner.empty()) {
      v1::RankClaim* claim = state->mutable_decision()->add_ranks();
      claim->set_rank(7);
      claim->set_agent(owner);
    }
    if (step != 0) SetRef({1, step}, state->mutable_protecting());
    if (complete != 0) SetRef({1, complete}, state->mutable_protected_());
    sender_->OnState(state);
    Settle();
  }
  void Settle() {
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(loop_->RunOnce(Nanos(0)).ok());
  }
  void Pass(Nanos time) {
    clock_.Advance(time);
    Settle();
  }
  // Offer and Move of the next one, which the holder takes.
  FakeCopyCalls::Moved Begin() {
    const auto offer = Take(calls_.offers);
    if (offer.answer) offer.answer(TokenFor(3));
    return Take(calls_.sent);
  }

  const region::TempDir dir_;
  std::shared_ptr<region::SlotFile> file_;
  FakeClock clock_;
  std::unique_ptr<Loop> loop_ = *Loop::Create(clock_, 64);
  FakeCopyCalls calls_;
  bool linked_ = true;
  std::map<StepId, std::set<Rank>> sealed_;
  int pins_ = 0;
  std::function<void()> unpinned_;
  std::vector<std::string> ended_;
  std::vector<StepId> refused_;
  std::unique_ptr<CopySender> sender_ = std::make_unique<CopySender>(*loop_, clock_, "gpt", "a", MakeHandler());
};

}  // namespace ckptd::protect

#endif  // CKPTD_DAEMON_PROTECT_COPY_SENDER_FIXTURE_H_
