#include "daemon/json/reader.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"

namespace ckptd {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr size_t kQuotedBytes = 80;  // how much of the input an error repeats

std::string Quoted(absl::string_view text) {
  std::string quoted = absl::CHexEscape(text.substr(0, kQuotedBytes));
  if (text.size() > kQuotedBytes) quoted += "...";
  return quoted;
}

// The library tells positions of syntax errors only; this iterator leaves its own where the reader can see it.
struct Cursor {
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  const char* at;
  const char** seen;

  reference operator*() const { return *at; }
  Cursor& operator++() {
    *seen = ++at;
    return *this;
  }
  Cursor operator++(int) {
    Cursor before = *this;
    ++*this;
    return before;
  }
  bool operator==(const Cursor& other) const { return at == other.at; }
  bool operator!=(const Cursor& other) const { return at != other.at; }
};

// One JSON value that is no container.
struct Value {
  enum Kind { kNull, kBool, kSigned, kUnsigned, kFloat, kString };
  Kind kind;
  int64_t i = 0;                      // kSigned, and kBool as 0 or 1
  uint64_t u = 0;                     // kUnsigned
  double d = 0;                       // kFloat
  const std::string* text = nullptr;  // kString: decoded; kFloat: as it stands in the input
};

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

template <typename Integer>
bool Convert(const Value& value, Integer* out) {
  bool fits = (value.kind == Value::kSigned && std::in_range<Integer>(value.i)) ||
              (value.kind == Value::kUnsigned && std::in_range<Integer>(value.u));
  if (fits) *out = static_cast<Integer>(value.kind == Value::kSigned ? value.i : static_cast<int64_t>(value.u));
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

// Sets a singular field, adds to a repeated one. False when the value does not fit the field.
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

// A map's key from the name of a JSON member; integers only as the printer writes them, so that no key occurs twice.
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

// The library's events, with their names as it wants them. Each returns false to stop.
class Reader {
 public:
  Reader(absl::string_view text, const JsonLimits& limits, Message* root)
      : begin_(text.data()), position_(text.data()), limits_(limits), root_(root) {}

  absl::Status Run(absl::string_view text) {
    Cursor first{text.data(), &position_};
    Cursor last{text.data() + text.size(), &position_};
    bool read = nlohmann::json::sax_parse(first, last, this);
    if (!read && status_.ok()) (void)Fail("not JSON");
    return status_;
  }

  // NOLINTBEGIN(readability-identifier-naming)
  bool null() { return Scalar({Value::kNull}); }
  bool boolean(bool value) { return Scalar({Value::kBool, value ? 1 : 0}); }
  bool number_integer(int64_t value) { return Scalar({Value::kSigned, value}); }
  bool number_unsigned(uint64_t value) { return Scalar({Value::kUnsigned, 0, value}); }
  bool number_float(double value, const std::string& text) { return Scalar({Value::kFloat, 0, 0, value, &text}); }
  bool string(std::string& value) { return CheckLength(value) && Scalar({Value::kString, 0, 0, 0, &value}); }
  bool binary(nlohmann::json::binary_t& /*value*/) { return Fail("not JSON"); }

  bool key(std::string& name) {
    Frame& top = stack_.back();
    if (top.kind == Frame::kSkipped) return CheckLength(name);
    if (!CheckLength(name)) return false;
    top.name = name;
    if (!top.names.insert(name).second) return Fail("occurs twice");
    if (top.kind == Frame::kMap) return true;
    top.field = top.message->GetDescriptor()->FindFieldByName(name);
    if (top.field == nullptr && limits_.unknown_fields == UnknownFields::kRefuse) return Fail("unknown field");
    return true;
  }

  bool start_object(size_t /*unknown*/) {
    if (!CheckContainer()) return false;
    if (stack_.empty()) return Push(Frame::kObject, root_, nullptr);
    Frame& top = stack_.back();
    if (top.Ignores()) return Push(Frame::kSkipped, nullptr, nullptr);
    if (top.kind == Frame::kObject && top.field->is_map()) return Push(Frame::kMap, top.message, top.field);
    Message* child = nullptr;
    return AddChild(&top, &child) && Push(Frame::kObject, child, nullptr);
  }

  bool start_array(size_t /*unknown*/) {
    if (!CheckContainer()) return false;
    if (stack_.empty()) return Fail("expected an object, got an array");
    Frame& top = stack_.back();
    if (top.Ignores()) return Push(Frame::kSkipped, nullptr, nullptr);
    bool fits = top.kind == Frame::kObject && top.field->is_repeated() && !top.field->is_map();
    if (!fits) return Fail(absl::StrCat("expected ", ExpectedAt(top), ", got an array"));
    return Push(Frame::kArray, top.message, top.field);
  }

  bool end_object() { return Pop(); }
  bool end_array() { return Pop(); }

  bool parse_error(size_t /*position*/, const std::string& /*token*/, const nlohmann::detail::exception& error) {
    absl::string_view what = error.what();  // "[json.exception.parse_error.101] parse error at line 1, ..."
    size_t bracket = what.find("] ");
    if (bracket != absl::string_view::npos) what.remove_prefix(bracket + 2);
    return Fail(absl::StrCat("not JSON: ", absl::CHexEscape(what.substr(0, 4 * kQuotedBytes))));
  }
  // NOLINTEND(readability-identifier-naming)

 private:
  // An object or array that is open.
  struct Frame {
    enum Kind { kObject, kMap, kArray, kSkipped };
    Kind kind;
    Message* message;              // kObject: itself; kMap, kArray: whose field it is
    const FieldDescriptor* field;  // kObject: of the current member, null = unknown; kMap, kArray: the field
    std::string name;              // of the current member
    size_t index = 0;              // kArray: of the current element
    absl::flat_hash_set<std::string> names;

    [[nodiscard]] bool Ignores() const { return kind == kSkipped || field == nullptr; }
  };

  static std::string ExpectedAt(const Frame& frame) {
    if (frame.kind == Frame::kMap) return Expected(*frame.field->message_type()->map_value());
    if (frame.kind == Frame::kArray || !frame.field->is_repeated()) return Expected(*frame.field);
    return frame.field->is_map() ? "an object" : "an array";
  }

  bool Push(Frame::Kind kind, Message* message, const FieldDescriptor* field) {
    stack_.push_back(Frame{kind, message, field, "", 0, {}});
    return true;
  }

  bool Pop() {
    stack_.pop_back();
    return Advance();
  }

  bool Advance() {
    if (!stack_.empty()) ++stack_.back().index;
    return true;
  }

  bool Scalar(const Value& value) {
    if (!CheckElements()) return false;
    if (stack_.empty()) return Fail(absl::StrCat("expected an object, got ", Describe(value)));
    Frame& top = stack_.back();
    if (top.Ignores()) return true;
    bool stored = top.kind == Frame::kMap ? StoreEntry(&top, value) : StoreMember(&top, value);
    if (!stored) return Fail(absl::StrCat("expected ", ExpectedAt(top), ", got ", Describe(value)));
    return status_.ok() && Advance();
  }

  bool StoreMember(Frame* frame, const Value& value) {
    if (frame->kind == Frame::kArray) return Store(value, frame->message, frame->field);
    if (value.kind == Value::kNull) return frame->field->has_presence();
    if (frame->field->is_repeated()) return false;
    (void)CheckOneof(*frame);
    return Store(value, frame->message, frame->field);
  }

  bool StoreEntry(Frame* frame, const Value& value) {
    Message* entry = AddEntry(frame);
    return entry == nullptr || Store(value, entry, frame->field->message_type()->map_value());
  }

  // Null when the member's name is no key of this map; the error is set then.
  Message* AddEntry(Frame* frame) {
    Message* entry = frame->message->GetReflection()->AddMessage(frame->message, frame->field);
    const FieldDescriptor* key = frame->field->message_type()->map_key();
    if (StoreKey(frame->name, entry, key)) return entry;
    (void)Fail(absl::StrCat("the name must be ", Expected(*key)));
    return nullptr;
  }

  // The sub-message that an object at this place goes into.
  bool AddChild(Frame* frame, Message** child) {
    const FieldDescriptor* field = frame->field;
    if (frame->kind == Frame::kMap) field = field->message_type()->map_value();
    bool fits = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE &&
                (frame->kind != Frame::kObject || !field->is_repeated());
    if (!fits) return Fail(absl::StrCat("expected ", ExpectedAt(*frame), ", got an object"));
    if (frame->kind == Frame::kArray) {
      *child = frame->message->GetReflection()->AddMessage(frame->message, field);
      return true;
    }
    Message* owner = frame->kind == Frame::kMap ? AddEntry(frame) : frame->message;
    if (owner == nullptr || (frame->kind == Frame::kObject && !CheckOneof(*frame))) return false;
    *child = owner->GetReflection()->MutableMessage(owner, field);
    return true;
  }

  bool CheckOneof(const Frame& frame) {
    const auto* oneof = frame.field->real_containing_oneof();
    if (oneof == nullptr || !frame.message->GetReflection()->HasOneof(*frame.message, oneof)) return true;
    return Fail(absl::StrCat("a second member of ", oneof->name()));
  }

  bool CheckElements() {
    return ++elements_ <= limits_.elements || Fail(absl::StrCat("more than ", limits_.elements, " values"));
  }

  bool CheckContainer() {
    if (stack_.size() >= limits_.depth) return Fail(absl::StrCat("nested deeper than ", limits_.depth));
    return CheckElements();
  }

  bool CheckLength(const std::string& text) {
    return text.size() <= limits_.string_bytes ||
           Fail(absl::StrCat("a string of ", text.size(), " bytes; at most ", limits_.string_bytes));
  }

  [[nodiscard]] std::string Path() const {
    std::string path;
    for (const Frame& frame : stack_) {
      if (frame.kind == Frame::kArray) absl::StrAppend(&path, "[", frame.index, "]");
      if (frame.kind == Frame::kMap) absl::StrAppend(&path, "[\"", Quoted(frame.name), "\"]");
      if (frame.kind == Frame::kObject) absl::StrAppend(&path, path.empty() ? "" : ".", Quoted(frame.name));
    }
    return path.empty() ? "the top level" : path;
  }

  bool Fail(absl::string_view what) {
    if (status_.ok())
      status_ = Error(ErrorCode::CORRUPT, absl::StrCat(Path(), ": ", what, " (near byte ", position_ - begin_, ")"));
    return false;
  }

  const char* const begin_;
  const char* position_;
  const JsonLimits& limits_;
  Message* const root_;
  std::vector<Frame> stack_;
  size_t elements_ = 0;
  absl::Status status_;
};

}  // namespace

absl::Status ReadJson(absl::string_view text, const JsonLimits& limits, Message* message) {
  message->Clear();
  if (text.size() > limits.bytes)
    return Error(ErrorCode::CORRUPT, absl::StrCat("JSON text of ", text.size(), " bytes; at most ", limits.bytes));
  absl::Status status = Reader(text, limits, message).Run(text);
  if (!status.ok()) message->Clear();
  return status;
}

}  // namespace ckptd
