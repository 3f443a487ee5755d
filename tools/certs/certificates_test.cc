#include "tools/certs/certificates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/os/testing/temp_dir.h"
#include "daemon/transport/testing/authority.h"

namespace ckptd::certs {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kNow = 1'800'000'000;

KeyPair MadeAuthority(const std::string& cluster = "ml", int days = kAuthorityDays, int64_t now = kNow) {
  auto pair = Authority::Make(cluster, now, days);
  EXPECT_TRUE(pair.ok()) << pair.status();
  return *pair;
}

Authority Parsed(const KeyPair& pair) {
  auto authority = Authority::Parse(pair);
  EXPECT_TRUE(authority.ok()) << authority.status();
  return *std::move(authority);
}

// By the openssl program: 0 where the chain holds at that time for that purpose.
int Verify(const KeyPair& authority, const KeyPair& node, const std::string& purpose, int64_t at) {
  const TempDir dir;
  std::ofstream(dir.path() + "/ca.pem") << authority.certificate;
  std::ofstream(dir.path() + "/node.pem") << node.certificate;
  return std::system(absl::StrCat("cd ", dir.path(), " && ", transport::kOpenssl, " verify -x509_strict -attime ", at,
                                  " -purpose ", purpose,
                                  " -CAfile ca.pem node.pem > said 2>&1")
                         .c_str());  // NOLINT(cert-env33-c): of constants
}

TEST(Certificates, AnAuthorityNamesItsCluster) {
  const Authority authority = Parsed(MadeAuthority());
  EXPECT_TRUE(authority.about().authority);
  EXPECT_EQ(authority.about().cluster, "ml");
  EXPECT_EQ(authority.about().node, "");
  EXPECT_THAT(authority.about().names.uris, ElementsAre("spiffe://ml"));
  EXPECT_EQ(authority.about().begin, kNow - 3600);
  EXPECT_EQ(authority.about().end, kNow + kAuthorityDays * kDay);
}

TEST(Certificates, ANodesCertificateIsThatNodesAndNoOthers) {
  const Authority authority = Parsed(MadeAuthority());
  const auto pair = authority.Issue("ml", "n1", kNow, kNodeDays);
  ASSERT_TRUE(pair.ok()) << pair.status();
  const auto about = Read(pair->certificate);
  ASSERT_TRUE(about.ok()) << about.status();
  EXPECT_FALSE(about->authority);
  EXPECT_EQ(about->cluster, "ml");
  EXPECT_EQ(about->node, "n1");
  EXPECT_THAT(about->names.uris, ElementsAre("spiffe://ml/ckptd/n1"));
  EXPECT_THAT(about->names.dns, ElementsAre("n1"));
  EXPECT_EQ(about->end, kNow + kNodeDays * kDay);
  EXPECT_TRUE(transport::CheckIdentity(about->names, "ml", "n1").ok());
  EXPECT_FALSE(transport::CheckIdentity(about->names, "ml", "n2").ok());
  EXPECT_FALSE(transport::CheckIdentity(about->names, "other", "n1").ok());
  EXPECT_TRUE(*Fits(*pair));
  EXPECT_FALSE(*Fits({authority.Issue("ml", "n1", kNow, 1)->key, pair->certificate})) << "each has a key of its own";
}

TEST(Certificates, OnlyADnsNameIsNamedAsOne) {
  const Authority authority = Parsed(MadeAuthority());
  const auto dns = [&](const std::string& node) {
    return Read(authority.Issue("ml", node, kNow, 1)->certificate)->names.dns;
  };
  EXPECT_THAT(dns("gpu-1.ml.svc"), ElementsAre("gpu-1.ml.svc"));
  for (const char* node : {"a_b", "10.0.0.1", "fd00::1", "a..b", "a-.b", "n1."}) EXPECT_THAT(dns(node), IsEmpty());
  EXPECT_TRUE(IsDnsName(std::string(63, 'a')));
  EXPECT_FALSE(IsDnsName(std::string(64, 'a')));
  EXPECT_FALSE(IsDnsName(""));
}

TEST(Certificates, OpensslBelievesThemAsClientAndServerAndNobodyElses) {
  if (!transport::HaveOpenssl()) GTEST_SKIP() << "skipped: no " << transport::kOpenssl << " (package openssl)";
  const KeyPair pair = MadeAuthority();
  const KeyPair other = MadeAuthority();
  for (const std::string& node : {std::string("n1"), std::string("fd00::1"), std::string(kMaxFileNameBytes, 'a')}) {
    const auto made = Parsed(pair).Issue("ml", node, kNow, 2);
    ASSERT_TRUE(made.ok()) << made.status();
    EXPECT_EQ(Verify(pair, *made, "sslserver", kNow), 0);
    EXPECT_EQ(Verify(pair, *made, "sslclient", kNow), 0);
    EXPECT_NE(Verify(pair, *made, "smimesign", kNow), 0) << "for links alone";
    EXPECT_NE(Verify(other, *made, "sslserver", kNow), 0) << "another authority";
    EXPECT_EQ(Verify(pair, *made, "sslserver", kNow - 3500), 0) << "of a node whose clock is behind";
    EXPECT_NE(Verify(pair, *made, "sslserver", kNow - 3700), 0);
    EXPECT_EQ(Verify(pair, *made, "sslserver", kNow + 2 * kDay - 1), 0);
    EXPECT_NE(Verify(pair, *made, "sslserver", kNow + 2 * kDay + 1), 0);
  }
}

TEST(Certificates, ANodesKeySignsNoOthers) {
  const auto node = Parsed(MadeAuthority()).Issue("ml", "n1", kNow, 2);
  const auto authority = Authority::Parse(*node);
  EXPECT_EQ(CodeOf(authority.status()), ErrorCode::INVALID_ARGUMENT);
  EXPECT_THAT(authority.status().message(), HasSubstr("no authority's"));
}

TEST(Certificates, NoneOutlivesItsAuthority) {
  const Authority authority = Parsed(MadeAuthority("ml", 10));
  EXPECT_EQ(Read(authority.Issue("ml", "n1", kNow + 5 * kDay, 90)->certificate)->end, kNow + 10 * kDay);
  EXPECT_EQ(CodeOf(authority.Issue("ml", "n1", kNow + 10 * kDay, 90).status()), ErrorCode::REFUSED);
  EXPECT_EQ(CodeOf(authority.Issue("ml", "n1", kNow - 3601, 90).status()), ErrorCode::REFUSED);
}

TEST(Certificates, LongTimesAreWrittenAndRead) {
  const Authority authority = Parsed(MadeAuthority("ml", kMaxDays));  // beyond 2049 the encoding is another
  EXPECT_EQ(authority.about().end, kNow + kMaxDays * kDay);
}

TEST(Certificates, AuthoritiesOfOneClusterAreTwo) {
  const KeyPair one = MadeAuthority();
  const KeyPair two = MadeAuthority();
  EXPECT_NE(one.key, two.key);
  const auto mixed = Authority::Parse({two.key, one.certificate});
  EXPECT_EQ(CodeOf(mixed.status()), ErrorCode::INVALID_ARGUMENT);
  EXPECT_THAT(mixed.status().message(), HasSubstr("the key is not the certificate's"));
}

TEST(Certificates, NamesAndTimesFromOutsideAreChecked) {
  const Authority authority = Parsed(MadeAuthority());
  for (const std::string& node : {std::string(), std::string("../x"), std::string("a/b"), std::string("n1,DNS:n2"),
                                  std::string("n 1"), std::string("-n"), std::string("n\0x", 3), std::string(252, 'a')})
    EXPECT_EQ(CodeOf(authority.Issue("ml", node, kNow, 1).status()), ErrorCode::INVALID_ARGUMENT) << node;
  for (const std::string& cluster : {std::string(), std::string("a/b"), std::string("a b"), std::string(254, 'a')}) {
    EXPECT_EQ(CodeOf(Authority::Make(cluster, kNow, 1).status()), ErrorCode::INVALID_ARGUMENT) << cluster;
    EXPECT_EQ(CodeOf(authority.Issue(cluster, "n1", kNow, 1).status()), ErrorCode::INVALID_ARGUMENT) << cluster;
  }
  EXPECT_TRUE(Authority::Make(std::string(253, 'a'), kNow, 1).ok());
  for (int days : {0, -1, kMaxDays + 1})
    EXPECT_EQ(CodeOf(authority.Issue("ml", "n1", kNow, days).status()), ErrorCode::INVALID_ARGUMENT);
}

TEST(Certificates, TextThatIsNoneIsAnErrorAndNoQuestion) {
  const KeyPair pair = MadeAuthority();
  for (const std::string& text : {std::string(), std::string("x"), pair.key, pair.certificate.substr(0, 200)})
    EXPECT_EQ(CodeOf(Read(text).status()), ErrorCode::INVALID_ARGUMENT);
  EXPECT_EQ(CodeOf(Authority::Parse({pair.certificate, pair.certificate}).status()), ErrorCode::INVALID_ARGUMENT);
  EXPECT_EQ(CodeOf(Fits({"", pair.certificate}).status()), ErrorCode::INVALID_ARGUMENT);
}

// A certificate of any bytes is an error or a value, never more; asan looks on.
TEST(Certificates, DamagedOnesHarmNobody) {
  const KeyPair pair = MadeAuthority();
  size_t read = 0;
  for (size_t i = 0; i < pair.certificate.size(); ++i) {
    std::string damaged = pair.certificate;
    damaged[i] = damaged[i] == 'A' ? 'B' : 'A';
    read += Read(damaged).ok() ? 1 : 0;
  }
  EXPECT_GT(read, 0u) << "the signature is nobody's to check here";
  EXPECT_LT(read, pair.certificate.size());
}

}  // namespace
}  // namespace ckptd::certs
