#include "client/core/image/header.h"

#include <charconv>

#include "client/core/image/parser.h"
#include "client/core/image/text.h"

namespace ckptd {
namespace {

void AppendNumber(uint64_t value, std::string* out) {
  char digits[20];
  char* end = std::to_chars(digits, digits + sizeof digits, value).ptr;
  out->append(digits, end);
}

void AppendList(std::span<const uint64_t> values, std::string* out) {
  out->push_back('[');
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) out->push_back(',');
    AppendNumber(values[i], out);
  }
  out->push_back(']');
}

void AppendZeros(size_t count, std::string* out) {
  out->push_back('[');
  for (size_t i = 0; i < count; ++i) *out += i > 0 ? ",0" : "0";
  out->push_back(']');
}

void AppendString(std::string_view text, std::string* out) {
  out->push_back('"');
  AppendEscaped(text, out);
  out->push_back('"');
}

std::string ShardingInfo(std::span<const HeaderTensor> tensors) {
  std::string json = "{";
  for (const HeaderTensor& tensor : tensors) {
    if (json.size() > 1) json += ',';
    AppendString(tensor.name, &json);
    json += ":{\"saved_offsets\":";
    if (tensor.saved_offsets.empty()) {
      AppendZeros(tensor.shape.size(), &json);
    } else {
      AppendList(tensor.saved_offsets, &json);
    }
    json += '}';
  }
  json += '}';
  return json;
}

std::string AliasInfo(std::span<const HeaderAlias> aliases) {
  std::string json = "{";
  for (const HeaderAlias& alias : aliases) {
    if (json.size() > 1) json += ',';
    AppendString(alias.name, &json);
    json += ':';
    AppendString(alias.target, &json);
  }
  json += '}';
  return json;
}

void AppendMetadata(std::span<const HeaderTensor> tensors, std::span<const HeaderAlias> aliases, std::string* out) {
  *out += R"("__metadata__":{"format":"pt","DCP_VERSION":"1.0","DCP_SHARDING_INFO":)";
  AppendString(ShardingInfo(tensors), out);
  *out += R"(,"ckptd.format":"1")";
  if (!aliases.empty()) {
    *out += R"(,"ckptd.aliases":)";
    AppendString(AliasInfo(aliases), out);
  }
  *out += '}';
}

void AppendTensor(const HeaderTensor& tensor, std::string* out) {
  *out += ',';
  AppendString(tensor.name, out);
  *out += ":{\"dtype\":\"";
  *out += DtypeName(tensor.dtype);
  *out += "\",\"shape\":";
  AppendList(tensor.shape, out);
  *out += ",\"data_offsets\":";
  const uint64_t offsets[] = {tensor.begin, tensor.end};
  AppendList(offsets, out);
  *out += '}';
}

// At most: every control character is taken for the longest escape.
uint64_t EscapedBytes(std::string_view text) {
  uint64_t bytes = text.size();
  for (char c : text) bytes += static_cast<uint8_t>(c) < 0x20 ? 5 : static_cast<uint64_t>(c == '"' || c == '\\');
  return bytes;
}

void PadAndPrefix(std::string* out) {
  out->resize((out->size() + kImageAlignment - 1) / kImageAlignment * kImageAlignment, ' ');
  uint64_t length = out->size() - kLengthFieldBytes;
  for (size_t i = 0; i < kLengthFieldBytes; ++i) (*out)[i] = static_cast<char>(length >> (8 * i));
}

}  // namespace

std::string WriteHeader(std::span<const HeaderTensor> tensors, std::span<const HeaderAlias> aliases) {
  uint64_t bound = kEmptyHeaderBound;
  for (const HeaderTensor& tensor : tensors) bound += TensorTextBound(tensor.name, tensor.shape.size());
  std::string out;
  out.reserve(bound);
  out.assign(kLengthFieldBytes, '\0');
  out += '{';
  AppendMetadata(tensors, aliases, &out);
  for (const HeaderTensor& tensor : tensors) AppendTensor(tensor, &out);
  out += '}';
  PadAndPrefix(&out);
  return out;
}

// A name stands once escaped, and once escaped twice (at most twice as long again). Numbers have at most 15 digits.
uint64_t TensorTextBound(std::string_view name, uint64_t dims) {
  constexpr uint64_t kFixedText = 160;  // punctuation, field names, dtype, two offsets
  return 3 * EscapedBytes(name) + kFixedText + 2 * 16 * dims;
}

uint64_t AliasTextBound(const HeaderAlias& alias) {
  return 2 * (EscapedBytes(alias.name) + EscapedBytes(alias.target)) + 16;
}

}  // namespace ckptd
