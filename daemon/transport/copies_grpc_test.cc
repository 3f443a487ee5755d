// Snapshots move between two agents over real connections on this machine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "client/core/copy/crc32c.h"
#include "daemon/base/errors.h"
#include "daemon/transport/copy_request.h"
#include "daemon/transport/testing/moving.h"
#include "daemon/transport/testing/raw_move.h"
#include "daemon/transport/testing/raw_peer.h"
#include "daemon/transport/testing/relay.h"
#include "daemon/transport/testing/test_holder.h"
#include "daemon/transport/testing/test_node.h"

namespace ckptd::transport {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr size_t kBig = size_t{64} << 20;

Nanos MonoNow() { return SystemClock().Monotonic(); }

class CopiesGrpcTest : public ::testing::Test {
 protected:
  void Start(size_t moves_out = 4, size_t moves_in = 4) {
    TestNode::Options of_a;
    of_a.name = "a";
    of_a.moves_out = moves_out;
    a_.emplace(of_a);
    TestNode::Options of_b;
    of_b.name = "b";
    of_b.copy_host = &holder_;
    of_b.moves_in = moves_in;
    b_.emplace(of_b);
    relay_.emplace(std::stoi(b_->address().substr(b_->address().find(':') + 1)));
    a_->SetPeers({b_->node()});
    b_->SetPeers({a_->node()});
  }
  void ThroughRelay() { a_->SetPeers({{"b", relay_->address()}}); }
  static SenderLimits Sending(Nanos within = seconds(60)) { return {.deadline = MonoNow() + within}; }
  static ReceiverLimits Receiving(Nanos within = seconds(60)) { return {.deadline = MonoNow() + within}; }
  absl::Status Seal(uint32_t rank, const std::string& image) {
    absl::Status sealed = absl::UnknownError("");
    Mutex mutex;
    CondVar changed;
    bool done = false;
    a_->Do([&] {
      a_->copies().Seal("b", SealOf(rank, image), seconds(10), [&](const auto& response) {
        MutexLock lock(mutex);
        sealed = response.status();
        done = true;
        changed.NotifyAll();
      });
    });
    MutexLock lock(mutex);
    while (!done) changed.Wait(mutex);
    return sealed;
  }
  v1::HelloRequest HelloOf() const { return MakeHello({kTestCluster, "a", "a-agent", 1, 77}, "b"); }
  std::string TransferOf(const std::string& token, uint32_t rank, uint64_t bytes, const std::string& peer = "a") const {
    return EncodeHello({*TokenOf(token), NameOfCopy(peer, rank), bytes, kTestChunk});
  }
  std::string TokenFor(RawCaller& caller, uint32_t rank, uint64_t bytes) const {
    v1::OfferRequest offer = OfferOf(rank, bytes);
    *offer.mutable_from() = HelloOf();
    v1::OfferResponse response;
    const absl::Status offered = RawOffer(caller.channel(), offer, &response);
    EXPECT_TRUE(offered.ok()) << offered;
    return response.token();
  }

