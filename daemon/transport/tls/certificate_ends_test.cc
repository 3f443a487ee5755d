#include "daemon/transport/tls/certificate_ends.h"

#include <gtest/gtest.h>

#include <ctime>

#include "daemon/base/errors.h"
#include "daemon/os/posix_files.h"
#include "daemon/transport/tls/tls_pair.h"

namespace ckptd::transport {
namespace {

constexpr size_t kMuch = 1 << 20;

TEST(CertificateEndsTest, AreThoseOfAllCertificatesInTheText) {
  if (const std::string why = WhyNoTls(); !why.empty()) GTEST_SKIP() << "skipped: " << why;
  const TlsNodes nodes;
  nodes.Issue("a");
  const auto node = ReadOperatorFile(PosixFiles(), nodes.OptionsOf("a").tls.cert, kMuch);
  const auto authority = ReadOperatorFile(PosixFiles(), nodes.OptionsOf("a").tls.ca, kMuch);
  ASSERT_TRUE(node.ok() && authority.ok()) << node.status() << authority.status();
  const auto of_node = EndsOf(*node);
  const auto of_authority = EndsOf(*authority);
  ASSERT_TRUE(of_node.ok() && of_authority.ok()) << of_node.status() << of_authority.status();
  EXPECT_EQ(of_node->first, of_node->last);
  EXPECT_GT(of_node->first, std::time(nullptr));
  EXPECT_LT(of_node->first, std::time(nullptr) + 20 * 365 * 86'400LL);
  const auto both = EndsOf(*authority + *node);
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_EQ(both->first, std::min(of_node->first, of_authority->first));
  EXPECT_EQ(both->last, std::max(of_node->last, of_authority->last));
}

TEST(CertificateEndsTest, TextWithoutACertificateHasNone) {
  for (const char* text : {"", "x", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"})
    EXPECT_EQ(CodeOf(EndsOf(text).status()), ErrorCode::INVALID_ARGUMENT) << text;
}

}  // namespace
}  // namespace ckptd::transport
