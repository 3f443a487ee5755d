#include "daemon/transport/tls/certificate_key.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/transport/tls/tls_pair.h"

namespace ckptd::transport {
namespace {

using ::testing::HasSubstr;

TEST(CertificateKeyTest, IsThatOfTheFirstCertificateAndNoOther) {
  if (const std::string why = WhyNoTls(); !why.empty()) GTEST_SKIP() << "skipped: " << why;
  const TlsNodes nodes;
  for (const char* node : {"a", "b"}) nodes.Issue(node);
  const auto cert = [&](const char* node) { return TextOf(nodes.ca().cert(node)); };
  const auto key = [&](const char* node) { return TextOf(nodes.ca().key(node)); };
  EXPECT_TRUE(*IsKeyOf(cert("a"), key("a")));
  EXPECT_FALSE(*IsKeyOf(cert("a"), key("b")));
  EXPECT_TRUE(*IsKeyOf(cert("a") + cert("b"), key("a")));
  EXPECT_FALSE(*IsKeyOf(cert("b") + cert("a"), key("a")));
  const auto keyless = IsKeyOf(cert("a"), cert("a"));
  EXPECT_EQ(CodeOf(keyless.status()), ErrorCode::INVALID_ARGUMENT);
  EXPECT_THAT(std::string(keyless.status().message()), HasSubstr("no key that can be used"));
  EXPECT_EQ(CodeOf(IsKeyOf(key("a"), key("a")).status()), ErrorCode::INVALID_ARGUMENT);
  EXPECT_EQ(CodeOf(IsKeyOf("", "").status()), ErrorCode::INVALID_ARGUMENT);
  EXPECT_TRUE(*IsKeyOf(cert("a"), key("a"))) << "what was wrong before leaves nothing behind";
}

TEST(CertificateKeyTest, AKeyWithAPasswordIsNoneAndAsksNobody) {
  if (const std::string why = WhyNoTls(); !why.empty()) GTEST_SKIP() << "skipped: " << why;
  const TlsNodes nodes;
  nodes.Issue("a");
  const std::string locked = nodes.dir() + "/locked.key";
  const std::string command =
      absl::StrCat(kOpenssl, " pkey -aes128 -passout pass:x -in ", nodes.ca().key("a"), " -out ", locked);
  ASSERT_EQ(std::system(command.c_str()), 0);  // NOLINT(cert-env33-c): of constants
  EXPECT_EQ(CodeOf(IsKeyOf(TextOf(nodes.ca().cert("a")), TextOf(locked)).status()), ErrorCode::INVALID_ARGUMENT);
}

}  // namespace
}  // namespace ckptd::transport
