#include "daemon/json/printer.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace ckptd {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr size_t kPieceBytes = 4096;

// Length of the UTF-8 sequence at the start of `text`, 0 when it is none (overlong forms and surrogates included).
size_t Utf8Length(absl::string_view text) {
  auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  auto follows = [&](size_t i) { return (byte(i) & 0xC0U) == 0x80U; };
  unsigned first = byte(0);
  if (first < 0x80) return 1;
  if (first < 0xC2 || first > 0xF4 || !follows(1)) return 0;
  if (first < 0xE0) return 2;
  if (first < 0xF0) {
    bool in_range = (first != 0xE0 || byte(1) >= 0xA0) && (first != 0xED || byte(1) < 0xA0);
    return in_range && follows(2) ? 3 : 0;
  }
  bool in_range = (first != 0xF0 || byte(1) >= 0x90) && (first != 0xF4 || byte(1) < 0x90);
  return in_range && follows(2) && follows(3) ? 4 : 0;
}

// Shortest text that reads back the same. `value` keeps its type: a float has fewer digits than the same double.
template <typename Float>
std::string FloatText(Float value) {
  if (std::isnan(value)) return "\"NaN\"";
  if (std::isinf(value)) return value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
  char digits[64];
  auto [end, error] = std::to_chars(digits, digits + sizeof(digits), value);
  (void)error;  // 64 characters hold every shortest form
  return std::string(digits, end);
}

class Printer {
 public:
  Printer(JsonStyle style, const JsonSink& sink) : indented_(style == JsonStyle::kIndented), sink_(sink) {
    buffer_.reserve(kPieceBytes);
  }

  void Print(const Message& message) {
    PutMessage(message);
    if (indented_) Put("\n");
    if (!buffer_.empty()) sink_(buffer_);
  }

 private:
  void Put(absl::string_view text) {
    buffer_.append(text.data(), text.size());
    if (buffer_.size() < kPieceBytes) return;
    sink_(buffer_);
    buffer_.clear();
  }

  void NewLine() {
    if (!indented_) return;
    Put("\n");
    for (int i = 0; i < depth_; ++i) Put("  ");
  }

  void Open(absl::string_view bracket) {
    Put(bracket);
    ++depth_;
  }

  void Close(absl::string_view bracket, bool empty) {
    --depth_;
    if (!empty) NewLine();
    Put(bracket);
  }

  void PutName(absl::string_view name) {
    PutString(name);
    Put(indented_ ? ": " : ":");
  }

  void PutString(absl::string_view text) {
    Put("\"");
    while (!text.empty()) {
      size_t length = Utf8Length(text);
      PutCharacter(text.substr(0, length));
      text.remove_prefix(std::max<size_t>(length, 1));
    }
    Put("\"");
  }

  // One UTF-8 sequence; empty = a byte that is none.
  void PutCharacter(absl::string_view character) {
    if (character.empty()) return Put("\\ufffd");
    auto first = static_cast<unsigned char>(character[0]);
    if (first == '"') return Put("\\\"");
    if (first == '\\') return Put("\\\\");
    if (first == '\n') return Put("\\n");
    if (first < 0x20 || first == 0x7F) return Put(absl::StrCat("\\u", absl::Hex(first, absl::kZeroPad4)));
    Put(character);
  }

  void PutMessage(const Message& message) {
    const auto* descriptor = message.GetDescriptor();
    Open("{");
    for (int i = 0; i < descriptor->field_count(); ++i) {
      if (i > 0) Put(",");
      NewLine();
      PutName(descriptor->field(i)->name());
      PutField(message, descriptor->field(i));
    }
    Close("}", descriptor->field_count() == 0);
  }

  void PutField(const Message& message, const FieldDescriptor* field) {
    if (field->is_map()) return PutMap(message, field);
    if (field->is_repeated()) return PutArray(message, field);
    if (field->has_presence() && !message.GetReflection()->HasField(message, field)) return Put("null");
    PutValue(message, field, -1);
  }

  void PutArray(const Message& message, const FieldDescriptor* field) {
    bool plain = field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE;
    int size = message.GetReflection()->FieldSize(message, field);
    Open("[");
    for (int i = 0; i < size; ++i) {
      if (i > 0) Put(plain && indented_ ? ", " : ",");
      if (!plain) NewLine();
      PutValue(message, field, i);
    }
    Close("]", plain || size == 0);
  }

