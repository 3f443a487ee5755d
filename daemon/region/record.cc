#include "daemon/region/record.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "client/core/copy/crc32c.h"
#include "daemon/base/errors.h"
#include "proto/local/bell.h"

namespace ckptd::region {
namespace {

uint32_t RecordCrc(RecordHead head, const std::vector<uint32_t>& crcs) {
  head.crc = 0;
  return Crc32c(Crc32c(0, &head, sizeof(head)), crcs.data(), crcs.size() * sizeof(uint32_t));
}

uint32_t RecordBytes(const CtlHead& ctl) {
  return static_cast<uint32_t>(sizeof(RecordHead) + ctl.block.chunk_count * sizeof(uint32_t));
}

absl::Status Torn(absl::string_view what) { return Error(ErrorCode::CORRUPT, absl::StrCat("slot record: ", what)); }

absl::Status CheckHead(const CtlHead& ctl, const RecordHead& head, Epoch epoch) {
  if (head.magic != kRecordMagic) return Torn("no record");
  if (head.bytes != RecordBytes(ctl) || head.chunk_count != ctl.block.chunk_count) return Torn("another length");
  if (head.layout != ctl.block.layout) return Torn("of another layout");
  if (head.epoch != epoch) return Torn("of another epoch");
  return absl::OkStatus();
}

}  // namespace

uint64_t SlotRecord::ChunkLength(size_t chunk) const { return std::min(chunk_bytes, slot_bytes - chunk * chunk_bytes); }

absl::StatusOr<SlotRecord> MakeRecord(const CtlHead& ctl, RecordHead head, std::vector<uint32_t> chunk_crcs) {
  if (chunk_crcs.size() != ctl.block.chunk_count)
    return Error(ErrorCode::INVALID_ARGUMENT,
                 absl::StrCat("slot record: ", chunk_crcs.size(), " checksums for ", ctl.block.chunk_count, " chunks"));
  if (head.attempt == 0 || head.epoch == 0 || head.epoch > kMaxEpoch)
    return Error(ErrorCode::INVALID_ARGUMENT, "slot record: attempt or epoch missing");
  head.magic = kRecordMagic;
  head.bytes = RecordBytes(ctl);
  head.layout = ctl.block.layout;
  head.chunk_count = ctl.block.chunk_count;
  head.crc = RecordCrc(head, chunk_crcs);
  return SlotRecord{head, std::move(chunk_crcs), ctl.block.slot_bytes, ctl.block.chunk_bytes};
}

absl::StatusOr<SlotRecord> ParseRecord(const CtlHead& ctl, std::span<const std::byte> bytes, Epoch epoch) {
  SlotRecord record;
  if (bytes.size() < RecordBytes(ctl)) return Torn("cut off");
  std::memcpy(&record.head, bytes.data(), sizeof(RecordHead));
  absl::Status checked = CheckHead(ctl, record.head, epoch);
  if (!checked.ok()) return checked;
  record.chunk_crcs.resize(ctl.block.chunk_count);
  std::memcpy(record.chunk_crcs.data(), bytes.data() + sizeof(RecordHead), record.chunk_crcs.size() * sizeof(uint32_t));
  if (RecordCrc(record.head, record.chunk_crcs) != record.head.crc) return Torn("checksum mismatch");
  if (record.head.attempt == 0) return Torn("no attempt");
  record.slot_bytes = ctl.block.slot_bytes;
  record.chunk_bytes = ctl.block.chunk_bytes;
  return record;
}

}  // namespace ckptd::region
