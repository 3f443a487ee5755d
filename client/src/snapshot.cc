#include "client/src/snapshot.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "client/core/copy/crc32c.h"
#include "client/src/attachment.h"
#include "client/src/failure.h"

namespace ckptd {
namespace {

constexpr uint64_t kBlockBytes = 256 << 10;  // fits the second-level cache

// The record as one run of bytes: RecordHead, then the CRC list.
int32_t CheckRecord(std::vector<char>& bytes, const LoadMessage& load, RecordHead* head) {
  memcpy(head, bytes.data(), sizeof *head);
  if (head->magic != kRecordMagic || head->bytes != bytes.size()) {
    return Fail(code::CORRUPT, "snapshot: slot %u has no record", load.slot);
  }
  RecordHead clean = *head;
  clean.crc = 0;
  memcpy(bytes.data(), &clean, sizeof clean);
  if (Crc32c(0, bytes.data(), bytes.size()) != head->crc) {
    return Fail(code::CORRUPT, "snapshot: the checksum of its record is wrong");
  }
  if (head->attempt != load.snapshot_attempt || head->step != load.snapshot_step) {
    return Fail(code::CORRUPT,
                "snapshot: the slot holds attempt %" PRIu64 " step %" PRIu64 ", not %" PRIu64 " step %" PRIu64,
                head->attempt, head->step, load.snapshot_attempt, load.snapshot_step);
  }
  return 0;
}

// Sorted by offset, without the empty ones; inside the slot and disjoint.
int32_t SortBoxes(const ckpt_box* boxes, uint64_t count, uint64_t slot_bytes, std::vector<ckpt_box>* out) {
  out->reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    const ckpt_box& box = boxes[i];
    if (box.offset > slot_bytes || box.bytes > slot_bytes - box.offset ||
        (box.bytes > 0 && box.destination == nullptr)) {
      return Fail(code::INVALID_ARGUMENT, "box %" PRIu64 " reaches beyond the slot, or has no destination", i);
    }
    if (box.bytes > 0) out->push_back(box);
  }
  std::sort(out->begin(), out->end(), [](const ckpt_box& a, const ckpt_box& b) { return a.offset < b.offset; });
  for (size_t i = 1; i < out->size(); ++i) {
    if ((*out)[i - 1].offset + (*out)[i - 1].bytes > (*out)[i].offset) {
      return Fail(code::INVALID_ARGUMENT, "boxes overlap at byte %" PRIu64 " of the slot", (*out)[i].offset);
    }
  }
  return 0;
}

}  // namespace

int32_t Snapshot::TakeRecord(const LoadMessage& load, int ctl) {
  Superblock block = {};
  if (int32_t rc = ReadSuperblock(ctl, &block)) return rc;
  if (load.slot >= block.slot_count || load.layout != block.layout || load.slot_bytes != block.slot_bytes) {
    return Fail(code::CORRUPT, "snapshot: LOAD and its control file contradict each other");
  }
  std::vector<char> bytes(sizeof(RecordHead) + uint64_t{block.chunk_count} * sizeof(uint32_t));
  uint64_t offset = block.records_offset + load.slot * block.record_stride;
  if (int error = ReadExactly(ctl, offset, bytes.data(), bytes.size())) {
    return Fail(code::CORRUPT, "snapshot: its record cannot be read: %s", strerror(error));
  }
  RecordHead head = {};
  if (int32_t rc = CheckRecord(bytes, load, &head)) return rc;
  if (head.chunk_count != block.chunk_count) return Fail(code::CORRUPT, "snapshot: %u chunks", head.chunk_count);
  crcs_.resize(head.chunk_count);
  memcpy(crcs_.data(), bytes.data() + sizeof head, crcs_.size() * sizeof(uint32_t));
  slot_bytes_ = block.slot_bytes;
  chunk_bytes_ = block.chunk_bytes;
  header_crc_ = block.header_crc;
  return 0;
}