  TestHolder holder_;
  std::optional<TestNode> a_;
  std::optional<TestNode> b_;
  std::optional<Relay> relay_;
};

TEST_F(CopiesGrpcTest, BytesAreSentAndSealed) {
  Start();
  const std::string image = TestImage(kBig);
  Moving moving(*a_, "b", 3);
  moving.Send(image, Sending());
  ASSERT_TRUE(moving.Wait().ok()) << moving.Wait();
  EXPECT_EQ(holder_.Of(3)->bytes, image);
  EXPECT_THAT(holder_.Of(3)->verified, Each(1));
  EXPECT_EQ(moving.move().Progress(), kBig);
  ASSERT_TRUE(holder_.UntilEnds(1));
  EXPECT_TRUE(holder_.Ends()[0].ok()) << holder_.Ends()[0];
  EXPECT_TRUE(Seal(3, image).ok());
  EXPECT_EQ(CodeOf(Seal(3, TestImage(kBig, 2))), ErrorCode::CORRUPT);
  EXPECT_EQ(CodeOf(Seal(4, image)), ErrorCode::NOT_FOUND);
}

TEST_F(CopiesGrpcTest, BytesAreReceived) {
  Start();
  const std::string image = TestImage(kBig, 7);
  holder_.Put(5, image);
  std::string place;
  Moving moving(*a_, "b", 5);
  moving.Receive(place, Receiving());
  ASSERT_TRUE(moving.Wait().ok()) << moving.Wait();
  EXPECT_EQ(place, image);
  ASSERT_TRUE(holder_.UntilEnds(1));
  EXPECT_TRUE(holder_.Ends()[0].ok()) << holder_.Ends()[0];
}

TEST_F(CopiesGrpcTest, ChunksBecomeReadyLateAndOutOfOrder) {
  Start();
  const std::string image = TestImage(16 * kTestChunk);
  const std::vector<uint32_t> crcs = CrcsOf(image);
  Moving moving(*a_, "b", 3);
  moving.Send(image, Sending(), /*all_ready=*/false);
  ASSERT_TRUE(moving.UntilProgress(0));
  for (uint32_t i = 16; i-- > 0;) {
    ASSERT_TRUE(moving.move().ChunkReady(i, crcs[i]).ok());
    ASSERT_TRUE(moving.UntilProgress((16 - i) * kTestChunk));
  }
  EXPECT_TRUE(moving.Wait().ok());
  EXPECT_EQ(holder_.Of(3)->bytes, image);
  EXPECT_EQ(CodeOf(moving.move().ChunkReady(99, 0)), ErrorCode::INVALID_ARGUMENT);
}

TEST_F(CopiesGrpcTest, WhatWasVerifiedIsNotSentAgainAfterACut) {
  Start();
  ThroughRelay();
  const std::string image = TestImage(kBig);
  SenderLimits limits = Sending();
  limits.bytes_per_second = uint64_t{80} << 20;
  limits.burst = kTestChunk;
  Moving moving(*a_, "b", 3);
  moving.Send(image, limits);
  for (const uint64_t at : {10, 25, 40}) {
    ASSERT_TRUE(moving.UntilProgress(at * kTestChunk));
    relay_->Cut();
  }
  ASSERT_TRUE(moving.Wait().ok()) << moving.Wait();
  EXPECT_EQ(holder_.Of(3)->bytes, image);
  EXPECT_THAT(holder_.Of(3)->verified, Each(1)) << "no verified chunk was written again";
  EXPECT_EQ(holder_.redeemed(), 4);
  EXPECT_LE(relay_->passed(), kBig + 3 * 4 * kTestChunk + kBig / 50) << "a window for each cut, and gRPC's frames";
  RecordProperty("passed", absl::StrCat(relay_->passed()));
}

TEST_F(CopiesGrpcTest, ReceivingGoesOnAfterACut) {
  Start();
  ThroughRelay();
  const std::string image = TestImage(kBig, 9);
  holder_.Put(5, image);
  std::string place;
  Moving moving(*a_, "b", 5);
  ReceiverLimits limits = Receiving();
  limits.window = 2 * kTestChunk;
  moving.Receive(place, limits);
  for (const uint64_t at : {8, 24}) {
    ASSERT_TRUE(moving.UntilProgress(at * kTestChunk));
    relay_->Cut();
  }
  ASSERT_TRUE(moving.Wait().ok()) << moving.Wait();
  EXPECT_EQ(place, image);
  EXPECT_LE(relay_->passed(), kBig + 2 * 2 * kTestChunk + kBig / 50);
}

TEST_F(CopiesGrpcTest, AWrongChunkIsRefusedAndFourTimesIsCorrupt) {
  Start();
  RawCaller caller(b_->address(), {});
  const std::string image = TestImage(kTestChunk);
  std::string wrong = image;
  wrong[1234] ^= 1;
  const uint32_t crc = CrcsOf(image)[0];
  {
    RawMove move(caller.channel());
    ASSERT_TRUE(move.Hello(HelloOf(), TransferOf(TokenFor(caller, 1, kTestChunk), 1, kTestChunk)));
    ASSERT_TRUE(move.Chunk({0, 1, crc, kTestChunk}, wrong));
    EXPECT_TRUE(std::holds_alternative<Damaged>(*move.ReadAnswer()));
    ASSERT_TRUE(move.Chunk({0, 2, crc, kTestChunk}, image));
    EXPECT_TRUE(std::holds_alternative<Verified>(*move.ReadAnswer()));
    EXPECT_TRUE(move.End().ok());
    EXPECT_EQ(holder_.Of(1)->bytes, image);
  }
  RawMove move(caller.channel());
  ASSERT_TRUE(move.Hello(HelloOf(), TransferOf(TokenFor(caller, 2, kTestChunk), 2, kTestChunk)));
  for (uint32_t attempt = 1; attempt <= 4; ++attempt) {
    ASSERT_TRUE(move.Chunk({0, attempt, crc, kTestChunk}, wrong));
    const auto answer = move.ReadAnswer();
    ASSERT_TRUE(answer.has_value());
    EXPECT_EQ(std::holds_alternative<Stop>(*answer), attempt == 4);
  }
  ASSERT_TRUE(holder_.UntilEnds(2));
  EXPECT_EQ(CodeOf(holder_.Ends()[1]), ErrorCode::CORRUPT) << holder_.Ends()[1];
  EXPECT_THAT(holder_.Of(2)->verified, Each(0));
}

TEST_F(CopiesGrpcTest, ATokenIsForOneConnectionOfOneTransferOfOnePeer) {
  Start();
  RawCaller caller(b_->address(), {});
  const auto dial = [&](const std::string& transfer) {
    RawMove move(caller.channel());
    EXPECT_TRUE(move.Hello(HelloOf(), transfer));
    return CodeOf(move.End());
  };
  const std::string token = TokenFor(caller, 1, kTestChunk);
  const std::string good = TransferOf(token, 1, kTestChunk);
  EXPECT_EQ(dial(TransferOf(std::string(16, 'x'), 1, kTestChunk)), ErrorCode::PERMISSION) << "no token";
  EXPECT_EQ(dial(TransferOf(token, 1, kTestChunk, "c")), ErrorCode::PERMISSION) << "in the name of another";
  EXPECT_EQ(dial(good), ErrorCode::OK);
  EXPECT_EQ(dial(good), ErrorCode::PERMISSION) << "twice";
  EXPECT_EQ(dial(TransferOf(TokenFor(caller, 1, kTestChunk), 2, kTestChunk)), ErrorCode::PERMISSION) << "another rank";
  EXPECT_EQ(dial(TransferOf(TokenFor(caller, 1, kTestChunk), 1, 2 * kTestChunk)), ErrorCode::PERMISSION) << "size";
  holder_.token_life = Nanos(0);
  EXPECT_EQ(dial(TransferOf(TokenFor(caller, 1, kTestChunk), 1, kTestChunk)), ErrorCode::PERMISSION) << "expired";
  EXPECT_EQ(dial("nonsense"), ErrorCode::PROTOCOL);
  EXPECT_EQ(holder_.redeemed(), 2) << "one was of another size";
}

TEST_F(CopiesGrpcTest, AfterABadTokenAnotherIsAskedFor) {
  Start();
  const std::string image = TestImage(4 * kTestChunk);
  holder_.Put(5, image);
  std::string place;
  Moving moving(*a_, "b", 5);
  moving.Receive(place, Receiving(), std::string(16, 'x'));
  ASSERT_TRUE(moving.Wait().ok()) << moving.Wait();
  EXPECT_EQ(place, image);
  EXPECT_EQ(holder_.asked(), 2);
}

TEST_F(CopiesGrpcTest, MoveWithoutHelloIsRefused) {
  Start();
  RawCaller caller(b_->address(), {});
  RawMove move(caller.channel());
  v1::MoveRequest data;
  data.set_data("12345");
  ASSERT_TRUE(move.Write(data));
  EXPECT_EQ(CodeOf(move.End()), ErrorCode::PROTOCOL);
}

TEST_F(CopiesGrpcTest, AnOfferBeyondTheLimitsIsRefusedBeforeTheHostHearsOfIt) {
  Start();
  RawCaller caller(b_->address(), {});
  v1::OfferRequest offer = OfferOf(1, uint64_t{128} << 20);
  *offer.mutable_from() = HelloOf();
  offer.mutable_layout()->mutable_images(0)->set_header_bytes(kMaxImageHeader + 1);
  v1::OfferResponse response;
  EXPECT_EQ(CodeOf(RawOffer(caller.channel(), offer, &response)), ErrorCode::PROTOCOL);
  EXPECT_EQ(holder_.asked(), 0);
}

TEST_F(CopiesGrpcTest, WhoKeepsNoCopiesSaysSo) {
  Start();
  a_->SetPeers({b_->node()});
  RawCaller caller(a_->address(), {});
  v1::OfferRequest offer = OfferOf(1, kTestChunk);
  *offer.mutable_from() = MakeHello({kTestCluster, "b", "b-agent", 1, 77}, "a");
  v1::OfferResponse response;
  EXPECT_EQ(CodeOf(RawOffer(caller.channel(), offer, &response)), ErrorCode::REFUSED);
}

TEST_F(CopiesGrpcTest, ANetworkThatIsSilentEndsItByTheDeadline) {
  Start();
  ThroughRelay();
  const std::string image = TestImage(kBig);
  SenderLimits limits = Sending(seconds(4));
  limits.bytes_per_second = uint64_t{20} << 20;
  limits.burst = kTestChunk;
  Moving moving(*a_, "b", 3);
  const Nanos begin = MonoNow();
  moving.Send(image, limits);
  ASSERT_TRUE(moving.UntilProgress(2 * kTestChunk));
  relay_->Freeze(true);
  EXPECT_EQ(CodeOf(moving.Wait()), ErrorCode::TIMEOUT) << moving.Wait();
  EXPECT_LT(MonoNow() - begin, seconds(6));
  relay_->Freeze(false);
}

TEST_F(CopiesGrpcTest, BothSidesMayCancel) {
  Start();
  const std::string image = TestImage(kBig);
  SenderLimits limits = Sending();
  limits.bytes_per_second = uint64_t{20} << 20;
  limits.burst = kTestChunk;
  {
    Moving moving(*a_, "b", 3);
    moving.Send(image, limits);
    ASSERT_TRUE(moving.UntilProgress(2 * kTestChunk));
    moving.move().Cancel();
    EXPECT_EQ(CodeOf(moving.Wait(seconds(5))), ErrorCode::CANCELLED) << moving.Wait();
    ASSERT_TRUE(holder_.UntilEnds(1));
    EXPECT_EQ(CodeOf(holder_.Ends()[0]), ErrorCode::CANCELLED) << holder_.Ends()[0];
  }
  Moving moving(*a_, "b", 4);
  moving.Send(image, limits);
  ASSERT_TRUE(moving.UntilProgress(2 * kTestChunk));
  b_->SetPeers({{"c", "127.0.0.1:1"}});  // a is a member no more
  EXPECT_EQ(CodeOf(moving.Wait(seconds(5))), ErrorCode::NOT_FOUND) << moving.Wait();
  ASSERT_TRUE(holder_.UntilEnds(2));
  EXPECT_EQ(CodeOf(holder_.Ends()[1]), ErrorCode::NOT_FOUND) << holder_.Ends()[1];
}

TEST_F(CopiesGrpcTest, AHolderThatIsFencedIsSentNothingMore) {
  Start();
  const std::string image = TestImage(kBig);
  SenderLimits limits = Sending();
  limits.bytes_per_second = uint64_t{20} << 20;
  limits.burst = kTestChunk;
  Moving moving(*a_, "b", 3);
  moving.Send(image, limits);
  ASSERT_TRUE(moving.UntilProgress(2 * kTestChunk));
  a_->SetPeers({b_->node()}, {{"b", 5}});
  EXPECT_EQ(CodeOf(moving.Wait(seconds(5))), ErrorCode::FENCED) << moving.Wait();
}

TEST_F(CopiesGrpcTest, EitherNodeMayLeaveInTheMiddle) {
  for (const bool holder_leaves : {true, false}) {
    Start();
    const std::string image = TestImage(kBig);
    SenderLimits limits = Sending(seconds(3));
    limits.bytes_per_second = uint64_t{20} << 20;
    limits.burst = kTestChunk;
    auto moving = std::make_unique<Moving>(*a_, "b", holder_leaves ? 3 : 4);
    moving->Send(image, limits);
    ASSERT_TRUE(moving->UntilProgress(2 * kTestChunk));
    const Nanos begin = MonoNow();
    if (holder_leaves) {
      b_.reset();
      EXPECT_FALSE(moving->Wait(seconds(10)).ok());
    } else {
      moving->Drop();
    }
    moving.reset();
    a_.reset();
    EXPECT_LT(MonoNow() - begin, seconds(10));
    b_.reset();
    relay_.reset();
  }
}

TEST_F(CopiesGrpcTest, AHandleThatIsGoneBeforeTheAnswerLeavesNoCallBehind) {
  Start();
  const std::string image = TestImage(4 * kTestChunk);
  auto moving = std::make_unique<Moving>(*a_, "b", 3);
  moving->Send(image, Sending());
  ASSERT_TRUE(moving->UntilProgress(0));
  moving->Drop();
  moving.reset();
  Moving another(*a_, "b", 4);
  another.Send(image, Sending());
  EXPECT_TRUE(another.Wait().ok());
  ASSERT_TRUE(holder_.UntilEnds(1));  // and the nodes end, which waits for all calls
}

TEST_F(CopiesGrpcTest, OfEightAtOnceTwoMoveAndTheRestWait) {
  Start(/*moves_out=*/2, /*moves_in=*/8);
  const std::string image = TestImage(8 * kTestChunk);
  std::vector<std::unique_ptr<Moving>> all;
  for (uint32_t rank = 0; rank < 8; ++rank) {
    all.push_back(std::make_unique<Moving>(*a_, "b", rank));
    all.back()->Send(image, Sending());
  }
  for (auto& one : all) EXPECT_TRUE(one->Wait().ok()) << one->Wait();
  for (uint32_t rank = 0; rank < 8; ++rank) EXPECT_EQ(holder_.Of(rank)->bytes, image);
  EXPECT_LE(holder_.most_at_once(), 3) << "the third began when the first had ended, before the holder's loop saw it";
}

TEST_F(CopiesGrpcTest, AHolderThatIsBusyIsAskedAgain) {
  Start(/*moves_out=*/8, /*moves_in=*/2);
  const std::string image = TestImage(8 * kTestChunk);
  std::vector<std::unique_ptr<Moving>> all;
  for (uint32_t rank = 0; rank < 8; ++rank) {
    all.push_back(std::make_unique<Moving>(*a_, "b", rank));
    all.back()->Send(image, Sending());
  }
  for (auto& one : all) EXPECT_TRUE(one->Wait().ok()) << one->Wait();
  for (uint32_t rank = 0; rank < 8; ++rank) EXPECT_EQ(holder_.Of(rank)->bytes, image);
  EXPECT_LE(holder_.most_at_once(), 2);
}

TEST_F(CopiesGrpcTest, WhoCannotBeReachedIsAnError) {
  Start();
  a_->SetPeers({{"b", "127.0.0.1:1"}});
  const std::string image = TestImage(kTestChunk);
  Moving moving(*a_, "b", 3);
  moving.Send(image, Sending());
  EXPECT_EQ(CodeOf(moving.Wait()), ErrorCode::AGENT_UNREACHABLE) << moving.Wait();
  Moving nobody(*a_, "nobody", 3);
  nobody.Send(image, Sending());
  EXPECT_EQ(CodeOf(nobody.Wait()), ErrorCode::NOT_FOUND) << nobody.Wait();
}

}  // namespace
}  // namespace ckptd::transport
