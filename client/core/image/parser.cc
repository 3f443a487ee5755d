#include "client/core/image/parser.h"

#include <algorithm>
#include <numeric>
#include <span>

#include "client/core/image/scanner.h"
#include "client/core/image/text.h"

namespace ckptd {
namespace {

constexpr uint64_t kMaxKeywordBytes = 64;  // field names and dtypes; the longest known is "data_offsets"

class HeaderParser {
 public:
  HeaderParser(std::string_view text, const HeaderLimits& limits, ImageInfo* info)
      : scan_(text, kLengthFieldBytes), limits_(limits), info_(*info) {}

  [[nodiscard]] bool Parse() { return Object() && Padding() && SortByOffset() && SortByName(); }
  [[nodiscard]] ImageError error() const;

 private:
  static constexpr uint32_t kDtypeField = 1, kShapeField = 2, kOffsetsField = 4, kAllFields = 7;  // bits

  [[nodiscard]] bool Object();
  [[nodiscard]] bool Entry();
  [[nodiscard]] bool Metadata();
  [[nodiscard]] bool MetadataEntry();
  [[nodiscard]] bool CheckMetadataKeys(uint64_t offset);
  [[nodiscard]] bool Tensor();
  [[nodiscard]] static uint32_t FieldBit(std::string_view field);
  [[nodiscard]] bool TensorField(uint32_t* seen, TensorEntry* tensor);
  [[nodiscard]] bool DtypeValue(TensorEntry* tensor);
  [[nodiscard]] bool Shape(TensorEntry* tensor);
  [[nodiscard]] bool Offsets(TensorEntry* tensor);
  [[nodiscard]] bool CheckSize(const TensorEntry& tensor);
  [[nodiscard]] bool Padding();
  [[nodiscard]] bool SortByOffset();
  [[nodiscard]] bool SortByName();

