// No symbolic link is followed in a folder that others may write.
#include "daemon/os/places.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <thread>

#include "daemon/base/errors.h"
#include "daemon/os/posix_files.h"
#include "daemon/os/testing/temp_dir.h"

namespace ckptd {
namespace {

using ::testing::HasSubstr;

absl::Status WritePlace(const std::string& path, absl::string_view text) {
  auto file = PosixFiles().Open(path, {.write = true, .create = true});
  return file.ok() ? (*file)->PWrite(0, std::as_bytes(std::span(text.data(), text.size()))) : file.status();
}

// ROOT/mine, with a file, and ROOT/link, which is a link to another's folder.
class FilesBelow : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(root_ + "/mine");
    std::filesystem::create_directories(dir_.path() + "/others");
    ASSERT_TRUE(WritePlace(root_ + "/mine/a", "a").ok());
    ASSERT_TRUE(WritePlace(Others(), "secret").ok());
    std::filesystem::create_directory_symlink(dir_.path() + "/others", root_ + "/link");
    std::filesystem::create_directory_symlink(root_, dir_.path() + "/behind");
  }
  [[nodiscard]] std::string Others() const { return dir_.path() + "/others/a"; }
  void ExpectRefused(const absl::Status& status) {
    EXPECT_EQ(CodeOf(status), ErrorCode::REFUSED) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("a symbolic link"));
  }

  TempDir dir_;
  const std::string root_ = dir_.path() + "/root";
  const std::unique_ptr<Files> files_ = MakeFilesBelow(root_);
};

TEST_F(FilesBelow, DoWhatOthersDo) {
  EXPECT_EQ(*ReadSmall(*files_, root_ + "/mine/a", 10), "a");
  EXPECT_TRUE(absl::IsAlreadyExists(files_->Mkdir(root_, 0700)));
  ASSERT_TRUE(files_->Mkdir(root_ + "/mine/d", 0700).ok());
  ASSERT_TRUE(files_->Open(root_ + "/mine/d/b", {.write = true, .create = true, .mode = 0640}).ok());
  EXPECT_EQ(files_->Stat(root_ + "/mine/d/b")->mode, 0640u);
  EXPECT_TRUE(files_->Link(root_ + "/mine/d/b", root_ + "/c").ok());
  EXPECT_TRUE(absl::IsAlreadyExists(files_->Link(root_ + "/mine/a", root_ + "/c")));
  EXPECT_TRUE(files_->RenameNoReplace(root_ + "/c", root_ + "/mine/c").ok());
  EXPECT_TRUE(files_->Link(root_ + "/mine/d/b", root_ + "/mine/d/e").ok());
  EXPECT_TRUE(files_->RenameNoReplace(root_ + "/mine/d/e", root_ + "/mine/d/f").ok());
  EXPECT_TRUE(absl::IsAlreadyExists(files_->RenameNoReplace(root_ + "/mine/d/b", root_ + "/mine/d/f")));
  EXPECT_TRUE(files_->Unlink(root_ + "/mine/d/f").ok());
  EXPECT_TRUE(files_->Unlink(root_ + "/mine/d/b").ok());
  EXPECT_TRUE(files_->Rmdir(root_ + "/mine/d").ok());
  EXPECT_TRUE(files_->SyncDir(root_).ok());
  EXPECT_EQ(files_->Stat(root_)->type, FileType::kDirectory);
  EXPECT_EQ(files_->ReadDir(root_ + "/mine", 9)->size(), 2u);
  EXPECT_EQ(CodeOf(files_->Stat(root_ + "/mine/d/b").status()), ErrorCode::NOT_FOUND);
}

