// Members of the distribution's etcd, which is a process of the test.
#ifndef CKPTD_DAEMON_MEMBERSHIP_ETCD_FIXTURE_H_
#define CKPTD_DAEMON_MEMBERSHIP_ETCD_FIXTURE_H_

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/membership/etcd_client.h"
#include "daemon/membership/etcd_source.h"
#include "daemon/membership/membership.h"
#include "daemon/membership/testing/etcd_server.h"
#include "daemon/membership/testing/process.h"
#include "daemon/os/loop.h"
#include "daemon/os/posix_files.h"

namespace ckptd::membership {

inline constexpr char kPrefix[] = "/ckptd/test/";
inline constexpr int kTtl = 4;  // seconds
inline constexpr std::chrono::seconds kLong{60};

inline std::string Beside(const std::string& program) {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / program).string();
}

class EtcdTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (EtcdProgram().empty()) GTEST_SKIP() << kNoEtcd;
    server_ = std::make_unique<EtcdServer>();
    loop_ = *Loop::Create(SystemClock(), 64);
    ASSERT_TRUE(UntilAnswers(*server_));
  }

  static EtcdOptions Options(const std::string& endpoints) {
    return {endpoints, "", "", "", std::chrono::milliseconds(kTtl * 1000 / 3)};
  }
  static std::unique_ptr<Etcd> Client(const EtcdOptions& options) {
    auto client = ConnectEtcd(PosixFiles(), options);
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }

  std::unique_ptr<Membership> Join(const std::string& name, const EtcdOptions& options, Labels domains = {}) {
    EtcdSettings settings{{name, "", 9465, std::move(domains), 0}, kPrefix, std::chrono::seconds(kTtl)};
    auto source = std::make_unique<EtcdSource>(*loop_, Client(options), settings);
    auto membership = std::make_unique<Membership>(SystemClock(), std::move(source));
    EXPECT_TRUE(membership->Start().ok());
    return membership;
  }
  std::unique_ptr<Membership> Join(const std::string& name) { return Join(name, Options(server_->endpoint())); }

  // A member in a process of its own.
  std::unique_ptr<Process> Run(const std::string& name) const {
    return std::make_unique<Process>(
        std::vector<std::string>{Beside("etcd_member"), server_->endpoint(), kPrefix, name, absl::StrCat(kTtl)},
        "/dev/stderr");
  }

  template <typename Condition>
  [[nodiscard]] bool Until(Condition condition, Nanos patience = kLong) {
    const Nanos deadline = SystemClock().Monotonic() + patience;
    while (!condition() && SystemClock().Monotonic() < deadline)
      EXPECT_TRUE(loop_->RunOnce(std::chrono::milliseconds(50)).ok());
    return condition();
  }
  [[nodiscard]] bool UntilAnswers(const EtcdServer& server) {
    auto client = Client(Options(server.endpoint()));
    return Until([&] { return client->Newest(kPrefix).ok(); });
  }
  [[nodiscard]] bool UntilNames(const Membership& membership, const std::vector<std::string>& names) {
    return Until([&] { return membership.view()->source.ok() && Names(membership) == names; });
  }
  [[nodiscard]] bool UntilWell(const Membership& membership) {
    return Until([&] { return membership.self().status.ok() && membership.view()->source.ok(); });
  }
  static std::vector<std::string> Names(const Membership& membership) {
    std::vector<std::string> names;
    for (const Member& member : membership.view()->members) names.push_back(member.name);
    return names;
  }

  std::unique_ptr<EtcdServer> server_;
  std::unique_ptr<Loop> loop_;
};

}  // namespace ckptd::membership

#endif  // CKPTD_DAEMON_MEMBERSHIP_ETCD_FIXTURE_H_
