#include "daemon/app/certificate_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "daemon/os/posix_files.h"
#include "daemon/transport/tls/tls_pair.h"

namespace ckptd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kDay = 86'400;

TEST(EndingAlarmTest, SaysItFromThirtyDaysBeforeOnceADay) {
  EndingAlarm alarm;
  Nanos now = std::chrono::hours(5);
  EXPECT_FALSE(alarm.Due(31 * kDay, now));
  EXPECT_TRUE(alarm.Due(30 * kDay, now));
  size_t said = 0;
  for (int64_t left = 30 * kDay; left > 10 * kDay; left -= 60, now += std::chrono::minutes(1))
    said += alarm.Due(left, now) ? 1 : 0;
  EXPECT_GE(said, 19u);
  EXPECT_LE(said, 20u);
}

TEST(EndingAlarmTest, SaysItAtOnceWhenLessIsLeftAndAgainAfterANewOne) {
  EndingAlarm alarm;
  const Nanos now = std::chrono::hours(5);
  EXPECT_TRUE(alarm.Due(8 * kDay, now));
  EXPECT_TRUE(alarm.Due(7 * kDay, now));
  EXPECT_FALSE(alarm.Due(2 * kDay, now));
  EXPECT_TRUE(alarm.Due(kDay, now));
  EXPECT_TRUE(alarm.Due(0, now));
  EXPECT_FALSE(alarm.Due(-kDay, now));
  EXPECT_TRUE(alarm.Due(-kDay, now + std::chrono::hours(24)));
  EXPECT_FALSE(alarm.Due(90 * kDay, now + std::chrono::hours(25))) << "a new one";
  EXPECT_TRUE(alarm.Due(29 * kDay, now + std::chrono::hours(26)));
}

// Files of node "a", whose look comes every 10 s.
class CertificateWatchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = transport::WhyNoTls(); !why.empty()) GTEST_SKIP() << "skipped: " << why;
    nodes_.emplace();
    nodes_->Issue("a", 5);
    const transport::TlsOptions tls = nodes_->ca().Tls("a");
    config_.tls_ca = tls.ca;
    config_.tls_cert = tls.cert;
    config_.tls_key = tls.key;
    watch_.emplace(*loop_, clock_, PosixFiles(), inline_, config_);
    watch_->Start();
    Looked(1);
    end_ = EndOf("peers.tls_cert");
    ASSERT_NE(end_, 0);
  }
  void Looked(int times) {
    for (; times > 0; --times) {
      clock_.Advance(std::chrono::seconds(10));
      for (int i = 0; i < 3; ++i) ASSERT_TRUE(loop_->RunOnce(Nanos(0)).ok());
    }
  }
  int64_t EndOf(const std::string& key) {
    for (const CertificateWatch::End& end : watch_->ends()) {
      if (end.key == key) return end.unix_seconds;
    }
    return 0;
  }
  std::string Problem() {
    std::string all;
    for (const Peers::Problem& each : watch_->Problems()) all += std::string(each.what.message()) + "\n";
    return all;
  }

  FakeClock clock_;
  std::unique_ptr<Loop> loop_ = *Loop::Create(clock_, 16);
  InlineExecutor inline_;
  std::optional<transport::TlsNodes> nodes_;
  PeersConfig config_;
  std::optional<CertificateWatch> watch_;
  int64_t end_ = 0;
};

TEST_F(CertificateWatchTest, ANewPairIsTaken) {
  nodes_->Issue("a", 90);
  Looked(1);
  EXPECT_GT(EndOf("peers.tls_cert"), end_ + 80 * kDay);
  EXPECT_THAT(Problem(), IsEmpty());
}

TEST_F(CertificateWatchTest, ACertificateCountsOnlyWithItsKey) {
  nodes_->Issue("next", 90);
  std::filesystem::copy_file(nodes_->ca().cert("next"), config_.tls_cert,
                             std::filesystem::copy_options::overwrite_existing);
  Looked(1);
  EXPECT_THAT(Problem(), IsEmpty()) << "the key may be on its way";
  Looked(1);
  EXPECT_THAT(Problem(), AllOf(HasSubstr("peers.tls_key: " + config_.tls_key), HasSubstr("is not the key of")));
  EXPECT_EQ(EndOf("peers.tls_cert"), end_);
  std::filesystem::remove(config_.tls_key);
  Looked(1);
  EXPECT_THAT(Problem(), AllOf(HasSubstr("peers.tls_key: "), HasSubstr(config_.tls_key + ": No such file")));
  EXPECT_EQ(EndOf("peers.tls_cert"), end_);
  std::filesystem::rename(nodes_->ca().key("next"), config_.tls_key);
  Looked(1);
  EXPECT_THAT(Problem(), IsEmpty());
  EXPECT_GT(EndOf("peers.tls_cert"), end_ + 80 * kDay);
}

TEST_F(CertificateWatchTest, FilesThatAreGoneOrNoCertificatesAreNamed) {
  const int64_t authority_end = EndOf("peers.tls_ca");
  std::filesystem::copy_file(config_.tls_key, config_.tls_ca, std::filesystem::copy_options::overwrite_existing);
  std::filesystem::remove(config_.tls_cert);
  Looked(2);
  EXPECT_THAT(Problem(), AllOf(HasSubstr("peers.tls_cert: "), HasSubstr(config_.tls_cert + ": No such file")));
  EXPECT_THAT(Problem(), HasSubstr("peers.tls_ca: " + config_.tls_ca + ": no certificate in it"));
  EXPECT_EQ(EndOf("peers.tls_cert"), end_);
  EXPECT_EQ(EndOf("peers.tls_ca"), authority_end);
}

TEST_F(CertificateWatchTest, TwoExchangesThatALookFallsIntoAreNoProblem) {
  for (int i = 0; i < 2; ++i) {
    const std::string away = nodes_->dir() + "/away";
    std::filesystem::rename(config_.tls_key, away);
    Looked(1);
    EXPECT_THAT(Problem(), IsEmpty());
    std::filesystem::rename(away, config_.tls_key);
    Looked(1);
    EXPECT_THAT(Problem(), IsEmpty());
  }
}

}  // namespace
}  // namespace ckptd
