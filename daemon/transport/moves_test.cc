// Transfers that one end dials again and again and the other serves, each with its loop and its threads, over
// connections inside this process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "client/core/copy/crc32c.h"
#include "daemon/base/errors.h"
#include "daemon/os/loop.h"
#include "daemon/os/thread.h"
#include "daemon/transport/dialled_move.h"
#include "daemon/transport/receive_run.h"
#include "daemon/transport/send_run.h"
#include "daemon/transport/served_moves.h"
#include "daemon/transport/testing/fake_bulk.h"

namespace ckptd::transport {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint64_t kMoveChunk = 64 * kKiB;
constexpr uint64_t kMoveBytes = 40 * kMoveChunk;

TransferName MoveName() { return {"b", "gpt", 3, {1, 1000}, 1}; }

// A loop with a thread.
class Node {
 public:
  Node() : loop_(*Loop::Create(SystemClock(), 1024)), mailbox_(Mailbox::Create(*loop_)) {
    thread_.emplace("node", [this] { (void)loop_->Run(); });
  }
  ~Node() {
    loop_->Stop();
    thread_->Join();
  }
  void Do(const std::function<void()>& work) {
    Wake done;
    std::atomic<bool> ran{false};
    EXPECT_TRUE(loop_->Post([&] {
      work();
      ran = true;
      done.Set();
    }));
    while (!ran) done.WaitUntil(Nanos::max());
    done.Set();  // the other Set has ended when this one has
  }
  Loop& loop() { return *loop_; }
  const std::shared_ptr<Mailbox>& mailbox() const { return mailbox_; }

 private:
  std::unique_ptr<Loop> loop_;
  std::shared_ptr<Mailbox> mailbox_;
  std::optional<Thread> thread_;
};

class MovesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::mt19937_64 random(7);
    for (char& c : *image_) c = static_cast<char>(random());
    served_.Do([this] { moves_.emplace(served_.loop(), served_.mailbox(), 2); });
    dialling_.Do([this] {
      shared_ = std::make_shared<DialShared>(DialShared{
          dialling_.loop(),
          dialling_.mailbox(),
          std::make_shared<ThreadPool>("out", 2, 2),
          std::make_shared<MoveSlots>(2),
          milliseconds(2),
          milliseconds(20),
          [this](const std::string&, const Hello& hello, StreamOpened opened) { Dial(hello, std::move(opened)); },
          nullptr,
          {}});
    });
  }
  void TearDown() override {
    dialling_.Do([this] {
      move_.reset();
      dialling_.mailbox()->Close();
      shared_->AbortAll(Error(ErrorCode::DRAINING, "end"));
      shared_->pool->Stop();
    });
    served_.Do([this] {
      served_.mailbox()->Close();
      moves_.reset();
    });
  }

  // The callee's judgement, on its loop; the answer, on the caller's.
  void Dial(const Hello& hello, StreamOpened opened) {
    ++dials_;
    tokens_.push_back(hello.token[0]);
    served_.mailbox()->Put([this, opened = std::move(opened)] {
      auto [here, there] = FakeBulk::Connect({.cut_after = cut_after_});
      absl::Status taken = refuse_.ok() ? moves_->CheckRoom() : refuse_;
      if (taken.ok()) taken = moves_->Begin(End(), there);
      dialling_.mailbox()->Put(
          [opened, taken, here = here] { taken.ok() ? opened(OpenedStream{here}) : opened(taken); });
    });
  }
  BulkEnd End() {
    ServedReceive receive;
    receive.target.bytes = std::span<std::byte>(reinterpret_cast<std::byte*>(place_->data()), place_->size());
    receive.target.keep = place_;
    receive.target.verified = [this](uint32_t, uint32_t) {
      ++verified_;
      return absl::OkStatus();
    };
    receive.limits.window = 4 * kMoveChunk;
    return {MoveName(), kMoveBytes, kMoveChunk, receive, [this](const absl::Status& status) {
              MutexLock lock(mutex_);
              served_end_ = status;
              changed_.NotifyAll();
            }};
  }
  void Send(Nanos within = seconds(30)) {
    dialling_.Do([&] {
      const TransferShape shape = *TransferShape::Make(kMoveBytes, kMoveChunk);
      BulkSource source;
      source.read = [image = image_](uint64_t offset, std::span<std::byte> into) {
        std::memcpy(into.data(), image->data() + offset, into.size());
        return absl::OkStatus();
      };
      SenderLimits limits;
      limits.deadline = SystemClock().Monotonic() + within;
      auto run = std::make_shared<SendRun>(SystemClock(), MoveName(), shape, source, limits);
      run_ = run;
      MoveOrder order{"b", MoveName(), kMoveBytes, kMoveChunk, {1}, [this](auto answer) { answer(Renew()); }};
      const Hello hello{{}, MoveName(), kMoveBytes, kMoveChunk};
      move_ = std::make_unique<DialledMove>(
          shared_, order, hello, run, [run](uint32_t chunk, uint32_t crc) { return run->ChunkReady(chunk, crc); }, 0,
          [this](const absl::Status& status) {
            MutexLock lock(mutex_);
            end_ = status;
            changed_.NotifyAll();
          });
      for (uint32_t i = 0; i < shape.chunks(); ++i) {
        const uint32_t crc = Crc32c(0, image_->data() + shape.Offset(i), shape.Length(i));
        EXPECT_TRUE(move_->ChunkReady(i, crc).ok());
      }
    });
  }
  absl::StatusOr<TransferToken> Renew() {
    if (!renewal_.ok()) return renewal_;
    return TransferToken{static_cast<uint8_t>(++renewed_ + 1)};
  }
  absl::Status Wait(std::optional<absl::Status>& which) {
    const auto deadline = std::chrono::steady_clock::now() + seconds(30);
    MutexLock lock(mutex_);
    while (!which) {
      if (!changed_.WaitUntil(mutex_, deadline)) return absl::UnknownError("waited in vain");
    }
    return *which;
  }

  const std::shared_ptr<std::string> image_ = std::make_shared<std::string>(kMoveBytes, 0);
  const std::shared_ptr<std::string> place_ = std::make_shared<std::string>(kMoveBytes, '~');
  std::atomic<uint64_t> cut_after_{UINT64_MAX};
  absl::Status refuse_;
  absl::Status renewal_;
  std::atomic<uint32_t> verified_{0};
  std::atomic<int> dials_{0};
  int renewed_ = 0;
  std::vector<uint8_t> tokens_;  // the dialling loop's
  Mutex mutex_;
  CondVar changed_;
  std::optional<absl::Status> end_;
  std::optional<absl::Status> served_end_;
  Node served_;
  Node dialling_;
  std::optional<ServedMoves> moves_;
  std::shared_ptr<DialShared> shared_;
  std::shared_ptr<SendRun> run_;
  std::unique_ptr<DialledMove> move_;
};

