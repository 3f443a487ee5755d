// Who gets a connection of TLS: whom the authority vouches for, in his own name, now.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "daemon/base/errors.h"
#include "daemon/os/posix_files.h"
#include "daemon/os/testing/mounted_dir.h"
#include "daemon/transport/sockets/socket_ends.h"
#include "daemon/transport/tls/openssl_handles.h"
#include "daemon/transport/tls/tls_identity.h"
#include "daemon/transport/tls/tls_pair.h"

namespace ckptd::transport {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TlsTrustTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNoTls(); !why.empty()) GTEST_SKIP() << "skipped: " << why;
    nodes_.emplace();
    for (const char* node : {"a", "b"}) nodes_->Issue(node);
  }
  void Open(const TlsPortOptions& of_a, const TlsPortOptions& of_b) {
    door_.reset();
    a_ = MustOpenTls(of_a);
    b_ = MustOpenTls(of_b);
    door_.emplace(*b_);
  }
  void Open() { Open(nodes_->OptionsOf("a"), nodes_->OptionsOf("b")); }
  absl::Status Dial() {
    auto opened = DialNow(*a_, {"b", "127.0.0.1", b_->port()}, "hello");
    return opened.status();
  }
  void ExpectNobodyGetsIn() {
    const absl::Status dialled = Dial();
    EXPECT_EQ(CodeOf(dialled), ErrorCode::AGENT_UNREACHABLE) << dialled;
    EXPECT_TRUE(Eventually([this] { return b_->strangers() == 0; }));
    EXPECT_EQ(door_->count(), 0U);
  }

  std::optional<TlsNodes> nodes_;
  std::unique_ptr<SocketPort> a_, b_;
  std::optional<TestDoor> door_;
};

TEST_F(TlsTrustTest, TheNamesOfACertificateComeWithWhoeverShowedIt) {
  Open();
  ASSERT_TRUE(Dial().ok());
  const auto guest = door_->Next();
  ASSERT_TRUE(guest && guest->names());
  EXPECT_THAT(guest->names()->uris, ElementsAre("spiffe://ml/ckptd/a"));
  EXPECT_EQ(guest->address().substr(0, 14), "tls:127.0.0.1:");
}

TEST_F(TlsTrustTest, NamesOfDnsAreNamesToo) {
  nodes_->ca().Issue("a", "DNS:a,DNS:a.example");
  nodes_->ca().Issue("b", "DNS:b");
  Open();
  ASSERT_TRUE(Dial().ok());
  const auto guest = door_->Next();
  ASSERT_TRUE(guest && guest->names());
  EXPECT_THAT(guest->names()->dns, ElementsAre("a", "a.example"));
}

TEST_F(TlsTrustTest, WhoeverWasReachedMustBeWhoWasMeant) {
  nodes_->IssueFor("b", "c");
  Open();
  EXPECT_THAT(Dial().message(), HasSubstr("spiffe://ml/ckptd/c, not for spiffe://ml/ckptd/b"));
  ExpectNobodyGetsIn();
  nodes_->ca().Issue("b", "URI:spiffe://other/ckptd/b");
  ExpectNobodyGetsIn();
  nodes_->ca().Issue("b", "");
  ExpectNobodyGetsIn();
}

TEST_F(TlsTrustTest, AnotherAuthorityIsNotBelievedByEither) {
  const TlsNodes others;
  for (const char* node : {"a", "b"}) others.Issue(node);
  Open(others.OptionsOf("a"), nodes_->OptionsOf("b"));
  ExpectNobodyGetsIn();
  TlsPortOptions believes_both = nodes_->OptionsOf("a");  // and shows what the other does not believe
  std::ofstream(nodes_->dir() + "/both.pem") << TextOf(nodes_->ca().ca()) << TextOf(others.ca().ca());
  believes_both.tls = others.ca().Tls("a");
  believes_both.tls.ca = nodes_->dir() + "/both.pem";
  Open(believes_both, nodes_->OptionsOf("b"));
  ExpectNobodyGetsIn();
  Open(nodes_->OptionsOf("a"), others.OptionsOf("b"));
  ExpectNobodyGetsIn();
}

