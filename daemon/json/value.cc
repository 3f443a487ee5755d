#include "daemon/json/value.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace ckptd::json_internal {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

namespace {

template <typename Integer>
bool Convert(const Value& value, Integer* out) {
  bool fits = (value.kind == Value::kSigned && std::in_range<Integer>(value.i)) ||
              (value.kind == Value::kUnsigned && std::in_range<Integer>(value.u));
  if (fits) *out = value.kind == Value::kSigned ? static_cast<Integer>(value.i) : static_cast<Integer>(value.u);
  return fits;
}

bool Convert(const Value& value, bool* out) {
  *out = value.i != 0;
  return value.kind == Value::kBool;
}

bool Convert(const Value& value, double* out) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (value.kind == Value::kSigned) return *out = static_cast<double>(value.i), true;
  if (value.kind == Value::kUnsigned) return *out = static_cast<double>(value.u), true;
  if (value.kind == Value::kFloat) return *out = value.d, true;
  if (value.kind != Value::kString) return false;
  if (*value.text == "NaN") return *out = std::numeric_limits<double>::quiet_NaN(), true;
  if (*value.text == "Infinity") return *out = kInfinity, true;
  if (*value.text == "-Infinity") return *out = -kInfinity, true;
  return false;
}

bool Convert(const Value& value, float* out) {
  double wide = 0;
  if (!Convert(value, &wide)) return false;
  *out = static_cast<float>(wide);
  return std::isinf(wide) || !std::isinf(*out);
}

bool Convert(const FieldDescriptor& field, const Value& value, std::string* out) {
  if (value.kind != Value::kString) return false;
  if (field.type() != FieldDescriptor::TYPE_BYTES) return *out = *value.text, true;
  if (value.text->size() % 2 != 0) return false;
  for (char digit : *value.text)
    if (!absl::ascii_isxdigit(static_cast<unsigned char>(digit))) return false;
  *out = absl::HexStringToBytes(*value.text);
  return true;
}

bool ConvertEnum(const FieldDescriptor& field, const Value& value, int* out) {
  if (value.kind != Value::kString) return Convert<int>(value, out);
  const auto* known = field.enum_type()->FindValueByName(*value.text);
  if (known != nullptr) *out = known->number();
  return known != nullptr;
}

}  // namespace

std::string Quoted(absl::string_view text) {
  std::string quoted = absl::CHexEscape(text.substr(0, kQuotedBytes));
  if (text.size() > kQuotedBytes) quoted += "...";
  return quoted;
}

std::string Describe(const Value& value) {
  switch (value.kind) {
    case Value::kNull:
      return "null";
    case Value::kBool:
      return value.i != 0 ? "true" : "false";
    case Value::kSigned:
      return absl::StrCat(value.i);
    case Value::kUnsigned:
      return absl::StrCat(value.u);
    case Value::kFloat:
      return Quoted(*value.text);
    case Value::kString:
      return absl::StrCat("\"", Quoted(*value.text), "\"");
  }
  return "";
}

std::string Expected(const FieldDescriptor& field) {
  auto range = [](auto limits) { return absl::StrCat("an integer from ", limits.min(), " to ", limits.max()); };
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return range(std::numeric_limits<int32_t>());
    case FieldDescriptor::CPPTYPE_INT64:
      return range(std::numeric_limits<int64_t>());
    case FieldDescriptor::CPPTYPE_UINT32:
      return range(std::numeric_limits<uint32_t>());
    case FieldDescriptor::CPPTYPE_UINT64:
      return range(std::numeric_limits<uint64_t>());
    case FieldDescriptor::CPPTYPE_DOUBLE:
    case FieldDescriptor::CPPTYPE_FLOAT:
      return "a number in range";
    case FieldDescriptor::CPPTYPE_BOOL:
      return "true or false";
    case FieldDescriptor::CPPTYPE_ENUM:
      return absl::StrCat("a value of ", field.enum_type()->name());
    case FieldDescriptor::CPPTYPE_STRING:
      return field.type() == FieldDescriptor::TYPE_BYTES ? "a string of hex digits" : "a string";
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return "an object";
  }
  return "";
}

bool Store(const Value& value, Message* message, const FieldDescriptor* field) {
  const Reflection* reflection = message->GetReflection();
  auto store = [&]<typename T>(T converted, bool fits, auto set, auto add) {
    if (!fits) return false;
    (reflection->*(field->is_repeated() ? add : set))(message, field, std::move(converted));
    return true;
  };
#define CKPTD_STORE(Type, Name)                                                         \
  {                                                                                     \
    Type out{};                                                                         \
    bool fits = Convert(value, &out);                                                   \
    return store(std::move(out), fits, &Reflection::Set##Name, &Reflection::Add##Name); \
  }
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      CKPTD_STORE(int32_t, Int32)
    case FieldDescriptor::CPPTYPE_INT64:
      CKPTD_STORE(int64_t, Int64)
    case FieldDescriptor::CPPTYPE_UINT32:
      CKPTD_STORE(uint32_t, UInt32)
    case FieldDescriptor::CPPTYPE_UINT64:
      CKPTD_STORE(uint64_t, UInt64)
    case FieldDescriptor::CPPTYPE_DOUBLE:
      CKPTD_STORE(double, Double)
    case FieldDescriptor::CPPTYPE_FLOAT:
      CKPTD_STORE(float, Float)
    case FieldDescriptor::CPPTYPE_BOOL:
      CKPTD_STORE(bool, Bool)
    case FieldDescriptor::CPPTYPE_ENUM: {
      int number = 0;
      bool fits = ConvertEnum(*field, value, &number);
      return store(number, fits, &Reflection::SetEnumValue, &Reflection::AddEnumValue);
    }
    case FieldDescriptor::CPPTYPE_STRING: {
      std::string text;
      bool fits = Convert(*field, value, &text);
      return store(std::move(text), fits, &Reflection::SetString, &Reflection::AddString);
    }
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return false;
  }
#undef CKPTD_STORE
  return false;
}

bool StoreKey(const std::string& name, Message* entry, const FieldDescriptor* key) {
  Value value{Value::kString, 0, 0, 0, &name};
  if (key->cpp_type() == FieldDescriptor::CPPTYPE_STRING) return Store(value, entry, key);
  if (key->cpp_type() == FieldDescriptor::CPPTYPE_BOOL) {
    value = {Value::kBool, name == "true" ? 1 : 0};
    return (name == "true" || name == "false") && Store(value, entry, key);
  }
  value.kind = name[0] == '-' ? Value::kSigned : Value::kUnsigned;
  bool parsed = value.kind == Value::kSigned ? absl::SimpleAtoi(name, &value.i) : absl::SimpleAtoi(name, &value.u);
  return parsed && Describe(value) == name && Store(value, entry, key);
}

}  // namespace ckptd::json_internal