int32_t Snapshot::Open(const LoadMessage& load, UniqueFd slot, UniqueFd ctl, std::unique_ptr<Snapshot>* out) {
  auto snapshot = std::make_unique<Snapshot>();
  if (int32_t rc = snapshot->TakeRecord(load, ctl.get())) return rc;
  uint64_t size = 0;
  int error = FileBytes(slot.get(), &size);
  if (error != 0 || size < snapshot->slot_bytes_) {
    return Fail(code::CORRUPT, "snapshot: the slot file holds %" PRIu64 " of %" PRIu64 " bytes", size,
                snapshot->slot_bytes_);
  }
  snapshot->slot_ = std::move(slot);
  snapshot->scratch_.resize(kBlockBytes);
  int32_t rc =
      ReadImageHeaders(snapshot->slot_.get(), snapshot->slot_bytes_, snapshot->header_crc_, &snapshot->headers_);
  if (rc != 0) return rc;
  *out = std::move(snapshot);
  return 0;
}

// `into` null: the bytes are only summed.
int32_t Snapshot::ReadRange(uint64_t begin, uint64_t end, char* into, uint32_t* crc) {
  for (uint64_t at = begin; at < end;) {
    uint64_t bytes = std::min(kBlockBytes, end - at);
    char* to = into != nullptr ? into + (at - begin) : scratch_.data();
    if (int error = ReadExactly(slot_.get(), at, to, bytes)) {
      return Fail(code::CORRUPT, "snapshot: byte %" PRIu64 " cannot be read: %s", at, strerror(error));
    }
    *crc = Crc32c(*crc, to, bytes);
    at += bytes;
  }
  return 0;
}

// Boxes from *first on; *first becomes the first box that reaches beyond this chunk.
int32_t Snapshot::ReadChunk(uint64_t chunk, const std::vector<ckpt_box>& boxes, size_t* first) {
  uint64_t at = chunk * chunk_bytes_;
  const uint64_t end = std::min(slot_bytes_, at + chunk_bytes_);
  uint32_t crc = 0;
  while (at < end) {
    while (*first < boxes.size() && boxes[*first].offset + boxes[*first].bytes <= at) ++*first;
    const ckpt_box* box = *first < boxes.size() ? &boxes[*first] : nullptr;
    bool wanted = box != nullptr && box->offset <= at;
    uint64_t until = end;
    if (box != nullptr) until = std::min(end, wanted ? box->offset + box->bytes : box->offset);
    char* into = wanted ? static_cast<char*>(box->destination) + (at - box->offset) : nullptr;
    if (int32_t rc = ReadRange(at, until, into, &crc)) return rc;
    at = until;
  }
  if (crc == crcs_[chunk]) return 0;
  return Fail(code::CORRUPT, "snapshot: chunk %" PRIu64 " (bytes %" PRIu64 " to %" PRIu64 ") is damaged", chunk,
              chunk * chunk_bytes_, end);
}

int32_t Snapshot::Read(const ckpt_box* boxes, uint64_t count) {
  std::vector<ckpt_box> sorted;
  if (int32_t rc = SortBoxes(boxes, count, slot_bytes_, &sorted)) return rc;
  size_t first = 0;
  uint64_t next_chunk = 0;
  for (size_t i = 0; i < sorted.size(); ++i) {
    uint64_t last_chunk = (sorted[i].offset + sorted[i].bytes - 1) / chunk_bytes_;
    next_chunk = std::max(next_chunk, sorted[i].offset / chunk_bytes_);
    for (; next_chunk <= last_chunk; ++next_chunk) {
      if (int32_t rc = ReadChunk(next_chunk, sorted, &first)) return rc;
    }
  }
  return 0;
}

int32_t Snapshot::Map(const void** address) {
  if (mapping_.data() == nullptr) {
    Mapping mapping;
    if (int error = Mapping::Map(slot_.get(), slot_bytes_, Access::kRead, &mapping)) {
      return Fail(code::INTERNAL, "snapshot: cannot be mapped: %s", strerror(error));
    }
    size_t first = 0;
    for (uint64_t chunk = 0; chunk < crcs_.size(); ++chunk) {
      if (int32_t rc = ReadChunk(chunk, {}, &first)) return rc;
    }
    mapping_ = std::move(mapping);
  }
  *address = mapping_.data();
  return 0;
}

}  // namespace ckptd
