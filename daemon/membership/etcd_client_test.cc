// The etcd source with the distribution's etcd, as a process that is killed and stopped too; members are killed and
// stopped as processes (testing/etcd_member.cc).
#include "daemon/membership/etcd_client.h"

#include <gmock/gmock.h>
#include <grpc/grpc.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <fstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "daemon/base/errors.h"
#include "daemon/membership/etcd_fixture.h"
#include "daemon/os/posix_files.h"
#include "daemon/os/testing/mounted_dir.h"
#include "daemon/os/testing/own_threads.h"
#include "proto/etcd/rpc.grpc.pb.h"

namespace ckptd::membership {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The number that a line of etcd_member says behind `word`.
uint64_t GenerationIn(const std::string& line) {
  const std::vector<std::string> words = absl::StrSplit(line, ' ');
  uint64_t generation = 0;
  EXPECT_TRUE(words.size() > 2 && absl::SimpleAtoi(words[2], &generation)) << line;
  return generation;
}

// gRPC's own threads end behind the last channel, by themselves: what OpenSSL keeps for each of them looks like a leak
// to whoever counts before that. Not all of them are waited for by gRPC.
class GrpcEnds final : public ::testing::Environment {
 public:
  void SetUp() override { threads_ = OwnThreads(); }
  void TearDown() override {
    grpc_init();
    grpc_shutdown_blocking();
    EXPECT_TRUE(OwnThreadsEnd(threads_)) << OwnThreads() << " threads, " << threads_ << " before the tests";
  }

