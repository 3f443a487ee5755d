#include "daemon/region/parity_record.h"

#include <cstring>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/core/copy/crc32c.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "proto/local/messages.h"

namespace ckptd::region {
namespace {

absl::Status Bad(absl::string_view what, uint64_t value) {
  return Error(ErrorCode::CORRUPT, absl::StrCat("parity record: ", what, " ", value));
}

uint32_t ParityCrc(ParityHead head, std::span<const ParityMember> members) {
  head.crc = 0;
  return Crc32c(Crc32c(0, &head, sizeof(head)), members.data(), members.size_bytes());
}

absl::Status CheckMember(const ParityMember& member, uint64_t step) {
  if (member.rank >= kMaxRanks) return Bad("rank", member.rank);
  if (member.step != step) return Bad("step", member.step);
  if (member.bytes > kMaxChunks * kMaxChunkBytes) return Bad("bytes", member.bytes);
  return absl::OkStatus();
}

absl::Status Check(const ParityRecord& parity, uint64_t step, uint32_t group) {
  if (parity.group != group) return Bad("group", parity.group);
  if (parity.data == 0 || parity.data > kMaxParityMembers) return Bad("k", parity.data);
  if (parity.parity == 0 || parity.parity > kMaxParityMembers - parity.data) return Bad("m", parity.parity);
  if (parity.index >= parity.data + parity.parity) return Bad("index", parity.index);
  if (parity.members.empty() || parity.members.size() > parity.data + parity.parity)
    return Bad("number of members", parity.members.size());
  std::set<uint32_t> ranks;
  for (const ParityMember& member : parity.members) {
    CKPTD_RETURN_IF_ERROR(CheckMember(member, step));
    if (!ranks.insert(member.rank).second) return Bad("comes twice: rank", member.rank);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::byte>> EncodeParity(const ParityRecord& parity, const RecordHead& record,
                                                    uint32_t group) {
  absl::Status checked = Check(parity, record.step, group);
  if (!checked.ok()) return Error(ErrorCode::INVALID_ARGUMENT, checked.message());
  const size_t member_bytes = parity.members.size() * sizeof(ParityMember);
  ParityHead head{.magic = kParityMagic,
                  .bytes = static_cast<uint32_t>(sizeof(ParityHead) + member_bytes),
                  .crc = 0,
                  .record_crc = record.crc,
                  .group = parity.group,
                  .data = parity.data,
                  .parity = parity.parity,
                  .index = parity.index,
                  .member_count = static_cast<uint32_t>(parity.members.size())};
  head.crc = ParityCrc(head, parity.members);
  std::vector<std::byte> bytes(head.bytes);
  std::memcpy(bytes.data(), &head, sizeof(head));
  std::memcpy(bytes.data() + sizeof(head), parity.members.data(), member_bytes);
  return bytes;
}

absl::StatusOr<ParityRecord> ParseParity(std::span<const std::byte> bytes, const RecordHead& record, uint32_t group) {
  ParityHead head;
  if (bytes.size() < sizeof(head)) return Bad("room of", bytes.size());
  std::memcpy(&head, bytes.data(), sizeof(head));
  if (head.magic != kParityMagic) return Bad("magic", head.magic);
  if (head.member_count > kMaxParityMembers) return Bad("number of members", head.member_count);
  const size_t member_bytes = head.member_count * sizeof(ParityMember);
  if (head.bytes != sizeof(head) + member_bytes || head.bytes > bytes.size()) return Bad("length", head.bytes);
  ParityRecord parity{head.group, head.data, head.parity, head.index, std::vector<ParityMember>(head.member_count)};
  if (member_bytes != 0) std::memcpy(parity.members.data(), bytes.data() + sizeof(head), member_bytes);
  if (ParityCrc(head, parity.members) != head.crc) return Bad("crc", head.crc);
  if (head.record_crc != record.crc) return Bad("of another record, crc", head.record_crc);
  CKPTD_RETURN_IF_ERROR(Check(parity, record.step, group));
  return parity;
}

}  // namespace ckptd::region
