// The tensors of a step, rank after rank: the headers of one rank are in memory at a time, and what their pieces say of
// the whole tensors. Blocks as long as `read` does; any thread.
#ifndef CKPTD_DAEMON_APP_ADMIN_INSPECT_H_
#define CKPTD_DAEMON_APP_ADMIN_INSPECT_H_

#include <functional>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/ids.h"
#include "daemon/format/tensor_entries.h"
#include "proto/ckptd/v1/admin.pb.h"

namespace ckptd {

struct InspectOrder {
  std::vector<Rank> ranks;     // that can be read
  std::optional<Rank> wanted;  // one of them; none: all
  std::function<absl::StatusOr<std::vector<NamedImage>>(Rank rank)> read;
  std::function<bool()> cancelled;                  // asked between ranks
  std::function<bool(v1::TensorEntry entry)> send;  // false: nobody waits for it
};

// Each rank is read once for the whole shapes, then those that are wanted once more. Where one is wanted, another that
// is damaged or missing tells nothing of them. CANCELLED, or what `read` says.
[[nodiscard]] absl::Status InspectRanks(const InspectOrder& order);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_APP_ADMIN_INSPECT_H_
