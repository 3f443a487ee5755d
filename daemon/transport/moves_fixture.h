// Transfers that one node dials and another serves, each with its loop and its threads, over connections inside this
// process. There is room for two at once, on either side.
#ifndef CKPTD_DAEMON_TRANSPORT_MOVES_FIXTURE_H_
#define CKPTD_DAEMON_TRANSPORT_MOVES_FIXTURE_H_

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "client/core/copy/crc32c.h"
#include "daemon/base/errors.h"
#include "daemon/base/units.h"
#include "daemon/os/loop.h"
#include "daemon/os/thread.h"
#include "daemon/transport/dialled_move.h"
#include "daemon/transport/receive_run.h"
#include "daemon/transport/send_run.h"
#include "daemon/transport/served_moves.h"
#include "daemon/transport/testing/fake_bulk.h"

namespace ckptd::transport {

inline constexpr uint64_t kMoveChunk = 64 * kKiB;
inline constexpr uint32_t kMoveChunks = 40;
inline constexpr uint64_t kMoveBytes = kMoveChunks * kMoveChunk;

// A loop with a thread.
class MoveNode {
 public:
  MoveNode() : loop_(*Loop::Create(SystemClock(), 1024)), mailbox_(Mailbox::Create(*loop_)) {
    thread_.emplace("node", [this] { (void)loop_->Run(); });
  }
  ~MoveNode() {
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
  // One of them, by its number.
  struct Moved {
    explicit Moved(uint32_t number) : name{"b", "gpt", 3, {1, 1000}, number} {}
    const TransferName name;
    std::shared_ptr<std::string> place = std::make_shared<std::string>(kMoveBytes, '~');
    std::atomic<uint32_t> verified{0};
    std::optional<absl::Status> end;
    std::optional<absl::Status> served_end;
    std::unique_ptr<DialledMove> move;
  };

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
          std::chrono::milliseconds(2),
          std::chrono::milliseconds(20),
          [this](const std::string&, const Hello& hello, StreamOpened opened) { Dial(hello, std::move(opened)); },
          nullptr,
          {}});
    });
  }
  void TearDown() override {
    dialling_.Do([this] {
      for (const auto& one : all_) one->move.reset();
      dialling_.mailbox()->Close();
      shared_->AbortAll(Error(ErrorCode::DRAINING, "end"));
      shared_->pool->Stop();
    });
    served_.Do([this] {
      served_.mailbox()->Close();
      moves_.reset();
    });
  }
  Moved& Another() { return *all_.emplace_back(std::make_unique<Moved>(static_cast<uint32_t>(all_.size() + 1))); }

  // The callee's judgement, on its loop; the answer, on the caller's.
  void Dial(const Hello& hello, StreamOpened opened) {
    ++dials_;
    tokens_.push_back(hello.token[0]);
    served_.mailbox()->Put([this, number = hello.name.slot, opened = std::move(opened)] {
      auto [here, there] = FakeBulk::Connect({.cut_after = cut_after_});
      absl::Status taken = refuse_.ok() ? moves_->CheckRoom() : refuse_;
      if (taken.ok()) taken = Begin(*all_[number - 1], there);
      if (!taken.ok()) ++refused_;
      dialling_.mailbox()->Put(
          [opened, taken, here = here] { taken.ok() ? opened(OpenedStream{here}) : opened(taken); });
    });
  }
  // On the callee's loop, as its desk does.
  absl::Status Begin(Moved& one, const std::shared_ptr<BulkStream>& stream) {
    BulkEnd end = End(one);
    absl::Status taken = moves_->CheckFree(end);
    if (taken.ok()) taken = moves_->Begin(std::move(end), stream);
    if (taken.ok()) served_log_.emplace_back("begun");
    return taken;
  }
  BulkEnd End(Moved& one) {
    ServedReceive receive;
    receive.target.bytes = std::span<std::byte>(reinterpret_cast<std::byte*>(one.place->data()), one.place->size());
    receive.target.keep = one.place;
    receive.target.verified = [&one](uint32_t, uint32_t) {
      ++one.verified;
      return absl::OkStatus();
    };
    receive.limits.window = 4 * kMoveChunk;
    return {one.name, kMoveBytes, kMoveChunk, receive, [this, &one](const absl::Status& status) {
              served_log_.emplace_back(InfoOf(CodeOf(status)).name);
              MutexLock lock(mutex_);
              one.served_end = status;
              changed_.NotifyAll();
            }};
  }
  // The image, for others.
  BulkEnd ServedRead(Moved& one) {
    ServedSend send;
    send.source = Source();
    send.limits.deadline = SystemClock().Monotonic() + std::chrono::seconds(30);
    for (uint32_t i = 0; i < kMoveChunks; ++i) send.chunk_crcs.push_back(CrcOf(i));
    BulkEnd end = End(one);
    end.end = std::move(send);
    return end;
  }
  BulkSource Source() const {
    BulkSource source;
    source.read = [image = image_](uint64_t offset, std::span<std::byte> into) {
      std::memcpy(into.data(), image->data() + offset, into.size());
      return absl::OkStatus();
    };
    return source;
  }
  void Send(Moved& one, Nanos within = std::chrono::seconds(30), uint32_t ready = kMoveChunks) {
    dialling_.Do([&] {
      SenderLimits limits;
      limits.deadline = SystemClock().Monotonic() + within;
      limits.idle = idle_;
      auto run = std::make_shared<SendRun>(SystemClock(), one.name, shape_, Source(), limits);
      MoveOrder order{"b", one.name, kMoveBytes, kMoveChunk, {1}, [this](auto answer) {
                        ++asks_;
                        if (!silent_) answer(Renew());
                      }};
      order.busy_patience = busy_patience_;
      const Hello hello{{}, one.name, kMoveBytes, kMoveChunk};
      one.move = std::make_unique<DialledMove>(
          shared_, order, hello, run, [run](uint32_t chunk, uint32_t crc) { return run->ChunkReady(chunk, crc); }, 0,
          [this, &one](const absl::Status& status) {
            MutexLock lock(mutex_);
            one.end = status;
            changed_.NotifyAll();
          });
      for (uint32_t i = 0; i < ready; ++i) MakeReady(one, i);
    });
  }
  void MakeReady(Moved& one, uint32_t chunk) { EXPECT_TRUE(one.move->ChunkReady(chunk, CrcOf(chunk)).ok()); }
  uint32_t CrcOf(uint32_t chunk) const {
    return Crc32c(0, image_->data() + shape_.Offset(chunk), shape_.Length(chunk));
  }
  absl::StatusOr<TransferToken> Renew() {
    if (!renewal_.ok()) return renewal_;
    return TransferToken{static_cast<uint8_t>(++renewed_ + 1)};
  }
  absl::Status Wait(std::optional<absl::Status>& which) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    MutexLock lock(mutex_);
    while (!which) {
      if (!changed_.WaitUntil(mutex_, deadline)) return absl::UnknownError("waited in vain");
    }
    return *which;
  }
  // On the dialling loop, again and again.
  bool Until(const std::function<bool()>& so) {
    const Nanos deadline = SystemClock().Monotonic() + std::chrono::seconds(30);
    bool is_so = false;
    while (!is_so && SystemClock().Monotonic() < deadline) {
      dialling_.Do([&] { is_so = so(); });
      if (!is_so) Wake().WaitUntil(SystemClock().Monotonic() + std::chrono::milliseconds(2));
    }
    return is_so;
  }

  const TransferShape shape_ = *TransferShape::Make(kMoveBytes, kMoveChunk);
  const std::shared_ptr<std::string> image_ = std::make_shared<std::string>(kMoveBytes, 0);
  std::vector<std::unique_ptr<Moved>> all_;
  Moved& one_ = Another();
  std::atomic<uint64_t> cut_after_{UINT64_MAX};
  Nanos busy_patience_ = Nanos::max();
  Nanos idle_ = std::chrono::seconds(2);
  absl::Status refuse_;
  absl::Status renewal_;
  std::atomic<bool> silent_{false};  // who is to renew tokens
  std::atomic<int> asks_{0};         // for one
  std::atomic<int> dials_{0};
  std::atomic<int> refused_{0};
  int renewed_ = 0;
  std::vector<uint8_t> tokens_;          // the dialling loop's
  std::vector<std::string> served_log_;  // the callee's loop's
  Mutex mutex_;
  CondVar changed_;
  MoveNode served_;
  MoveNode dialling_;
  std::optional<ServedMoves> moves_;
  std::shared_ptr<DialShared> shared_;
};

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_MOVES_FIXTURE_H_
