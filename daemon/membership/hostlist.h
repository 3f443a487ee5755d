// Slurm's hostlist expressions: many names in few words, as SLURM_JOB_NODELIST has them.
//
//   list   = item *("," item)
//   item   = 1*(text / "[" range *("," range) "]")        brackets do not nest
//   range  = number [ "-" number ]                        the first number's width is kept: 001-003
//
// An item with several brackets stands for every combination, the last bracket turning fastest: rack[1-2]n[01-02] is
// rack1n01, rack1n02, rack2n01, rack2n02. (Slurm's scontrol(1), "show hostnames".)
#ifndef CKPTD_DAEMON_MEMBERSHIP_HOSTLIST_H_
#define CKPTD_DAEMON_MEMBERSHIP_HOSTLIST_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ckptd::membership {

inline constexpr size_t kMaxHostlistBytes = 1 << 20;

// The names in order, duplicates and all; at least one. INVALID_ARGUMENT when the text does not parse, stands for more
// than `max` names or has a name longer than kMaxNameBytes: the names are counted and measured before any is made.
[[nodiscard]] absl::StatusOr<std::vector<std::string>> ExpandHostlist(absl::string_view text, size_t max);

}  // namespace ckptd::membership

#endif  // CKPTD_DAEMON_MEMBERSHIP_HOSTLIST_H_
