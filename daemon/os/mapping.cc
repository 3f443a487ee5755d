#include "daemon/os/mapping.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <atomic>
#include <boost/interprocess/exceptions.hpp>
#include <boost/interprocess/mapped_region.hpp>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "client/core/wire/huge_pages.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; older C libraries do not name it
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25  // Linux 6.1
#endif

namespace ckptd {
namespace {

namespace bip = boost::interprocess;

constexpr uint64_t kPage = 4096;

// What Boost asks of a thing that can be mapped.
struct Descriptor {
  int fd;
  [[nodiscard]] bip::mapping_handle_t get_mapping_handle() const { return {fd, false}; }
};

absl::Status CheckSize(int fd, uint64_t size) {
  struct stat info {};
  if (fstat(fd, &info) != 0) return ErrnoError(errno, "fstat", absl::StrCat("fd ", fd));
  if (size != 0 && static_cast<uint64_t>(info.st_size) >= size) return absl::OkStatus();
  return Error(ErrorCode::CORRUPT, absl::StrCat("map: ", size, " bytes wanted, the file has ", info.st_size));
}

std::unique_ptr<bip::mapped_region> MapFile(int fd, uint64_t size, bip::mode_t mode) {
  if (void* place = PlaceForHugePages(size)) {
    try {
      return std::make_unique<bip::mapped_region>(Descriptor{fd}, mode, 0, size, place);
    } catch (const bip::interprocess_exception&) {  // another thread took the place, or what the next one says
    }
  }
  return std::make_unique<bip::mapped_region>(Descriptor{fd}, mode, 0, size);
}

// Adds nothing to each page: present and writable afterwards, content unchanged whoever else writes.
void TouchPages(std::byte* begin, uint64_t length) {
  for (uint64_t offset = 0; offset < length; offset += kPage) {
    std::atomic_ref<unsigned char>(reinterpret_cast<unsigned char&>(begin[offset])).fetch_or(0);
  }
}

}  // namespace

absl::StatusOr<Mapping> Mapping::Map(int fd, uint64_t size, MapAccess access) {
  CKPTD_RETURN_IF_ERROR(CheckSize(fd, size));
  try {
    auto region = MapFile(fd, size, access == MapAccess::kReadWrite ? bip::read_write : bip::read_only);
    if (madvise(region->get_address(), size, MADV_DONTFORK) != 0) return ErrnoError(errno, "madvise", "DONTFORK");
    return Mapping(std::move(region));
  } catch (const bip::interprocess_exception& error) {
    return ErrnoError(error.get_native_error(), "mmap", absl::StrCat("fd ", fd, ", ", size, " bytes"));
  }
}

Mapping::Mapping() = default;
Mapping::Mapping(std::unique_ptr<bip::mapped_region> region) : region_(std::move(region)) {}
Mapping::Mapping(Mapping&&) noexcept = default;
Mapping& Mapping::operator=(Mapping&&) noexcept = default;
Mapping::~Mapping() = default;

std::byte* Mapping::data() const {
  return region_ == nullptr ? nullptr : static_cast<std::byte*>(region_->get_address());
}

uint64_t Mapping::size() const { return region_ == nullptr ? 0 : region_->get_size(); }

absl::Status Populate(const Mapping& mapping, uint64_t offset, uint64_t length) {
  if (offset % kPage != 0 || offset > mapping.size() || length > mapping.size() - offset) {
    return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat("populate: ", length, " bytes at ", offset));
  }
  std::byte* begin = mapping.data() + offset;
  int result = madvise(begin, length, MADV_POPULATE_WRITE);
  while (result != 0 && errno == EINTR) result = madvise(begin, length, MADV_POPULATE_WRITE);
  if (result == 0) return absl::OkStatus();
  if (errno == EINVAL) {
    TouchPages(begin, length);
    return absl::OkStatus();
  }
  // EFAULT is what a full tmpfs says here (touching would be SIGBUS).
  return Error(ErrorCode::REGION_FULL, ErrnoError(errno, "populate", absl::StrCat(length, " bytes")).message());
}

bool UseHugePages(const Mapping& mapping, uint64_t offset, uint64_t length) {
  if (offset % kHugePage != 0 || offset > mapping.size() || length > mapping.size() - offset) return false;
  for (uint64_t at = 0; at + kHugePage <= length; at += kHugePage) {
    if (madvise(mapping.data() + offset + at, kPage, MADV_POPULATE_WRITE) != 0) return false;
  }
  return madvise(mapping.data() + offset, length, MADV_COLLAPSE) == 0;
}

}  // namespace ckptd
