#include "daemon/transport/identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/base/errors.h"

namespace ckptd::transport {
namespace {

using ::testing::HasSubstr;

bool Fits(const CertificateNames& names) { return CheckIdentity(names, "ml", "n1").ok(); }

TEST(Identity, TheUriOfTheMemberOrItsDnsName) {
  EXPECT_EQ(SpiffeId("ml", "n1"), "spiffe://ml/ckptd/n1");
  EXPECT_TRUE(Fits({{"spiffe://ml/ckptd/n1"}, {}}));
  EXPECT_TRUE(Fits({{}, {"n1"}}));
  EXPECT_TRUE(Fits({{}, {"other", "n1"}}));
  EXPECT_TRUE(Fits({{"https://example.org/", "spiffe://ml/ckptd/n1"}, {}}));
}

TEST(Identity, NothingElse) {
  EXPECT_FALSE(Fits({{}, {}}));
  EXPECT_FALSE(Fits({{}, {"n2"}}));
  EXPECT_FALSE(Fits({{}, {"*"}}));
  EXPECT_FALSE(Fits({{}, {"N1"}}));
  EXPECT_FALSE(Fits({{}, {"n1."}}));
  EXPECT_FALSE(Fits({{}, {std::string("n1\0", 3)}}));
  EXPECT_FALSE(Fits({{"spiffe://ml/ckptd/n2"}, {}}));
  EXPECT_FALSE(Fits({{"spiffe://other/ckptd/n1"}, {}}));
  EXPECT_FALSE(Fits({{"spiffe://ml/ckptd/n1/"}, {}}));
  EXPECT_FALSE(Fits({{"spiffe://ml/ckptd/n1?x"}, {}}));
  EXPECT_FALSE(Fits({{"SPIFFE://ml/ckptd/n1"}, {}}));
  EXPECT_FALSE(Fits({{"spiffe://ml/web/n1"}, {}}));
  EXPECT_FALSE(Fits({{"https://ml/ckptd/n1"}, {}}));
  EXPECT_FALSE(CheckIdentity({{}, {""}}, "ml", "").ok());
}

TEST(Identity, ASpiffeUriRulesOutTheDnsNamesBesideIt) {
  EXPECT_FALSE(Fits({{"spiffe://other/ckptd/n1"}, {"n1"}}));
  EXPECT_FALSE(Fits({{"SPIFFE://other/ckptd/n1"}, {"n1"}}));
  EXPECT_FALSE(Fits({{"spiffe://ml/ckptd/n1", "spiffe://ml/ckptd/n2"}, {}}));
}

TEST(Identity, TheErrorSaysWhoItIsAndWhoItShouldBe) {
  const absl::Status wrong = CheckIdentity({{"spiffe://ml/ckptd/n2"}, {}}, "ml", "n1");
  EXPECT_EQ(CodeOf(wrong), ErrorCode::PERMISSION);
  EXPECT_THAT(wrong.message(), HasSubstr("for spiffe://ml/ckptd/n2, not for spiffe://ml/ckptd/n1"));
}

TEST(Loopback, AddressesOfThisMachineAlone) {
  for (const char* address : {"127.0.0.1:1", "127.255.0.9:65535", "[::1]:9465"})
    EXPECT_TRUE(IsLoopbackAddress(address)) << address;
  for (const char* address :
       {"", "127.0.0.1", "10.0.0.1:1", "0.0.0.0:1", "[::]:1", "localhost:1", "n1:1", "::1:1", "[127.0.0.1]:1",
        "127.1:1", "[::ffff:127.0.0.1]:1", "127.0.0.1.evil.org:1", "[:1", "[]:1"})
    EXPECT_FALSE(IsLoopbackAddress(address)) << address;
}

TEST(Loopback, PlaintextIsForOneMachine) {
  EXPECT_TRUE(CheckPlaintext({"127.0.0.1:1", "127.0.0.2:1"}).ok());
  const absl::Status wrong = CheckPlaintext({"127.0.0.1:1", "10.0.0.2:9465"});
  EXPECT_EQ(CodeOf(wrong), ErrorCode::INVALID_ARGUMENT);
  EXPECT_THAT(wrong.message(), HasSubstr("10.0.0.2:9465"));
  EXPECT_THAT(wrong.message(), HasSubstr("set peers.tls to mutual"));
}

}  // namespace
}  // namespace ckptd::transport
