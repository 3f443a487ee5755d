// Random sequences of calls against a simple model: the set of complete copies. It grows by one when Complete says OK;
// it shrinks by Delete, and by what a new copy takes the place of, which must be one that nobody needs. No other call,
// no failure and no restart changes it, and every copy in it is whole at every moment, whatever late writers do.

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "daemon/region/peer_test_util.h"

namespace ckptd::region {
namespace {

class PeerModel {
 public:
  explicit PeerModel(uint64_t seed) : random_(seed) { Restart(); }

  void Run(int calls) {
    for (int i = 0; i < calls && !::testing::Test::HasFailure(); ++i) {
      CallOne();
      Compare();
    }
  }

  [[nodiscard]] int completed() const { return completed_; }
  [[nodiscard]] int given_up() const { return given_up_; }
  [[nodiscard]] int fenced() const { return fenced_; }

 private:
  struct Open {
    PeerSpec spec;
    std::shared_ptr<PeerFill> fill;
  };

  uint64_t Upto(uint64_t n) { return random_() % n; }
  PeerStore& store() { return region_->peers(); }
  PeerSpec RandomSpec() { return Upto(6) == 0 ? CopySpec(7, 2 * kTestSlotBytes, 8) : CopySpec(); }

  void CallOne() {
    switch (Upto(12)) {
      case 0:
        return Restart();
      case 1:
        return Tell();
      case 2:
        return Delete();
      case 3:
        return Pin();
      case 4:
        return LateWrite();
      case 5:
        return Abort();
      case 6:
      case 7:
        return Complete();
      default:
        return Begin();
    }
  }

  // Everything but the directory is gone, what was told of the job too.
  void Restart() {
    fills_.clear();
    pins_.clear();
    region_.reset();
    region_ = OpenRegion(dir_.region());
    marks_.floor = 0;
    marks_.captured = marks_.protected_ = {};
    if (complete_.empty() && store().List().empty() && !store().Holds("gpt")) marks_.attempt = 0;
  }

  PeerMarks NextMarks() {
    PeerMarks next = marks_;
    if (next.attempt == 0 || Upto(15) == 0)
      next = {.attempt = next.attempt + 1, .protected_ = {}, .captured = {}, .floor = 1};
    if (Upto(2) == 0 && !complete_.empty()) next.captured = std::max(next.captured, Any());
    if (Upto(3) == 0 && !complete_.empty()) next.protected_ = std::max(next.protected_, Any());
    next.floor = std::max<StepId>(next.floor, Upto(3) == 0 ? step_ - Upto(10) : 1);
    return next;
  }

  SnapshotId Any() { return std::next(complete_.begin(), static_cast<long>(Upto(complete_.size())))->first; }

  void Tell() {
    if (!store().Holds("gpt")) return;
    const PeerMarks told = NextMarks();
    ASSERT_TRUE(store().Tell("gpt", told).ok());
    marks_ = told;
  }

  void Begin() {
    const PeerSpec spec = RandomSpec();
    ASSERT_TRUE(Prepare(store(), spec).ok());
    PeerMarks marks = NextMarks();
    if (Upto(10) == 0 && marks_.attempt > 1) return BeginTooLate(spec, marks);
    const SnapshotId id{marks.attempt, step_ += 1 + Upto(3)};
    auto fill = store().Begin(spec, id, marks);
    marks_ = marks;
    if (!fill.ok()) {
      const ErrorCode code = CodeOf(fill.status());
      EXPECT_TRUE(code == ErrorCode::BUSY || code == ErrorCode::BELOW_FLOOR) << fill.status();
      return;
    }
    Settle(1);
    if (Upto(4) != 0) fills_.clear();  // else a writer that was shut out lives on
    fills_.push_back({spec, *std::move(fill)});
  }

  void BeginTooLate(const PeerSpec& spec, PeerMarks marks) {
    marks.attempt = marks_.attempt - 1;
    EXPECT_EQ(CodeOf(store().Begin(spec, {marks.attempt, step_ + 1}, marks).status()), ErrorCode::FENCED);
    ++fenced_;
  }

