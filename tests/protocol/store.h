// The simulated storage: what room app would reach through the interfaces of room storage. One operation is atomic;
// between operations anything may happen.
#ifndef CKPTD_TESTS_PROTOCOL_STORE_H_
#define CKPTD_TESTS_PROTOCOL_STORE_H_

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "daemon/job/events.h"

namespace ckptd::sim {

inline constexpr int kChunks = 2;
using Tag = uint64_t;  // what a chunk of an image says about itself
using Image = std::array<Tag, kChunks>;

[[nodiscard]] constexpr Tag MakeTag(const SnapshotId& id, Rank rank, uint32_t layout) {
  return id.attempt << 40 | id.step << 16 | uint64_t{rank} << 8 | layout;
}
[[nodiscard]] constexpr SnapshotId IdOf(Tag tag) { return {tag >> 40, tag >> 16 & 0xffffff}; }
[[nodiscard]] constexpr Rank RankOf(Tag tag) { return tag >> 8 & 0xff; }
[[nodiscard]] constexpr uint32_t LayoutOf(Tag tag) { return tag & 0xff; }

struct Part {
  Image image;
  bool bad = false;   // the bytes differ from what the sidecar says
  bool read = false;  // somebody has read it back and found it right
};
struct StepDir {
  std::map<Rank, Part> parts;
  bool committed = false;
  AttemptId marker = 0;
};

struct Store {
  uint32_t world_size = 0;
  std::map<AttemptId, v1::AttemptRecord> records;
  std::map<AttemptId, v1::DecisionRecord> decisions;
  std::set<AttemptId> gone_records;    // of `records`: pruned, known to the checks only, and may be created anew
  std::set<AttemptId> gone_decisions;  // the same
  std::map<SnapshotId, StepDir> steps;
  bool hung = false;

  [[nodiscard]] AttemptId Newest() const { return records.empty() ? 0 : records.rbegin()->first; }
  [[nodiscard]] const v1::DecisionRecord* NewestDecision() const {
    return decisions.empty() ? nullptr : &decisions.rbegin()->second;
  }
  // Committed, and every part is whole.
  [[nodiscard]] bool Good(const SnapshotId& id) const;

  [[nodiscard]] job::NewestRead Read(const job::ReadNewest& request) const;
  [[nodiscard]] job::AttemptCreated Create(const job::CreateAttempt& request);
  [[nodiscard]] job::Listed List(const job::List& request) const;
  // True in `created` when the file was made by this call.
  [[nodiscard]] job::DecisionCreated Create(const job::CreateDecision& request, bool* created);
  [[nodiscard]] job::ManifestCreated Create(const job::CreateManifest& request);
  [[nodiscard]] job::StepVerified Verify(const job::VerifyStep& request);
  [[nodiscard]] job::RankVerified Verify(const job::VerifyRank& request);
  [[nodiscard]] job::MarkerPut Put(const job::PutMarker& request);
  [[nodiscard]] job::RecordsPruned Prune(const job::PruneRecords& request);
};

}  // namespace ckptd::sim

#endif  // CKPTD_TESTS_PROTOCOL_STORE_H_