TEST_F(FilesBelow, FollowNoLinkToADirectory) {
  const std::string there = root_ + "/link/a", here = root_ + "/mine/a";
  ASSERT_EQ(*ReadSmall(PosixFiles(), there, 10), "secret") << "else nothing is shown";
  ExpectRefused(files_->Open(there, {}).status());
  ExpectRefused(files_->Open(root_ + "/link/new", {.write = true, .create = true}).status());
  ExpectRefused(files_->Stat(there).status());
  ExpectRefused(files_->Unlink(there));
  ExpectRefused(files_->Mkdir(root_ + "/link/d", 0700));
  ExpectRefused(files_->Rmdir(root_ + "/link/d"));
  ExpectRefused(files_->Link(there, root_ + "/b"));
  ExpectRefused(files_->Link(here, root_ + "/link/b"));
  ExpectRefused(files_->Link(there, root_ + "/link/b"));
  ExpectRefused(files_->RenameNoReplace(there, root_ + "/b"));
  ExpectRefused(files_->RenameNoReplace(here, root_ + "/link/b"));
  ExpectRefused(files_->ReadDir(root_ + "/link", 9).status());
  ExpectRefused(files_->SyncDir(root_ + "/link"));
  EXPECT_EQ(*ReadSmall(PosixFiles(), Others(), 10), "secret");
  EXPECT_EQ(PosixFiles().ReadDir(dir_.path() + "/others", 9)->size(), 1u);
}

TEST_F(FilesBelow, FollowNoLinkToAFileWhoeverAsks) {
  std::filesystem::create_symlink(Others(), root_ + "/a");
  ASSERT_EQ(*ReadOperatorFile(PosixFiles(), root_ + "/a", 10), "secret") << "else nothing is shown";
  ExpectRefused(ReadOperatorFile(*files_, root_ + "/a", 10).status());
  ExpectRefused(ReadSmall(*files_, root_ + "/a", 10).status());
}

TEST_F(FilesBelow, TheRootMayLieBehindALink) {
  EXPECT_EQ(*ReadSmall(*MakeFilesBelow(dir_.path() + "/behind"), dir_.path() + "/behind/mine/a", 10), "a");
}

TEST_F(FilesBelow, RefuseWhatIsNotThere) {
  for (const std::string& path : {Others(), root_ + "x", std::string("/")}) {
    EXPECT_EQ(CodeOf(files_->Stat(path).status()), ErrorCode::INVALID_ARGUMENT) << path;
  }
  EXPECT_EQ(CodeOf(files_->Link(Others(), root_ + "/a")), ErrorCode::INVALID_ARGUMENT);
  EXPECT_EQ(CodeOf(files_->RenameNoReplace(dir_.path() + "/mine", root_)), ErrorCode::INVALID_ARGUMENT);
  EXPECT_FALSE(files_->Open(root_ + "/../others/a", {}).ok());
  EXPECT_FALSE(files_->Unlink(root_ + "/mine/../../others/a").ok());
  EXPECT_TRUE(*Exists(PosixFiles(), Others()));
}

// Whoever swaps the directory for a link at any moment gets nothing of the other's.
TEST_F(FilesBelow, WhoSwapsADirectoryWinsNothing) {
  const std::string mine = root_ + "/mine", spare = root_ + "/spare";
  std::filesystem::create_directory_symlink(dir_.path() + "/others", spare);
  std::atomic<bool> over{false};
  std::thread swapper([&] {
    while (!over) renameat2(AT_FDCWD, mine.c_str(), AT_FDCWD, spare.c_str(), RENAME_EXCHANGE);
  });
  size_t own = 0, refused = 0;
  for (size_t tries = 0; (own < 1000 || refused < 1000) && tries < 1'000'000; ++tries) {
    const auto text = ReadSmall(*files_, mine + "/a", 10);
    own += text.ok() && *text == "a" ? 1 : 0;
    refused += text.ok() ? 0 : 1;
    ASSERT_TRUE(!text.ok() || *text == "a") << *text;
    if (files_->Mkdir(mine + "/d", 0700).ok()) (void)files_->Rmdir(mine + "/d");
  }
  over = true;
  swapper.join();
  EXPECT_GE(own, 1000u);
  EXPECT_GE(refused, 1000u);
  EXPECT_EQ(PosixFiles().ReadDir(dir_.path() + "/others", 9)->size(), 1u) << "something was made there";
}

}  // namespace
}  // namespace ckptd
