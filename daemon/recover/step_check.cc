#include "daemon/recover/step_check.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/core/copy/crc32c.h"
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

// The checksum of a rank's headers, out of its bytes as they pass by.
class HeaderCrc {
 public:
  explicit HeaderCrc(const v1::Sidecar& sidecar) : sidecar_(sidecar) {}

  void Take(uint64_t slot_offset, std::span<const std::byte> bytes) {
    uint64_t image = 0;
    for (const v1::SidecarImage& each : sidecar_.images()) {
      const uint64_t from = std::max(slot_offset, image);
      const uint64_t to = std::min(slot_offset + bytes.size(), image + each.header_bytes());
      if (from < to) crc_ = Crc32c(crc_, bytes.data() + (from - slot_offset), to - from);
      image += each.bytes();
    }
  }
  // A sidecar of an older ckptd does not tell.
  [[nodiscard]] bool right() const { return sidecar_.header_crc32c() == 0 || sidecar_.header_crc32c() == crc_; }

 private:
  const v1::Sidecar& sidecar_;
  uint32_t crc_ = 0;
};

std::string WrongHeaders(const std::string& part) {
  return absl::StrCat(part,
                      ": the header is not the one that the trainer registered: something wrote over it before its "
                      "checksum was taken");
}

absl::Status CheckImages(Store& store, const std::string& job, const v1::Sidecar& sidecar,
                         const CheckedReadOptions& options) {
  StoredRank rank = ToStoredRank(job, sidecar);
  HeaderCrc headers(sidecar);
  bool damaged = false;
  CheckedReadOptions mine = options;
  mine.sink = [&headers](uint64_t at, std::span<const std::byte> bytes) {
    headers.Take(at, bytes);
    return absl::OkStatus();
  };
  if (options.on_bad) {
    mine.on_bad = [&](const BadChunk& bad) {
      damaged = true;
      options.on_bad(bad);
    };
  }
  CKPTD_RETURN_IF_ERROR(ReadChecked(store, rank, mine));
  if (damaged || headers.right()) return absl::OkStatus();
  const std::string& part = rank.parts[0].name;
  if (!options.on_bad) return Error(ErrorCode::CORRUPT, WrongHeaders(part));
  options.on_bad({part, 0, sidecar.images(0).header_bytes(), WrongHeaders(part)});
  return absl::OkStatus();
}

absl::Status CheckRank(Store& store, const std::string& job, const v1::Manifest& manifest, Rank rank,
                       const CheckedReadOptions& options) {
  auto sidecar = ReadCommittedSidecar(store, job, manifest, rank);
  if (sidecar.ok()) return CheckImages(store, job, *sidecar, options);
  ErrorCode code = CodeOf(sidecar.status());
  bool damage = code == ErrorCode::CORRUPT || code == ErrorCode::NOT_FOUND;
  if (!damage || !options.on_bad) return sidecar.status();
  std::string name = InStep(job, {manifest.attempt(), manifest.step()}, SidecarFileName(rank, manifest.world_size()));
  options.on_bad({name, 0, 0, std::string(sidecar.status().message())});
  return absl::OkStatus();
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

absl::Status CheckStoredRank(Store& store, const std::string& job, const SnapshotId& id, Rank rank,
                             const CheckedReadOptions& options, uint32_t world_size) {
  CKPTD_ASSIGN_OR_RETURN(auto manifest, ReadManifest(store, job, id));
  if (world_size != 0 && manifest.world_size() != world_size) {
    return Error(ErrorCode::CORRUPT, absl::StrCat(InStep(job, id, kManifestName), ": a step of ", manifest.world_size(),
                                                  " ranks, not of ", world_size));
  }
  return CheckRank(store, job, manifest, rank, options);
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
  if (sidecar.header_crc32c() != 0 && Crc32c(0, headers.data(), headers.size()) != sidecar.header_crc32c()) {
    return Error(ErrorCode::CORRUPT, WrongHeaders(rank.parts[0].name));
  }
  return headers;
}

}  // namespace ckptd
