#include "daemon/app/admin_source.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/core/copy/crc32c.h"
#include "daemon/base/status_macros.h"
#include "daemon/base/units.h"
#include "daemon/format/header_reader.h"
#include "daemon/format/paths.h"
#include "daemon/storage/step_files.h"

namespace ckptd {
namespace {

struct FreeMemory {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using AlignedMemory = std::unique_ptr<std::byte[], FreeMemory>;

absl::StatusOr<AlignedMemory> Allocate(uint64_t bytes) {
  AlignedMemory memory(static_cast<std::byte*>(std::aligned_alloc(kDirectAlignment, RoundUp(bytes, kDirectAlignment))));
  if (memory == nullptr) return Error(ErrorCode::INTERNAL, absl::StrCat("no memory for ", bytes, " bytes"));
  return memory;
}

// The parts of a rank on storage, opened once each.
class OpenParts {
 public:
  OpenParts(Store& store, StoredRank rank) : store_(store), rank_(std::move(rank)), readers_(rank_.parts.size()) {}

  absl::Status Read(uint64_t offset, std::span<std::byte> into) {
    uint64_t begin = 0;
    for (size_t i = 0; i < rank_.parts.size() && !into.empty(); begin += rank_.parts[i++].bytes) {
      const uint64_t end = begin + rank_.parts[i].bytes;
      if (offset >= end) continue;
      const size_t length = std::min<uint64_t>(into.size(), end - offset);
      CKPTD_RETURN_IF_ERROR(ReadPart(i, offset - begin, into.first(length)));
      offset += length;
      into = into.subspan(length);
    }
    return absl::OkStatus();
  }

 private:
  static constexpr size_t kPiece = 1 << 20;

  absl::Status ReadPart(size_t part, uint64_t offset, std::span<std::byte> into) {
    if (readers_[part] == nullptr) {
      CKPTD_ASSIGN_OR_RETURN(readers_[part], store_.OpenForRead(rank_.parts[part].name));
    }
    return readers_[part]->Read(offset, into, kPiece, [](uint64_t, std::span<std::byte>) { return absl::OkStatus(); });
  }

