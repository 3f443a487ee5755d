// A committed step for tests, made by the code that makes real ones.
#ifndef CKPTD_DAEMON_PERSIST_TESTING_SAVED_STEP_H_
#define CKPTD_DAEMON_PERSIST_TESTING_SAVED_STEP_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "daemon/base/clock.h"
#include "daemon/base/status_macros.h"
#include "daemon/persist/rank_flush.h"
#include "daemon/persist/records_io.h"
#include "daemon/storage/testing/test_slot.h"

namespace ckptd {

inline FlushSource SourceOf(const std::string& job, Rank rank, uint32_t world, const SnapshotId& id, TestSlot& slot) {
  FlushSource source;
  source.job = job;
  source.rank = rank;
  source.world = world;
  source.id = id;
  source.images = slot.images();
  source.chunk_bytes = slot.chunk_bytes();
  source.header_crc = slot.header_crc();
  source.slot = slot.bytes();
  return source;
}

inline FlushSeal SealOf(TestSlot& slot) {
  FlushSeal seal;
  seal.parent = {1, 10};
  seal.chunk_crcs = slot.ChunkCrcs();
  seal.trace = 0x1234;
  seal.captured_unix_ns = 5;
  return seal;
}

inline absl::Status SaveRank(Store& store, const Clock& clock, const FlushSource& source, TestSlot& slot) {
  RankFlush flush(store, clock, source);
  for (uint32_t chunk = 0; chunk < slot.ChunkCrcs().size(); ++chunk) {
    CKPTD_RETURN_IF_ERROR(flush.WriteChunk(chunk));
  }
  return flush.Finish(SealOf(slot));
}

// Rank r is slots[r].
inline absl::Status SaveStep(Store& store, const Clock& clock, const std::string& job, const SnapshotId& id,
                             std::vector<TestSlot>& slots) {
  const auto world = static_cast<uint32_t>(slots.size());
  for (Rank rank = 0; rank < world; ++rank) {
    CKPTD_RETURN_IF_ERROR(SaveRank(store, clock, SourceOf(job, rank, world, id, slots[rank]), slots[rank]));
  }
  return CreateManifest(store, job, id, world);
}

}  // namespace ckptd

#endif  // CKPTD_DAEMON_PERSIST_TESTING_SAVED_STEP_H_