  void PutMap(const Message& message, const FieldDescriptor* field) {
    const Reflection* reflection = message.GetReflection();
    const FieldDescriptor* key = field->message_type()->map_key();
    std::vector<std::pair<std::string, const Message*>> entries;
    for (int i = 0; i < reflection->FieldSize(message, field); ++i) {
      const Message& entry = reflection->GetRepeatedMessage(message, field, i);
      entries.emplace_back(KeyText(entry, key), &entry);
    }
    std::sort(entries.begin(), entries.end());
    Open("{");
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) Put(",");
      NewLine();
      PutName(entries[i].first);
      PutValue(*entries[i].second, field->message_type()->map_value(), -1);
    }
    Close("}", entries.empty());
  }

  static std::string KeyText(const Message& entry, const FieldDescriptor* key) {
    const Reflection* reflection = entry.GetReflection();
    switch (key->cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        return absl::StrCat(reflection->GetInt32(entry, key));
      case FieldDescriptor::CPPTYPE_INT64:
        return absl::StrCat(reflection->GetInt64(entry, key));
      case FieldDescriptor::CPPTYPE_UINT32:
        return absl::StrCat(reflection->GetUInt32(entry, key));
      case FieldDescriptor::CPPTYPE_UINT64:
        return absl::StrCat(reflection->GetUInt64(entry, key));
      case FieldDescriptor::CPPTYPE_BOOL:
        return reflection->GetBool(entry, key) ? "true" : "false";
      default:
        return reflection->GetString(entry, key);
    }
  }

  // `index` -1 = the field is not repeated.
  void PutValue(const Message& message, const FieldDescriptor* field, int index) {
    const Reflection* reflection = message.GetReflection();
    auto get = [&](auto single, auto repeated) {
      return index < 0 ? (reflection->*single)(message, field) : (reflection->*repeated)(message, field, index);
    };
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        return Put(absl::AlphaNum(get(&Reflection::GetInt32, &Reflection::GetRepeatedInt32)).Piece());
      case FieldDescriptor::CPPTYPE_INT64:
        return Put(absl::AlphaNum(get(&Reflection::GetInt64, &Reflection::GetRepeatedInt64)).Piece());
      case FieldDescriptor::CPPTYPE_UINT32:
        return Put(absl::AlphaNum(get(&Reflection::GetUInt32, &Reflection::GetRepeatedUInt32)).Piece());
      case FieldDescriptor::CPPTYPE_UINT64:
        return Put(absl::AlphaNum(get(&Reflection::GetUInt64, &Reflection::GetRepeatedUInt64)).Piece());
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return Put(FloatText(get(&Reflection::GetDouble, &Reflection::GetRepeatedDouble)));
      case FieldDescriptor::CPPTYPE_FLOAT:
        return Put(FloatText(get(&Reflection::GetFloat, &Reflection::GetRepeatedFloat)));
      case FieldDescriptor::CPPTYPE_BOOL:
        return Put(get(&Reflection::GetBool, &Reflection::GetRepeatedBool) ? "true" : "false");
      case FieldDescriptor::CPPTYPE_ENUM:
        return PutEnum(field, get(&Reflection::GetEnumValue, &Reflection::GetRepeatedEnumValue));
      case FieldDescriptor::CPPTYPE_STRING:
        return PutText(message, field, index);
      case FieldDescriptor::CPPTYPE_MESSAGE:
        return PutMessage(index < 0 ? reflection->GetMessage(message, field)
                                    : reflection->GetRepeatedMessage(message, field, index));
    }
  }

  void PutEnum(const FieldDescriptor* field, int number) {
    const auto* value = field->enum_type()->FindValueByNumber(number);
    if (value == nullptr) return Put(absl::StrCat(number));
    PutString(value->name());
  }

  void PutText(const Message& message, const FieldDescriptor* field, int index) {
    const Reflection* reflection = message.GetReflection();
    std::string unused;  // where a string is not stored as one
    const std::string& text = index < 0 ? reflection->GetStringReference(message, field, &unused)
                                        : reflection->GetRepeatedStringReference(message, field, index, &unused);
    if (field->type() != FieldDescriptor::TYPE_BYTES) return PutString(text);
    PutString(absl::BytesToHexString(text));
  }

  const bool indented_;
  const JsonSink& sink_;
  std::string buffer_;
  int depth_ = 0;
};

}  // namespace

void PrintJson(const Message& message, JsonStyle style, const JsonSink& sink) { Printer(style, sink).Print(message); }

std::string PrintJson(const Message& message, JsonStyle style) {
  std::string text;
  PrintJson(message, style, [&text](absl::string_view piece) { text.append(piece.data(), piece.size()); });
  return text;
}

}  // namespace ckptd
