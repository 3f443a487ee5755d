// The copy of host memory, with the CRC of each block while it is in the cache.
#include <algorithm>

#include "client/core/copy/capture_word.h"
#include "client/core/copy/crc32c.h"
#include "client/core/copy/fill_check.h"
#include "client/src/capture.h"
#include "client/src/piece_copier.h"

namespace ckptd {
namespace {

constexpr uint64_t kBlockBytes = 256 << 10;  // fits the second-level cache

}  // namespace

CopyResult CopyPieces(const Capture& capture) {
  const Attachment& attachment = *capture.attachment;
  const BellSlot& word = capture.bell_slot();
  const uint64_t slot_bytes = attachment.ready().slot_bytes;
  const uint64_t chunk_bytes = attachment.ready().chunk_bytes;
  PieceCopier copier(capture.registration->pieces, capture.file->fd.get(), capture.file->mapping.data());
  CopyResult result;
  FillCheck check(capture.epoch, capture.step, capture.attempt);
  uint32_t crc = 0;
  for (uint64_t at = 0; at < slot_bytes;) {
    if (capture.stop.load(std::memory_order_relaxed) || !IsOpen(word, capture.epoch)) {
      result.kind = CopyResult::Kind::kStopped;
      return result;
    }
    uint64_t chunk = at / chunk_bytes;
    uint64_t chunk_end = std::min(slot_bytes, (chunk + 1) * chunk_bytes);
    uint64_t end = std::min(chunk_end, at + kBlockBytes);
    result.error = copier.CopyAndSum(end, &crc, &result.slot_offset);
    if (result.error != 0) {
      result.kind = CopyResult::Kind::kFault;
      return result;
    }
    at = end;
    if (at < chunk_end) continue;
    attachment.chunk(capture.slot, chunk).store(ChunkEntry(capture.epoch, crc), std::memory_order_release);
    attachment.Hint();
    check.Add(crc);
    crc = 0;
  }
  uint64_t last = attachment.ready().chunk_count;
  attachment.chunk(capture.slot, last).store(ChunkEntry(capture.epoch, check.value()), std::memory_order_release);
  return result;
}

void DigestSources(const Registration& registration, std::vector<uint32_t>* digests) {
  for (size_t i = 0; i < registration.lazy.size(); ++i) {
    uint32_t tensor = registration.lazy[i];
    if (registration.devices.lane(tensor) != DeviceTensors::kHost) continue;
    (*digests)[i] = Crc32c(0, registration.data[tensor], registration.shape->tensors[tensor].bytes);
  }
}

void FindTorn(const Capture& capture, SumTeam& team, std::vector<uint64_t>* torn) {
  const Registration& registration = *capture.registration;
  const char* slot = capture.file->mapping.data();
  for (size_t i = 0; i < registration.lazy.size(); ++i) {
    uint32_t tensor = registration.lazy[i];
    const TensorPlace& place = registration.shape->tensors[tensor];
    if (team.SumOf(slot + place.slot_offset, place.bytes) != capture.digests[i]) torn->push_back(tensor);
  }
}

}  // namespace ckptd
