// Names on storage. This is the only place that makes them and the only place that understands them: whatever does not
// parse here is not ours, and is never read, counted or deleted.
//
//   <job>/attempts/a0003.json  a0003.decided.json
//   <job>/step-0000001000.a0003/rank-00000-of-00008.safetensors           first image of the rank
//                              rank-00000-of-00008.part-01.safetensors    further images
//                              rank-00000-of-00008.json                   sidecar
//                              manifest.json   deleting   pinned
//
// Numbers are padded so that listings sort; a number with more digits simply has more. A name with fewer digits, or
// with padding beyond need, is not ours, so that every thing has one name.
#ifndef CKPTD_DAEMON_FORMAT_PATHS_H_
#define CKPTD_DAEMON_FORMAT_PATHS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "daemon/base/ids.h"

namespace ckptd {

inline constexpr char kManifestName[] = "manifest.json";
inline constexpr char kDeletingName[] = "deleting";
inline constexpr char kPinnedName[] = "pinned";
inline constexpr char kAttemptsName[] = "attempts";

// Single names.
[[nodiscard]] std::string AttemptFileName(AttemptId attempt);
[[nodiscard]] std::string DecisionFileName(AttemptId attempt);
[[nodiscard]] std::string StepDirectoryName(const SnapshotId& id);
[[nodiscard]] std::string ImageFileName(Rank rank, uint32_t world, uint32_t image);
[[nodiscard]] std::string SidecarFileName(Rank rank, uint32_t world);

// Relative to the storage root.
[[nodiscard]] std::string AttemptsPath(absl::string_view job);
[[nodiscard]] std::string AttemptPath(absl::string_view job, AttemptId attempt);
[[nodiscard]] std::string DecisionPath(absl::string_view job, AttemptId attempt);
[[nodiscard]] std::string StepPath(absl::string_view job, const SnapshotId& id);
[[nodiscard]] std::string InStep(absl::string_view job, const SnapshotId& id, absl::string_view name);

struct RankFile {
  Rank rank = 0;
  uint32_t world = 0;
  uint32_t image = 0;    // of an image file
  bool sidecar = false;  // else an image
  bool operator==(const RankFile&) const = default;
};

[[nodiscard]] std::optional<AttemptId> ParseAttemptFileName(absl::string_view name);
[[nodiscard]] std::optional<AttemptId> ParseDecisionFileName(absl::string_view name);
[[nodiscard]] std::optional<SnapshotId> ParseStepDirectoryName(absl::string_view name);
[[nodiscard]] std::optional<RankFile> ParseRankFileName(absl::string_view name);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_FORMAT_PATHS_H_
