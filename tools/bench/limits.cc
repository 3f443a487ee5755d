#include "tools/bench/limits.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/status_macros.h"
#include "daemon/base/units.h"
#include "daemon/os/files.h"
#include "daemon/os/posix_files.h"
#include "tools/bench/measure.h"

namespace ckptd::bench {
namespace {

constexpr size_t kBlockBytes = 8 * kMiB;

absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, OpenOptions options) {
  options.direct = true;
  auto file = PosixFiles().Open(path, options);
  if (file.ok() || !absl::IsInvalidArgument(file.status())) return file;
  options.direct = false;
  return PosixFiles().Open(path, options);
}

absl::Status WriteAll(File& file, const Job& job) {
  uint64_t at = 0;
  for (uint32_t rank = 0; rank < job.ranks(); ++rank) {
    std::span<const std::byte> rest = job.state(rank);
    for (; !rest.empty(); rest = rest.subspan(std::min(kBlockBytes, rest.size()))) {
      std::span<const std::byte> block = rest.first(std::min(kBlockBytes, rest.size()));
      CKPTD_RETURN_IF_ERROR(file.PWrite(at, block));
      at += block.size();
    }
  }
  CKPTD_RETURN_IF_ERROR(file.Sync());
  return file.Close();
}

absl::Status ReadAll(File& file, std::span<std::byte> block) {
  for (uint64_t at = 0;;) {
    CKPTD_ASSIGN_OR_RETURN(size_t got, file.PRead(at, block));
    at += got;
    if (got < block.size()) return absl::OkStatus();
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Mirror>> Mirror::Make(const Job& job, const Options& options) {
  std::unique_ptr<Mirror> mirror(new Mirror(job));
  for (uint32_t rank = 0; rank < job.ranks(); ++rank) {
    std::string path = absl::StrCat(options.region, "/ckptd-bench-mirror-", getpid(), "-", rank);
    CKPTD_ASSIGN_OR_RETURN(auto file, PosixFiles().Open(path, {.write = true, .create = true}));
    absl::Status unlinked = PosixFiles().Unlink(path);  // it lives as long as its mapping
    CKPTD_RETURN_IF_ERROR(unlinked);
    CKPTD_RETURN_IF_ERROR(file->Fallocate(job.state(rank).size()));
    CKPTD_ASSIGN_OR_RETURN(Mapping mapping, Mapping::Map(file->fd(), job.state(rank).size(), MapAccess::kReadWrite));
    CKPTD_RETURN_IF_ERROR(Populate(mapping, 0, mapping.size()));
    mirror->mappings_.push_back(std::move(mapping));
  }
  (void)mirror->CopyIn();
  return mirror;
}

double Mirror::CopyIn() const {
  TimePoint begin = Now();
  absl::Status ignored = job_.ForEachRank([&](uint32_t rank) {
    memcpy(mappings_[rank].data(), job_.state(rank).data(), mappings_[rank].size());
    return absl::OkStatus();
  });
  return SecondsSince(begin);
}

double Mirror::CopyOut() const {
  TimePoint begin = Now();
  absl::Status ignored = job_.ForEachRank([&](uint32_t rank) {
    memcpy(job_.state(rank).data(), mappings_[rank].data(), mappings_[rank].size());
    return absl::OkStatus();
  });
  return SecondsSince(begin);
}

absl::StatusOr<double> WritePlainFile(const std::string& path, const Job& job) {
  TimePoint begin = Now();
  CKPTD_ASSIGN_OR_RETURN(auto file, Open(path, {.write = true, .create = true}));
  CKPTD_RETURN_IF_ERROR(WriteAll(*file, job));
  double seconds = SecondsSince(begin);
  CKPTD_RETURN_IF_ERROR(PosixFiles().Unlink(path));
  return seconds;
}

absl::StatusOr<double> ReadPlainFiles(const std::vector<std::string>& paths) {
  std::unique_ptr<void, decltype(&free)> memory(std::aligned_alloc(kDirectAlignment, kBlockBytes), &free);
  std::span<std::byte> block(static_cast<std::byte*>(memory.get()), kBlockBytes);
  memset(block.data(), 0, block.size());  // present before the clock runs
  TimePoint begin = Now();
  for (const std::string& path : paths) {
    CKPTD_ASSIGN_OR_RETURN(auto file, Open(path, {}));
    CKPTD_RETURN_IF_ERROR(ReadAll(*file, block));
  }
  return SecondsSince(begin);
}

}  // namespace ckptd::bench