  Store& store_;
  const StoredRank rank_;
  std::vector<std::unique_ptr<PartReader>> readers_;
};

bool IsDamage(const absl::Status& status) {
  ErrorCode code = CodeOf(status);
  return code == ErrorCode::CORRUPT || code == ErrorCode::NOT_FOUND;
}

absl::Status CheckChunk(const RankSource& source, size_t chunk, uint64_t offset, std::span<std::byte> bytes) {
  CKPTD_RETURN_IF_ERROR(source.read(offset, bytes));
  if (Crc32c(0, bytes.data(), bytes.size()) == source.chunk_crcs[chunk]) return absl::OkStatus();
  return Error(ErrorCode::CORRUPT,
               absl::StrCat(source.where, ": chunk ", chunk, " (byte ", offset, ") does not match its checksum"));
}

}  // namespace

RankSource FromRegion(const RegionCopy& copy) {
  RankSource source;
  source.rank = copy.rank;
  source.kind = copy.rescued ? kRescuedSource : kRegionSource;
  source.where = absl::StrCat("rank ", copy.rank, ": ", copy.file->path());
  for (size_t i = 0; i < copy.images.size(); ++i) {
    source.images.push_back(
        {ImageFileName(copy.rank, copy.world, static_cast<uint32_t>(i)), copy.images[i].offset, copy.images[i].bytes});
  }
  source.bytes = copy.record->slot_bytes;
  source.chunk_bytes = copy.record->chunk_bytes;
  source.chunk_crcs = copy.record->chunk_crcs;
  source.read = [file = copy.file](uint64_t offset, std::span<std::byte> into) { return file->Read(offset, into); };
  return source;
}

absl::StatusOr<RankSource> FromStorage(Store& store, const std::string& job, const v1::Manifest& manifest, Rank rank) {
  const SnapshotId id{manifest.attempt(), manifest.step()};
  CKPTD_ASSIGN_OR_RETURN(auto sidecar, ReadCommittedSidecar(store, job, manifest, rank));
  StoredRank stored = ToStoredRank(job, sidecar);
  RankSource source;
  source.rank = rank;
  source.kind = kStorageSource;
  source.where = absl::StrCat("rank ", rank, ": ", StepPath(job, id));
  for (const v1::SidecarImage& image : sidecar.images()) {
    source.images.push_back({image.name(), source.bytes, image.bytes()});
    source.bytes += image.bytes();
  }
  source.chunk_bytes = stored.chunk_bytes;
  source.chunk_crcs = stored.chunk_crcs;
  auto parts = std::make_shared<OpenParts>(store, std::move(stored));
  source.read = [parts](uint64_t offset, std::span<std::byte> into) { return parts->Read(offset, into); };
  return source;
}

absl::StatusOr<std::vector<RankSource>> RegionSources(const CatalogStep& step, std::optional<Rank> rank) {
  std::vector<RankSource> sources;
  for (const RegionCopy& copy : step.copies) {
    if (!rank || copy.rank == *rank) sources.push_back(FromRegion(copy));
  }
  if (rank ? sources.size() == 1 : step.in_region()) return sources;
  return Error(ErrorCode::NOT_FOUND, absl::StrCat("step ", ToString(step.id), ": memory does not hold all of it"));
}

namespace {

absl::StatusOr<v1::Manifest> ManifestOf(Store& store, const std::string& job, const CatalogStep& step,
                                        std::optional<Rank> rank) {
  if (!step.committed()) {
    std::string why = step.stored ? step.stored->damage : std::string();
    if (!why.empty()) return Error(ErrorCode::CORRUPT, why);
    return Error(ErrorCode::NOT_FOUND, absl::StrCat("step ", ToString(step.id), " is not committed on storage"));
  }
  if (rank && *rank >= step.world) {
    return Error(ErrorCode::NOT_FOUND, absl::StrCat("rank ", *rank, ": the job has ", step.world, " ranks"));
  }
  return ReadManifest(store, job, step.id);
}

// All, or the one.
std::vector<Rank> RanksOf(const CatalogStep& step, std::optional<Rank> rank) {
  if (rank) return {*rank};
  std::vector<Rank> all(step.world);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

}  // namespace

absl::StatusOr<std::vector<RankSource>> StorageSources(Store& store, const std::string& job, const CatalogStep& step,
                                                       std::optional<Rank> rank) {
  CKPTD_ASSIGN_OR_RETURN(const v1::Manifest manifest, ManifestOf(store, job, step, rank));
  std::vector<RankSource> sources;
  for (const Rank each : RanksOf(step, rank)) {
    CKPTD_ASSIGN_OR_RETURN(RankSource source, FromStorage(store, job, manifest, each));
    sources.push_back(std::move(source));
  }
  return sources;
}

absl::StatusOr<StepSources> BestSources(Store& store, const std::string& job, const CatalogStep& step,
                                        std::optional<Rank> rank) {
  if (rank ? step.CopyOf(*rank) != nullptr : step.in_region()) {
    const RegionCopy& first = rank ? *step.CopyOf(*rank) : step.copies.front();
    return StepSources{first.rescued ? kRescuedSource : kRegionSource, RanksOf(step, rank),
                       [&step](Rank each) -> absl::StatusOr<RankSource> {
                         const RegionCopy* const copy = step.CopyOf(each);
                         if (copy != nullptr) return FromRegion(*copy);
                         return Error(ErrorCode::NOT_FOUND, absl::StrCat("rank ", each, " is not in memory"));
                       }};
  }
  CKPTD_ASSIGN_OR_RETURN(v1::Manifest manifest, ManifestOf(store, job, step, rank));
  return StepSources{kStorageSource, RanksOf(step, rank), [&store, job, manifest = std::move(manifest)](Rank each) {
                       return FromStorage(store, job, manifest, each);
                     }};
}

absl::Status ReadInOrder(const RankSource& source, const OrderedRead& options) {
  const uint64_t chunks = source.chunk_bytes == 0 ? 0 : (source.bytes + source.chunk_bytes - 1) / source.chunk_bytes;
  if (chunks == 0 || chunks != source.chunk_crcs.size()) {
    return Error(ErrorCode::CORRUPT, absl::StrCat(source.where, ": the list of checksums has another length"));
  }
  CKPTD_ASSIGN_OR_RETURN(AlignedMemory memory, Allocate(std::min(source.chunk_bytes, source.bytes)));
  for (uint64_t chunk = 0; chunk < chunks; ++chunk) {
    if (options.cancel != nullptr && options.cancel->load()) return Error(ErrorCode::CANCELLED, "nobody waits for it");
    const uint64_t offset = chunk * source.chunk_bytes;
    std::span<std::byte> bytes(memory.get(), std::min(source.chunk_bytes, source.bytes - offset));
    absl::Status status = CheckChunk(source, chunk, offset, bytes);
    if (!status.ok() && !(IsDamage(status) && options.on_bad)) return status;
    if (!status.ok()) options.on_bad(offset, bytes.size(), std::string(status.message()));
    if (status.ok() && options.sink) CKPTD_RETURN_IF_ERROR(options.sink(offset, bytes));
    if (options.progress) options.progress(offset + bytes.size());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<ImageInfo>> ReadImageHeaders(const RankSource& source) {
  absl::Status failed;
  auto read = [&](uint64_t offset, char* into, size_t size) {
    // Direct I/O wants aligned memory, and headers are read at whatever offset the parser asks for.
    const uint64_t begin = offset / kDirectAlignment * kDirectAlignment;
    const uint64_t end = std::min(RoundUp(offset + size, kDirectAlignment), source.bytes);
    auto memory = Allocate(end - begin);
    failed = memory.ok() ? source.read(begin, {memory->get(), end - begin}) : memory.status();
    if (!failed.ok()) return EIO;
    std::memcpy(into, memory->get() + (offset - begin), size);
    return 0;
  };
  auto headers = ReadSlotHeaders(source.bytes, read, source.where);
  return failed.ok() ? std::move(headers) : failed;
}

}  // namespace ckptd
