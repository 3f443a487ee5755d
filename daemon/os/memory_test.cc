// Mappings and memfds.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "daemon/base/errors.h"
#include "daemon/os/mapping.h"
#include "daemon/os/memfd.h"
#include "daemon/os/posix_files.h"
#include "daemon/os/scratch.h"
#include "daemon/os/testing/huge_bytes.h"
#include "daemon/os/testing/temp_dir.h"

namespace ckptd {
namespace {

constexpr uint64_t kSize = 1 << 20;

TEST(Mapping, IsSharedWithTheFile) {
  UniqueFd fd = *CreateMemfd("m", kSize);
  auto writer = Mapping::Map(fd.get(), kSize, MapAccess::kReadWrite);
  auto reader = Mapping::Map(fd.get(), kSize, MapAccess::kReadOnly);
  ASSERT_TRUE(writer.ok() && reader.ok());
  ASSERT_TRUE(Populate(*writer, 4096, kSize - 4096).ok());
  writer->data()[kSize - 1] = std::byte{42};
  EXPECT_EQ(reader->bytes().back(), std::byte{42});
  Mapping moved = *std::move(reader);
  EXPECT_EQ(moved.size(), kSize);
}

TEST(Mapping, RefusesMoreThanTheFileHas) {
  UniqueFd fd = *CreateMemfd("m", 4096);
  EXPECT_EQ(CodeOf(Mapping::Map(fd.get(), 8192, MapAccess::kReadOnly).status()), ErrorCode::CORRUPT);
  EXPECT_FALSE(Mapping::Map(fd.get(), 0, MapAccess::kReadOnly).ok());
  EXPECT_FALSE(Mapping::Map(-1, 4096, MapAccess::kReadOnly).ok());
}

TEST(Mapping, WriteAccessNeedsAWritableDescriptor) {
  TempDir dir;
  ASSERT_TRUE((*PosixFiles().Open(dir.path() + "/f", {.write = true, .create = true}))->Fallocate(4096).ok());
  auto file = PosixFiles().Open(dir.path() + "/f", {});
  EXPECT_EQ(CodeOf(Mapping::Map((*file)->fd(), 4096, MapAccess::kReadWrite).status()), ErrorCode::PERMISSION);
}

TEST(Mapping, ForkedChildrenDoNotInheritIt) {
  UniqueFd fd = *CreateMemfd("m", 4096);
  auto mapping = Mapping::Map(fd.get(), 4096, MapAccess::kReadWrite);
  ASSERT_TRUE(mapping.ok());
  pid_t pid = fork();
  if (pid == 0) {
    unsigned char present = 0;
    _exit(mincore(mapping->data(), 4096, &present) == 0 ? 1 : 0);  // ENOMEM: nothing mapped there
  }
  int status = -1;
  waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(Populate, OfATruncatedFileIsAnError) {
  UniqueFd fd = *CreateMemfd("m", kSize);
  auto mapping = Mapping::Map(fd.get(), kSize, MapAccess::kReadWrite);
  EXPECT_EQ(CodeOf(Populate(*mapping, kSize, 4096)), ErrorCode::INVALID_ARGUMENT);
  ASSERT_EQ(ftruncate(fd.get(), 4096), 0);
  EXPECT_EQ(CodeOf(Populate(*mapping, 0, kSize)), ErrorCode::REGION_FULL);
}

TEST(HugePages, AreMappedAsSuchByOthers) {
  constexpr uint64_t kFour = 4 << 20;
  UniqueFd fd = *CreateMemfd("m", kFour);
  ASSERT_EQ(fallocate(fd.get(), 0, 0, kFour), 0);
  auto mapping = Mapping::Map(fd.get(), kFour, MapAccess::kReadWrite);
  ASSERT_TRUE(mapping.ok());
  mapping->data()[kFour / 2] = std::byte{42};
  EXPECT_FALSE(UseHugePages(*mapping, kFour, 4096));
  if (!KernelMakesHugePages()) GTEST_SKIP() << "skipped: this kernel gives none (Linux 6.1 and later do)";
  ASSERT_TRUE(UseHugePages(*mapping, 0, kFour));
  const uint64_t before = HugeBytesMapped();
  auto other = Mapping::Map(fd.get(), kFour, MapAccess::kReadOnly);
  EXPECT_EQ(other->data()[kFour / 2], std::byte{42});
  EXPECT_EQ(other->data()[0], std::byte{0});
  EXPECT_EQ(HugeBytesMapped(), before + kFour);
}

// Of a file that has a size and no page, and of less than a huge page at its end.
TEST(HugePages, AreMadeOfHoles) {
  constexpr uint64_t kSeven = 7 << 20;
  UniqueFd fd(memfd_create("m", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(fd.get(), kSeven), 0);
  auto mapping = Mapping::Map(fd.get(), kSeven, MapAccess::kReadWrite);
  ASSERT_TRUE(mapping.ok());
  EXPECT_FALSE(UseHugePages(*mapping, 4096, kSeven - 4096)) << "not at the beginning of one";
  if (!KernelMakesHugePages()) GTEST_SKIP() << "skipped: this kernel gives none (Linux 6.1 and later do)";
  ASSERT_TRUE(UseHugePages(*mapping, 0, kSeven));
  struct stat info {};
  ASSERT_EQ(fstat(fd.get(), &info), 0);
  EXPECT_EQ(static_cast<uint64_t>(info.st_blocks) * 512, uint64_t{6} << 20);
  const uint64_t before = HugeBytesMapped();
  auto other = Mapping::Map(fd.get(), kSeven, MapAccess::kReadOnly);
  for (uint64_t at = 0; at < kSeven; at += 4096) ASSERT_EQ(other->data()[at], std::byte{0}) << at;
  EXPECT_EQ(HugeBytesMapped(), before + (uint64_t{6} << 20));
}

TEST(Scratch, PiecesAreGivenBackAsZeros) {
  constexpr uint64_t kBytes = 64 * 4096 + 100;
  auto scratch = Scratch::Make(kBytes);
  ASSERT_TRUE(scratch.ok()) << scratch.status();
  ASSERT_EQ(scratch->bytes().size(), kBytes);
  std::fill(scratch->bytes().begin(), scratch->bytes().end(), std::byte{7});
  scratch->Discard(4096, 8192);
  EXPECT_EQ(scratch->bytes()[4095], std::byte{7});
  EXPECT_EQ(scratch->bytes()[4096], std::byte{0});
  EXPECT_EQ(scratch->bytes()[3 * 4096 - 1], std::byte{0});
  EXPECT_EQ(scratch->bytes()[3 * 4096], std::byte{7});
  Scratch moved = *std::move(scratch);
  EXPECT_EQ(moved.bytes()[0], std::byte{7});
  EXPECT_TRUE(scratch->bytes().empty());  // NOLINT(bugprone-use-after-move): what is left of it is the question
}

// A page that is not all of the range stays.
TEST(Scratch, PartsOfPagesStay) {
  auto scratch = Scratch::Make(3 * 4096);
  ASSERT_TRUE(scratch.ok()) << scratch.status();
  std::fill(scratch->bytes().begin(), scratch->bytes().end(), std::byte{7});
  scratch->Discard(100, 8191);
  EXPECT_EQ(scratch->bytes()[101], std::byte{7});
  EXPECT_EQ(scratch->bytes()[4096], std::byte{0});
  EXPECT_EQ(scratch->bytes()[8192], std::byte{7});
  scratch->Discard(2 * 4096, uint64_t{1} << 30);
  EXPECT_EQ(scratch->bytes()[3 * 4096 - 1], std::byte{0});
}

TEST(Scratch, TooMuchIsAnError) { EXPECT_FALSE(Scratch::Make(uint64_t{1} << 60).ok()); }

TEST(Memfd, SealedContentIsCopied) {
  UniqueFd fd = *CreateMemfd("header", 5);
  ASSERT_EQ(pwrite(fd.get(), "hello", 5, 0), 5);
  EXPECT_FALSE(ReadSealedMemfd(fd.get(), 10).ok()) << "not sealed";
  ASSERT_TRUE(AddSeals(fd.get(), kSealsOfSize).ok());
  EXPECT_EQ(*CheckMemfd(fd.get(), kSealsOfSize, 5), 5u);
  EXPECT_FALSE(ReadSealedMemfd(fd.get(), 10).ok()) << "still writable";
  ASSERT_TRUE(AddSeals(fd.get(), kSealsOfContent).ok());
  EXPECT_EQ(*ReadSealedMemfd(fd.get(), 5), "hello");
  EXPECT_EQ(CodeOf(ReadSealedMemfd(fd.get(), 4).status()), ErrorCode::INVALID_ARGUMENT);
  EXPECT_LT(pwrite(fd.get(), "x", 1, 0), 0) << "the seal holds";
}

TEST(Memfd, RefusesWhatIsNoMemfd) {
  TempDir dir;
  auto file = PosixFiles().Open(dir.path() + "/f", {.write = true, .create = true});
  EXPECT_FALSE(CheckMemfd((*file)->fd(), 0, 10).ok());
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  UniqueFd reading(ends[0]), writing(ends[1]);
  EXPECT_FALSE(CheckMemfd(reading.get(), 0, 10).ok());
  EXPECT_FALSE(CheckMemfd((*PosixFiles().Open("/dev/shm", {}))->fd(), 0, 10).ok());
}

}  // namespace
}  // namespace ckptd
