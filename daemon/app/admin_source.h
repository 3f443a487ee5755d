// One rank's images at one step, from wherever they are, as one run of bytes with checksums: what `ckptctl restore`,
// `inspect` and `verify` read.
#ifndef CKPTD_DAEMON_APP_ADMIN_SOURCE_H_
#define CKPTD_DAEMON_APP_ADMIN_SOURCE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/core/image/parser.h"
#include "daemon/app/admin_catalog.h"
#include "proto/ckptd/v1/manifest.pb.h"

namespace ckptd {

inline constexpr char kRegionSource[] = "region";
inline constexpr char kRescuedSource[] = "rescued";  // memory too
inline constexpr char kStorageSource[] = "storage";

struct SourceImage {
  std::string name;     // plain file name
  uint64_t offset = 0;  // in the run
  uint64_t bytes = 0;
};

// Whoever holds it may read; of a region source the slot must be pinned.
struct RankSource {
  Rank rank = 0;
  std::string kind;   // kRegionSource or kStorageSource
  std::string where;  // for messages: file of the slot, or step on storage
  std::vector<SourceImage> images;
  uint64_t bytes = 0;  // of all images
  uint64_t chunk_bytes = 0;
  std::vector<uint32_t> chunk_crcs;
  // Into memory aligned to kDirectAlignment, at offsets that are multiples of it. Blocks.
  std::function<absl::Status(uint64_t offset, std::span<std::byte> into)> read;
};

[[nodiscard]] RankSource FromRegion(const RegionCopy& copy);
[[nodiscard]] absl::StatusOr<RankSource> FromStorage(Store& store, const std::string& job, const v1::Manifest& manifest,
                                                     Rank rank);

// All ranks of the step, or one, from the best place that has them all: memory, else storage.
[[nodiscard]] absl::StatusOr<std::vector<RankSource>> RegionSources(const CatalogStep& step, std::optional<Rank> rank);
[[nodiscard]] absl::StatusOr<std::vector<RankSource>> StorageSources(Store& store, const std::string& job,
                                                                     const CatalogStep& step, std::optional<Rank> rank);

// The same, each opened when it is asked for.
struct StepSources {
  std::string kind;  // of the first rank
  std::vector<Rank> ranks;
  std::function<absl::StatusOr<RankSource>(Rank rank)> open;
};
// `store` and `step` outlive it.
[[nodiscard]] absl::StatusOr<StepSources> BestSources(Store& store, const std::string& job, const CatalogStep& step,
                                                      std::optional<Rank> rank);

struct OrderedRead {
  // The bytes of one chunk, in order, after they were checked; null when only the check is wanted.
  std::function<absl::Status(uint64_t offset, std::span<const std::byte> bytes)> sink;
  // Null: the first bad chunk ends the read with CORRUPT. Else it is told each one, and the read goes on.
  std::function<void(uint64_t offset, uint64_t bytes, const std::string& reason)> on_bad;
  std::function<void(uint64_t done)> progress;
  const std::atomic<bool>* cancel = nullptr;
};

// Chunk after chunk. CORRUPT, CANCELLED, or what the source or the sink says.
[[nodiscard]] absl::Status ReadInOrder(const RankSource& source, const OrderedRead& options);

// The checked headers, one for each image; the bytes behind them are not looked at.
[[nodiscard]] absl::StatusOr<std::vector<ImageInfo>> ReadImageHeaders(const RankSource& source);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_APP_ADMIN_SOURCE_H_
