#include "tools/certs/cert_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "daemon/base/errors.h"
#include "daemon/os/posix_files.h"
#include "daemon/os/testing/temp_dir.h"

namespace ckptd::certs {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kMade = 1'800'000'000;

class CertFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(MakeAuthority(files_, dir_, *Authority::Make("ml", kMade, 10)).ok());
    authority_.emplace(*LoadAuthority(files_, dir_));
  }
  void Write(const std::string& node) {
    const absl::Status written = WriteNode(files_, out_, node, *authority_->Issue("ml", node, kMade, 1));
    ASSERT_TRUE(written.ok()) << written;
  }
  static unsigned ModeOf(const std::string& path) {
    struct stat found {};
    EXPECT_EQ(stat(path.c_str(), &found), 0) << path;
    return found.st_mode & 07777;
  }

  TempDir temp_;
  Files& files_ = PosixFiles();
  const std::string dir_ = temp_.path() + "/authority";
  const std::string out_ = temp_.path() + "/nodes";
  std::optional<Authority> authority_;
};

TEST_F(CertFilesTest, KeysAreTheirOwnersAlone) {
  Write("n1");
  EXPECT_EQ(ModeOf(dir_), 0700u);
  EXPECT_EQ(ModeOf(out_), 0700u);
  EXPECT_EQ(ModeOf(KeyPath(dir_, kCa)), 0600u);
  EXPECT_EQ(ModeOf(KeyPath(out_, "n1")), 0600u);
  EXPECT_EQ(ModeOf(CertificatePath(out_, "n1")), 0644u);
  EXPECT_EQ(std::distance(fs::directory_iterator(out_), fs::directory_iterator()), 2) << "nothing temporary is left";
}

TEST_F(CertFilesTest, AnAuthorityIsNeverReplaced) {
  const auto again = [this] { return MakeAuthority(files_, dir_, *Authority::Make("ml", kMade, 10)); };
  EXPECT_EQ(CodeOf(again()), ErrorCode::REFUSED);
  EXPECT_THAT(again().message(), HasSubstr("ckptctl certs node NAME --dir " + dir_));
  fs::remove(CertificatePath(dir_, kCa));
  EXPECT_EQ(CodeOf(again()), ErrorCode::REFUSED);
  EXPECT_THAT(again().message(), HasSubstr("ca.key: is there, and the other"));
  fs::remove(KeyPath(dir_, kCa));
  EXPECT_TRUE(again().ok());
}

TEST_F(CertFilesTest, AKeyThatOthersMayReadIsRefused) {
  fs::permissions(KeyPath(dir_, kCa), fs::perms::group_read, fs::perm_options::add);
  const auto loaded = LoadAuthority(files_, dir_);
  EXPECT_EQ(CodeOf(loaded.status()), ErrorCode::REFUSED);
  EXPECT_THAT(loaded.status().message(), HasSubstr("chmod 600"));
}

TEST_F(CertFilesTest, AnAuthorityThatIsMissingOrNoneIsNamed) {
  const auto none = LoadAuthority(files_, temp_.path());
  EXPECT_EQ(CodeOf(none.status()), ErrorCode::NOT_FOUND);
  EXPECT_THAT(none.status().message(), HasSubstr("ckptctl certs init --dir " + temp_.path()));
  std::ofstream(CertificatePath(dir_, kCa)) << "x";
  const auto damaged = LoadAuthority(files_, dir_);
  EXPECT_EQ(CodeOf(damaged.status()), ErrorCode::INVALID_ARGUMENT);
  EXPECT_THAT(damaged.status().message(), HasSubstr(dir_ + ": "));
}

