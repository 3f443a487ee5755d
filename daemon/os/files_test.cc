#include "daemon/os/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>

#include "daemon/base/errors.h"
#include "daemon/os/file_lock.h"
#include "daemon/os/posix_files.h"
#include "daemon/os/probe.h"
#include "daemon/os/testing/mounted_dir.h"
#include "daemon/os/testing/temp_dir.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;

std::span<const std::byte> BytesOf(absl::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

absl::Status WriteFile(const std::string& path, absl::string_view text) {
  auto file = PosixFiles().Open(path, {.write = true, .create = true});
  return file.ok() ? (*file)->PWrite(0, BytesOf(text)) : file.status();
}

TEST(PosixFiles, WritesReadsAndTells) {
  TempDir dir;
  auto file = PosixFiles().Open(dir.path() + "/a", {.write = true, .create = true, .mode = 0640});
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE((*file)->Fallocate(8192).ok());
  ASSERT_TRUE((*file)->PWrite(4095, BytesOf("xyz")).ok());
  ASSERT_TRUE((*file)->Sync().ok());
  auto info = (*file)->Stat();
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info->size, 8192u);
  EXPECT_EQ(info->type, FileType::kRegular);
  EXPECT_EQ(info->mode, 0640u);
  std::string text(5, '?');
  EXPECT_EQ(*(*file)->PRead(4094, std::as_writable_bytes(std::span(text))), 5u);
  EXPECT_EQ(text, std::string("\0xyz\0", 5));
  EXPECT_EQ(*(*file)->PRead(8190, std::as_writable_bytes(std::span(text))), 2u) << "short only at the end";
  ASSERT_TRUE((*file)->PunchHole(8192).ok());
  EXPECT_EQ(*(*file)->PRead(4094, std::as_writable_bytes(std::span(text))), 5u);
  EXPECT_EQ(text, std::string(5, '\0')) << "the size stays, the bytes are gone";
  EXPECT_TRUE((*file)->Close().ok());
}

TEST(PosixFiles, NeverReplacesAName) {
  TempDir dir;
  const std::string a = dir.path() + "/a", b = dir.path() + "/b";
  ASSERT_TRUE(WriteFile(a, "A").ok());
  ASSERT_TRUE(WriteFile(b, "B").ok());
  EXPECT_TRUE(absl::IsAlreadyExists(WriteFile(a, "C")));
  EXPECT_TRUE(absl::IsAlreadyExists(PosixFiles().Link(b, a)));
  EXPECT_TRUE(absl::IsAlreadyExists(PosixFiles().RenameNoReplace(b, a)));
  EXPECT_TRUE(absl::IsAlreadyExists(PosixFiles().Mkdir(a, 0700)));
  EXPECT_EQ(*ReadSmall(PosixFiles(), a, 10), "A");
  EXPECT_TRUE(PosixFiles().RenameNoReplace(b, dir.path() + "/c").ok());
  EXPECT_FALSE(*Exists(PosixFiles(), b));
}

TEST(PosixFiles, ErrorsAreTypedAndNameThePath) {
  TempDir dir;
  absl::Status missing = PosixFiles().Open(dir.path() + "/none", {}).status();
  EXPECT_EQ(CodeOf(missing), ErrorCode::NOT_FOUND);
  EXPECT_THAT(std::string(missing.message()), HasSubstr(dir.path() + "/none"));
  ASSERT_TRUE(PosixFiles().Mkdir(dir.path() + "/d", 0700).ok());
  ASSERT_TRUE(WriteFile(dir.path() + "/d/x", "").ok());
  EXPECT_EQ(CodeOf(PosixFiles().Rmdir(dir.path() + "/d")), ErrorCode::REFUSED);
  auto full = PosixFiles().Open("/dev/full", {.write = true});
  ASSERT_TRUE(full.ok());
  EXPECT_EQ(CodeOf((*full)->PWrite(0, BytesOf("x"))), ErrorCode::STORAGE_FULL);
  EXPECT_EQ(CodeOf(FileError(EFAULT, "write", "/x")), ErrorCode::CORRUPT);
  EXPECT_EQ(CodeOf(FileError(ESTALE, "write", "/x")), ErrorCode::STORAGE_IO);
  const absl::Status unsupported = FileError(ENOSYS, "fsync", "/x");
  EXPECT_TRUE(absl::IsUnimplemented(unsupported));
  EXPECT_EQ(CodeOf(unsupported), ErrorCode::REFUSED) << "it was not written by a newer ckptd";
  EXPECT_THAT(std::string(unsupported.message()), HasSubstr("this file system cannot do that"));
}

TEST(PosixFiles, DoesNotFollowLinksOrHangOnFifos) {
  TempDir dir;
  ASSERT_TRUE(WriteFile(dir.path() + "/real", "secret").ok());
  std::filesystem::create_symlink(dir.path() + "/real", dir.path() + "/link");
  EXPECT_EQ(CodeOf(PosixFiles().Open(dir.path() + "/link", {}).status()), ErrorCode::REFUSED);
  ASSERT_EQ(mkfifo((dir.path() + "/fifo").c_str(), 0600), 0);
  EXPECT_EQ(CodeOf(ReadSmall(PosixFiles(), dir.path() + "/fifo", 10).status()), ErrorCode::REFUSED);
}

