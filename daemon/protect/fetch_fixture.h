// A restore from other agents' memory, as a test has it: the other nodes are the test, time stands still until it moves
// it.
#ifndef CKPTD_DAEMON_PROTECT_FETCH_FIXTURE_H_
#define CKPTD_DAEMON_PROTECT_FETCH_FIXTURE_H_

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "daemon/format/snapshot_ref.h"
#include "daemon/protect/copy_fetch.h"
#include "daemon/protect/copy_messages.h"
#include "daemon/protect/copy_test_util.h"
#include "daemon/region/region_test_util.h"

namespace ckptd::protect {

// Node a restores rank 0 of gpt into a slot of `bytes`.
class FetchTest : public ::testing::Test {
 protected:
  static constexpr SnapshotId kParent{1, 10};

  explicit FetchTest(uint64_t bytes)
      : set_(region::AddLayout(region::OpenTestRank(*region_), region::TestSpec(bytes))),
        into_{set_.head(), set_.FileOf(0)},
        content_(region::Content(10, bytes)) {}

  // A copy that this node has itself.
  virtual absl::StatusOr<HeldSnapshot> Own(const SnapshotId&) { return Error(ErrorCode::NOT_FOUND, "not here"); }

  void Fetch(std::vector<std::string> sources) {
    fetch_->Fetch({kParent, std::move(sources)}, into_, [this](const absl::StatusOr<CopyFetch::Brought>& brought) {
      ended_.push_back(brought.status());
      if (brought.ok()) from_storage_ = brought->from_storage;
    });
  }
  [[nodiscard]] v1::DescribeResponse Description(uint32_t slot) const {
    v1::DescribeResponse response;
    response.set_world_size(1);
    *response.mutable_layout() = LayoutOf(set_.head());
    const std::vector<uint32_t> crcs = region::CrcsOf(content_);
    response.mutable_record()->mutable_chunk_crc()->Assign(crcs.begin(), crcs.end());
    SetRef(kParent, response.mutable_record()->mutable_snapshot());
    response.set_token(std::string(16, 't'));
    response.set_slot(slot);
    return response;
  }
  void Settle() {
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(loop_->RunOnce(Nanos(0)).ok());
  }
  void Pass(Nanos time) {
    clock_.Advance(time);
    Settle();
  }
  [[nodiscard]] std::vector<std::byte> InSlot() const {
    std::vector<std::byte> bytes(content_.size());
    EXPECT_TRUE(into_.file->Read(0, bytes).ok());
    return bytes;
  }

  std::unique_ptr<CopyFetch> MakeFetch(std::function<std::unique_ptr<StoredCopy>(const SnapshotId&)> stored) {
    return std::make_unique<CopyFetch>(
        *loop_, clock_, work_, CopyFetch::Whose{"a", "gpt", 1000, 0},
        CopyFetch::Handler{[this] { return &calls_; }, [this](const SnapshotId& id) { return Own(id); },
                           std::move(stored), [this] { return attempt_; }});
  }

  AttemptId attempt_ = 2;  // that loads
  FakeClock clock_;
  std::unique_ptr<Loop> loop_ = *Loop::Create(clock_, 64);
  InlineExecutor work_;
  FakeCopyCalls calls_;
  region::TempDir dir_;
  std::unique_ptr<region::Region> region_ = region::OpenRegion(dir_.region());
  region::LayoutSet& set_;
  const CopyFetch::Into into_;
  const std::vector<std::byte> content_;
  std::vector<absl::Status> ended_;
  uint64_t from_storage_ = 0;
  std::unique_ptr<CopyFetch> fetch_ = MakeFetch(nullptr);
};

}  // namespace ckptd::protect

#endif  // CKPTD_DAEMON_PROTECT_FETCH_FIXTURE_H_
