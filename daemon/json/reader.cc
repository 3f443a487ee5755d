#include "daemon/json/reader.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <cstdint>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/json/value.h"

namespace ckptd {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using json_internal::Describe;
using json_internal::Expected;
using json_internal::kQuotedBytes;
using json_internal::Quoted;
using json_internal::Store;
using json_internal::StoreKey;
using json_internal::Value;

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
    if (kind == Frame::kObject) stack_.back().names.reserve(message->GetDescriptor()->field_count());
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
