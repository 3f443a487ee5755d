// Protobuf messages as JSON, for files on storage and for `-o json`.
//
// Not protobuf's own mapping: that prints 64-bit integers as strings and leaves out zeros, so that `"rank": 0`
// vanishes. Here, by reflection and for any message:
//
//   all fields, in the order of the .proto file, named as there; zeros and empty lists too
//   integers       numbers, all 64 bits
//   float, double  the shortest number that reads back the same; "NaN", "Infinity", "-Infinity" as strings
//   bytes          a string of lower-case hex digits
//   enum           the value's name; its number when this build has no name for it
//   repeated, map  array; object with its keys sorted, so that equal messages give equal bytes
//   not set        null, for what has presence: sub-messages, `optional` fields, members of a oneof
//   string         UTF-8; bytes that are not UTF-8 become U+FFFD
#ifndef CKPTD_DAEMON_JSON_PRINTER_H_
#define CKPTD_DAEMON_JSON_PRINTER_H_

#include <functional>
#include <string>

#include "absl/strings/string_view.h"

namespace google::protobuf {
class Message;
}

namespace ckptd {

enum class JsonStyle {
  kCompact,   // one line, no spaces, no line feed at the end
  kIndented,  // two spaces a level, arrays of plain values on one line, line feed at the end
};

// Takes the text piece by piece; a piece is valid during the call only. Pieces are about 4 KiB, never empty.
using JsonSink = std::function<void(absl::string_view piece)>;

// Memory beside the message: one piece, one string, the sorted keys of the maps that are open. Any thread; the message
// must not change meanwhile.
void PrintJson(const google::protobuf::Message& message, JsonStyle style, const JsonSink& sink);

// The same into a string.
[[nodiscard]] std::string PrintJson(const google::protobuf::Message& message, JsonStyle style);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_JSON_PRINTER_H_
