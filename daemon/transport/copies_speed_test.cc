// How fast bytes move between two agents on this machine, with memcpy beside it. Not run with the other tests:
//   transport_copies_grpc_test --gtest_also_run_disabled_tests --gtest_filter='*Speed*'
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "daemon/os/testing/temp_dir.h"
#include "daemon/transport/copy_request.h"
#include "daemon/transport/testing/authority.h"
#include "daemon/transport/testing/test_holder.h"
#include "daemon/transport/testing/test_node.h"

namespace ckptd::transport {
namespace {

constexpr size_t kSpeedBytes = size_t{512} << 20;
constexpr int kRuns = 5;

double MedianOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double SecondsSince(Nanos begin) { return Seconds(SystemClock().Monotonic() - begin); }

// One Send, from the call to `done`.
double SendOnce(TestNode& a, uint32_t rank, const std::string& image, const std::vector<uint32_t>& crcs) {
  Mutex mutex;
  CondVar changed;
  std::optional<absl::Status> ended;
  std::unique_ptr<CopyMove> move;
  Nanos begin{0};
  const auto done = [&](const absl::Status& status) {
    MutexLock lock(mutex);
    ended = status;
    changed.NotifyAll();
  };
  a.Do([&] {
    a.copies().Offer("b", OfferOf(rank, image.size()), std::chrono::seconds(10), [&](const auto& offer) {
      if (!offer.ok()) return done(offer.status());
      BulkSource source;
      source.read = [&](uint64_t offset, std::span<std::byte> into) {
        std::memcpy(into.data(), image.data() + offset, into.size());
        return absl::OkStatus();
      };
      MoveOrder order{"b", NameOfCopy("b", rank), image.size(), kTestChunk, *TokenOf(offer->token()), [](auto) {}};
      begin = SystemClock().Monotonic();
      SenderLimits limits;
      limits.deadline = begin + std::chrono::seconds(60);
      move = *a.copies().Send(order, source, limits, done);
      for (uint32_t i = 0; i < crcs.size(); ++i) (void)move->ChunkReady(i, crcs[i]);
    });
  });
  double seconds = 0;
  {
    MutexLock lock(mutex);
    while (!ended) changed.Wait(mutex);
    seconds = SecondsSince(begin);
    EXPECT_TRUE(ended->ok()) << *ended;
  }
  a.Do([&] { move.reset(); });
  return seconds;
}

double SpeedOf(const TestNode::Options& of_a, TestNode::Options of_b) {
  TestHolder holder;
  holder.window = 32 * kTestChunk;
  of_b.copy_host = &holder;
  TestNode a(of_a);
  TestNode b(of_b);
  a.SetPeers({b.node()});
  b.SetPeers({a.node()});
  const std::string image = TestImage(kSpeedBytes);
  const std::vector<uint32_t> crcs = CrcsOf(image);
  holder.Put(1, std::string(kSpeedBytes, '~'));
  std::vector<double> speeds;
  for (int run = 0; run <= kRuns; ++run) {
    const double seconds = SendOnce(a, 1, image, crcs);
    if (run > 0) speeds.push_back(static_cast<double>(kSpeedBytes) / 1e9 / seconds);  // the first touches memory
    EXPECT_TRUE(holder.UntilEnds(static_cast<size_t>(run) + 1));
    holder.Put(1, holder.Of(1)->bytes);
  }
  return MedianOf(speeds);
}

TestNode::Options Named(const std::string& name) {
  TestNode::Options options;
  options.name = name;
  return options;
}

TEST(CopiesSpeedTest, DISABLED_PlaintextTlsAndMemcpy) {
  const std::string image = TestImage(kSpeedBytes);
  std::string place(kSpeedBytes, '~');
  std::vector<double> speeds;
  for (int run = 0; run < kRuns; ++run) {
    const Nanos begin = SystemClock().Monotonic();
    std::memcpy(place.data(), image.data(), image.size());
    speeds.push_back(static_cast<double>(kSpeedBytes) / 1e9 / SecondsSince(begin));
  }
  std::cout << "memcpy    " << MedianOf(speeds) << " GB/s\n";
  std::cout << "plaintext " << SpeedOf(Named("a"), Named("b")) << " GB/s\n";
  if (!HaveOpenssl()) GTEST_SKIP() << "skipped: no " << kOpenssl << " (package openssl)";
  const TempDir dir;
  const Authority ca(dir.path(), "ca");
  TestNode::Options of[2] = {Named("a"), Named("b")};
  for (auto& options : of) {
    ca.Issue(options.name, absl::StrCat("URI:spiffe://", kTestCluster, "/ckptd/", options.name));
    options.tls = ca.Tls(options.name);
  }
  std::cout << "TLS       " << SpeedOf(of[0], of[1]) << " GB/s\n";
}

}  // namespace
}  // namespace ckptd::transport
