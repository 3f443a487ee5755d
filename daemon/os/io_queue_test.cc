#include "daemon/os/io_queue.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <map>

#include "daemon/base/errors.h"
#include "daemon/os/fd.h"
#include "daemon/os/posix_files.h"
#include "daemon/os/testing/temp_dir.h"
#include "daemon/os/thread_queue.h"
#include "daemon/os/uring_queue.h"

namespace ckptd {
namespace {

constexpr size_t kDepth = 4;

std::unique_ptr<IoQueue> MakeQueue(const std::string& kind) {
  if (kind == "inline") return MakeInlineIoQueue(kDepth);
  if (kind == "threads") return MakeThreadQueue(kDepth, std::make_shared<ThreadPool>("io", 2, kDepth));
  auto uring = MakeUringQueue(kDepth);
  return uring.ok() ? *std::move(uring) : nullptr;
}

std::map<uint64_t, absl::Status> WaitForAll(IoQueue& queue) {
  std::map<uint64_t, absl::Status> statuses;
  std::vector<IoCompletion> completions;
  while (queue.in_flight() > 0) {
    queue.Wait(completions);
    for (IoCompletion& done : completions) statuses.emplace(done.tag, std::move(done.status));
  }
  return statuses;
}

class IoQueueTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    queue_ = MakeQueue(GetParam());
    if (queue_ == nullptr) GTEST_SKIP() << "reason: " << ProbeUring();
    auto file = PosixFiles().Open(dir_.path() + "/f", {.write = true, .create = true});
    ASSERT_TRUE(file.ok());
    file_ = *std::move(file);
  }

  TempDir dir_;
  std::unique_ptr<File> file_;
  std::unique_ptr<IoQueue> queue_;
};

TEST_P(IoQueueTest, WritesAndReadsBackManyPieces) {
  std::vector<std::byte> out(1 << 20), in(1 << 20);
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::byte>(i * 31 >> 3);
  constexpr size_t kPiece = 100'000;  // the last one is shorter
  std::vector<IoCompletion> completions;
  for (bool writing : {true, false}) {
    std::map<uint64_t, absl::Status> all;
    for (size_t offset = 0; offset < out.size(); offset += kPiece) {
      const size_t length = std::min(kPiece, out.size() - offset);
      if (queue_->in_flight() == queue_->depth()) {
        queue_->Wait(completions);
        for (IoCompletion& done : completions) all.emplace(done.tag, done.status);
      }
      auto request = writing ? WriteRequest(*file_, offset, std::span(out).subspan(offset, length), offset)
                             : ReadRequest(*file_, offset, std::span(in).subspan(offset, length), offset);
      ASSERT_TRUE(queue_->Submit(request).ok());
    }
    all.merge(WaitForAll(*queue_));
    EXPECT_EQ(all.size(), 11u);
    for (const auto& [tag, status] : all) EXPECT_TRUE(status.ok()) << tag << ": " << status;
  }
  EXPECT_EQ(in, out);
  queue_->Wait(completions);
  EXPECT_TRUE(completions.empty()) << "nothing in flight: no wait";
}

TEST_P(IoQueueTest, FullQueueIsAnErrorOfTheCaller) {
  std::vector<std::byte> bytes(16);
  for (size_t i = 0; i < kDepth; ++i) ASSERT_TRUE(queue_->Submit(WriteRequest(*file_, i * 16, bytes, i)).ok());
  EXPECT_EQ(CodeOf(queue_->Submit(WriteRequest(*file_, 0, bytes, 9))), ErrorCode::BUSY);
  EXPECT_EQ(WaitForAll(*queue_).size(), kDepth);
  EXPECT_EQ(CodeOf(queue_->Submit(WriteRequest(*file_, 0, {}, 9))), ErrorCode::INVALID_ARGUMENT);
}

TEST_P(IoQueueTest, ReadBeyondTheEndIsCorrupt) {
  std::vector<std::byte> bytes(100);
  ASSERT_TRUE(file_->PWrite(0, bytes).ok());
  std::vector<std::byte> more(200);
  ASSERT_TRUE(queue_->Submit(ReadRequest(*file_, 0, more, 7)).ok());
  EXPECT_EQ(CodeOf(WaitForAll(*queue_)[7]), ErrorCode::CORRUPT);
}

