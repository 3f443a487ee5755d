#include "client/core/image/table.h"

#include <numeric>

#include "client/core/image/text.h"

namespace ckptd {

bool TensorTable::CheckTensors() {
  uint64_t names = tensors_.size() + aliases_.size() + 1;  // and the extra tensor
  if (names > limits_.max_tensors) {
    return Fail(
        ImageErrorKind::kLimit, tensors_.size(),
        std::to_string(names) + " tensors and aliases; a rank has at most " + std::to_string(limits_.max_tensors));
  }
  for (uint32_t i = 0; i < tensors_.size(); ++i) {
    if (!CheckTensor(i)) return false;
  }
  return true;
}

bool TensorTable::CheckTensor(uint32_t index) {
  const TensorSpec& tensor = tensors_[index];
  if (!CheckName(index, tensor.name)) return false;
  if (tensor.shape.size() > limits_.max_dims) {
    return FailTensor(ImageErrorKind::kLimit, index,
                      "has more than " + std::to_string(limits_.max_dims) + " dimensions");
  }
  if (!TensorBytes(tensor.dtype, tensor.shape)) {
    return FailTensor(ImageErrorKind::kSize, index, "its size is beyond the format, or not whole bytes");
  }
  return tensor.saved_offsets.empty() || CheckOffsets(index);
}

bool TensorTable::CheckOffsets(uint32_t index) {
  const TensorSpec& tensor = tensors_[index];
  if (tensor.saved_offsets.size() != tensor.shape.size()) {
    return FailTensor(ImageErrorKind::kSize, index, "its shard offset has another number of dimensions than its shape");
  }
  for (size_t d = 0; d < tensor.shape.size(); ++d) {
    if (tensor.saved_offsets[d] > kMaxFormatNumber - tensor.shape[d]) {
      return FailTensor(ImageErrorKind::kSize, index, "its shard offset is beyond the format");
    }
  }
  return true;
}

bool TensorTable::CheckName(uint32_t index, std::string_view name) {
  if (ValidUtf8Prefix(name) != name.size()) {
    return Fail(ImageErrorKind::kText, index, "the name " + Quoted(name) + " is not UTF-8");
  }
  if (name.size() > limits_.max_name_bytes) {
    return Fail(ImageErrorKind::kLimit, index,
                "the name " + Quoted(name) + " is longer than " + std::to_string(limits_.max_name_bytes) + " bytes");
  }
  if (name.empty() || name == kMetadataKey || name.starts_with(kReservedPrefix)) {
    return Fail(ImageErrorKind::kName, index, "the name " + Quoted(name) + " is reserved");
  }
  return true;
}

bool TensorTable::CheckNames() {
  by_name_.resize(tensors_.size());
  chunk_.resize(tensors_.size());
  std::iota(by_name_.begin(), by_name_.end(), 0U);
  first_chunk_ = by_name_;
  position_ = by_name_;
  std::sort(by_name_.begin(), by_name_.end(), [this](uint32_t a, uint32_t b) {
    int order = tensors_[a].name.compare(tensors_[b].name);
    return order != 0 ? order < 0 : tensors_[a].saved_offsets < tensors_[b].saved_offsets;
  });
  for (uint32_t i = 0; i < by_name_.size(); ++i) position_[by_name_[i]] = i;
  for (size_t i = 1; i < by_name_.size(); ++i) {
    if (tensors_[by_name_[i - 1]].name != tensors_[by_name_[i]].name) continue;
    if (!CheckChunks(by_name_[i - 1], by_name_[i])) return false;
    chunk_[by_name_[i]] = chunk_[by_name_[i - 1]] + 1;
    first_chunk_[by_name_[i]] = first_chunk_[by_name_[i - 1]];
  }
  return true;
}

// Empty offsets mean zeros; only the first of several chunks can have them, because they sort first.
bool TensorTable::CheckChunks(uint32_t first, uint32_t second) {
  const TensorSpec& a = tensors_[first];
  const TensorSpec& b = tensors_[second];
  if (a.dtype != b.dtype || a.shape.size() != b.shape.size()) {
    return FailTensor(ImageErrorKind::kDuplicate, second, "stands there twice, with different types");
  }
  bool b_at_zero = std::all_of(b.saved_offsets.begin(), b.saved_offsets.end(), [](uint64_t o) { return o == 0; });
  if (a.saved_offsets != b.saved_offsets && !(a.saved_offsets.empty() && b_at_zero)) return true;
  return FailTensor(ImageErrorKind::kDuplicate, second, "stands there twice, at the same place of the whole tensor");
}

bool TensorTable::CheckAliases() {
  for (uint32_t i = 0; i < aliases_.size(); ++i) {
    if (!CheckAlias(i)) return false;
  }
  std::sort(alias_rows_.begin(), alias_rows_.end(), [this](const AliasRow& a, const AliasRow& b) {
    return a.target != b.target ? a.target < b.target : aliases_[a.alias].name < aliases_[b.alias].name;
  });
  std::vector<std::string_view> names;
  for (const AliasSpec& alias : aliases_) names.push_back(alias.name);
  std::sort(names.begin(), names.end());
  auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice == names.end()) return true;
  return Fail(ImageErrorKind::kDuplicate, 0, "the alias " + Quoted(*twice) + " stands there twice");
}

bool TensorTable::CheckAlias(uint32_t index) {
  const AliasSpec& alias = aliases_[index];
  if (!CheckName(index, alias.name)) return false;
  if (FirstChunk(alias.name)) {
    return Fail(ImageErrorKind::kAlias, index, "the alias " + Quoted(alias.name) + " is also a tensor");
  }
  std::optional<uint32_t> target = FirstChunk(alias.target);
  if (!target) {
    return Fail(ImageErrorKind::kAlias, index,
                "the alias " + Quoted(alias.name) + " names " + Quoted(alias.target) + ", which is not a tensor");
  }
  alias_rows_.push_back({*target, index});
  return true;
}

std::optional<uint32_t> TensorTable::FirstChunk(std::string_view name) const {
  auto at = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                             [this](uint32_t index, std::string_view n) { return tensors_[index].name < n; });
  if (at == by_name_.end() || tensors_[*at].name != name) return std::nullopt;
  return *at;
}

bool TensorTable::Fail(ImageErrorKind kind, uint64_t index, std::string message) {
  error_ = {kind, index, std::move(message)};
  return false;
}

bool TensorTable::FailTensor(ImageErrorKind kind, uint32_t index, const std::string& what) {
  return Fail(kind, index, "tensor " + Quoted(tensors_[index].name) + ": " + what);
}

}  // namespace ckptd