TEST(PosixFiles, ReadDirIsSortedAndBounded) {
  TempDir dir;
  ASSERT_TRUE(WriteFile(dir.path() + "/b", "").ok());
  ASSERT_TRUE(PosixFiles().Mkdir(dir.path() + "/a", 0700).ok());
  auto entries = PosixFiles().ReadDir(dir.path(), 2);
  ASSERT_TRUE(entries.ok());
  EXPECT_THAT(*entries, ElementsAre(Field(&DirEntry::name, "a"), Field(&DirEntry::name, "b")));
  EXPECT_EQ((*entries)[0].type, FileType::kDirectory);
  EXPECT_FALSE(PosixFiles().ReadDir(dir.path(), 1).ok());
}

TEST(PosixFiles, ReadSmallIsBounded) {
  TempDir dir;
  ASSERT_TRUE(WriteFile(dir.path() + "/a", "12345").ok());
  EXPECT_EQ(*ReadSmall(PosixFiles(), dir.path() + "/a", 5), "12345");
  EXPECT_EQ(CodeOf(ReadSmall(PosixFiles(), dir.path() + "/a", 4).status()), ErrorCode::CORRUPT);
  EXPECT_EQ(CodeOf(ReadSmall(PosixFiles(), dir.path(), 5).status()), ErrorCode::REFUSED);
}

TEST(PosixFiles, AnOperatorsFileMayBeALink) {
  TempDir dir;
  for (const char* each : {"old", "new"}) {
    ASSERT_TRUE(PosixFiles().Mkdir(dir.path() + "/" + each, 0700).ok());
    ASSERT_TRUE(WriteFile(dir.path() + "/" + each + "/a", each).ok());
  }
  const MountedDir mounted({"a"}, dir.path() + "/old");
  const std::string link = mounted.PathOf("a");
  EXPECT_EQ(*ReadOperatorFile(PosixFiles(), link, 3), "old");
  mounted.Switch(dir.path() + "/new");
  EXPECT_EQ(*ReadOperatorFile(PosixFiles(), link, 3), "new");
  EXPECT_EQ(*ReadOperatorFile(PosixFiles(), dir.path() + "/new/a", 3), "new") << "nor must it be one";
  EXPECT_EQ(CodeOf(ReadOperatorFile(PosixFiles(), link, 2).status()), ErrorCode::CORRUPT);
  EXPECT_EQ(CodeOf(ReadOperatorFile(PosixFiles(), mounted.PathOf("..data"), 3).status()), ErrorCode::REFUSED);
  EXPECT_EQ(CodeOf(ReadSmall(PosixFiles(), link, 3).status()), ErrorCode::REFUSED);
}

TEST(PosixFiles, AnOperatorsLinkThatLeadsToNoFileIsNamed) {
  TempDir dir;
  const std::string link = dir.path() + "/link";
  const auto error_of = [&](const std::string& to) {
    std::filesystem::remove(link);
    std::filesystem::create_symlink(to, link);
    const absl::Status status = ReadOperatorFile(PosixFiles(), link, 10).status();
    EXPECT_THAT(std::string(status.message()), HasSubstr(link));
    return status;
  };
  EXPECT_EQ(CodeOf(error_of("none")), ErrorCode::NOT_FOUND);
  EXPECT_EQ(CodeOf(error_of("link")), ErrorCode::REFUSED);
  EXPECT_THAT(std::string(error_of("link").message()), HasSubstr("lead in a circle"));
  ASSERT_EQ(mkfifo((dir.path() + "/fifo").c_str(), 0600), 0);
  EXPECT_EQ(CodeOf(error_of("fifo")), ErrorCode::REFUSED);
  ASSERT_TRUE(WriteFile(dir.path() + "/a", "1").ok());
  EXPECT_THAT(std::string(error_of("a/b").message()), HasSubstr("Not a directory"));
}

TEST(PosixFiles, SpaceAndParents) {
  TempDir dir;
  auto space = PosixFiles().Space(dir.path());
  ASSERT_TRUE(space.ok());
  EXPECT_GT(space->total, space->available / 2);
  EXPECT_GT(space->total, 0u);
  EXPECT_EQ(ParentOf("/a/b/c"), "/a/b");
  EXPECT_EQ(ParentOf("/a"), "/");
}

TEST(FileLock, OneHolderWhoIsNamed) {
  TempDir dir;
  const std::string path = dir.path() + "/lock";
  {
    auto first = FileLock::Acquire(path);
    ASSERT_TRUE(first.ok()) << first.status();
    auto second = FileLock::Acquire(path);
    EXPECT_EQ(CodeOf(second.status()), ErrorCode::REFUSED);
    EXPECT_THAT(std::string(second.status().message()), HasSubstr("process " + std::to_string(getpid())));
  }
  EXPECT_TRUE(FileLock::Acquire(path).ok());
}

TEST(Probe, LeavesNothingBehind) {
  TempDir dir;
  (void)ProbeDirectIo(PosixFiles(), dir.path() + "/f");  // either answer is right here; the file must go
  EXPECT_TRUE(PosixFiles().ReadDir(dir.path(), 10)->empty());
  EXPECT_EQ(CodeOf(ProbeDirectIo(PosixFiles(), dir.path() + "/none/f")), ErrorCode::NOT_FOUND);
}

TEST(Probe, Facts) {
  auto proc = ProbeTmpfs("/proc");
  ASSERT_TRUE(proc.ok());
  EXPECT_FALSE(proc->is_tmpfs);
  EXPECT_FALSE(ProbeTmpfs("/nowhere").ok());
}

}  // namespace
}  // namespace ckptd
