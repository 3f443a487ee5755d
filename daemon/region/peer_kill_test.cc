// What a starting agent makes of copies after every kill.
//
// At labelled points the work runs in a child by exec, as in adopt_kill_test.cc: the directory travels in the
// environment. Everywhere else a forked child goes on storing copies and says through a pipe what was acknowledged,
// until it is killed at some instruction.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <random>

#include "absl/strings/str_cat.h"
#include "daemon/region/peer_test_util.h"

namespace ckptd::region {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
constexpr const char* kPeerDirVariable = "CKPTD_PEER_TEST_DIR";

// What holds after any kill.
void ExpectSound(Region& region, const PeerSpec& spec) {
  PeerStore& store = region.peers();
  for (const PeerEntry& entry : store.List()) {
    EXPECT_TRUE(entry.complete && !entry.verified && !entry.held) << ToString(entry.id);
    EXPECT_EQ(entry.parity != nullptr, spec.kind == PeerKind::kParity);
    EXPECT_TRUE(IsWhole(store, spec, entry.id)) << "shown, so not torn: " << ToString(entry.id);
  }
  EXPECT_EQ(store.Usage().held, region.quota().used());
  EXPECT_THAT(region.adopted().jobs, IsEmpty()) << "copies make no job of this node";
}

struct PeerKill {
  const char* point;
  int nth;
  bool sealed;  // the kill comes after the switch
};

class KilledCopy : public ::testing::TestWithParam<std::tuple<PeerKill, PeerKind>> {
 protected:
  KilledCopy() {
    ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
    if (getenv(kPeerDirVariable) == nullptr) {
      own_.emplace();
      setenv(kPeerDirVariable, own_->region().c_str(), 1);
    }
    region_dir_ = getenv(kPeerDirVariable);
  }
  ~KilledCopy() override {
    if (own_) unsetenv(kPeerDirVariable);
  }

  std::optional<TempDir> own_;
  std::string region_dir_;
  const PeerSpec spec_ = std::get<1>(GetParam()) == PeerKind::kCopy ? CopySpec() : ParitySpec();
};

void StoreThree(const std::string& dir, const PeerSpec& spec, const PeerKill& kill) {
  setenv("CKPTD_FAILPOINTS", absl::StrCat(kill.point, "=kill@", kill.nth).c_str(), 1);
  auto region = OpenRegion(dir);
  (void)Store(region->peers(), spec, {1, 10}, Marks(1));
  (void)Store(region->peers(), spec, {1, 20}, Marks(1, 10, 10));
  (void)Store(region->peers(), spec, {1, 30}, Marks(1, 20, 20));
}

// The third copy takes the first one's slot.
TEST_P(KilledCopy, WhatWasAcknowledgedIsThereAndWhatIsTornIsNot) {
  const PeerKill& kill = std::get<0>(GetParam());
  EXPECT_EXIT(StoreThree(region_dir_, spec_, kill), ::testing::KilledBySignal(SIGKILL), "");
  auto region = OpenRegion(region_dir_);
  ExpectSound(*region, spec_);
  if (kill.sealed)
    EXPECT_THAT(CompleteIn(region->peers()), ElementsAre(SnapshotId{1, 20}, SnapshotId{1, 30}));
  else
    EXPECT_THAT(CompleteIn(region->peers()), ElementsAre(SnapshotId{1, 20}));
  ASSERT_TRUE(Store(region->peers(), spec_, {1, 40}, Marks(1, 30, 30)).ok());
  EXPECT_TRUE(IsWhole(region->peers(), spec_, {1, kill.sealed ? 30u : 20u}));
}

INSTANTIATE_TEST_SUITE_P(Points, KilledCopy,
                         ::testing::Combine(::testing::Values(PeerKill{"region.record.before", 3, false},
                                                              PeerKill{"region.record.flags", 3, false},
                                                              PeerKill{"region.record.middle", 3, false},
                                                              PeerKill{"region.record.after", 3, false},
                                                              PeerKill{"region.seal.after", 3, true}),
                                            ::testing::Values(PeerKind::kCopy, PeerKind::kParity)));

class KilledMaking : public KilledCopy {};

TEST_P(KilledMaking, MemoryThatWasBeingMadeIsGivenBack) {
  EXPECT_EXIT(StoreThree(region_dir_, spec_, std::get<0>(GetParam())), ::testing::KilledBySignal(SIGKILL), "");
  auto region = OpenRegion(region_dir_);
  ExpectSound(*region, spec_);
  EXPECT_THAT(CompleteIn(region->peers()), IsEmpty());
  const bool linked = std::get<0>(GetParam()).sealed;
  EXPECT_EQ(region->peers().Ready(spec_), linked);
  if (!linked) {
    EXPECT_EQ(NamesIn(region_dir_), (std::set<std::string>{".id", ".lock"})) << "no debris";
  }
  EXPECT_TRUE(Store(region->peers(), spec_, {1, 10}, Marks(1)).ok());
}

INSTANTIATE_TEST_SUITE_P(Points, KilledMaking,
                         ::testing::Combine(::testing::Values(PeerKill{"region.reserve", 1, false},
                                                              PeerKill{"region.reserve", 2, false},
                                                              PeerKill{"region.ctl.half", 1, false},
                                                              PeerKill{"region.ctl.before_link", 1, false},
                                                              PeerKill{"region.ctl.after_link", 1, true}),
                                            ::testing::Values(PeerKind::kCopy, PeerKind::kParity)));

// The copy under the owner's new layout is complete; the old layout is being given back.
class KilledTrimming : public KilledCopy {};

void StoreLarger(const std::string& dir, const PeerKill& kill) {
  setenv("CKPTD_FAILPOINTS", absl::StrCat(kill.point, "=kill@", kill.nth).c_str(), 1);
  auto region = OpenRegion(dir);
  (void)Store(region->peers(), CopySpec(), {1, 10}, Marks(1));
  (void)Store(region->peers(), CopySpec(7, 2 * kTestSlotBytes, 8), {1, 20}, Marks(1, 20));
}

TEST_P(KilledTrimming, TheNewLayoutsCopyIsThere) {
  EXPECT_EXIT(StoreLarger(region_dir_, std::get<0>(GetParam())), ::testing::KilledBySignal(SIGKILL), "");
  auto region = OpenRegion(region_dir_);
  EXPECT_THAT(CompleteIn(region->peers()), Contains(SnapshotId{1, 20}));
  EXPECT_TRUE(IsWhole(region->peers(), CopySpec(7, 2 * kTestSlotBytes, 8), {1, 20}));
  EXPECT_EQ(region->peers().Usage().held, region->quota().used());
  EXPECT_TRUE(Store(region->peers(), CopySpec(7, 2 * kTestSlotBytes, 8), {1, 30}, Marks(1, 20, 20)).ok());
  EXPECT_EQ(NamesIn(region_dir_ + "/gpt/peer-00007").size(), 3u) << "the rest of it goes with the next copy";
}

INSTANTIATE_TEST_SUITE_P(Points, KilledTrimming,
                         ::testing::Combine(::testing::Values(PeerKill{"region.drop.file_id", 1, true},
                                                              PeerKill{"region.drop.file_id", 2, true},
                                                              PeerKill{"region.layout.unlinked", 1, true}),
                                            ::testing::Values(PeerKind::kCopy)));

// --------------------------------------------------------------------------------------------------- any instruction

// Copies of steps after `from`, each told to `acknowledge` once it is complete; never returns.
[[noreturn]] void StoreForEver(const std::string& dir, const PeerSpec& spec, StepId from, int acknowledge) {
  auto region = OpenRegion(dir);
  for (StepId step = from + 1;; ++step) {
    if (!Store(region->peers(), spec, {1, step}, Marks(1, step - 1, step - 1)).ok()) _exit(1);
    if (write(acknowledge, &step, sizeof(step)) != sizeof(step)) _exit(2);
  }
}

// A child that stores for ever, and where it acknowledges.
struct Storing {
  Storing(const std::string& dir, const PeerSpec& spec, StepId from) {
    EXPECT_EQ(pipe(ends), 0);
    child = fork();
    if (child == 0) StoreForEver(dir, spec, from, ends[1]);
    close(ends[1]);
  }
  void Kill() const {
    kill(child, SIGKILL);
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status)) << "it failed before: " << status;
  }

  int ends[2] = {-1, -1};
  pid_t child = -1;
};

