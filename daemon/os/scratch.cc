#include "daemon/os/scratch.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"

namespace ckptd {

absl::StatusOr<Scratch> Scratch::Make(uint64_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory != MAP_FAILED) {
    madvise(memory, bytes, MADV_HUGEPAGE);  // each byte is touched for the first time, mostly once
    return Scratch({static_cast<std::byte*>(memory), static_cast<size_t>(bytes)});
  }
  return Error(ErrorCode::REGION_FULL, absl::StrCat("no address space for ", bytes, " bytes: ", std::strerror(errno)));
}

Scratch::Scratch(Scratch&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

Scratch& Scratch::operator=(Scratch&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

Scratch::~Scratch() {
  if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
}

void Scratch::Discard(uint64_t offset, uint64_t length) {
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  if (offset >= bytes_.size()) return;
  const uint64_t begin = (offset + page - 1) / page * page;
  const uint64_t end = (offset + std::min<uint64_t>(length, bytes_.size() - offset)) / page * page;
  if (begin < end) madvise(bytes_.data() + begin, end - begin, MADV_DONTNEED);
}

}  // namespace ckptd
