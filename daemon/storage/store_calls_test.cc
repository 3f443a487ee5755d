// What stands in the table while a call runs.
#include "daemon/storage/store_calls.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "daemon/base/errors.h"
#include "daemon/os/posix_files.h"
#include "daemon/os/testing/temp_dir.h"
#include "daemon/storage/posix_store.h"

namespace ckptd {
namespace {

constexpr uint64_t kBytes = 3 << 20;  // three pieces of a scan

// Says what is to be seen in the table at each transfer, and takes its time.
class SlowQueue final : public IoQueue {
 public:
  explicit SlowQueue(std::function<void()> during) : during_(std::move(during)) {}
  absl::Status Submit(const IoRequest& request) override {
    during_();
    return inner_->Submit(request);
  }
  void Wait(std::vector<IoCompletion>& done) override { inner_->Wait(done); }
  size_t in_flight() const override { return inner_->in_flight(); }
  size_t depth() const override { return inner_->depth(); }
  absl::string_view name() const override { return inner_->name(); }

 private:
  const std::function<void()> during_;
  const std::unique_ptr<IoQueue> inner_ = MakeInlineIoQueue(1);
};

class StoreCallsTest : public ::testing::Test {
 protected:
  StoreCallsTest() {
    PosixStoreOptions options;
    options.root = dir_.path();
    options.make_queue = [this] {
      return std::make_unique<SlowQueue>([this] {
        clock_.Advance(std::chrono::seconds(20));
        seen_ = calls_.Longest();
        awaited_ = calls_.Longest(true);
      });
    };
    disk_ = *OpenPosixStore(PosixFiles(), options);
    store_ = MakeWatchedStore(*disk_, calls_, false);
    restore_store_ = MakeWatchedStore(*disk_, calls_, true);
  }

  absl::Status WritePart(const std::string& name) {
    std::vector<std::byte> bytes(kBytes + 1);  // odd: buffered
    auto part = store_->OpenForWrite(name, bytes.size());
    if (!part.ok()) return part.status();
    absl::Status written = (*part)->Write(0, bytes);
    return written.ok() ? (*part)->Finish() : written;
  }

  TempDir dir_;
  FakeClock clock_;
  StoreCalls calls_{clock_, "/data"};
  std::unique_ptr<Store> disk_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Store> restore_store_;
  std::optional<StoreCalls::Silence> seen_;
  std::optional<StoreCalls::Silence> awaited_;
};

TEST_F(StoreCallsTest, ACallStandsThereWhileItRuns) {
  EXPECT_FALSE(calls_.Longest());
  ASSERT_TRUE(WritePart("job/a").ok());
  ASSERT_TRUE(seen_);
  EXPECT_EQ(seen_->ToString(), "write /data/job/a for 20.0 s");
  EXPECT_FALSE(awaited_) << "nobody waits for a flush";
  EXPECT_FALSE(calls_.Longest()) << "it has ended";
}

TEST_F(StoreCallsTest, WhatRestoreWaitsForIsToldApart) {
  ASSERT_TRUE(WritePart("a").ok());
  auto background = *store_->OpenForRead("a");
  const std::string name = "b";
  StoreCalls::Call older(calls_, false, "sync", name);
  clock_.Advance(std::chrono::seconds(1));
  auto reader = *restore_store_->OpenForRead("a");
  ASSERT_TRUE(reader->Scan(0, 100, [](uint64_t, std::span<std::byte>) { return absl::OkStatus(); }).ok());
  EXPECT_EQ(seen_->ToString(), "sync /data/b for 21.0 s");
  EXPECT_EQ(awaited_->ToString(), "read /data/a for 20.0 s");
}

// Four pieces, twenty seconds each.
TEST_F(StoreCallsTest, APieceThatArrivesEndsTheSilence) {
  ASSERT_TRUE(WritePart("a").ok());
  auto reader = *store_->OpenForRead("a");
  ASSERT_TRUE(reader->Scan(0, kBytes + 1, [](uint64_t, std::span<std::byte>) { return absl::OkStatus(); }).ok());
  EXPECT_EQ(seen_->since, std::chrono::seconds(20));
}

}  // namespace
}  // namespace ckptd