  Scanner scan_;
  const HeaderLimits& limits_;
  ImageInfo& info_;
  std::string key_;  // of the entry being read
  uint64_t key_offset_ = 0;
  bool in_tensor_ = false;  // an error is about the tensor `key_`
  bool has_metadata_ = false;
};

// Messages get the tensor's name here, so that nothing is put together for the tensors that are right.
ImageError HeaderParser::error() const {
  ImageError error = scan_.error();
  if (in_tensor_) error.message = "tensor " + Quoted(key_) + ": " + error.message;
  return error;
}

bool HeaderParser::Object() {
  // The caller has checked that the first byte is '{', so no white space is skipped here.
  if (!scan_.Take('{', "at the start")) return false;
  if (scan_.TryTake('}')) return true;
  for (bool more = true; more;) {
    if (!Entry() || !scan_.TakeSeparator('}', "after an entry", &more)) return false;
  }
  return true;
}

bool HeaderParser::Entry() {
  key_offset_ = scan_.offset();
  if (!scan_.String("a tensor name", limits_.max_name_bytes, &key_)) return false;
  if (!scan_.Take(':', "after a name")) return false;
  return key_ == kMetadataKey ? Metadata() : Tensor();
}

bool HeaderParser::Metadata() {
  if (has_metadata_) return scan_.FailAt(key_offset_, ImageErrorKind::kDuplicate, "__metadata__ stands there twice");
  has_metadata_ = true;
  if (!scan_.Take('{', "after __metadata__")) return false;
  if (scan_.TryTake('}')) return true;
  for (bool more = true; more;) {
    if (!MetadataEntry() || !scan_.TakeSeparator('}', "in __metadata__", &more)) return false;
  }
  return CheckMetadataKeys(key_offset_);
}

bool HeaderParser::MetadataEntry() {
  if (info_.metadata.size() == limits_.max_metadata) {
    return scan_.Fail(ImageErrorKind::kLimit,
                      "__metadata__ has more than " + std::to_string(limits_.max_metadata) + " entries");
  }
  auto& [key, value] = info_.metadata.emplace_back();
  if (!scan_.String("a key of __metadata__", limits_.max_name_bytes, &key)) return false;
  return scan_.Take(':', "in __metadata__") &&
         scan_.String("a value of __metadata__", limits_.max_header_bytes, &value);
}

bool HeaderParser::CheckMetadataKeys(uint64_t offset) {
  std::vector<std::string_view> keys;
  for (const auto& entry : info_.metadata) keys.push_back(entry.first);
  std::sort(keys.begin(), keys.end());
  auto twice = std::adjacent_find(keys.begin(), keys.end());
  if (twice == keys.end()) return true;
  return scan_.FailAt(offset, ImageErrorKind::kDuplicate, "__metadata__ holds the key " + Quoted(*twice) + " twice");
}

bool HeaderParser::Tensor() {
  if (info_.tensors.size() == limits_.max_tensors) {
    return scan_.FailAt(key_offset_, ImageErrorKind::kLimit,
                        "more than " + std::to_string(limits_.max_tensors) + " tensors");
  }
  in_tensor_ = true;
  if (!scan_.Take('{', "after the name")) return false;
  TensorEntry tensor;
  uint32_t seen = 0;
  for (bool more = true; more;) {
    if (!TensorField(&seen, &tensor) || !scan_.TakeSeparator('}', "after a field", &more)) return false;
  }
  if (seen != kAllFields) {
    return scan_.FailAt(key_offset_, ImageErrorKind::kField, "dtype, shape or data_offsets is missing");
  }
  if (!CheckSize(tensor)) return false;
  in_tensor_ = false;
  tensor.name = key_;
  tensor.key_offset = key_offset_;
  info_.tensors.push_back(std::move(tensor));
  return true;
}

uint32_t HeaderParser::FieldBit(std::string_view field) {
  if (field == "dtype") return kDtypeField;
  if (field == "shape") return kShapeField;
  return field == "data_offsets" ? kOffsetsField : 0;
}

bool HeaderParser::TensorField(uint32_t* seen, TensorEntry* tensor) {
  uint64_t offset = scan_.offset();
  std::string field;
  if (!scan_.String("a field name", kMaxKeywordBytes, &field)) return false;
  uint32_t bit = FieldBit(field);
  if (bit == 0) return scan_.FailAt(offset, ImageErrorKind::kField, "unknown field " + Quoted(field));
  if ((*seen & bit) != 0)
    return scan_.FailAt(offset, ImageErrorKind::kDuplicate, "field " + field + " stands there twice");
  *seen |= bit;
  if (!scan_.Take(':', "after a field name")) return false;
  if (bit == kDtypeField) return DtypeValue(tensor);
  return bit == kShapeField ? Shape(tensor) : Offsets(tensor);
}

bool HeaderParser::DtypeValue(TensorEntry* tensor) {
  uint64_t offset = scan_.offset();
  std::string name;
  if (!scan_.String("dtype", kMaxKeywordBytes, &name)) return false;
  std::optional<Dtype> dtype = ParseDtype(name);
  if (!dtype) return scan_.FailAt(offset, ImageErrorKind::kDtype, "unknown dtype " + Quoted(name));
  tensor->dtype = *dtype;
  return true;
}

bool HeaderParser::Shape(TensorEntry* tensor) {
  if (!scan_.Take('[', "before the shape")) return false;
  if (scan_.TryTake(']')) return true;
  for (bool more = true; more;) {
    if (tensor->shape.size() == limits_.max_dims) {
      return scan_.Fail(ImageErrorKind::kLimit, "more than " + std::to_string(limits_.max_dims) + " dimensions");
    }
    uint64_t size = 0;
    if (!scan_.Number("a dimension", &size) || !scan_.TakeSeparator(']', "in the shape", &more)) return false;
    tensor->shape.push_back(size);
  }
  return true;
}

bool HeaderParser::Offsets(TensorEntry* tensor) {
  constexpr std::string_view kWhat = "data_offsets";
  return scan_.Take('[', "before data_offsets") && scan_.Number(kWhat, &tensor->begin) &&
         scan_.Take(',', "in data_offsets") && scan_.Number(kWhat, &tensor->end) &&
         scan_.Take(']', "after two data_offsets");
}

bool HeaderParser::CheckSize(const TensorEntry& tensor) {
  std::optional<uint64_t> bytes = TensorBytes(tensor.dtype, tensor.shape);
  if (!bytes) return scan_.FailAt(key_offset_, ImageErrorKind::kSize, "its shape is impossible");
  if (tensor.end >= tensor.begin && tensor.end - tensor.begin == *bytes) return true;
  return scan_.FailAt(key_offset_, ImageErrorKind::kSize,
                      "data_offsets do not hold its " + std::to_string(*bytes) + " bytes");
}

bool HeaderParser::Padding() {
  size_t other = scan_.Rest().find_first_not_of(' ');
  if (other == std::string_view::npos) return true;
  return scan_.FailAt(scan_.offset() + other, ImageErrorKind::kSyntax,
                      "the header ends with something other than spaces");
}

bool HeaderParser::SortByOffset() {
  auto before = [](const TensorEntry& a, const TensorEntry& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end != b.end ? a.end < b.end : a.name < b.name;
  };
  std::vector<TensorEntry>& tensors = info_.tensors;
  if (!std::is_sorted(tensors.begin(), tensors.end(), before)) std::sort(tensors.begin(), tensors.end(), before);
  uint64_t end = 0;
  for (const TensorEntry& tensor : tensors) {
    if (tensor.begin != end) {
      return scan_.FailAt(tensor.key_offset, ImageErrorKind::kOffsets,
                          "tensor " + Quoted(tensor.name) + " begins at " + std::to_string(tensor.begin) +
                              (tensor.begin > end ? ", after a hole from " : ", overlapping what ends at ") +
                              std::to_string(end));
    }
    end = tensor.end;
  }
  return true;
}

// Sorting finds duplicates in n log n steps whatever names a hostile writer picks; a hash table would not.
bool HeaderParser::SortByName() {
  const std::vector<TensorEntry>& tensors = info_.tensors;
  info_.by_name.resize(tensors.size());
  std::iota(info_.by_name.begin(), info_.by_name.end(), 0U);
  std::sort(info_.by_name.begin(), info_.by_name.end(),
            [&](uint32_t a, uint32_t b) { return tensors[a].name < tensors[b].name; });
  auto twice = std::adjacent_find(info_.by_name.begin(), info_.by_name.end(),
                                  [&](uint32_t a, uint32_t b) { return tensors[a].name == tensors[b].name; });
  if (twice == info_.by_name.end()) return true;
  const TensorEntry& later = tensors[std::max(*twice, *(twice + 1))];
  return scan_.FailAt(later.key_offset, ImageErrorKind::kDuplicate,
                      "tensor " + Quoted(later.name) + " stands there twice");
}

uint64_t LoadLittleEndian(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = kLengthFieldBytes; i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return value;
}

ImageError Truncated(uint64_t have, uint64_t want) {
  return {ImageErrorKind::kTruncated, have,
          "the image has " + std::to_string(have) + " bytes where " + std::to_string(want) + " are needed"};
}

}  // namespace

const TensorEntry* ImageInfo::Find(std::string_view name) const {
  auto at = std::lower_bound(by_name.begin(), by_name.end(), name,
                             [this](uint32_t index, std::string_view n) { return tensors[index].name < n; });
  return at != by_name.end() && tensors[*at].name == name ? &tensors[*at] : nullptr;
}

const std::string* ImageInfo::Metadata(std::string_view key) const {
  for (const auto& [name, value] : metadata) {
    if (name == key) return &value;
  }
  return nullptr;
}

ImageError HeaderBytes(std::string_view first_bytes, uint64_t available, const HeaderLimits& limits, uint64_t* bytes) {
  uint64_t have = std::min<uint64_t>(first_bytes.size(), available);
  if (have < kLengthFieldBytes) return Truncated(have, kLengthFieldBytes);
  uint64_t length = LoadLittleEndian(first_bytes);
  if (length > limits.max_header_bytes - std::min(limits.max_header_bytes, kLengthFieldBytes)) {
    return {ImageErrorKind::kLimit, 0,
            "the header claims " + std::to_string(length) + " bytes, more than the limit of " +
                std::to_string(limits.max_header_bytes)};
  }
  *bytes = kLengthFieldBytes + length;
  return *bytes <= available ? ImageError{} : Truncated(available, *bytes);
}

ImageError ParseHeader(std::string_view header, uint64_t available, ImageEnd end, const HeaderLimits& limits,
                       ImageInfo* info) {
  *info = ImageInfo{};
  if (ImageError error = HeaderBytes(header, available, limits, &info->header_bytes); !error.ok()) return error;
  if (header.size() < info->header_bytes) return Truncated(header.size(), info->header_bytes);
  std::string_view text = header.substr(kLengthFieldBytes, info->header_bytes - kLengthFieldBytes);
  if (!text.starts_with('{')) return {ImageErrorKind::kSyntax, kLengthFieldBytes, "the header does not start with '{'"};
  HeaderParser parser(text, limits, info);
  if (!parser.Parse()) return parser.error();
  info->total_bytes = info->header_bytes + (info->tensors.empty() ? 0 : info->tensors.back().end);
  if (info->total_bytes > available) return Truncated(available, info->total_bytes);
  if (end == ImageEnd::kExact && info->total_bytes != available) {
    return {ImageErrorKind::kOffsets, info->total_bytes,
            std::to_string(available - info->total_bytes) + " bytes after the last tensor"};
  }
  return {};
}

}  // namespace ckptd