 private:
  long threads_ = 0;
};
[[maybe_unused]] const auto* const kGrpcEnds = ::testing::AddGlobalTestEnvironment(new GrpcEnds);

TEST_F(EtcdTest, ThreeMembersSeeEachOtherWithTheirDomains) {
  auto a = Join("a", Options(server_->endpoint()), {{"rack", "r1"}, {"zone", "z"}});
  auto b = Join("b");
  auto c = Join("c");
  ASSERT_TRUE(UntilWell(*a) && UntilWell(*b) && UntilWell(*c));
  for (const Membership* one : {a.get(), b.get(), c.get()}) {
    ASSERT_TRUE(UntilNames(*one, {"a", "b", "c"}));
    EXPECT_EQ(one->view()->members, a->view()->members);
  }
  EXPECT_EQ(a->view()->members[0].address, "a:9465");
  EXPECT_EQ(b->view()->members[0].domains, (Labels{{"rack", "r1"}, {"zone", "z"}}));
  EXPECT_TRUE(a->Admit("c", c->self().generation).ok());
}

TEST_F(EtcdTest, AMemberThatIsKilledLeavesWhenItsLeaseIsOver) {
  auto a = Join("a");
  auto victim = Run("victim");
  ASSERT_TRUE(UntilNames(*a, {"a", "victim"}));
  const auto ready = victim->WaitFor("standing OK");
  ASSERT_TRUE(ready.has_value());
  const uint64_t generation = GenerationIn(*ready);
  EXPECT_TRUE(a->Admit("victim", generation).ok());
  const Nanos killed = SystemClock().Monotonic();
  victim->Kill();
  ASSERT_TRUE(UntilNames(*a, {"a"}));
  const Nanos after = SystemClock().Monotonic() - killed;
  EXPECT_GT(after, seconds(kTtl) / 2) << "it was kept alive a third of its time before";
  RecordProperty("left_after_ms", static_cast<int>(after / milliseconds(1)));
  EXPECT_EQ(CodeOf(a->Admit("victim", generation)), ErrorCode::FENCED);
  auto again = Run("victim");
  ASSERT_TRUE(UntilNames(*a, {"a", "victim"}));
  EXPECT_GT(a->view()->Find("victim")->generation, generation);
}

TEST_F(EtcdTest, AMemberThatIsPausedAndComesBackLateIsRefused) {
  auto a = Join("a");
  auto paused = Run("paused");
  ASSERT_TRUE(UntilNames(*a, {"a", "paused"}));
  const auto ready = paused->WaitFor("standing OK");
  ASSERT_TRUE(ready.has_value());
  const uint64_t before = GenerationIn(*ready);
  paused->Signal(SIGSTOP);
  ASSERT_TRUE(UntilNames(*a, {"a"}));
  EXPECT_EQ(CodeOf(a->Admit("paused", before)), ErrorCode::FENCED);
  paused->Signal(SIGCONT);
  ASSERT_TRUE(paused->WaitFor("standing FENCED").has_value()) << "it knows before anybody tells it";
  const auto back = paused->WaitFor("standing OK");
  ASSERT_TRUE(back.has_value());
  const uint64_t after = GenerationIn(*back);
  EXPECT_GT(after, before);
  ASSERT_TRUE(UntilNames(*a, {"a", "paused"}));
  EXPECT_EQ(CodeOf(a->Admit("paused", before)), ErrorCode::FENCED);
  EXPECT_TRUE(a->Admit("paused", after).ok());
}

TEST_F(EtcdTest, APausedMemberWhoseNameWasTakenStaysFenced) {
  auto a = Join("a");
  auto paused = Run("node");
  const auto ready = paused->WaitFor("standing OK");
  ASSERT_TRUE(ready.has_value());
  const uint64_t before = GenerationIn(*ready);
  paused->Signal(SIGSTOP);
  auto successor = Run("node");
  const auto taken = successor->WaitFor("standing OK");
  ASSERT_TRUE(taken.has_value());
  const uint64_t after = GenerationIn(*taken);
  ASSERT_TRUE(Until([&] {
    const Member* node = a->view()->Find("node");
    return node != nullptr && node->generation == after;
  }));
  EXPECT_GT(after, before);
  EXPECT_EQ(CodeOf(a->Admit("node", before)), ErrorCode::FENCED) << "before its lease is over";
  paused->Signal(SIGCONT);
  ASSERT_TRUE(paused->WaitFor("standing FENCED 0").has_value());
  EXPECT_FALSE(paused->WaitFor("standing OK", seconds(2 * kTtl)).has_value()) << "it does not fight for the name";
  EXPECT_EQ(a->view()->Find("node")->generation, after);
}

TEST_F(EtcdTest, AnEtcdThatIsKilledAndComesBackIsAskedOnAndNobodyLeaves) {
  auto a = Join("a");
  auto b = Join("b");
  ASSERT_TRUE(UntilWell(*a) && UntilWell(*b) && UntilNames(*a, {"a", "b"}) && UntilNames(*b, {"a", "b"}));
  const std::vector<Member> members = a->view()->members;
  const uint64_t number = a->view()->number;
  server_->Kill();
  ASSERT_TRUE(Until([&] { return !a->view()->source.ok() && !b->view()->source.ok(); }));
  EXPECT_THAT(a->view()->source.message(), HasSubstr("etcd at 127.0.0.1:"));
  EXPECT_EQ(a->view()->members, members);
  server_->Start();
  ASSERT_TRUE(UntilWell(*a) && UntilWell(*b));
  EXPECT_EQ(a->view()->members, members) << "the same generations: no lease was lost";
  EXPECT_EQ(a->view()->number, number);
  auto c = Join("c");
  ASSERT_TRUE(UntilNames(*a, {"a", "b", "c"})) << "the watch goes on";
}

// What a cut looks like from here: connections stand, nothing comes.
TEST_F(EtcdTest, AnEtcdThatIsCutOffIsToldTheViewStaysAndNobodyIsFenced) {
  auto a = Join("a");
  auto b = Join("b");
  ASSERT_TRUE(UntilWell(*a) && UntilNames(*a, {"a", "b"}));
  const uint64_t generation = a->self().generation;
  const Nanos cut = SystemClock().Monotonic();
  server_->Stop();
  ASSERT_TRUE(Until([&] { return !a->view()->source.ok(); }));
  RecordProperty("told_after_ms", static_cast<int>((SystemClock().Monotonic() - cut) / milliseconds(1)));
  EXPECT_GE(a->view()->source_since, cut);
  EXPECT_FALSE(Until([&] { return !a->self().status.ok(); }, seconds(4 * kTtl))) << a->self().status;
  EXPECT_EQ(a->self().generation, generation);
  EXPECT_THAT(Names(*a), ElementsAre("a", "b"));
  server_->Continue();
  ASSERT_TRUE(UntilWell(*a) && UntilWell(*b));
  ASSERT_TRUE(UntilNames(*a, {"a", "b"}));
  EXPECT_GE(a->self().generation, generation);
}

TEST_F(EtcdTest, WhatIsCompactedIsSaidAndAListFollows) {
  auto client = Client(Options(server_->endpoint()));
  auto lease = client->Grant(kTtl);
  ASSERT_TRUE(lease.ok()) << lease.status();
  int64_t last = 0;
  for (int i = 0; i < 10; ++i) {
    auto claim = client->Claim(absl::StrCat(kPrefix, "x"), absl::StrCat("v", i), lease->id, Taking::kAnyway);
    ASSERT_TRUE(claim.ok() && claim->taken) << claim.status();
    last = claim->revision;
  }
  auto kv =
      etcdserverpb::KV::NewStub(grpc::CreateChannel(server_->endpoint().substr(7), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kLong);
  etcdserverpb::CompactionRequest request;
  request.set_revision(last);
  etcdserverpb::CompactionResponse response;
  ASSERT_TRUE(kv->Compact(&context, request, &response).ok());
  int changes = 0;
  auto count = [&changes](const EtcdNews& news) {
    changes += static_cast<int>(news.changes.size());
    return changes == 0;
  };
  auto end = client->Watch(kPrefix, last - 5, count);
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(*end, WatchEnd::kCompacted);
  EXPECT_EQ(changes, 0);
  auto list = client->List(kPrefix, 10);
  ASSERT_TRUE(list.ok()) << list.status();
  ASSERT_EQ(list->entries.size(), 1U);
  EXPECT_EQ(list->entries[0].value, "v9");
  EXPECT_EQ(list->entries[0].revision, last);
  EXPECT_EQ(CodeOf(client->List(kPrefix, 0).status()), ErrorCode::REFUSED);
}

TEST_F(EtcdTest, ClaimsAndLeasesSayWhatEtcdSays) {
  auto client = Client(Options(server_->endpoint()));
  const std::string key = absl::StrCat(kPrefix, "x");
  auto first = client->Grant(kTtl);
  auto second = client->Grant(kTtl);
  ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
  EXPECT_GE(first->ttl_seconds, kTtl);
  auto claim = client->Claim(key, "1", first->id, Taking::kIfFree);
  ASSERT_TRUE(claim.ok() && claim->taken) << claim.status();
  auto late = client->Claim(key, "2", second->id, Taking::kIfFree);
  ASSERT_TRUE(late.ok()) << late.status();
  EXPECT_FALSE(late->taken);
  EXPECT_EQ(late->holder.lease, first->id);
  EXPECT_EQ(late->holder.revision, claim->revision);
  auto over = client->Claim(key, "2", second->id, Taking::kAnyway);
  ASSERT_TRUE(over.ok() && over->taken) << over.status();
  EXPECT_GT(over->revision, claim->revision);
  EXPECT_GT(*client->KeepAlive(second->id), 0);
  EXPECT_EQ(*client->KeepAlive(987654321), 0) << "never granted";
  EXPECT_EQ(CodeOf(client->Claim(key, "3", 987654321, Taking::kAnyway).status()), ErrorCode::NOT_FOUND);
  client->Cancel();
  EXPECT_EQ(CodeOf(client->Newest(kPrefix).status()), ErrorCode::CANCELLED);
}

TEST_F(EtcdTest, TheNextEndpointIsAskedWhereOneDoesNotAnswer) {
  auto a = Join("a", Options(absl::StrCat("http://127.0.0.1:1,", server_->endpoint())));
  ASSERT_TRUE(UntilWell(*a));
  ASSERT_TRUE(UntilNames(*a, {"a"}));
}

TEST(EtcdOptionsTest, EndpointsAreParsed) {
  auto endpoints = ParseEndpoints("http://a:1,https://[::1]:2379");
  ASSERT_TRUE(endpoints.ok()) << endpoints.status();
  EXPECT_FALSE((*endpoints)[0].tls);
  EXPECT_TRUE((*endpoints)[1].tls);
  EXPECT_EQ((*endpoints)[1].address, "[::1]:2379");
  for (const char* wrong : {"", "a:1", "ftp://a:1", "http://a", "http://a:1,", "http://a:1/x", "http://:1"})
    EXPECT_EQ(CodeOf(ParseEndpoints(wrong).status()), ErrorCode::INVALID_ARGUMENT) << wrong;
  std::string many = "http://a:1";
  for (size_t i = 0; i < kMaxEndpoints; ++i) many += ",http://a:1";
  EXPECT_THAT(ParseEndpoints(many).status().message(), HasSubstr("more than 16"));
  EXPECT_EQ(CodeOf(ConnectEtcd(PosixFiles(), {"http://a:1", "", "cert", "", seconds(1)}).status()),
            ErrorCode::INVALID_ARGUMENT);
}

TEST(EtcdPemTest, MayBeALink) {
  const TempDir dir;
  std::ofstream(dir.path() + "/ca.pem") << "-----BEGIN CERTIFICATE-----\n";
  const MountedDir mounted({"ca.pem"}, dir.path());
  EXPECT_EQ(ReadPem(PosixFiles(), mounted.PathOf("ca.pem")).value_or(""), "-----BEGIN CERTIFICATE-----\n");
}

}  // namespace
}  // namespace ckptd::membership
