#include "client/src/snapshot.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "client/core/copy/crc32c.h"
#include "client/src/attachment.h"
#include "client/src/failure.h"

namespace ckptd {
namespace {

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
  chunks_.crcs.resize(head.chunk_count);
  memcpy(chunks_.crcs.data(), bytes.data() + sizeof head, head.chunk_count * sizeof(uint32_t));
  chunks_.slot_bytes = block.slot_bytes;
  chunks_.chunk_bytes = block.chunk_bytes;
  header_crc_ = block.header_crc;
  return 0;
}

int32_t Snapshot::Open(const LoadMessage& load, UniqueFd slot, UniqueFd ctl, std::unique_ptr<Snapshot>* out) {
  auto snapshot = std::make_unique<Snapshot>();
  if (int32_t rc = snapshot->TakeRecord(load, ctl.get())) return rc;
  if (int32_t rc = MapSlot(slot.get(), snapshot->chunks_.slot_bytes, &snapshot->mapping_)) return rc;
  snapshot->chunks_.bytes = snapshot->mapping_.data();
  snapshot->verified_ = load.verified != 0;
  int32_t rc = ReadImageHeaders(slot.get(), snapshot->chunks_.slot_bytes, snapshot->header_crc_, &snapshot->headers_);
  if (rc != 0) return rc;
  *out = std::move(snapshot);
  return 0;
}

int32_t Snapshot::Read(const ckpt_box* boxes, uint64_t count, State& state) {
  return SlotReader(chunks_, state.lanes, [&state] { state.NoteRead(); }).Read(boxes, count);
}

int32_t Snapshot::Map(const void** address, State& state) {
  if (!verified_) {
    if (int32_t rc = SlotReader(chunks_, state.lanes, [&state] { state.NoteRead(); }).Verify()) return rc;
    verified_ = true;
  }
  *address = mapping_.data();
  return 0;
}

}  // namespace ckptd