TEST_F(MovesTest, OneConnectionIsEnough) {
  Send();
  EXPECT_TRUE(Wait(end_).ok()) << Wait(end_);
  EXPECT_TRUE(Wait(served_end_).ok()) << Wait(served_end_);
  EXPECT_EQ(*place_, *image_);
  EXPECT_EQ(dials_, 1);
}

TEST_F(MovesTest, EachFurtherConnectionHasAnotherTokenAndBringsWhatIsMissing) {
  cut_after_ = 30;
  Send();
  EXPECT_TRUE(Wait(end_).ok()) << Wait(end_);
  EXPECT_TRUE(Wait(served_end_).ok()) << Wait(served_end_);
  EXPECT_EQ(*place_, *image_);
  EXPECT_EQ(verified_, kMoveBytes / kMoveChunk) << "each once";
  EXPECT_GT(dials_, 3);
  dialling_.Do([this] {
    for (size_t i = 0; i < tokens_.size(); ++i) EXPECT_EQ(tokens_[i], i + 1);
  });
}

TEST_F(MovesTest, VainConnectionsEndIt) {
  cut_after_ = 1;
  Send();
  EXPECT_EQ(CodeOf(Wait(end_)), ErrorCode::TIMEOUT) << Wait(end_);
  EXPECT_EQ(dials_, 5);
}

TEST_F(MovesTest, BusyIsNotInVainAndEndsByTheDeadline) {
  refuse_ = Error(ErrorCode::BUSY, "later");
  Send(milliseconds(400));
  EXPECT_EQ(CodeOf(Wait(end_)), ErrorCode::TIMEOUT);
  EXPECT_THAT(std::string(Wait(end_).message()), ::testing::HasSubstr("the last error: later"));
  EXPECT_GT(dials_, 8);
}

TEST_F(MovesTest, WhatIsFinalIsNotTriedAgain) {
  refuse_ = Error(ErrorCode::SUPERSEDED, "newer ones are here");
  Send();
  EXPECT_EQ(CodeOf(Wait(end_)), ErrorCode::SUPERSEDED);
  EXPECT_EQ(dials_, 1);
}

TEST_F(MovesTest, ARenewalThatIsRefusedIsTheEnd) {
  cut_after_ = 30;
  renewal_ = Error(ErrorCode::FENCED, "a newer attempt runs");
  Send();
  EXPECT_EQ(CodeOf(Wait(end_)), ErrorCode::FENCED);
  EXPECT_EQ(dials_, 1);
}

TEST_F(MovesTest, WhoeverIsCancelledBetweenConnectionsEndsAtOnce) {
  refuse_ = Error(ErrorCode::BUSY, "later");
  Send();
  move_->Cancel();
  EXPECT_EQ(CodeOf(Wait(end_)), ErrorCode::CANCELLED);
}

TEST_F(MovesTest, AHandleThatIsGoneSaysNothingAndFreesItsSlot) {
  cut_after_ = 30;
  for (int i = 0; i < 6; ++i) {
    Send();
    dialling_.Do([this] { move_.reset(); });
  }
  cut_after_ = UINT64_MAX;
  Send();
  EXPECT_TRUE(Wait(end_).ok()) << Wait(end_);
}

}  // namespace
}  // namespace ckptd::transport
