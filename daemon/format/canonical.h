// Tensor names as they are stored: without what wrappers put into them, because wrappers change between runs.
#ifndef CKPTD_DAEMON_FORMAT_CANONICAL_H_
#define CKPTD_DAEMON_FORMAT_CANONICAL_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ckptd {

// Removes the components `module`, `_orig_mod` (torch.compile) and `_checkpoint_wrapped_module` (activation
// checkpointing) wherever they stand in the dotted name, except as its last component, which names the tensor itself.
// Canonical names stay as they are.
[[nodiscard]] std::string CanonicalName(absl::string_view name);

// All names of a rank. INVALID_ARGUMENT with both names when two of them become one.
[[nodiscard]] absl::StatusOr<std::vector<std::string>> CanonicalNames(const std::vector<std::string>& names);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_FORMAT_CANONICAL_H_
