// A region in a fresh directory under /dev/shm, one small layout in it, and the trainer's end of a fill. For tests.
#ifndef CKPTD_DAEMON_REGION_REGION_TEST_UTIL_H_
#define CKPTD_DAEMON_REGION_REGION_TEST_UTIL_H_

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "client/core/copy/crc32c.h"
#include "daemon/base/clock.h"
#include "daemon/base/executor.h"
#include "daemon/base/units.h"
#include "daemon/os/posix_files.h"
#include "daemon/region/region.h"

namespace ckptd::region {

inline constexpr uint64_t kTestSlotBytes = 192 * kKiB;
inline constexpr uint64_t kTestChunkBytes = 64 * kKiB;

inline LayoutSpec TestSpec(uint64_t bytes = kTestSlotBytes, uint32_t header_crc = 7) {
  return {.job = "gpt",
          .uid = 1000,
          .rank = 0,
          .world = 1,
          .slot_count = 2,
          .header_crc = header_crc,
          .chunk_bytes = kTestChunkBytes,
          .images = {{0, bytes, 4096}}};
}

// Removed at the end, whatever is in it.
class TempDir {
 public:
  TempDir() {
    char name[] = "/dev/shm/ckptd-region-test-XXXXXX";
    path_ = mkdtemp(name);
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string region() const { return path_ + "/region"; }

 private:
  std::string path_;
};

// Runs what it is given in turns as the test says, and takes no more than `room` at a time.
class QueueExecutor final : public Executor {
 public:
  explicit QueueExecutor(size_t room) : room_(room) {}
  // What was not run is let go of; whoever would have more run then is refused.
  ~QueueExecutor() override {
    room_ = 0;
    const std::vector<std::function<void()>> left = std::exchange(queue_, {});
  }
  bool Run(std::function<void()> work) override {
    if (queue_.size() >= room_) return false;
    queue_.push_back(std::move(work));
    return true;
  }
  void RunNext() {
    std::function<void()> work = std::move(queue_.front());
    queue_.erase(queue_.begin());
    work();
  }
  void RunAll() {
    while (!queue_.empty()) RunNext();
  }
  [[nodiscard]] size_t size() const { return queue_.size(); }

 private:
  size_t room_;
  std::vector<std::function<void()>> queue_;
};

inline RegionOptions TestOptions(const std::string& dir) { return {.dir = dir, .uid = geteuid()}; }

inline std::unique_ptr<Region> OpenRegion(const std::string& dir) {
  auto region = Region::Open(PosixFiles(), SystemClock(), TestOptions(dir));
  EXPECT_TRUE(region.ok()) << region.status();
  return region.ok() ? *std::move(region) : nullptr;
}

inline RankRegion& OpenTestRank(Region& region) { return **(*region.OpenJob("gpt", 1000))->OpenRank(0); }

inline LayoutSet& AddLayout(RankRegion& rank, const LayoutSpec& spec = TestSpec()) {
  InlineExecutor executor;
  auto build = rank.StartLayout(spec, Preparation::kPopulated, executor,
                                [](const absl::Status& done) { EXPECT_TRUE(done.ok()) << done; });
  EXPECT_TRUE(build.ok()) << build.status();
  auto set = rank.FinishLayout(*std::move(build));
  EXPECT_TRUE(set.ok()) << set.status();
  return **set;
}

// What the trainer would write: bytes that depend on the step.
inline std::vector<std::byte> Content(StepId step, uint64_t bytes = kTestSlotBytes) {
  std::vector<std::byte> content(bytes);
  for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<std::byte>((i * 31 + step * 7) >> 3);
  return content;
}

inline std::vector<uint32_t> CrcsOf(const std::vector<std::byte>& content) {
  std::vector<uint32_t> crcs;
  for (size_t at = 0; at < content.size(); at += kTestChunkBytes)
    crcs.push_back(Crc32c(0, content.data() + at, std::min<size_t>(kTestChunkBytes, content.size() - at)));
  return crcs;
}

inline RecordHead HeadOf(StepId step, Epoch epoch) {
  RecordHead head{};
  head.attempt = 1;
  head.step = step;
  head.epoch = epoch;
  head.captured_unix_ns = step;
  return head;
}

inline GrantOrder OrderFor(uint32_t slot, Epoch epoch) {
  return {.slot = slot,
          .epoch = epoch,
          .floor = 1,
          .owner = {.ticket = 99, .attempt = 1, .pid = 42, .start_time = 5},
          .parent = {}};
}

// Grants the slot, writes the content of `step` as a trainer would, seals it.
inline Epoch Fill(RankRegion& rank, LayoutSet& set, Bell& bell, uint32_t slot, StepId step) {
  const Epoch epoch = rank.NextEpoch();
  absl::Status granted = set.OpenGrant(bell, OrderFor(slot, epoch));
  EXPECT_TRUE(granted.ok()) << granted;
  const std::vector<std::byte> content = Content(step, set.head().block.slot_bytes);
  EXPECT_TRUE(set.FileOf(slot)->Write(0, content).ok());
  set.RevokeGrant();
  absl::Status sealed = set.WriteRecord(slot, HeadOf(step, epoch), CrcsOf(content));
  EXPECT_TRUE(sealed.ok()) << sealed;
  return epoch;
}

inline std::set<std::string> NamesIn(const std::string& dir) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(dir)) names.insert(entry.path().filename());
  return names;
}

// What the agent found when it started.
inline const SlotSnapshot& SlotIn(const Region& region, uint32_t slot) {
  return region.adopted().jobs.at(0).ranks.at(0).layouts.at(0).slots.at(slot);
}

inline AttemptId LostIn(const Region& region) { return region.adopted().jobs.at(0).lost; }

// Attempt 1 of a job whose slot 0 is sealed at step 100.
inline LayoutSet& SealOne(Region& region) {
  RankRegion& rank = OpenTestRank(region);
  (*region.OpenJob("gpt", 1000))->journal().SetSeen(1);
  LayoutSet& set = AddLayout(rank);
  Fill(rank, set, **Bell::Create(set.head()), 0, 100);
  return set;
}

}  // namespace ckptd::region

#endif  // CKPTD_DAEMON_REGION_REGION_TEST_UTIL_H_
