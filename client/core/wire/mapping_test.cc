#include "client/core/wire/mapping.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

#include "client/core/wire/fds.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace ckptd {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kBytes = 16 * kPage;

UniqueFd MemoryOf(uint64_t bytes) {
  UniqueFd fd(memfd_create("test", MFD_CLOEXEC));
  EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  return fd;
}

uint64_t Resident(const SharedMapping& mapping) {
  std::vector<unsigned char> pages(kBytes / kPage);
  EXPECT_EQ(mincore(const_cast<char*>(mapping.data()), kBytes, pages.data()), 0);
  uint64_t resident = 0;
  for (const unsigned char page : pages) resident += page & 1;
  return resident;
}

// madvise(..., MADV_POPULATE_*) says EINVAL in this thread from now on, as before Linux 5.14.
bool OldKernel() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2])),
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, MADV_POPULATE_READ, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {static_cast<unsigned short>(std::size(filter)), filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

void ExpectPopulated(Access access) {
  const UniqueFd fd = MemoryOf(kBytes);
  ASSERT_EQ(pwrite(fd.get(), "x", 1, 5), 1);
  SharedMapping mapping;
  ASSERT_EQ(SharedMapping::Map(fd.get(), kBytes, access, &mapping), 0);
  EXPECT_LT(Resident(mapping), kBytes / kPage);
  ASSERT_EQ(mapping.Populate(access), 0);
  if (access == Access::kReadWrite) {
    EXPECT_EQ(Resident(mapping), kBytes / kPage);
  }
  EXPECT_EQ(std::string(mapping.data() + 4, 3), std::string("\0x\0", 3)) << "what was there stays";
}

TEST(SharedMapping, PopulateMakesThePagesAndLeavesTheBytes) {
  ExpectPopulated(Access::kReadWrite);
  ExpectPopulated(Access::kRead);
}

TEST(SharedMapping, AKernelThatCannotPopulateHasItsPagesTouched) {
  std::thread old([] {
    if (!OldKernel()) GTEST_SKIP() << "skipped: no seccomp filter may be set here";
    EXPECT_EQ(madvise(nullptr, 0, MADV_POPULATE_READ), -1) << "the kernel still knows it, and nothing is shown";
    EXPECT_EQ(errno, EINVAL);
    ExpectPopulated(Access::kReadWrite);
    ExpectPopulated(Access::kRead);
  });
  old.join();
}

TEST(SharedMapping, WhatCannotBeMappedOrPopulatedIsAnError) {
  SharedMapping mapping;
  EXPECT_EQ(SharedMapping::Map(-1, kPage, Access::kRead, &mapping), EBADF);
  const UniqueFd fd = MemoryOf(kPage);
  ASSERT_EQ(SharedMapping::Map(fd.get(), 2 * kPage, Access::kRead, &mapping), 0);
  EXPECT_EQ(mapping.Populate(Access::kRead), EFAULT) << "behind the end of the file";
}

TEST(Files, SizesAndWholeReads) {
  uint64_t bytes = 0;
  const UniqueFd fd = MemoryOf(kPage);
  EXPECT_EQ(FileBytes(fd.get(), &bytes), 0);
  EXPECT_EQ(bytes, kPage);
  EXPECT_EQ(FileBytes(-1, &bytes), EBADF);
  const UniqueFd directory(open("/", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(FileBytes(directory.get(), &bytes), EINVAL);
  std::string text(10, '-');
  ASSERT_EQ(pwrite(fd.get(), "abc", 3, static_cast<off_t>(kPage - 3)), 3);
  EXPECT_EQ(ReadExactly(fd.get(), kPage - 3, text.data(), 3), 0);
  EXPECT_EQ(text.substr(0, 4), "abc-");
  EXPECT_EQ(ReadExactly(fd.get(), kPage - 3, text.data(), 4), EIO) << "a file that ends too early";
  EXPECT_EQ(ReadExactly(-1, 0, text.data(), 1), EBADF);
}

}  // namespace
}  // namespace ckptd
