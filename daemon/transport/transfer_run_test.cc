// Both ends of a transfer, each on a thread of its own, over connections inside this process, made up, by TCP, by
// TLS and by UCX: that are cut, damaged, deaf, slow, and given up from either side.
#include "daemon/transport/transfer_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <random>

#include "client/core/copy/crc32c.h"
#include "daemon/base/errors.h"
#include "daemon/os/fd.h"
#include "daemon/os/loop.h"
#include "daemon/os/thread.h"
#include "daemon/transport/dialled_move.h"
#include "daemon/transport/receive_run.h"
#include "daemon/transport/send_run.h"
#include "daemon/transport/served_moves.h"
#include "daemon/transport/sockets/tcp_pair.h"
#include "daemon/transport/testing/fake_bulk.h"
#include "daemon/transport/tls/tls_pair.h"
#include "daemon/transport/ucx/ucx_pair.h"

namespace ckptd::transport {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint64_t kPiece = 256 * kKiB;  // of a chunk
constexpr RunPatience kQuick{milliseconds(300), milliseconds(400)};

TransferName NameOf() { return {"n2", "gpt", 3, {1, 1000}, 1}; }

std::string RandomBytes(size_t size) {
  std::mt19937_64 random(size);
  std::string bytes(size, 0);
  for (size_t i = 0; i < size; i += 97) bytes[i] = static_cast<char>(random());
  return bytes;
}

struct Link {
  const char* name;
  FakeBulk::Ends (*connect)(FakeBulkFaults faults);
  std::string (*why_not)();
};
void PrintTo(const Link& wire, std::ostream* out) { *out << wire.name; }

class TransferRunTest : public ::testing::TestWithParam<Link> {
 protected:
  void SetUp() override {
    if (const std::string why = GetParam().why_not(); !why.empty()) GTEST_SKIP() << "skipped: " << why;
  }
  static FakeBulk::Ends Wired(FakeBulkFaults faults = {}) { return GetParam().connect(std::move(faults)); }

  explicit TransferRunTest(size_t bytes = 20 * kPiece + 4321)
      : image_(RandomBytes(bytes)), place_(bytes, '~'), shape_(*TransferShape::Make(bytes, kPiece)) {
    const std::string all = std::string(kBefore, '-') + image_;
    EXPECT_EQ(write(file_.get(), all.data(), all.size()), static_cast<ssize_t>(all.size()));
  }
  // The source, if it is read, and if the kernel takes it out of the file.
  void MakeUnreadable() {
    unreadable_ = true;
    EXPECT_EQ(ftruncate(file_.get(), kBefore + 1000), 0);
  }

  SenderLimits Sending() const { return {.deadline = Now() + seconds(60), .silence = milliseconds(500)}; }
  ReceiverLimits Receiving() const { return {.deadline = Now() + seconds(60), .window = 4 * kPiece}; }
  static Nanos Now() { return SystemClock().Monotonic(); }

  void Make(const SenderLimits& sending, const ReceiverLimits& receiving) {
    BulkSource source;
    source.read = [this](uint64_t offset, std::span<std::byte> into) {
      if (unreadable_) return Error(ErrorCode::CORRUPT, "the file is short");
      std::memcpy(into.data(), image_.data() + offset, into.size());
      return absl::OkStatus();
    };
    source.file = {file_.get(), kBefore};
    BulkTarget target;
    target.bytes = std::span<std::byte>(reinterpret_cast<std::byte*>(place_.data()), place_.size());
    target.verified = [this](uint32_t chunk, uint32_t crc) {
      EXPECT_EQ(crc, CrcOf(chunk));
      EXPECT_EQ(
          std::memcmp(place_.data() + shape_.Offset(chunk), image_.data() + shape_.Offset(chunk), shape_.Length(chunk)),
          0);
      if (++told_ > wanted_) return Error(ErrorCode::FENCED, "a newer attempt runs");
      return absl::OkStatus();
    };
    sender_ = std::make_shared<SendRun>(SystemClock(), NameOf(), shape_, source, sending, kQuick);
    receiver_ = std::make_shared<ReceiveRun>(SystemClock(), NameOf(), shape_, target, receiving, kQuick);
  }
  uint32_t CrcOf(uint32_t chunk) const { return Crc32c(0, image_.data() + shape_.Offset(chunk), shape_.Length(chunk)); }
  void MakeReady() {
    for (uint32_t i = 0; i < shape_.chunks(); ++i) EXPECT_TRUE(sender_->ChunkReady(i, CrcOf(i)).ok());
  }
  // One connection, until both have let it go.
  void Connect(FakeBulkFaults faults = {}) {
    const auto [a, b] = Wired(std::move(faults));
    sender_->Prepare();
    receiver_->Prepare();
    Thread sends("sends", [this, a = a] { sender_->Drive(*a); });
    Thread receives("receives", [this, b = b] { receiver_->Drive(*b); });
  }
  void ExpectComplete() {
    EXPECT_EQ(sender_->state(), TransferState::kComplete) << sender_->status();
    EXPECT_EQ(receiver_->state(), TransferState::kComplete) << receiver_->status();
    EXPECT_EQ(place_, image_);
    EXPECT_EQ(told_, shape_.chunks());
    EXPECT_EQ(sender_->verified_bytes(), image_.size());
    EXPECT_EQ(receiver_->verified_bytes(), image_.size());
  }