TEST_F(TlsTrustTest, WhatIsOverIsNotBelieved) {
  nodes_->Issue("a", -1);
  Open();
  ExpectNobodyGetsIn();
  nodes_->Issue("a");
  nodes_->Issue("b", -1);
  ExpectNobodyGetsIn();
}

// Under the ports' feet: the next connection has what is there then, and while key and certificate do not belong
// together there is none.
TEST_F(TlsTrustTest, CertificatesAreExchangedWithoutARestart) {
  Open();
  ASSERT_TRUE(Dial().ok());
  const std::string cert = nodes_->ca().cert("b");
  std::filesystem::copy_file(cert, cert + ".old");
  nodes_->Issue("b");
  EXPECT_TRUE(Dial().ok());
  const std::string fresh = TextOf(cert);
  std::filesystem::copy_file(cert + ".old", cert, std::filesystem::copy_options::overwrite_existing);
  EXPECT_EQ(CodeOf(Dial()), ErrorCode::AGENT_UNREACHABLE);
  std::ofstream(cert) << fresh;
  EXPECT_TRUE(Eventually([this] { return Dial().ok(); }));
  const TlsNodes others;
  others.Issue("a");
  for (const char* file : {"/ca.pem", "/a.pem", "/a.key"})
    std::filesystem::copy_file(others.dir() + file, nodes_->dir() + file,
                               std::filesystem::copy_options::overwrite_existing);
  EXPECT_EQ(CodeOf(Dial()), ErrorCode::AGENT_UNREACHABLE) << "a believes the others now, and b, too; b's is not theirs";
  others.Issue("b");
  for (const char* file : {"/b.pem", "/b.key"})
    std::filesystem::copy_file(others.dir() + file, nodes_->dir() + file,
                               std::filesystem::copy_options::overwrite_existing);
  EXPECT_TRUE(Eventually([this] { return Dial().ok(); }));
}

// By one step, as Kubernetes does it: the times of the links themselves stay what they were.
TEST_F(TlsTrustTest, CertificatesBehindLinksAreExchangedWithoutARestart) {
  const TlsNodes next;
  for (const char* node : {"a", "b"}) next.Issue(node);
  const MountedDir mounted({"ca.pem", "a.pem", "a.key", "b.pem", "b.key"}, nodes_->dir());
  const auto behind_links = [&](const std::string& node) {
    TlsPortOptions options = nodes_->OptionsOf(node);
    options.tls.ca = mounted.PathOf("ca.pem");
    options.tls.cert = mounted.PathOf(node + ".pem");
    options.tls.key = mounted.PathOf(node + ".key");
    return options;
  };
  Open(behind_links("a"), behind_links("b"));
  EXPECT_TRUE(Dial().ok());
  mounted.Switch(next.dir());
  EXPECT_TRUE(Eventually([this] { return Dial().ok(); }));
  Open(next.OptionsOf("a"), behind_links("b"));
  EXPECT_TRUE(Dial().ok()) << "the new authority's";
  Open(nodes_->OptionsOf("a"), behind_links("b"));
  ExpectNobodyGetsIn();
}

TEST_F(TlsTrustTest, AFileThatIsWrongIsNamed) {
  const auto error_of = [](const TlsOptions& tls) {
    return std::string(TlsIdentity(PosixFiles(), tls, Nanos(0)).Current(Nanos(1)).status().message());
  };
  TlsOptions tls = nodes_->ca().Tls("a");
  EXPECT_EQ(error_of(tls), "");
  tls.key = nodes_->ca().key("b");
  EXPECT_THAT(error_of(tls), HasSubstr("is not the key of peers.tls_cert"));
  tls.key = tls.cert;
  EXPECT_THAT(error_of(tls), HasSubstr("peers.tls_key"));
  tls.cert = nodes_->ca().key("a");
  EXPECT_THAT(error_of(tls), HasSubstr("peers.tls_cert"));
  tls.ca = nodes_->ca().key("a");
  EXPECT_THAT(error_of(tls), HasSubstr("peers.tls_ca"));
  tls.ca = "/nowhere";
  EXPECT_THAT(error_of(tls), HasSubstr("/nowhere"));
}

}  // namespace
}  // namespace ckptd::transport
