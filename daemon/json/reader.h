// JSON text into a protobuf message: the inverse of printer.h, for input that nobody vouches for. One pass, no tree in
// memory; limits are checked before the message grows (one string is read whole first, so `bytes` bounds it too).
//
// Stricter than protobuf's mapping: integers must be JSON numbers without fraction or exponent and within the range of
// their field, a member may occur once, an enum value must be known by name (or be a number). null is accepted only for
// what has presence, and means "not set". A member that is missing leaves its field at the default.
#ifndef CKPTD_DAEMON_JSON_READER_H_
#define CKPTD_DAEMON_JSON_READER_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace google::protobuf {
class Message;
}

namespace ckptd {

enum class UnknownFields {
  kIgnore,  // whatever a newer format_minor added; limits hold inside too
  kRefuse,
};

struct JsonLimits {
  size_t bytes = 64 << 20;        // of the whole text
  size_t depth = 32;              // nested objects and arrays, the outermost is 1
  size_t string_bytes = 1 << 20;  // of one string or member name, decoded
  size_t elements = 4 << 20;      // values, objects and arrays in all
  UnknownFields unknown_fields = UnknownFields::kIgnore;
};

// Replaces the content of `message`; clears it when it fails. Errors are CORRUPT and name place and position:
// "files[3].size: expected an integer from 0 to 4294967295, got a string (near byte 120)". Any thread.
[[nodiscard]] absl::Status ReadJson(absl::string_view text, const JsonLimits& limits,
                                    google::protobuf::Message* message);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_JSON_READER_H_