  static constexpr uint64_t kBefore = 4321;  // bytes of the file
  const std::string image_;
  const UniqueFd file_{memfd_create("image", MFD_CLOEXEC)};
  std::string place_;
  const TransferShape shape_;
  std::atomic<uint32_t> told_{0};
  uint32_t wanted_ = UINT32_MAX;
  std::atomic<bool> unreadable_{false};
  std::shared_ptr<SendRun> sender_;
  std::shared_ptr<ReceiveRun> receiver_;
};

TEST_P(TransferRunTest, AllBytesArriveAndNoneTwice) {
  Make(Sending(), Receiving());
  MakeReady();
  const Nanos begin = Now();
  Connect();
  EXPECT_LT(Now() - begin, seconds(10));
  ExpectComplete();
  EXPECT_EQ(sender_->sent_bytes(), image_.size());
}

TEST_P(TransferRunTest, ChunksBecomeReadyLateAndOutOfOrder) {
  Make(Sending(), Receiving());
  Thread capture("capture", [this] {
    for (uint32_t i = shape_.chunks(); i-- > 0;) {
      EXPECT_TRUE(sender_->ChunkReady(i, CrcOf(i)).ok());
      Wake().WaitUntil(Now() + milliseconds(5));
    }
  });
  Connect();
  ExpectComplete();
  EXPECT_EQ(sender_->sent_bytes(), image_.size());
}

TEST_P(TransferRunTest, AfterEachCutItGoesOnWithWhatIsMissing) {
  Make(Sending(), Receiving());
  MakeReady();
  int connections = 0;
  for (; sender_->state() == TransferState::kRunning && connections < 50; ++connections) Connect({.cut_after = 13});
  ExpectComplete();
  EXPECT_GT(connections, 3);
  // What was under way at a cut, at most a window, is sent again, and nothing else.
  EXPECT_LE(sender_->sent_bytes(), image_.size() + connections * 4 * kPiece);
  EXPECT_LT(sender_->sent_bytes(), 3 * image_.size());
}

TEST_P(TransferRunTest, ADamagedChunkIsSentAgain) {
  Make(Sending(), Receiving());
  MakeReady();
  int frames = 0;
  Connect({.damage = [&](std::string& data) {
    if (++frames % 5 == 2) data[data.size() / 2] ^= 1;
  }});
  ExpectComplete();
  EXPECT_GT(sender_->sent_bytes(), image_.size());
}

TEST_P(TransferRunTest, DamageFourTimesIsCorruptOnBothEnds) {
  Make(Sending(), Receiving());
  MakeReady();
  Connect({.damage = [](std::string& data) { data[0] ^= 1; }});
  EXPECT_EQ(CodeOf(sender_->status()), ErrorCode::CORRUPT) << sender_->status();
  EXPECT_EQ(CodeOf(receiver_->status()), ErrorCode::CORRUPT) << receiver_->status();
  EXPECT_EQ(told_, 0U);
}

TEST_P(TransferRunTest, WhoeverIsSilentIsGivenUpInTime) {
  Make(Sending(), Receiving());
  MakeReady();
  for (int i = 0; i < 5; ++i) {
    const Nanos begin = Now();
    Connect({.deaf_after = 0});
    EXPECT_GE(Now() - begin, milliseconds(400));
    EXPECT_LT(Now() - begin, seconds(5));
  }
  EXPECT_EQ(CodeOf(sender_->status()), ErrorCode::TIMEOUT) << sender_->status();
}

TEST_P(TransferRunTest, AChunkThatStopsInTheMiddleEndsTheConnection) {
  Make(Sending(), Receiving());
  const auto [a, b] = Wired();
  receiver_->Prepare();
  Thread receives("receives", [this, b = b] { receiver_->Drive(*b); });
  a->Watch([] {});
  a->SendHeader({0, 1, CrcOf(0), kPiece});
  const Nanos begin = Now();
  receives.Join();
  EXPECT_LT(Now() - begin, seconds(5));
  EXPECT_EQ(receiver_->state(), TransferState::kRunning) << "another connection may bring it";
  MakeReady();
  Connect();
  ExpectComplete();
}

TEST_P(TransferRunTest, ASenderThatFallsSilentBetweenChunksIsGivenUp) {
  SenderLimits limits = Sending();
  limits.deadline = Now() + seconds(20);
  limits.idle = Nanos::max();  // as one that is stopped
  Make(limits, Receiving());
  EXPECT_TRUE(sender_->ChunkReady(0, CrcOf(0)).ok());
  const Nanos begin = Now();
  Connect();
  EXPECT_GE(Now() - begin, milliseconds(400));
  EXPECT_LT(Now() - begin, seconds(10));
  EXPECT_EQ(told_, 1U);
  EXPECT_EQ(receiver_->state(), TransferState::kRunning) << "another connection may bring the rest";
  MakeReady();
  Connect();
  ExpectComplete();
}

// Whoever dialled it dials again when a chunk is ready, and the transfer goes on.
TEST_P(TransferRunTest, ASenderThatHasNothingToSendGivesItsConnectionBack) {
  SenderLimits limits = Sending();
  limits.idle = milliseconds(100);
  Make(limits, Receiving());
  EXPECT_TRUE(sender_->ChunkReady(3, CrcOf(3)).ok());
  const Nanos begin = Now();
  Connect();
  EXPECT_GE(Now() - begin, milliseconds(100));
  EXPECT_LT(Now() - begin, seconds(5));
  EXPECT_TRUE(sender_->GaveBack());
  EXPECT_TRUE(sender_->Rests());
  MakeReady();
  EXPECT_FALSE(sender_->Rests());
  Connect();
  ExpectComplete();
  EXPECT_EQ(sender_->sent_bytes(), image_.size()) << "none twice";
}

TEST_P(TransferRunTest, AReceiverThatGrantsNothingIsGivenUp) {
  Make(Sending(), Receiving());
  MakeReady();
  const auto [a, b] = Wired();
  b->Watch([] {});
  b->Say(Welcome{std::vector<bool>(shape_.chunks())});
  b->Say(Window{1, 0});
  sender_->Prepare();
  const Nanos begin = Now();
  sender_->Drive(*a);
  EXPECT_GE(Now() - begin, milliseconds(450));
  EXPECT_LT(Now() - begin, seconds(5));
  EXPECT_EQ(sender_->sent_bytes(), 0U);
}

TEST_P(TransferRunTest, NonsenseFromTheOtherEndIsAProtocolError) {
  const auto fails = [this](const std::function<void(BulkStream&)>& say) {
    Make(Sending(), Receiving());
    const auto [a, b] = Wired();
    a->Watch([] {});
    say(*a);
    receiver_->Prepare();
    receiver_->Drive(*b);
    return CodeOf(receiver_->status());
  };
  const auto data = [](BulkStream& stream, size_t bytes) {
    EXPECT_TRUE(stream.SendData(bytes, [](std::span<std::byte>) { return absl::OkStatus(); }).ok());
  };
  EXPECT_EQ(fails([&](BulkStream& a) { data(a, 10); }), ErrorCode::PROTOCOL);
  EXPECT_EQ(fails([&](BulkStream& a) { a.SendHeader({9999, 1, 0, kPiece}); }), ErrorCode::PROTOCOL);
  EXPECT_EQ(fails([&](BulkStream& a) { a.SendHeader({0, 1, 0, kPiece + 1}); }), ErrorCode::PROTOCOL);
  EXPECT_EQ(fails([&](BulkStream& a) { a.Say(Verified{0, 1}); }), ErrorCode::PROTOCOL);
  EXPECT_EQ(fails([&](BulkStream& a) {
              a.SendHeader({0, 1, 0, kPiece});
              a.SendHeader({1, 1, 0, kPiece});
            }),
            ErrorCode::PROTOCOL);
  EXPECT_EQ(fails([&](BulkStream& a) {
              a.SendHeader({0, 1, 0, kPiece});
              data(a, kPiece - 1);
              data(a, 2);
            }),
            ErrorCode::PROTOCOL)
      << "one more than the chunk has";
  EXPECT_EQ(place_.substr(kPiece), std::string(place_.size() - kPiece, '~')) << "nothing was written behind it";
}

TEST_P(TransferRunTest, EitherEndMayGiveUpAndTheOtherHearsWhy) {
  for (const bool by_sender : {true, false}) {
    Make(Sending(), Receiving());
    EXPECT_TRUE(sender_->ChunkReady(2, CrcOf(2)).ok());
    Thread later("later", [this, by_sender] {
      while (receiver_->verified_bytes() == 0) Wake().WaitUntil(Now() + milliseconds(2));
      const absl::Status why = Error(ErrorCode::CANCELLED, "enough");
      by_sender ? sender_->Abort(why) : receiver_->Abort(why);
    });
    Connect();
    EXPECT_EQ(CodeOf(sender_->status()), ErrorCode::CANCELLED) << sender_->status();
    EXPECT_EQ(CodeOf(receiver_->status()), ErrorCode::CANCELLED) << receiver_->status();
    told_ = 0;
  }
}

TEST_P(TransferRunTest, WhoeverDoesNotWantTheBytesAnyMoreEndsIt) {
  wanted_ = 3;
  Make(Sending(), Receiving());
  MakeReady();
  Connect();
  EXPECT_EQ(CodeOf(sender_->status()), ErrorCode::FENCED) << sender_->status();
  EXPECT_EQ(CodeOf(receiver_->status()), ErrorCode::FENCED);
}

TEST_P(TransferRunTest, ASourceThatCannotBeReadEndsIt) {
  Make(Sending(), Receiving());
  MakeReady();
  MakeUnreadable();
  Connect();
  EXPECT_EQ(CodeOf(sender_->status()), ErrorCode::CORRUPT);
  EXPECT_EQ(CodeOf(receiver_->status()), ErrorCode::CORRUPT) << receiver_->status();
}

TEST_P(TransferRunTest, TheRateIsKept) {
  SenderLimits limits = Sending();
  limits.bytes_per_second = 10 * kMiB;
  limits.burst = kPiece;
  Make(limits, Receiving());
  MakeReady();
  const Nanos begin = Now();
  Connect();
  ExpectComplete();
  EXPECT_GE(Seconds(Now() - begin), 0.4) << "5 MiB at 10 MiB/s";
}

TEST_P(TransferRunTest, TheDeadlineEndsAnIdleOne) {
  SenderLimits limits = Sending();
  limits.deadline = Now() + milliseconds(300);
  Make(limits, Receiving());
  Connect();
  EXPECT_EQ(CodeOf(sender_->status()), ErrorCode::TIMEOUT) << sender_->status();
}

INSTANTIATE_TEST_SUITE_P(Over, TransferRunTest,
                         ::testing::Values(Link{"Fake", FakeBulk::Connect, [] { return std::string(); }},
                                           Link{"Tls", ConnectByTls, WhyNoTls},
                                           Link{"Tcp", ConnectByTcp, [] { return std::string(); }},
                                           Link{"Ucx", ConnectByUcx, WhyNoUcx}),
                         [](const auto& wire) { return std::string(wire.param.name); });

TEST(EmptyTransferRunTest, AnImageWithoutBytesIsComplete) {
  const TransferShape shape = *TransferShape::Make(0, kPiece);
  SendRun sender(SystemClock(), NameOf(), shape, {}, {}, kQuick);
  ReceiveRun receiver(SystemClock(), NameOf(), shape, {}, {}, kQuick);
  const auto [a, b] = FakeBulk::Connect();
  {
    Thread sends("sends", [&, a = a] { sender.Drive(*a); });
    Thread receives("receives", [&, b = b] { receiver.Drive(*b); });
  }
  EXPECT_EQ(sender.state(), TransferState::kComplete);
  EXPECT_EQ(receiver.state(), TransferState::kComplete);
}

}  // namespace
}  // namespace ckptd::transport
