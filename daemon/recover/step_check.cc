#include "daemon/recover/step_check.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/base/units.h"
#include "daemon/format/paths.h"
#include "daemon/storage/step_files.h"

namespace ckptd {
namespace {

struct FreeMemory {
  void operator()(std::byte* memory) const { std::free(memory); }
};

absl::Status CheckRank(Store& store, const std::string& job, const v1::Manifest& manifest, Rank rank,
                       const CheckedReadOptions& options) {
  auto sidecar = ReadCommittedSidecar(store, job, manifest, rank);
  if (sidecar.ok()) return ReadChecked(store, ToStoredRank(job, *sidecar), options);
  ErrorCode code = CodeOf(sidecar.status());
  bool damage = code == ErrorCode::CORRUPT || code == ErrorCode::NOT_FOUND;
  if (!damage || !options.on_bad) return sidecar.status();
  std::string name = InStep(job, {manifest.attempt(), manifest.step()}, SidecarFileName(rank, manifest.world_size()));
  options.on_bad({name, 0, 0, std::string(sidecar.status().message())});
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadHeader(Store& store, const StoredPart& part, uint64_t bytes) {
  CKPTD_ASSIGN_OR_RETURN(auto reader, store.OpenForRead(part.name));
  if (reader->size() < bytes) return Error(ErrorCode::CORRUPT, absl::StrCat(part.name, " is shorter than its header"));
  std::unique_ptr<std::byte, FreeMemory> memory(
      static_cast<std::byte*>(std::aligned_alloc(kDirectAlignment, RoundUp(bytes, kDirectAlignment))));
  if (!memory) return Error(ErrorCode::REGION_FULL, absl::StrCat("no memory for the header of ", part.name));
  std::span<std::byte> span(memory.get(), bytes);
  CKPTD_RETURN_IF_ERROR(reader->Read(0, span, bytes, [](uint64_t, std::span<std::byte>) { return absl::OkStatus(); }));
  return std::string(reinterpret_cast<const char*>(memory.get()), bytes);
}

}  // namespace

absl::Status CheckStep(Store& store, const std::string& job, const SnapshotId& id, const CheckedReadOptions& options) {
  CKPTD_ASSIGN_OR_RETURN(auto manifest, ReadManifest(store, job, id));
  uint64_t before = 0;
  for (Rank rank = 0; rank < manifest.world_size(); ++rank) {
    CheckedReadOptions mine;
    mine.on_bad = options.on_bad;
    mine.cancel = options.cancel;
    uint64_t done = 0;
    mine.progress = [&](uint64_t bytes) {
      done = bytes;
      if (options.progress) options.progress(before + bytes);
    };
    CKPTD_RETURN_IF_ERROR(CheckRank(store, job, manifest, rank, mine));
    before += done;
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::Sidecar> CommittedSidecar(Store& store, const std::string& job, const SnapshotId& id, Rank rank) {
  CKPTD_ASSIGN_OR_RETURN(auto manifest, ReadManifest(store, job, id));
  return ReadCommittedSidecar(store, job, manifest, rank);
}

absl::StatusOr<std::string> ReadHeaders(Store& store, const std::string& job, const v1::Sidecar& sidecar,
                                        uint64_t max_bytes) {
  StoredRank rank = ToStoredRank(job, sidecar);
  std::string headers;
  for (int i = 0; i < sidecar.images_size(); ++i) {
    uint64_t bytes = sidecar.images(i).header_bytes();
    if (bytes == 0 || bytes > max_bytes - headers.size()) {
      return Error(ErrorCode::CORRUPT, absl::StrCat(rank.parts[i].name, ": impossible header size ", bytes));
    }
    CKPTD_ASSIGN_OR_RETURN(std::string header, ReadHeader(store, rank.parts[i], bytes));
    headers += header;
  }
  return headers;
}

}  // namespace ckptd