// Microseconds until a child has stored its first copy: a sanitizer, or another's work, makes many of few.
useconds_t UntilTheFirst() {
  const TempDir dir;
  const auto begin = std::chrono::steady_clock::now();
  const Storing child(dir.region(), CopySpec(), 0);
  StepId step = 0;
  EXPECT_EQ(read(child.ends[0], &step, sizeof(step)), sizeof(step));
  const auto took = std::chrono::steady_clock::now() - begin;
  child.Kill();
  close(child.ends[0]);
  return static_cast<useconds_t>(std::chrono::duration_cast<std::chrono::microseconds>(took).count());
}

// The last step that a child acknowledged before it was killed, `after` into its life.
StepId LastBeforeTheKill(const std::string& dir, const PeerSpec& spec, StepId from, useconds_t after) {
  const Storing child(dir, spec, from);
  usleep(after);
  child.Kill();
  StepId last = from;
  for (StepId step = 0; read(child.ends[0], &step, sizeof(step)) == sizeof(step);) last = step;
  close(child.ends[0]);
  return last;
}

TEST(KilledAnywhere, TheLastAcknowledgedCopyIsThereAndWhole) {
  std::mt19937_64 random(11);
  const TempDir dir;
  StepId last = 0;
  int stored = 0;
  const useconds_t longest = std::max<useconds_t>(12'000, 4 * UntilTheFirst());
  for (int round = 0; round < 40; ++round) {
    const PeerSpec spec = round % 2 == 0 ? CopySpec() : ParitySpec();
    const StepId before = last;
    last = LastBeforeTheKill(dir.region(), spec, last, 500 + random() % longest);
    if (last > before) ++stored;
    auto region = OpenRegion(dir.region());
    for (const PeerEntry& entry : region->peers().List())
      EXPECT_TRUE(entry.complete &&
                  IsWhole(region->peers(), entry.key.kind == PeerKind::kCopy ? CopySpec() : ParitySpec(), entry.id));
    if (last > before) {
      EXPECT_TRUE(IsWhole(region->peers(), spec, {1, last})) << "round " << round << " step " << last;
    }
    EXPECT_EQ(region->peers().Usage().held, region->quota().used());
    for (const PeerEntry& entry : region->peers().List()) last = std::max(last, entry.id.step);
  }
  EXPECT_GT(stored, 5) << "most children must get so far that there is something to lose";
}

}  // namespace
}  // namespace ckptd::region
