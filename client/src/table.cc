#include "client/src/table.h"

#include <cinttypes>

#include "client/core/image/dtype.h"
#include "client/src/failure.h"

namespace ckptd {
namespace {

constexpr uint64_t kMaxTextBytes = uint64_t{1} << 30;
constexpr uint32_t kMaxDims = 16;

// `ends` must not decrease; the last one is the length of the text.
int32_t CopyTexts(const char* what, const char* text, const uint64_t* ends, uint64_t count, std::string* out,
                  std::vector<uint64_t>* out_ends) {
  if (count == 0) return 0;
  if (ends == nullptr) return Fail(code::INVALID_ARGUMENT, "table: %s_ends is null", what);
  uint64_t before = 0;
  for (uint64_t i = 0; i < count; ++i) {
    if (ends[i] < before || ends[i] > kMaxTextBytes) {
      return Fail(code::INVALID_ARGUMENT, "table: %s_ends[%" PRIu64 "] is out of order or too large", what, i);
    }
    before = ends[i];
  }
  if (text == nullptr && before > 0) return Fail(code::INVALID_ARGUMENT, "table: %ss is null", what);
  out->assign(before > 0 ? text : "", before);
  out_ends->assign(ends, ends + count);
  return 0;
}

int32_t CopyDtypes(const ckpt_table& from, Table* out) {
  out->dtypes.assign(from.dtypes, from.dtypes + from.count);
  for (uint64_t i = 0; i < from.count; ++i) {
    if (out->dtypes[i] < kDtypeCount) continue;
    std::string_view name = out->name(i);
    return Fail(code::UNSUPPORTED_DTYPE, "tensor \"%.*s\": dtype number %u is unknown", static_cast<int>(name.size()),
                name.data(), out->dtypes[i]);
  }
  return 0;
}

int32_t CopyShapes(const ckpt_table& from, Table* out) {
  out->dims.assign(from.dims, from.dims + from.count);
  uint64_t total = 0;
  for (uint32_t dims : out->dims) {
    if (dims > kMaxDims) return Fail(code::INVALID_ARGUMENT, "table: a tensor has more than %u dimensions", kMaxDims);
    total += dims;
  }
  if (total == 0) return 0;
  if (from.shapes == nullptr) return Fail(code::INVALID_ARGUMENT, "table: shapes is null");
  out->shapes.assign(from.shapes, from.shapes + total);
  if (from.shard_offsets == nullptr) return 0;
  out->shard_offsets.assign(from.shard_offsets, from.shard_offsets + total);
  if (from.global_shapes == nullptr) return 0;
  for (uint64_t i = 0; i < total; ++i) {
    uint64_t whole = from.global_shapes[i];
    if (out->shapes[i] > whole || out->shard_offsets[i] > whole - out->shapes[i]) {
      return Fail(code::INVALID_ARGUMENT,
                  "table: a shard reaches beyond its global shape (dimension entry %" PRIu64 ")", i);
    }
  }
  return 0;
}

int32_t CopyAliases(const ckpt_table& from, Table* out) {
  if (from.alias_count > kMaxTensors) return Fail(code::INVALID_ARGUMENT, "table: too many aliases");
  if (int32_t rc = CopyTexts("alias", from.aliases, from.alias_ends, from.alias_count, &out->aliases, &out->alias_ends))
    return rc;
  if (from.alias_count == 0) return 0;
  if (from.alias_of == nullptr) return Fail(code::INVALID_ARGUMENT, "table: alias_of is null");
  out->alias_of.assign(from.alias_of, from.alias_of + from.alias_count);
  for (uint64_t target : out->alias_of) {
    if (target >= from.count) return Fail(code::INVALID_ARGUMENT, "table: an alias names tensor %" PRIu64, target);
  }
  return 0;
}

}  // namespace

int32_t CopyTable(const ckpt_table& from, Table* out) {
  if (from.count > kMaxTensors) {
    return Fail(code::INVALID_ARGUMENT, "table: %" PRIu64 " tensors; a rank has at most %" PRIu64, from.count,
                kMaxTensors);
  }
  if (from.count > 0 && (from.dtypes == nullptr || from.dims == nullptr || from.data == nullptr)) {
    return Fail(code::INVALID_ARGUMENT, "table: dtypes, dims or data is null");
  }
  if (int32_t rc = CopyTexts("name", from.names, from.name_ends, from.count, &out->names, &out->name_ends)) return rc;
  if (int32_t rc = CopyDtypes(from, out)) return rc;
  if (int32_t rc = CopyShapes(from, out)) return rc;
  return CopyAliases(from, out);
}

}  // namespace ckptd
