// The transition table of a slot, as data. The machine moves a slot only through Next(), so the table is what runs;
// TRANSITIONS.md is printed from it.
#ifndef CKPTD_DAEMON_SNAPSHOT_TABLE_H_
#define CKPTD_DAEMON_SNAPSHOT_TABLE_H_

#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "proto/local/region.h"

namespace ckptd::snapshot {

// What happened to one slot, after all conditions were checked.
enum class Trigger : uint8_t {
  kLend,
  kFetch,
  kFetched,
  kFetchFailed,
  kCompleteLive,
  kCompleteStale,
  kGiveUp,
  kWriterGone,
  kWriterUnknown,
  kFreshFile,
  kDead,
  kDamaged,
  kRoomNeeded,
};

struct Row {
  SlotStateCode from;
  Trigger trigger;
  SlotStateCode to;
  const char* when;  // the conditions behind the trigger
  const char* then;  // what the machine does
};

[[nodiscard]] absl::Span<const Row> Table();

// The row of (from, trigger). A pair that is not in the table is a bug in the machine and ends the process.
[[nodiscard]] const Row& Next(SlotStateCode from, Trigger trigger);

[[nodiscard]] const char* Name(SlotStateCode state);
[[nodiscard]] const char* Name(Trigger trigger);
[[nodiscard]] std::string TableMarkdown();

}  // namespace ckptd::snapshot

#endif  // CKPTD_DAEMON_SNAPSHOT_TABLE_H_