TEST_P(IoQueueTest, ErrorsOfTheTransferComeWithTheCompletion) {
  auto full = PosixFiles().Open("/dev/full", {.write = true});
  ASSERT_TRUE(full.ok());
  std::vector<std::byte> bytes(100);
  ASSERT_TRUE(queue_->Submit(WriteRequest(**full, 0, bytes, 1)).ok());
  EXPECT_EQ(CodeOf(WaitForAll(*queue_)[1]), ErrorCode::STORAGE_FULL);
}

// A trainer truncates its slot while the agent writes it out: an error, never a SIGBUS.
TEST_P(IoQueueTest, VanishedMemoryIsCorrupt) {
  UniqueFd memory(memfd_create("slot", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(memory.get(), 1 << 16), 0);
  void* mapped = mmap(nullptr, 1 << 16, PROT_READ, MAP_SHARED, memory.get(), 0);
  ASSERT_NE(mapped, MAP_FAILED);
  ASSERT_EQ(ftruncate(memory.get(), 0), 0);
  std::span<const std::byte> gone(static_cast<std::byte*>(mapped), 1 << 16);
  ASSERT_TRUE(queue_->Submit(WriteRequest(*file_, 0, gone, 1)).ok());
  EXPECT_EQ(CodeOf(WaitForAll(*queue_)[1]), ErrorCode::CORRUPT);
  munmap(mapped, 1 << 16);
}

TEST_P(IoQueueTest, DestructionWaitsForWhatIsInFlight) {
  std::vector<std::byte> bytes(1 << 20, std::byte{7});
  for (size_t i = 0; i < kDepth; ++i) ASSERT_TRUE(queue_->Submit(WriteRequest(*file_, i << 20, bytes, i)).ok());
  queue_.reset();
  EXPECT_EQ(file_->Stat()->size, kDepth << 20);
}

INSTANTIATE_TEST_SUITE_P(Kinds, IoQueueTest, ::testing::Values("inline", "threads", "io_uring"),
                         [](const auto& info) { return info.param; });

TEST(IoProgress, ShortTransfersGoOnWhereTheyStopped) {
  auto file = PosixFiles().Open("/dev/null", {.write = true});
  ASSERT_TRUE(file.ok());
  std::vector<std::byte> bytes(100);
  IoProgress progress(WriteRequest(**file, 1000, bytes, 5));
  EXPECT_FALSE(*progress.Advance(-EINTR));
  EXPECT_FALSE(*progress.Advance(60));
  EXPECT_EQ(progress.request().offset, 1060u);
  EXPECT_EQ(progress.request().memory, bytes.data() + 60);
  EXPECT_EQ(progress.request().length, 40u);
  EXPECT_EQ(CodeOf(progress.Advance(41).status()), ErrorCode::INTERNAL);
  EXPECT_TRUE(*progress.Advance(40));
}

TEST(IoProgress, NoProgressIsAnError) {
  auto file = PosixFiles().Open("/dev/null", {.write = true});
  std::vector<std::byte> bytes(100);
  EXPECT_EQ(CodeOf(IoProgress(WriteRequest(**file, 0, bytes, 5)).Advance(0).status()), ErrorCode::STORAGE_IO);
  EXPECT_EQ(CodeOf(IoProgress(ReadRequest(**file, 0, bytes, 5)).Advance(0).status()), ErrorCode::CORRUPT);
  EXPECT_EQ(CodeOf(IoProgress(ReadRequest(**file, 0, bytes, 5)).Advance(-EIO).status()), ErrorCode::STORAGE_IO);
}

TEST(MakeIoQueue, AutoAgreesWithTheProbe) {
  auto queue = MakeIoQueue(IoQueueChoice::kAuto, 2);
  ASSERT_TRUE(queue.ok());
  EXPECT_EQ((*queue)->name(), ProbeUring().ok() ? "io_uring" : "threads");
  EXPECT_EQ((*MakeIoQueue(IoQueueChoice::kThreads, 2))->name(), "threads");
}

}  // namespace
}  // namespace ckptd
