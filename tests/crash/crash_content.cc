#include "tests/crash/crash_content.h"

#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "daemon/os/testing/sim_log.h"

namespace ckptd::crash {
namespace {

struct Content {
  Content(const SnapshotId& id, Rank rank, uint32_t world)
      : slot(world == 1 ? std::vector<uint64_t>{kMinChunkBytes + 4096, 8192} : std::vector<uint64_t>{12288},
             kMinChunkBytes, static_cast<uint32_t>(id.attempt * 10007 + id.step * 101 + rank)) {
    for (uint32_t i = 0; i < ImagesPerRank(world); ++i) {
      const std::span<std::byte> bytes = slot.image(i);
      hashes.push_back(sim::HashBytes({reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
    }
  }
  TestSlot slot;
  std::vector<uint64_t> hashes;
};

Content& ContentOf(const SnapshotId& id, Rank rank, uint32_t world) {
  static std::map<std::tuple<SnapshotId, Rank, uint32_t>, std::unique_ptr<Content>> made;
  std::unique_ptr<Content>& content = made[{id, rank, world}];
  if (content == nullptr) content = std::make_unique<Content>(id, rank, world);
  return *content;
}

}  // namespace

TestSlot& SlotOf(const SnapshotId& id, Rank rank, uint32_t world) { return ContentOf(id, rank, world).slot; }

uint64_t HashOfImage(const SnapshotId& id, Rank rank, uint32_t world, uint32_t image) {
  const std::vector<uint64_t>& hashes = ContentOf(id, rank, world).hashes;
  return image < hashes.size() ? hashes[image] : 0;
}

}  // namespace ckptd::crash
