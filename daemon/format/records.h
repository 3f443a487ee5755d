// Sidecar and manifest as text: made, and read back checked. proto/ckptd/v1/manifest.proto is the format; this adds the
// checksum that closes it and the rules a reader insists on. No I/O.
#ifndef CKPTD_DAEMON_FORMAT_RECORDS_H_
#define CKPTD_DAEMON_FORMAT_RECORDS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/base/ids.h"
#include "proto/ckptd/v1/job.pb.h"
#include "proto/ckptd/v1/manifest.pb.h"

namespace ckptd {

inline constexpr size_t kMaxManifestBytes = 64u << 20;
inline constexpr size_t kMaxSidecarBytes = 64u << 20;
// A decision names each of up to 65,536 ranks, with an agent of up to 253 characters: what is written can be read.
inline constexpr size_t kMaxRecordBytes = 64u << 20;

// JSON text whose last member is the CRC32C of everything before it. Sets format versions and the checksum.
[[nodiscard]] std::string SidecarText(v1::Sidecar sidecar);
[[nodiscard]] std::string ManifestText(v1::Manifest manifest);

// CORRUPT (checksum, shape, sums), NEWER_VERSION. `name` stands in the message.
[[nodiscard]] absl::StatusOr<v1::Sidecar> ParseSidecar(absl::string_view text, absl::string_view name);
[[nodiscard]] absl::StatusOr<v1::Manifest> ParseManifest(absl::string_view text, absl::string_view name);

// The commit of one step: `texts[r]` is the text of rank r's sidecar. The same texts give the same manifest, whoever
// makes it. CORRUPT when they do not belong together.
[[nodiscard]] absl::StatusOr<v1::Manifest> MakeManifest(const std::vector<std::string>& texts);

// Attempt and decision records: plain JSON.
[[nodiscard]] std::string AttemptText(const v1::AttemptRecord& record);
[[nodiscard]] std::string DecisionText(const v1::DecisionRecord& record);
[[nodiscard]] absl::StatusOr<v1::AttemptRecord> ParseAttemptText(absl::string_view text, absl::string_view name);
[[nodiscard]] absl::StatusOr<v1::DecisionRecord> ParseDecisionText(absl::string_view text, absl::string_view name);

// Content of the deletion marker.
[[nodiscard]] std::string MarkerText(AttemptId attempt);
[[nodiscard]] absl::StatusOr<AttemptId> ParseMarkerText(absl::string_view text, absl::string_view name);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_FORMAT_RECORDS_H_
