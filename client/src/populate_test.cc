#include "client/src/populate.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

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

// Pages that this process's page tables hold.
uint64_t Present(const SharedMapping& mapping) {
  constexpr uint64_t kIsPresent = uint64_t{1} << 63;
  const UniqueFd pagemap(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  std::vector<uint64_t> entries(mapping.size() / kPage);
  const auto first = static_cast<off_t>(reinterpret_cast<uintptr_t>(mapping.data()) / kPage * sizeof(uint64_t));
  const auto bytes = static_cast<ssize_t>(entries.size() * sizeof(uint64_t));
  EXPECT_EQ(pread(pagemap.get(), entries.data(), static_cast<size_t>(bytes), first), bytes);
  return static_cast<uint64_t>(
      std::count_if(entries.begin(), entries.end(), [](uint64_t entry) { return (entry & kIsPresent) != 0; }));
}

TEST(Populate, EveryPageIsPresent) {
  const UniqueFd fd = MemoryOf(kBytes);
  SharedMapping mapping;
  ASSERT_EQ(SharedMapping::Map(fd.get(), kBytes, Access::kReadWrite, &mapping), 0);
  EXPECT_EQ(Present(mapping), 0u);
  ASSERT_EQ(PopulateTogether(mapping), 0);
  EXPECT_EQ(Present(mapping), kBytes / kPage);
}

TEST(Populate, AFileThatEndsBeforeIsAnError) {
  const UniqueFd fd = MemoryOf(kBytes / 2);
  SharedMapping mapping;
  ASSERT_EQ(SharedMapping::Map(fd.get(), kBytes, Access::kReadWrite, &mapping), 0);
  EXPECT_EQ(PopulateTogether(mapping), EFAULT);
}

}  // namespace
}  // namespace ckptd
