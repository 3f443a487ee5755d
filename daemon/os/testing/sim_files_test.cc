#include "daemon/os/testing/sim_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <set>

#include "daemon/base/errors.h"

namespace ckptd {
namespace {

using ::testing::Contains;
using ::testing::Not;

constexpr uint64_t kNothing = 0;
constexpr uint64_t kAll = 1;
constexpr uint64_t kSeeds = 200;

std::unique_ptr<File> Create(SimFiles& files, const std::string& path) {
  return *files.Open(path, {.write = true, .create = true});
}

absl::Status Write(File& file, absl::string_view text, uint64_t offset = 0) {
  return file.PWrite(offset, std::as_bytes(std::span(text.data(), text.size())));
}

// The content of `path`, or "absent".
std::string ContentOf(SimFiles&& files, const std::string& path) {
  return ReadSmall(files, path, 1 << 20).value_or("absent");
}

std::set<std::string> ContentsAfterCrash(const SimFiles& files, const std::string& path) {
  std::set<std::string> contents;
  for (uint64_t seed = 0; seed < kSeeds; ++seed)
    contents.insert(ContentOf(files.CrashImage(files.OpCount(), seed), path));
  return contents;
}

TEST(SimFiles, BehavesLikeAFileSystem) {
  SimFiles files;
  auto file = Create(files, "/a");
  ASSERT_TRUE(Write(*file, "hello").ok());
  EXPECT_EQ(*ReadSmall(files, "/a", 10), "hello");
  EXPECT_TRUE(absl::IsAlreadyExists(files.Open("/a", {.write = true, .create = true}).status()));
  ASSERT_TRUE(files.Link("/a", "/b").ok());
  EXPECT_EQ(files.Stat("/a")->links, 2u);
  EXPECT_TRUE(absl::IsAlreadyExists(files.Link("/a", "/b")));
  ASSERT_TRUE(files.Unlink("/a").ok());
  EXPECT_EQ(*ReadSmall(files, "/b", 10), "hello");
  ASSERT_TRUE(files.Mkdir("/d", 0700).ok());
  ASSERT_TRUE(files.RenameNoReplace("/b", "/d/c").ok());
  EXPECT_EQ(CodeOf(files.Rmdir("/d")), ErrorCode::REFUSED);
  EXPECT_EQ((*files.ReadDir("/d", 1))[0].name, "c");
  EXPECT_EQ(CodeOf(files.Stat("/b").status()), ErrorCode::NOT_FOUND);
  EXPECT_EQ(files.OpenFiles(), 1u);
  ASSERT_TRUE(file->Close().ok());
  EXPECT_EQ(files.OpenFiles(), 0u);
}

TEST(SimFiles, NameAndContentAreDurableOnlyAfterTheirOwnSync) {
  SimFiles files;
  auto file = Create(files, "/a");
  ASSERT_TRUE(Write(*file, "hello").ok());
  ASSERT_TRUE(file->Sync().ok());
  EXPECT_THAT(ContentsAfterCrash(files, "/a"), ::testing::UnorderedElementsAre("absent", "hello"));
  ASSERT_TRUE(files.SyncDir("/").ok());
  EXPECT_THAT(ContentsAfterCrash(files, "/a"), ::testing::UnorderedElementsAre("hello"));
}

TEST(SimFiles, SeedZeroKeepsNothingSeedOneAll) {
  SimFiles files;
  auto file = Create(files, "/a");
  ASSERT_TRUE(files.SyncDir("/").ok());
  ASSERT_TRUE(Write(*file, "hello").ok());
  EXPECT_EQ(ContentOf(files.CrashImage(files.OpCount(), kNothing), "/a"), "");
  EXPECT_EQ(ContentOf(files.CrashImage(files.OpCount(), kAll), "/a"), "hello");
  EXPECT_EQ(ContentOf(files.CrashImage(0, kAll), "/a"), "absent") << "before the first operation";
}

TEST(SimFiles, BlocksAndSizeAreLostOnTheirOwn) {
  SimFiles files;
  auto file = Create(files, "/a");
  ASSERT_TRUE(files.SyncDir("/").ok());
  ASSERT_TRUE(Write(*file, std::string(2 * 4096, 'x')).ok());
  const std::string x(4096, 'x'), zero(4096, '\0');
  EXPECT_THAT(ContentsAfterCrash(files, "/a"),
              ::testing::UnorderedElementsAre("", x + x, x + zero, zero + x, zero + zero));
}

TEST(SimFiles, ADirectoryNeedsItsParentsSync) {
  SimFiles files;
  ASSERT_TRUE(files.Mkdir("/d", 0700).ok());
  auto file = Create(files, "/d/a");
  ASSERT_TRUE(files.SyncDir("/d").ok());
  EXPECT_THAT(ContentsAfterCrash(files, "/d/a"), Contains("absent"));
  ASSERT_TRUE(files.SyncDir("/").ok());
  EXPECT_THAT(ContentsAfterCrash(files, "/d/a"), Not(Contains("absent")));
}

TEST(SimFiles, ASecondSyncAfterAFailedOneLies) {
  SimFiles files;
  auto file = Create(files, "/a");
  ASSERT_TRUE(files.SyncDir("/").ok());
  ASSERT_TRUE(Write(*file, "hello").ok());
  files.FailCall(0, EIO);
  EXPECT_EQ(CodeOf(file->Sync()), ErrorCode::STORAGE_IO);
  EXPECT_TRUE(file->Sync().ok());
  EXPECT_EQ(*ReadSmall(files, "/a", 10), "hello") << "the living system sees it";
  EXPECT_EQ(ContentOf(files.CrashImage(files.OpCount(), kNothing), "/a"), "");
}

TEST(SimFiles, InjectedErrorsHitOneCall) {
  SimFiles files;
  auto file = Create(files, "/a");
  files.FailCall(1, ENOSPC);
  EXPECT_TRUE(files.Stat("/a").ok());
  EXPECT_EQ(CodeOf(Write(*file, "hello!")), ErrorCode::STORAGE_FULL);
  EXPECT_EQ(*ReadSmall(files, "/a", 10), "hel") << "half of it was written";
  EXPECT_TRUE(Write(*file, "hello!").ok());
}

TEST(SimFiles, DroppedSyncSaysOkAndDoesNothing) {
  SimFiles files;
  auto file = Create(files, "/a");
  files.DropSync(1);
  ASSERT_TRUE(file->Sync().ok());
  ASSERT_TRUE(files.SyncDir("/").ok());
  EXPECT_EQ(ContentOf(files.CrashImage(files.OpCount(), kNothing), "/a"), "absent");
  ASSERT_TRUE(files.SyncDir("/").ok());
  EXPECT_EQ(ContentOf(files.CrashImage(files.OpCount(), kNothing), "/a"), "");
}

TEST(SimFiles, SubsetsAreAllThereAreAndEachIsItsOwn) {
  SimFiles files;
  auto file = Create(files, "/a");
  ASSERT_TRUE(Write(*file, std::string(2 * 4096, 'x')).ok());
  sim::Disk disk(files.base());
  for (const sim::Op& op : files.log()) disk.Play(op);
  ASSERT_EQ(disk.Uncertain(), 4u) << "the name, the size, two blocks";
  std::set<uint64_t> disks;
  const auto none = [](const std::string&) { return false; };
  for (uint64_t bits = 0; bits < 16; ++bits) disks.insert(sim::HashOf(disk.Fail(sim::Lot::Subset(bits)), none));
  EXPECT_EQ(disks.size(), 6u) << "no file, an empty one, and four contents of two blocks";
}

TEST(SimFiles, AHashSeesNamesContentsAndLinks) {
  const auto none = [](const std::string&) { return false; };
  const auto all = [](const std::string&) { return true; };
  SimFiles one, two;
  for (SimFiles* files : {&one, &two}) ASSERT_TRUE(Write(*Create(*files, "/a"), "x").ok());
  EXPECT_EQ(sim::HashOf(one.live(), none), sim::HashOf(two.live(), none));
  ASSERT_TRUE(two.RenameNoReplace("/a", "/b").ok());
  EXPECT_NE(sim::HashOf(one.live(), none), sim::HashOf(two.live(), none));
  EXPECT_EQ(sim::HashOf(one.live(), all), sim::HashOf(two.live(), all));
  ASSERT_TRUE(one.Link("/a", "/b").ok());
  ASSERT_TRUE(Write(*Create(two, "/a"), "x").ok());
  EXPECT_NE(sim::HashOf(one.live(), none), sim::HashOf(two.live(), none)) << "one file twice, or two files";
}

TEST(SimFiles, AKilledProcessChangesNothingMore) {
  SimFiles files;
  ASSERT_TRUE(Write(*Create(files, "/a"), "x").ok());
  files.KillAt(files.OpCount() + 1);
  EXPECT_TRUE(files.Unlink("/a").ok());
  EXPECT_TRUE(files.Killed());
  EXPECT_FALSE(files.Open("/b", {.write = true, .create = true}).ok());
  EXPECT_FALSE(files.SyncDir("/").ok());
  files.Revive();
  EXPECT_FALSE(files.Stat("/a").ok()) << "the kernel knows it";
  EXPECT_EQ(ContentOf(files.CrashImage(files.OpCount(), kNothing), "/a"), "absent");
  EXPECT_TRUE(files.Open("/b", {.write = true, .create = true}).ok());
}

TEST(SimFiles, AFullStorageTakesHalfAWrite) {
  SimFiles files;
  auto file = Create(files, "/a");
  files.SetFree(3);
  EXPECT_TRUE(Write(*file, "abc").ok());
  EXPECT_TRUE(Write(*file, "ABC").ok()) << "nothing new is allocated";
  EXPECT_EQ(CodeOf(Write(*file, "defg", 3)), ErrorCode::STORAGE_FULL);
  EXPECT_EQ(*ReadSmall(files, "/a", 10), "ABCde");
  EXPECT_EQ(CodeOf(file->Fallocate(100)), ErrorCode::STORAGE_FULL);
}

TEST(SimFiles, DirectFilesRefuseUnalignedTransfers) {
  SimFiles files;
  auto file = *files.Open("/a", {.write = true, .create = true, .direct = true});
  alignas(4096) static std::byte block[8192];
  EXPECT_TRUE(file->PWrite(4096, std::span(block).first(4096)).ok());
  EXPECT_EQ(CodeOf(file->PWrite(1, std::span(block).first(4096))), ErrorCode::INVALID_ARGUMENT);
  EXPECT_EQ(CodeOf(file->PWrite(0, std::span(block).first(100))), ErrorCode::INVALID_ARGUMENT);
  EXPECT_EQ(CodeOf(file->PWrite(0, std::span(block).subspan(8, 4096))), ErrorCode::INVALID_ARGUMENT);
}

}  // namespace
}  // namespace ckptd
