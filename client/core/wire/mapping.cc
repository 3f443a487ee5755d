#include "client/core/wire/mapping.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "client/core/wire/huge_pages.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

namespace ckptd {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kMaxTransfer = uint64_t{1} << 30;

// For kernels before 5.14, which have no MADV_POPULATE. An addition of zero dirties the page without changing it.
void TouchPages(char* address, uint64_t bytes, Access access) {
  for (uint64_t at = 0; at < bytes; at += kPage) {
    if (access == Access::kReadWrite) {
      __atomic_fetch_add(address + at, 0, __ATOMIC_RELAXED);
    } else {
      (void)__atomic_load_n(address + at, __ATOMIC_RELAXED);
    }
  }
}

}  // namespace

SharedMapping::~SharedMapping() {
  if (address_ != nullptr) munmap(address_, bytes_);
}

int SharedMapping::Map(int fd, uint64_t bytes, Access access, SharedMapping* out) {
  int protection = access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  void* address = mmap(PlaceForHugePages(bytes), bytes, protection, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) return errno;
  SharedMapping mapping;
  mapping.address_ = address;
  mapping.bytes_ = bytes;
  if (madvise(address, bytes, MADV_DONTFORK) != 0) return errno;
  *out = std::move(mapping);
  return 0;
}

int SharedMapping::Populate(Access access, uint64_t offset, uint64_t bytes) {
  int advice = access == Access::kRead ? MADV_POPULATE_READ : MADV_POPULATE_WRITE;
  while (madvise(data() + offset, bytes, advice) != 0) {
    if (errno == EINTR || errno == EAGAIN) continue;
    if (errno != EINVAL) return errno;
    TouchPages(data() + offset, bytes, access);
    return 0;
  }
  return 0;
}

int FileBytes(int fd, uint64_t* bytes) {
  struct stat status = {};
  if (fstat(fd, &status) != 0) return errno;
  if (!S_ISREG(status.st_mode)) return EINVAL;
  *bytes = static_cast<uint64_t>(status.st_size);
  return 0;
}

int ReadExactly(int fd, uint64_t offset, void* into, uint64_t bytes) {
  auto* at = static_cast<char*>(into);
  while (bytes > 0) {
    ssize_t got = pread(fd, at, std::min(bytes, kMaxTransfer), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno;
    if (got == 0) return EIO;
    at += got;
    offset += static_cast<uint64_t>(got);
    bytes -= static_cast<uint64_t>(got);
  }
  return 0;
}

}  // namespace ckptd
