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
#include "tools/bench/room.h"
#include "tools/bench/session.h"

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

absl::Status MakeFolder(const std::string& path) {
  absl::Status made = PosixFiles().Mkdir(path, 0755);
  return absl::IsAlreadyExists(made) ? absl::OkStatus() : made;
}

// One file of a step: temporary, written, synced, named, and the folders above it synced before and behind that.
absl::Status PublishFile(const std::string& root, const std::string& step, const std::string& name,
                         std::span<const std::byte> bytes) {
  const std::string job = root + "/plain";
  CKPTD_RETURN_IF_ERROR(MakeFolder(job));
  CKPTD_RETURN_IF_ERROR(PosixFiles().SyncDir(root));
  CKPTD_RETURN_IF_ERROR(MakeFolder(step));
  CKPTD_RETURN_IF_ERROR(PosixFiles().SyncDir(job));
  const std::string temporary = absl::StrCat(step, "/.", name);
  const bool direct = bytes.size() % kDirectAlignment == 0;
  const OpenOptions fresh = {.write = true, .create = true};
  CKPTD_ASSIGN_OR_RETURN(auto file, direct ? Open(temporary, fresh) : PosixFiles().Open(temporary, fresh));
  CKPTD_RETURN_IF_ERROR(file->PWrite(0, bytes));
  CKPTD_RETURN_IF_ERROR(file->Sync());
  CKPTD_RETURN_IF_ERROR(file->Close());
  CKPTD_RETURN_IF_ERROR(PosixFiles().Link(temporary, absl::StrCat(step, "/", name)));
  CKPTD_RETURN_IF_ERROR(PosixFiles().Unlink(temporary));
  return PosixFiles().SyncDir(step);
}

std::string MirrorPath(const Options& options, uint32_t rank, uint32_t number) {
  return absl::StrCat(options.region, "/ckptd-bench-mirror-", getpid(), "-", rank, "-", number);
}

// A file that lives as long as its descriptor and mappings.
absl::StatusOr<Mapping> MakePopulated(const std::string& path, uint64_t bytes) {
  CKPTD_ASSIGN_OR_RETURN(auto file, PosixFiles().Open(path, {.write = true, .create = true}));
  CKPTD_RETURN_IF_ERROR(PosixFiles().Unlink(path));
  CKPTD_RETURN_IF_ERROR(file->Fallocate(bytes));
  CKPTD_ASSIGN_OR_RETURN(Mapping mapping, Mapping::Map(file->fd(), bytes, MapAccess::kReadWrite));
  CKPTD_RETURN_IF_ERROR(Populate(mapping, 0, mapping.size()));
  return mapping;
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
    CKPTD_ASSIGN_OR_RETURN(Mapping mapping, MakePopulated(MirrorPath(options, rank, 0), job.state(rank).size()));
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

absl::StatusOr<double> PublishPlainly(const std::string& root, uint32_t number, const Job& job) {
  static const std::vector<std::byte> record(1 << 10, std::byte{'x'});
  const std::string step = absl::StrCat(root, "/plain/step-", number);
  TimePoint begin = Now();
  CKPTD_RETURN_IF_ERROR(job.ForEachRank([&](uint32_t rank) -> absl::Status {
    CKPTD_RETURN_IF_ERROR(PublishFile(root, step, absl::StrCat("image-", rank), job.state(rank)));
    return PublishFile(root, step, absl::StrCat("record-", rank), record);
  }));
  CKPTD_RETURN_IF_ERROR(PublishFile(root, step, "record", record));
  return SecondsSince(begin);
}

absl::StatusOr<double> PreparePlainMemory(const Options& options, const Job& job) {
  std::vector<std::vector<Mapping>> mappings(job.ranks());  // given back when no clock runs any more
  TimePoint begin = Now();
  CKPTD_RETURN_IF_ERROR(job.ForEachRank([&](uint32_t rank) -> absl::Status {
    for (uint32_t i = 0; i < kSlots; ++i) {
      CKPTD_ASSIGN_OR_RETURN(Mapping mapping, MakePopulated(MirrorPath(options, rank, i), job.state(rank).size()));
      mappings[rank].push_back(std::move(mapping));
    }
    return absl::OkStatus();
  }));
  return SecondsSince(begin);
}

double WritePlainHeader(const Job& job) {
  std::vector<std::string> names;
  for (uint64_t i = 0; i < job.tensors(); ++i) names.push_back(TensorName(i));
  TimePoint begin = Now();
  std::string text = "{\"__metadata__\":{\"format\":\"pt\"}";
  uint64_t at = 0;
  for (const std::string& name : names) {
    absl::StrAppend(&text, ",\"", name, "\":{\"dtype\":\"U64\",\"shape\":[", job.tensor_bytes() / sizeof(uint64_t),
                    "],\"data_offsets\":[", at, ",", at + job.tensor_bytes(), "]}");
    at += job.tensor_bytes();
  }
  text += "}";
  asm volatile("" : : "r"(text.data()) : "memory");  // the text is wanted, though nobody reads it
  return SecondsSince(begin);
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
