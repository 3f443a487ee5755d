#include "daemon/erasure/rotation.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"

namespace ckptd::erasure {
namespace {

// What of [begin, begin + size) is below `end`.
Extent Below(uint64_t end, uint64_t begin, uint64_t size) {
  const uint64_t from = std::min(begin, end);
  return {from, std::min(size, end - from)};
}

uint64_t DivideUp(uint64_t value, uint64_t by) { return value / by + (value % by != 0 ? 1 : 0); }

}  // namespace

uint32_t ParityHolder(const Shape& shape, uint32_t stripe, uint32_t row) {
  const uint32_t member = stripe + row;
  return member < shape.members() ? member : member - shape.members();
}

bool HoldsParity(const Shape& shape, uint32_t stripe, uint32_t member) {
  const uint32_t row = member >= stripe ? member - stripe : member + shape.members() - stripe;
  return row < shape.parity;
}

uint32_t BlockGiven(const Shape& shape, uint32_t stripe, uint32_t member) {
  uint32_t block = 0;
  for (uint32_t before = 0; before < stripe; ++before) block += HoldsParity(shape, before, member) ? 0 : 1;
  return block;
}

uint32_t StripeOf(const Shape& shape, uint32_t member, uint32_t block) {
  uint32_t stripe = 0;
  while (HoldsParity(shape, stripe, member) || BlockGiven(shape, stripe, member) < block) ++stripe;
  return stripe;
}

std::vector<uint32_t> StripeMembers(const Shape& shape, uint32_t stripe) {
  std::vector<uint32_t> members;
  for (uint32_t member = 0; member < shape.members(); ++member) {
    if (!HoldsParity(shape, stripe, member)) members.push_back(member);
  }
  for (uint32_t row = 0; row < shape.parity; ++row) members.push_back(ParityHolder(shape, stripe, row));
  return members;
}

Extent BlockOf(const Shape& shape, uint64_t image_bytes, uint64_t unit, uint32_t block) {
  const uint64_t units = DivideUp(DivideUp(image_bytes, unit), shape.data);
  const uint64_t first = block * units;
  const uint64_t begin = first < DivideUp(image_bytes, unit) ? first * unit : image_bytes;
  return Below(image_bytes, begin, units * unit);
}

Extent RowShards::Shard(uint32_t member) const { return Below(rows, member * shard_rows, shard_rows); }

Extent RowShards::Block(uint32_t member, uint32_t block) const {
  return Below(rows, member * shard_rows + block * block_rows, block_rows);
}

absl::StatusOr<RowShards> ShardRows(uint64_t rows, uint32_t members) {
  if (members < 2 || members > kMaxMembers)
    return Error(ErrorCode::INVALID_ARGUMENT,
                 absl::StrCat("rotated parity among ", members, " members: give 2 to ", kMaxMembers));
  const uint64_t unit = uint64_t{members} * (members - 1);
  if (rows > UINT64_MAX - unit)
    return Error(ErrorCode::INVALID_ARGUMENT,
                 absl::StrCat("a tensor of ", rows, " rows cannot be padded to whole blocks"));
  const uint64_t blocks_rows = DivideUp(rows, unit);
  return RowShards{rows, blocks_rows * unit, blocks_rows * (members - 1), blocks_rows};
}

}  // namespace ckptd::erasure
