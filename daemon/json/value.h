// Internal to room json: one JSON value that is no container, and how it becomes a field of a message.
#ifndef CKPTD_DAEMON_JSON_VALUE_H_
#define CKPTD_DAEMON_JSON_VALUE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace google::protobuf {
class FieldDescriptor;
class Message;
}  // namespace google::protobuf

namespace ckptd::json_internal {

inline constexpr size_t kQuotedBytes = 80;  // how much of the input an error repeats

struct Value {
  enum Kind { kNull, kBool, kSigned, kUnsigned, kFloat, kString };
  Kind kind;
  int64_t i = 0;                      // kSigned, and kBool as 0 or 1
  uint64_t u = 0;                     // kUnsigned
  double d = 0;                       // kFloat
  const std::string* text = nullptr;  // kString: decoded; kFloat: as it stands in the input
};

// At most kQuotedBytes of `text`, printable.
[[nodiscard]] std::string Quoted(absl::string_view text);

// For errors: the value as it stood in the input; what one value of the field must be.
[[nodiscard]] std::string Describe(const Value& value);
[[nodiscard]] std::string Expected(const google::protobuf::FieldDescriptor& field);

// Sets a singular field, adds to a repeated one. False when the value does not fit the field.
[[nodiscard]] bool Store(const Value& value, google::protobuf::Message* message,
                         const google::protobuf::FieldDescriptor* field);

// A map's key from the name of a JSON member. Integers only as the printer writes them, so that no key occurs twice.
[[nodiscard]] bool StoreKey(const std::string& name, google::protobuf::Message* entry,
                            const google::protobuf::FieldDescriptor* key);

}  // namespace ckptd::json_internal

#endif  // CKPTD_DAEMON_JSON_VALUE_H_