TEST_F(CertFilesTest, OneThatIsThereIsReplacedOnPurposeOnly) {
  EXPECT_TRUE(CheckNone(files_, out_, "n1").ok());
  Write("n1");
  EXPECT_EQ(CodeOf(CheckNone(files_, out_, "n1")), ErrorCode::REFUSED);
  EXPECT_THAT(CheckNone(files_, out_, "n1").message(), HasSubstr("ckptctl certs rotate n1"));
  fs::remove(CertificatePath(out_, "n1"));
  EXPECT_EQ(CodeOf(CheckNone(files_, out_, "n1")), ErrorCode::REFUSED) << "a key alone may be anybody's";
  EXPECT_EQ(CodeOf(CheckNone(files_, out_, "../n1")), ErrorCode::INVALID_ARGUMENT);
}

// What a crash between the two renames leaves.
TEST_F(CertFilesTest, AKeyThatIsNewerThanItsCertificateIsSeenAndMended) {
  Write("n1");
  EXPECT_TRUE(ReadNode(files_, out_, "n1")->fits);
  std::ofstream(KeyPath(out_, "n1")) << authority_->Issue("ml", "n1", kMade, 1)->key;
  const auto cut_off = ReadNode(files_, out_, "n1");
  EXPECT_TRUE(cut_off->has_key);
  EXPECT_FALSE(cut_off->fits);
  Write("n1");
  EXPECT_TRUE(ReadNode(files_, out_, "n1")->fits);
  fs::remove(KeyPath(out_, "n1"));
  EXPECT_FALSE(ReadNode(files_, out_, "n1")->has_key);
}

TEST_F(CertFilesTest, AFileIsOfTheNodeItIsNamedFor) {
  Write("n1");
  fs::copy(CertificatePath(out_, "n1"), CertificatePath(out_, "n2"));
  EXPECT_EQ(CodeOf(ReadNode(files_, out_, "n2").status()), ErrorCode::REFUSED);
  EXPECT_THAT(ReadNode(files_, out_, "n2").status().message(), HasSubstr("of node n1, not of node n2"));
  fs::copy(CertificatePath(dir_, kCa), CertificatePath(out_, "n3"));
  EXPECT_THAT(ReadNode(files_, out_, "n3").status().message(), HasSubstr("of an authority"));
}

// As on a node whose files Kubernetes mounts. What a rotation would replace is no link.
TEST_F(CertFilesTest, ACertificateBehindALinkIsShownAndNotRenewed) {
  Write("n1");
  fs::create_symlink("n1.pem", CertificatePath(out_, "node"));
  fs::create_symlink("n1.key", KeyPath(out_, "node"));
  const auto shown = ReadCertificate(files_, CertificatePath(out_, "node"));
  ASSERT_TRUE(shown.ok()) << shown.status();
  EXPECT_EQ(shown->about.node, "n1");
  EXPECT_TRUE(shown->fits);
  EXPECT_THAT(ReadNode(files_, out_, "node").status().message(), HasSubstr("a symbolic link"));
}

TEST_F(CertFilesTest, NodesAreFoundByTheirCertificates) {
  Write("n2");
  Write("n1");
  std::ofstream(out_ + "/ca.pem") << "x";
  std::ofstream(out_ + "/.hidden.pem") << "x";
  std::ofstream(out_ + "/n3.key") << "x";
  EXPECT_THAT(*NodesIn(files_, out_), ElementsAre("n1", "n2"));
  EXPECT_EQ(CodeOf(NodesIn(files_, out_ + "/none").status()), ErrorCode::NOT_FOUND);
}

// Written where nothing can be: what is there stays, and nothing temporary is left.
TEST_F(CertFilesTest, AWriteThatFailsLeavesTheOldFiles) {
  Write("n1");
  const auto before = ReadNode(files_, out_, "n1");
  fs::remove(KeyPath(out_, "n1"));
  fs::create_directories(KeyPath(out_, "n1") + "/in the way");
  EXPECT_FALSE(WriteNode(files_, out_, "n1", *authority_->Issue("ml", "n1", kMade, 2)).ok());
  EXPECT_EQ(ReadNode(files_, out_, "n1")->about.end, before->about.end);
  EXPECT_EQ(std::distance(fs::directory_iterator(out_), fs::directory_iterator()), 2);
}

}  // namespace
}  // namespace ckptd::certs
