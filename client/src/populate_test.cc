#include "client/src/populate.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <cerrno>

#include "client/core/wire/fds.h"

namespace ckptd {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kBytes = (100 << 20) + kPage;  // some pieces, and a short one

UniqueFd MemoryOf(uint64_t bytes) {
  UniqueFd fd(memfd_create("test", MFD_CLOEXEC));
  EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  return fd;
}

long Faults() {
  rusage usage = {};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_minflt;
}

TEST(Populate, NoPageFaultsAfterwards) {
  const UniqueFd fd = MemoryOf(kBytes);
  SharedMapping mapping;
  ASSERT_EQ(SharedMapping::Map(fd.get(), kBytes, Access::kReadWrite, &mapping), 0);
  ASSERT_EQ(PopulateTogether(mapping), 0);
  const long before = Faults();
  for (uint64_t at = 0; at < kBytes; at += kPage) mapping.data()[at] = 1;
  EXPECT_LT(Faults() - before, 5);
}

TEST(Populate, AFileThatEndsBeforeIsAnError) {
  const UniqueFd fd = MemoryOf(kBytes / 2);
  SharedMapping mapping;
  ASSERT_EQ(SharedMapping::Map(fd.get(), kBytes, Access::kReadWrite, &mapping), 0);
  EXPECT_EQ(PopulateTogether(mapping), EFAULT);
}

}  // namespace
}  // namespace ckptd
