// What a receiving agent does with the peer store, in few words. For tests.
#ifndef CKPTD_DAEMON_REGION_PEER_TEST_UTIL_H_
#define CKPTD_DAEMON_REGION_PEER_TEST_UTIL_H_

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "daemon/base/errors.h"
#include "daemon/region/peer_store.h"
#include "daemon/region/region_test_util.h"
#include "daemon/region/verify.h"

namespace ckptd::region {

inline PeerSpec CopySpec(Rank rank = 7, uint64_t bytes = kTestSlotBytes, uint32_t header_crc = 7) {
  PeerSpec spec{.kind = PeerKind::kCopy, .layout = TestSpec(bytes, header_crc)};
  spec.layout.rank = rank;
  spec.layout.world = 8;
  return spec;
}

inline PeerSpec ParitySpec(uint32_t group = 2) {
  PeerSpec spec = CopySpec(group);
  spec.kind = PeerKind::kParity;
  spec.layout.images = {{0, kTestSlotBytes, 8}};
  return spec;
}

inline PeerMarks Marks(AttemptId attempt, StepId captured = 0, StepId kept = 0) {
  PeerMarks marks{.attempt = attempt, .protected_ = {}, .captured = {}, .floor = captured + 1};
  if (captured != 0) marks.captured = {attempt, captured};
  if (kept != 0) marks.protected_ = {attempt, kept};
  return marks;
}

// The content that snapshot `id` of rank `rank` has everywhere.
inline std::vector<std::byte> ContentOf(const SnapshotId& id, uint32_t rank = 7, uint64_t bytes = kTestSlotBytes) {
  return Content(id.attempt * 1000003 + id.step * 31 + rank, bytes);
}

inline PeerSeal SealOf(const SnapshotId& id, const std::vector<std::byte>& content) {
  PeerSeal seal;
  seal.head = HeadOf(id.step, 0);
  seal.head.attempt = id.attempt;
  seal.root_crc = RootCrc(CrcsOf(content));
  return seal;
}

inline std::shared_ptr<const ParityRecord> TestParity(StepId step, uint32_t group = 2) {
  return std::make_shared<const ParityRecord>(
      ParityRecord{.group = group,
                   .data = 2,
                   .parity = 1,
                   .index = 2,
                   .members = {{.rank = 4, .crc = 11, .step = step, .bytes = kTestSlotBytes},
                               {.rank = 5, .crc = 12, .step = step, .bytes = 4096}}});
}

inline absl::Status Prepare(PeerStore& store, const PeerSpec& spec) {
  if (store.Ready(spec)) return absl::OkStatus();
  InlineExecutor executor;
  absl::Status made;
  auto build =
      store.StartLayout(spec, Preparation::kReserved, executor, [&](const absl::Status& status) { made = status; });
  if (!build.ok()) return build.status();
  return made.ok() ? store.FinishLayout(*std::move(build)) : made;
}

inline absl::Status Receive(PeerFill& fill, const std::vector<std::byte>& content) {
  std::memcpy(fill.bytes().data(), content.data(), content.size());
  const std::vector<uint32_t> crcs = CrcsOf(content);
  for (size_t chunk = 0; chunk < crcs.size(); ++chunk) {
    absl::Status checked = fill.CheckChunk(chunk, crcs[chunk]);
    if (!checked.ok()) return checked;
  }
  return absl::OkStatus();
}

// Memory, Begin, all bytes, Complete.
inline absl::Status Store(PeerStore& store, const PeerSpec& spec, const SnapshotId& id, const PeerMarks& marks) {
  if (absl::Status ready = Prepare(store, spec); !ready.ok()) return ready;
  auto fill = store.Begin(spec, id, marks);
  if (!fill.ok()) return fill.status();
  const std::vector<std::byte> content = ContentOf(id, spec.layout.rank, spec.layout.images[0].bytes);
  if (absl::Status received = Receive(**fill, content); !received.ok()) return received;
  PeerSeal seal = SealOf(id, content);
  if (spec.kind == PeerKind::kParity) seal.parity = TestParity(id.step, spec.layout.rank);
  return store.Complete(**fill, seal);
}

// Every byte of it is what its owner had.
inline bool IsWhole(PeerStore& store, const PeerSpec& spec, const SnapshotId& id) {
  auto copy = store.OpenCopy(spec.layout.job, spec.key(), id);
  if (!copy.ok()) return false;
  Progress progress(copy->record->slot_bytes);
  std::vector<std::byte> bytes(copy->record->slot_bytes);
  return VerifySlot(*copy->file, *copy->record, progress).ok() && copy->file->Read(0, bytes).ok() &&
         bytes == ContentOf(id, spec.layout.rank, bytes.size());
}

inline std::vector<SnapshotId> CompleteIn(const PeerStore& store) {
  std::vector<SnapshotId> ids;
  for (const PeerEntry& entry : store.List())
    if (entry.complete) ids.push_back(entry.id);
  std::sort(ids.begin(), ids.end());
  return ids;
}

inline constexpr uint64_t kSlotFile = kSlotAlignment;  // what a slot of a test's layout takes

// A region that can be closed and opened again.
class PeerStoreTest : public ::testing::Test {
 protected:
  PeerStoreTest() { Restart(); }

  void Restart(RegionOptions options = {}) {
    region_.reset();
    options.dir = dir_.region();
    options.uid = geteuid();
    auto opened = Region::Open(PosixFiles(), SystemClock(), options);
    ASSERT_TRUE(opened.ok()) << opened.status();
    region_ = *std::move(opened);
  }
  PeerStore& store() { return region_->peers(); }
  [[nodiscard]] std::string PeerDir() const { return dir_.region() + "/gpt/peer-00007"; }

  TempDir dir_;
  std::unique_ptr<Region> region_;
  const PeerSpec spec_ = CopySpec();
};

}  // namespace ckptd::region

#endif  // CKPTD_DAEMON_REGION_PEER_TEST_UTIL_H_
