// A step's files wherever they lie, without an agent: `ckptctl inspect PATH` and `verify PATH`.
#ifndef CKPTD_TOOLS_CKPTCTL_LOCAL_STEP_H_
#define CKPTD_TOOLS_CKPTCTL_LOCAL_STEP_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/ids.h"
#include "daemon/os/files.h"
#include "proto/ckptd/v1/admin.pb.h"

namespace ckptd {

// Tensors of a safetensors file, or of all of them in a directory. NOT_FOUND, CORRUPT.
[[nodiscard]] absl::StatusOr<v1::InspectResponse> InspectPath(Files& files, const std::string& path,
                                                              std::optional<Rank> rank);

using OnProgress = std::function<void(uint64_t done, uint64_t total)>;

// A directory: the whole step by its manifest, or without one each file by the sidecar of its rank; that files of ranks
// have none is damage then. A file: by the sidecar beside it; without one only the header is checked, which `note`
// says. Damage is a result, not an error.
[[nodiscard]] absl::StatusOr<v1::VerifyProgress> VerifyPath(Files& files, const std::string& path,
                                                            const OnProgress& progress);

}  // namespace ckptd

#endif  // CKPTD_TOOLS_CKPTCTL_LOCAL_STEP_H_