  // What is gone was given up for a new copy: at most `most`, and none that anybody needs.
  void Settle(size_t most) {
    std::set<SnapshotId> now;
    for (const SnapshotId& id : CompleteIn(store())) now.insert(id);
    const std::map<SnapshotId, PeerSpec> before = complete_;  // with the new one, once it is complete
    for (const auto& [id, spec] : before) {
      if (now.contains(id)) continue;
      EXPECT_TRUE(MayBeMissed(id, before)) << ToString(id);
      complete_.erase(id);
      ++given_up_;
    }
    EXPECT_LE(before.size() - complete_.size(), most);
  }

  bool MayBeMissed(const SnapshotId& id, const std::map<SnapshotId, PeerSpec>& before) const {
    const bool live = id.attempt == marks_.attempt && id.step >= marks_.floor;
    const bool marked = id == marks_.captured || id == marks_.protected_;
    const bool other = before.contains(marks_.captured) || before.contains(marks_.protected_);
    const bool newest = id == before.rbegin()->first;
    return marks_.floor != 0 && !live && !marked && !pins_.contains(id) && (!newest || other);
  }

  void Complete() {
    if (fills_.empty()) return;
    Open& open = fills_[Upto(fills_.size())];
    const SnapshotId id = open.fill->place().id;
    const auto content = ContentOf(id, 7, open.fill->bytes().size());
    const bool whole = Upto(4) != 0;
    if (whole && !Receive(*open.fill, content).ok()) {
      EXPECT_TRUE(open.fill->fenced());
      ++fenced_;
    }
    absl::Status done = store().Complete(*open.fill, SealOf(id, content));
    if (!done.ok()) {
      EXPECT_TRUE(open.fill->fenced() || open.fill->missing() != 0) << done;
      return;
    }
    EXPECT_EQ(open.fill->missing(), 0u);
    ++completed_;
    complete_[id] = open.spec;
    Settle(4);
  }

  void Abort() {
    if (fills_.empty()) return;
    EXPECT_TRUE(store().Abort(*fills_[Upto(fills_.size())].fill).ok());
  }

  // By whoever still holds a fill, wanted or not. After Complete the sender writes no more: the receiver saw all of it.
  void LateWrite() {
    for (Open& open : fills_) {
      if (complete_.contains(open.fill->place().id)) continue;
      std::span<std::byte> bytes = open.fill->bytes();
      std::memset(bytes.data(), static_cast<int>(Upto(256)), bytes.size());
    }
  }

  void Delete() {
    if (complete_.empty() || Upto(4) != 0) return;
    const SnapshotId id = Any();
    EXPECT_TRUE(store().Delete("gpt", CopySpec().key(), id).ok());
    complete_.erase(id);
    pins_.erase(id);
  }

  void Pin() {
    pins_.clear();
    if (complete_.empty() || Upto(2) == 0) return;
    const SnapshotId id = Any();
    auto copy = store().OpenCopy("gpt", CopySpec().key(), id);
    ASSERT_TRUE(copy.ok());
    pins_.emplace(id, *std::move(copy));
  }

  void Compare() {
    std::vector<SnapshotId> expected;
    for (const auto& [id, spec] : complete_) expected.push_back(id);
    ASSERT_EQ(CompleteIn(store()), expected);
    for (const auto& [id, spec] : complete_) ASSERT_TRUE(IsWhole(store(), spec, id)) << ToString(id);
  }

  std::mt19937_64 random_;
  const TempDir dir_;
  std::unique_ptr<Region> region_;
  PeerMarks marks_;
  StepId step_ = 10;
  std::vector<Open> fills_;
  std::map<SnapshotId, PeerCopy> pins_;
  std::map<SnapshotId, PeerSpec> complete_;
  int completed_ = 0;
  int given_up_ = 0;
  int fenced_ = 0;
};

TEST(PeerStoreModel, RandomCallsNeverLoseACopyThatIsNeeded) {
  int completed = 0;
  int given_up = 0;
  int fenced = 0;
  for (uint64_t seed = 1; seed <= 8 && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    PeerModel model(seed);
    model.Run(600);
    completed += model.completed();
    given_up += model.given_up();
    fenced += model.fenced();
  }
  EXPECT_GT(completed, 100);
  EXPECT_GT(given_up, 50);
  EXPECT_GT(fenced, 20);
  RecordProperty("completed", completed);
  RecordProperty("given_up", given_up);
}

}  // namespace
}  // namespace ckptd::region
